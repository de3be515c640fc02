"""`GPU_DUMP`: what each unit becomes on its way, as files for people to read. No signature knows of them, and nothing is made of them."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.plan.candidates import short
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.steps import Outcome, Step, answered
from scons_gpu.scons.units import UnitJob
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.process import run

if TYPE_CHECKING:
    from scons_gpu.plan import Part
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.toolchain.tools import Tool

__all__ = ["UnitFilesJob", "file_name", "folder_of", "image_nodes", "write_image"]

SUFFIXES = ("ll", "opt.ll", "ptx", "cubin", "sass")
"""Slice, optimised IR, PTX, machine code, machine code as text."""
_LENGTH = 100
"""Of a kernel's name in a file's: most file systems take 255 bytes in all."""
_STRANGE = re.compile(r"[^A-Za-z0-9_.]+")


def file_name(part: Part) -> str:
    """What a part's files are called: as people call the kernel, without what a file system or a shell could take amiss.

    A name that lost something by that has a hash behind it, so that two parts of a plan never meet. It depends on the part alone.
    """
    name = part.readable
    if part.role == "unit" and len(part.kernels) == 1 and not part.candidate:
        name = short(name)
    whole = repr((part.role, part.readable, part.source, [kernel.symbol for kernel in part.kernels], part.defines))
    plain = _STRANGE.sub("_", name).strip("_.")[:_LENGTH] or part.role
    return plain if plain == part.readable else f"{plain}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def folder_of(dump: Path, folder: Path, *, top: Path) -> Path:
    """Where the files of one module go: below `dump` as its own folder lies below the top."""
    below = Path(os.path.relpath(folder, top))
    if below.parts[0] == os.pardir:
        below = Path(f"{folder.parent.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}", folder.name)
    if dump / below == folder:
        msg = f"GPU_DUMP: in {dump} the files would lie among those that the build makes in {folder}"
        raise UsageError(msg, hint="name another folder, as in GPU_DUMP=dump")
    return dump / below


@dataclass(kw_only=True)
class UnitFilesJob(UnitJob):
    """A part's files. The optimised IR is made for them, where LLVM optimises (libNVVM shows none); all else is there."""

    stage: ClassVar[str] = "dump"

    def command(self) -> list[str]:
        """Only a build knows what its units are called."""
        return ["scons", f"GPU_DUMP={self.recipe.dump}"]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """In a worker; then the store is read. What an earlier dump had besides is of another build, and goes."""
        recipe, part, store = self.recipe, self.part, self.workspace.store
        optimises = part.language == "ir" and recipe.lower_options(part).by == "llvm"
        shown = recipe.lower_part(part, as_ir=True) if optimises else None
        ptx = store.load(recipe.ptx_path(part))
        files: dict[str, bytes] = {
            **({"ll": recipe.slice_text(part).encode()} if part.language == "ir" else {}),
            **({"opt.ll": shown["ptx"].encode()} if shown else {}),
            "ptx": ptx.data if ptx else recipe.lower_part(part)["ptx"].encode(),
        }
        if not recipe.ends_as_ptx(part) and not recipe.deferred:  # deferred PTX is the PTX, and nothing else
            code = store.load(recipe.object_path(part))
            if code is None:
                msg = f"{recipe.object_path(part)} is gone or damaged"
                raise DamagedError(msg, hint="build again: what is damaged in the store is made anew")
            files["cubin"] = code.data
        _write(self.target, files)
        said = _disassemble(self.target, recipe.tools.nvdisasm) if "cubin" in files else ""
        return replace(answered(shown), output=said) if shown else Outcome(output=said)


def _write(stem: Path, files: dict[str, bytes]) -> None:
    for suffix in SUFFIXES:
        path = stem.with_name(f"{stem.name}.{suffix}")
        if suffix in files:
            write_atomic(path, files[suffix], sync=False)
        else:
            path.unlink(missing_ok=True)


def _disassemble(stem: Path, nvdisasm: Tool | None) -> str:
    """Writes a cubin's text beside it, where nvdisasm is there. Gives what it says where it does not read the cubin."""
    if nvdisasm is None:
        return ""
    ended = run([nvdisasm.path, "-c", f"{stem.name}.cubin"], cwd=stem.parent, together=True)
    if ended.status:
        return f"nvdisasm does not read it (exit status {ended.status}): {ended.stdout}"
    write_atomic(stem.with_name(f"{stem.name}.sass"), ended.stdout, sync=False)
    return ""


def write_image(recipe: Recipe, image: Path) -> str:
    """Puts a module's image beside the folder of its units' files; machine code as text too. Gives what nvdisasm said against it."""
    assert recipe.dump is not None  # noqa: S101 - who asks for files knows where
    stem = image_stem(recipe)
    _write(stem, {image.suffix[1:]: image.read_bytes()})
    return _disassemble(stem, recipe.tools.nvdisasm) if image.suffix == ".cubin" else ""


def image_stem(recipe: Recipe) -> Path:
    """What an image's files are called, without the suffix."""
    assert recipe.dump is not None  # noqa: S101 - the same
    return recipe.dump.with_name(f"{recipe.dump.name}.{recipe.target.name}")


def image_nodes(recipe: Recipe, image: Path) -> list[Any]:
    """The node that writes the files of an image which is current; none where there is none, or the run only looks."""
    if asked.looking() or not image.exists():
        return []
    job = ImageFilesJob(
        workspace=recipe.workspace,
        name=recipe.module,
        arch=recipe.target.name,
        owners=[recipe.module],
        place=recipe.place,
        target=image_stem(recipe),
        environment=recipe.environment,
        recipe=recipe,
        image=image,
    )
    return [_internals.unit(recipe.env, job.target, [], job)]


@dataclass(kw_only=True)
class ImageFilesJob(Step):
    """The files of an image that is current."""

    stage: ClassVar[str] = "dump"
    recipe: Recipe
    image: Path
    weight: float = 0.0

    def command(self) -> list[str]:
        """As for units."""
        return ["scons", f"GPU_DUMP={self.recipe.dump}"]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """A copy, and its text."""
        return Outcome(output=write_image(self.recipe, self.image))

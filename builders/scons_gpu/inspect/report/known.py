"""What a report is made from, read from disk: a build of the log, its programs' manifests, its plans, and sizes of files and code."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect import builds
from scons_gpu.inspect.planned import PLAN, Plans
from scons_gpu.link import bundle, elf, manifest
from scons_gpu.plan import model as plans
from scons_gpu.store import log, stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scons_gpu.inspect.builds import Build, History
    from scons_gpu.link.manifest import Manifest
    from scons_gpu.plan.model import Plan

__all__ = ["Known", "Program", "read", "until"]


@dataclass(frozen=True)
class Program:
    """One program, as far as a build came with it."""

    stem: str
    manifest: Manifest | None
    """None where no build has finished it."""
    plans: tuple[Plan, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """File, as the manifest names it → bytes; files that are gone are left out."""
    code: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Module, architecture, kernel's symbol → bytes of machine code."""
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything is: one that was declared and never asked for has left nothing."""
        return self.manifest is not None or bool(self.plans)

    @property
    def name(self) -> str:
        """How people call it."""
        return self.manifest.program if self.manifest else PurePath(self.stem).name


@dataclass(frozen=True)
class Known:
    """All of it."""

    history: History
    counts: stats.Stats
    build: Build | None = None
    """None where there was none."""
    running: bool = False
    """Whether the build is going on, and the report one of its steps."""
    programs: tuple[Program, ...] = ()


def read(store: Path, *, build: str | None = None, manifests: Sequence[Path] = (), running: Mapping[str, Any] | None = None) -> Known:
    """What the store's log knows of a build; of the last that did not only look, where None.

    `manifests`: these programs alone. `running`: what the build's end record would say now, where the report is a step of it.
    Raises UsageError for a build or a manifest that is not there, DamagedError for what does not read.
    """
    records = list(log.read(store / "log.jsonl"))
    if running and records:
        records.append(dict(running))
    history = builds.history(records, place=str(store))
    if build is None and not history.last:
        if manifests:
            raise stats.no_build(str(store), None)
        return Known(history=history, counts=stats.Stats())
    found = history.build(build)
    stems = [_stem(path) for path in manifests] or _stems(history, found)
    return Known(
        history=history,
        counts=stats.stats(records, build=found.id),
        build=found,
        running=running is not None,
        programs=tuple(program for stem in stems if (program := _program(store, history, found, stem)).is_known),
    )


def _stem(path: Path) -> str:
    if not path.is_file():
        msg = f"there is no manifest {path}"
        raise UsageError(msg, hint="give the .json that a program's build writes, or none for all programs of the build")
    return str(path.absolute().with_suffix(""))


def _stems(history: History, build: Build) -> list[str]:
    """The build's programs; of one that was killed, those whose plans it made, else those of the build before."""
    if build.end:
        return list(build.end.programs)
    made = {str(Path(action.target).parents[1]) for action in build.actions if action.target.endswith(PLAN)}
    before = [each.end for each in history.builds if each.end and each.time <= build.time]
    return sorted(made | set(before[-1].programs if before else ()))


def _program(store: Path, history: History, build: Build, stem: str) -> Program:
    path = Path(f"{stem}.json")
    notes = []
    made = [action for action in history.by_target.get(str(path), ()) if action.result == "built"]
    if any(action.time > until(build) for action in made):
        notes.append(f"{path.name} was made by a later build: registers, sizes and tools are that one's")
    elif made and made[-1].build != build.id and build.end and not build.end.ok:
        notes.append(f"{path.name} is the one of build {made[-1].build}: this one did not finish it")
    read = manifest.from_text(path.read_text(encoding="utf-8"), path=str(path)) if path.exists() else None
    if read is None:
        notes.append(f"{path.name} is not there: what the kernels of {path.stem} take of a GPU is not known")
    sizes, code = _measured(read, path.parent) if read else ({}, {})
    return Program(stem=stem, manifest=read, plans=tuple(_plans(store, history, build, stem)), sizes=sizes, code=code, notes=tuple(notes))


def until(build: Build) -> float:
    """When its last step ended: what was made later is another build's."""
    return max([build.time, *(action.time for action in build.actions)])


def _plans(store: Path, history: History, build: Build, stem: str) -> Iterator[Plan]:
    """As they were in that build: the copies that it left, else the files where no later build has written them."""
    copies, ended = Plans(store, history), until(build)
    paths = build.end.plans if build.end else sorted(copies.files)
    for path in (path for path in paths if Path(path).parents[1] == Path(stem)):
        made = [action for action in copies.files.get(path, ()) if action.time <= ended]
        text = copies.text(made[-1]) if made else None
        if text is None and Path(path).exists():
            text = Path(path).read_bytes()
        if text is not None:
            yield plans.from_text(text.decode(), path=path)


def _measured(read: Manifest, folder: Path) -> tuple[dict[str, int], dict[tuple[str, str, str], int]]:
    """Bytes of files, and of each kernel's machine code."""
    sizes: dict[str, int] = {}
    code: dict[tuple[str, str, str], int] = {}
    for name, module in read.modules.items():
        for file in [*(image.file for image in module.images.values()), module.fatbin, module.bundle]:
            if file and (folder / file).exists():
                sizes[file] = (folder / file).stat().st_size
        for arch, data in _images(module, folder):
            code |= {(name, arch, symbol): size for symbol, size in _code(data)}
    return sizes, code


def _images(module: manifest.Module, folder: Path) -> Iterator[tuple[str, bytes]]:
    for arch, image in module.images.items():
        if image.file.endswith(".cubin") and (folder / image.file).exists():
            yield arch, (folder / image.file).read_bytes()
    if module.bundle and (folder / module.bundle).exists():
        held = bundle.read_bundle((folder / module.bundle).read_bytes(), path=module.bundle)
        yield from ((member.partition("/")[0], data) for member, data in held.objects.items() if member.endswith(".cubin"))


def _code(data: bytes) -> Iterable[tuple[str, int]]:
    """What does not read has no sizes: the report is no judge of images."""
    try:
        return [(kernel.symbol, kernel.code_bytes) for kernel in elf.read(data).kernels if kernel.code_bytes is not None]
    except DamagedError:
        return []

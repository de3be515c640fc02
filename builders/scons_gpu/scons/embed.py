"""A program's code for C++: an object that holds it, and a header of typed launches.

The object is compiled by the project's own C++ compiler, as SCons compiles any other, of a source that is written here. It fits into
programs and shared libraries alike, so it is position independent, and has no debug information, which would hold the build's folder, and
no parts that a link could compile again (`-flto`), which would not know what the assembler takes in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu import INCLUDE
from scons_gpu.errors import UsageError
from scons_gpu.scons import _internals
from scons_gpu.scons.later import later
from scons_gpu.scons.packing import ManifestJob
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from scons_gpu.loading import code, embed, header
    from scons_gpu.scons.session import Session
else:
    code, embed = later("scons_gpu.loading.code"), later("scons_gpu.loading.embed")
    header = later("scons_gpu.loading.header")

__all__ = ["declare_embed", "declare_header", "manifests_among", "program_nodes"]

_LAST_FLAGS = ("-g0", "-fno-lto", "-fvisibility=hidden")

_artefact = _internals.builder(_internals.Artefact)


@dataclass(kw_only=True)
class _Written(Step):
    """A text that follows from a program's manifest."""

    stage: ClassVar[str] = "embed"
    manifest: Path

    def command(self) -> list[str]:
        """Only a build knows a program."""
        return ["scons", str(self.target)]


@dataclass(kw_only=True)
class TableJob(_Written):
    """The source of the object."""

    top: Path

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Names the files as the compiler, which runs at the top, finds them: equal in every checkout where they lie below it."""
        text = embed.table(code.read_manifest(self.manifest), folder=self.manifest.parent, spelled=self._spelled)
        write_atomic(self.target, text)
        return Outcome()

    def _spelled(self, path: Path) -> str:
        below = os.path.relpath(path, self.top)
        return str(path) if below.startswith("..") else below


@dataclass(kw_only=True)
class HeaderJob(_Written):
    """The header."""

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Functions follow from names alone, so an edit inside a kernel leaves the header as it is."""
        write_atomic(self.target, header.header(code.read_manifest(self.manifest)))
        return Outcome()


def declare_embed(env: Any, session: Session, target: Any, program: Any) -> list[Any]:
    """The object's node. Raises UsageError for what is no program, and for an environment without a C++ compiler."""
    manifest, made = program_nodes(env, program, asked=f"GpuEmbed({target})")
    if "CXX" not in env or not hasattr(env, "SharedObject"):
        msg = f"GpuEmbed({target}): the environment has no C++ compiler"
        raise UsageError(msg, hint='name SCons\' own tools too: Environment(tools=["default", "gpu"], ...)')
    place = env.File(target)
    path = Path(place.get_abspath())
    common = _common(env, session, path.with_name(f"{path.name}.cpp"), manifest)
    job = TableJob(**common, top=Path(env.fs.Top.get_abspath()))
    source = _artefact(env, job.target, [manifest, *made], job)
    own = {"CPPPATH": [INCLUDE, *env.Flatten([env.get("CPPPATH", [])])], "CPPFLAGS": [*env.Split(env.get("CPPFLAGS", [])), *_LAST_FLAGS]}
    objects = env.SharedObject(place, source, **own)
    env.Depends(objects, made)  # the source names them, the compiler reads them
    return list(objects)


def declare_header(env: Any, session: Session, target: Any, program: Any) -> list[Any]:
    """The header's node. Raises UsageError for what is no program."""
    manifest, _ = program_nodes(env, program, asked=f"GpuHeader({target})")
    job = HeaderJob(**_common(env, session, Path(env.File(target).get_abspath()), manifest))
    return [_artefact(env, job.target, [manifest], job)]


def manifests_among(env: Any, programs: Any) -> tuple[list[Any], list[Any]]:
    """The nodes that a user gave, and those of them that are programs' manifests."""
    nodes = env.arg2nodes(env.Flatten([programs]), env.fs.File)
    return nodes, [node for node in nodes if isinstance(getattr(node.attributes, "gpu", None), ManifestJob)]


def program_nodes(env: Any, program: Any, *, asked: str) -> tuple[Any, list[Any]]:
    """The manifest's node, and those of the fatbins and bundles."""
    nodes, found = manifests_among(env, program)
    if len(found) != 1:
        msg = f"{asked}: {', '.join(map(str, nodes)) or 'nothing'} is {'several programs' if found else 'no program'}"
        raise UsageError(msg, hint="give it what env.GpuProgram gives, or the name of that program's manifest")
    return found[0], [entry.node for entry in found[0].attributes.gpu.modules if entry.node is not None]


def _common(env: Any, session: Session, path: Path, manifest: Any) -> dict[str, Any]:
    job = manifest.attributes.gpu
    return {
        "workspace": job.workspace,
        "name": os.path.relpath(path, env.fs.Top.get_abspath()),
        "target": path,
        "place": session.place(str(path)),
        "signature": options_text(tool=identity()),
        "manifest": job.target,
    }

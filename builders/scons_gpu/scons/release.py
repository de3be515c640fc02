"""`env.GpuRelease`: programs, with all that is to be said of them, become one archive that is the same wherever it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import scons_gpu
from scons_gpu.errors import UsageError
from scons_gpu.scons import _internals, inputs
from scons_gpu.scons.later import later
from scons_gpu.scons.modules import name_below_top
from scons_gpu.scons.packing import ManifestJob
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store import sealed
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.link import manifest, notes, provenance, release, zstd
    from scons_gpu.link.provenance import Input
    from scons_gpu.link.release import Options
    from scons_gpu.scons.session import Session
else:
    manifest, notes, provenance = later("scons_gpu.link.manifest"), later("scons_gpu.link.notes"), later("scons_gpu.link.provenance")
    release, zstd = later("scons_gpu.link.release"), later("scons_gpu.link.zstd")

__all__ = ["declare_release"]

_artefact = _internals.builder(_internals.Artefact)


@dataclass(kw_only=True)
class ReleaseJob(Step):
    """Programs become an archive."""

    stage: ClassVar[str] = "release"
    programs: Sequence[Any]
    """Their manifests' nodes."""
    licences: Mapping[str, Path]
    """Name in the archive → file."""
    licence_names: Mapping[str, str]
    """Name in the archive → path below the top."""
    options: Options
    versions: Mapping[str, str]
    top: Path

    def command(self) -> list[str]:
        """Only a build knows what a program was made from."""
        return ["scons", str(self.target)]

    @property
    def kept(self) -> Path:
        """What the archive was made from; not beside the archive, where people would ship it too."""
        first = self.programs[0].attributes.gpu.target
        apart = release.digest(self.name.encode())[:6]  # two folders may have a release of one name
        return Path(first.with_suffix("") / f"{self.target.name}.{apart}.inputs.json")

    def sidecars(self) -> Sequence[Path]:
        """The list of inputs."""
        return (self.kept,)

    def is_whole(self) -> bool:
        """Whether the inputs are those of which it tells: a comment in a header changes no code, and yet what is said of it."""
        try:
            told = sealed.from_text(self.kept.read_bytes())
        except (OSError, ValueError):
            return False
        return told == _told(self.inputs())

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Reads everything, then writes once."""
        made = [each.attributes.gpu for each in self.programs]
        programs = [release.read_program(job.target) for job in made]
        if not self.options.notes:
            programs = [notes.program_without_notes(job.target.name, files) for job, files in zip(made, programs, strict=True)]
        for job in made:
            release.checked_lines(manifest.from_text(job.target.read_text(encoding="utf-8")), lineinfo=self.options.lineinfo)
        for files in programs:
            release.checked_places(files, self.top)
        found = self.inputs()
        data = release.archive(
            release.name_of(self.target.name),
            release.contents(programs, {name: path.read_bytes() for name, path in self.licences.items()}),
            programs=[job.target.name for job in made],
            inputs=found,
            options=self.options,
            versions=self.versions,
        )
        write_atomic(self.kept, sealed.to_text(_told(found)))
        write_atomic(self.target, data)
        return Outcome()

    def inputs(self) -> list[Input]:
        """Files that were read for it, and tools that took part."""
        tools = {item for each in self.programs for item in each.attributes.gpu.tools_used().items()}
        read = {*inputs.read(self.programs, self.top)}  # of many sources and architectures most headers are the same
        read |= {inputs.Read("licence", self.licence_names[name], path) for name, path in self.licences.items()}
        found = {provenance.Input(each.kind, each.name, release.digest(each.path.read_bytes())) for each in read}
        return sorted(found | {provenance.Input("tool", name, digest, version) for name, (version, digest) in tools})


def _told(found: Sequence[Input]) -> dict[str, Any]:
    return {"inputs": [[each.kind, each.name, each.sha256, each.version] for each in found]}


def declare_release(  # noqa: PLR0913 - what a release is
    env: Any,
    session: Session,
    target: Any,
    programs: Any,
    *,
    licenses: Any = (),
    lineinfo: bool = False,
    notes: bool = True,
    level: int | None = None,
) -> list[Any]:
    """The archive's node. Raises UsageError for what is no program, ToolMissingError without the library that compresses."""
    place = env.File(target)
    path, top = Path(place.get_abspath()), Path(env.fs.Top.get_abspath())
    release.name_of(path.name)
    manifests, needed = _programs(env, programs, asked=f"GpuRelease({target})")
    licences = env.arg2nodes(env.Flatten([licenses]), env.fs.File)
    options = release.Options(level=release.LEVEL if level is None else level, lineinfo=bool(lineinfo), notes=bool(notes))
    if options.level not in zstd.LEVELS:
        msg = f"GpuRelease({target}): level={level}"
        raise UsageError(msg, hint=f"compression has the levels {zstd.LEVELS.start} to {zstd.LEVELS.stop - 1}")
    versions = {"scons-gpu": identity(), "scons": _internals.version()}
    job = ReleaseJob(
        workspace=manifests[0].attributes.gpu.workspace,
        name=os.path.relpath(path, top),
        target=path,
        place=session.place(str(path)),
        signature=options_text(tool=versions, scons_gpu=scons_gpu.__version__, writer=zstd.writer(), **vars(options)),
        programs=manifests,
        licences=_apart(licences, target),
        licence_names={node.name: name_below_top(node, env) for node in licences},
        options=options,
        versions=versions,
        top=top,
    )
    return [_artefact(env, path, [*manifests, *needed, *licences], job)]


def _programs(env: Any, programs: Any, *, asked: str) -> tuple[list[Any], list[Any]]:
    """The manifests' nodes, sorted by name, and those of the fatbins and bundles."""
    nodes = env.arg2nodes(env.Flatten([programs]), env.fs.File)
    found = {node for node in nodes if isinstance(getattr(node.attributes, "gpu", None), ManifestJob)}
    if not found:
        msg = f"{asked}: {', '.join(map(str, nodes)) or 'nothing'} is no program"
        raise UsageError(msg, hint="give it what env.GpuProgram gives, or several of those in a list")
    manifests = sorted(found, key=lambda node: str(node.attributes.gpu.target.name))
    names = [node.attributes.gpu.target.name for node in manifests]
    if len(set(names)) < len(names):
        msg = f"{asked}: two programs are called {next(name for name in names if names.count(name) > 1).removesuffix('.json')}"
        raise UsageError(msg, hint="a release has all manifests in one folder: give each program a name of its own")
    made = [entry.node for node in manifests for entry in node.attributes.gpu.modules if entry.node is not None]
    return manifests, list(dict.fromkeys(made))


def _apart(licences: Sequence[Any], target: Any) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for node in licences:
        if node.name in found:
            msg = f"GpuRelease({target}): two licence files are called {node.name}"
            raise UsageError(msg, hint="a release has all of them in one folder: give each a name of its own")
        found[node.name] = Path(node.rfile().get_abspath())
    return found

"""What a report is made from, read from disk: a build of the log, its programs' plans and manifests, and sizes of files and code."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect import builds, graph_files
from scons_gpu.inspect.graph import Graph, graph
from scons_gpu.link import bundle, elf, manifest
from scons_gpu.plan.model import Plan
from scons_gpu.store import log, stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scons_gpu.inspect.builds import Build, History
    from scons_gpu.link.manifest import Manifest

__all__ = ["Known", "Program", "read", "until"]


@dataclass(frozen=True)
class Program:
    """One program, as far as a build came with it."""

    stem: str
    """Path of its manifest, less `.json`, as the graph has it."""
    manifest: Manifest | None
    """None where no build has finished it."""
    plans: tuple[Plan, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """File, as the manifest names it → bytes; files that are gone are left out."""
    code: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Module, architecture, kernel's symbol → bytes of machine code."""
    notes: tuple[str, ...] = ()

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
    graph: Graph = field(default_factory=Graph)
    """Of all of them."""
    notes: tuple[str, ...] = ()


def read(store: Path, *, build: str | None = None, manifests: Sequence[Path] = (), running: Mapping[str, Any] | None = None) -> Known:
    """What the store's log knows of a build; of the last that did not only look, where None.

    `manifests`: these programs alone. `running`: what the build's end record would say now, where the report is a step of it.
    Raises UsageError for a build or a manifest that is not there, DamagedError for what does not read.
    """
    records = list(log.read(store / "log.jsonl"))
    if running and records:
        records.append(dict(running))
    history = builds.history(records, place=str(store))
    if build is None and not history.last and not manifests:
        return Known(history=history, counts=stats.Stats())
    found = history.build(build)
    if running:
        sources = graph_files.of_manifests(store, manifests)
    elif graph_files.planned(found)[0]:
        sources = _only(graph_files.of_build(store, build=None if found.id == history.last else found.id), manifests, build=found)
    else:
        sources = graph_files.Sources()
    return Known(
        history=history,
        counts=stats.stats(records, build=found.id),
        build=found,
        running=running is not None,
        programs=tuple(_program(program, sources.top, history, found) for program in sources.programs),
        graph=graph(sources.programs),
        notes=sources.notes,
    )


def _only(sources: graph_files.Sources, manifests: Sequence[Path], *, build: Build) -> graph_files.Sources:
    """The programs of these manifests; all where none is named."""
    if not manifests:
        return sources
    stems = {str(path.absolute().with_suffix("")): path for path in manifests}
    programs = {str(Path(sources.top, program.stem)): program for program in sources.programs}
    for stem, path in stems.items():
        if stem not in programs:
            msg = f"build {build.id} made nothing of {path}"
            raise UsageError(msg, hint="give the .json that a program's build writes, or none for all programs of the build")
    return graph_files.Sources(tuple(programs[stem] for stem in stems), sources.notes, sources.top)


def _program(planned: graph_files.Program, top: str, history: History, build: Build) -> Program:
    path = Path(top, f"{planned.stem}.json")
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
    plans = [
        Plan(module=module.name, arch=half.arch, link=module.link, parts=half.parts) for module in planned.modules for half in module.halves
    ]
    return Program(stem=planned.stem, manifest=read, plans=tuple(plans), sizes=sizes, code=code, notes=tuple(notes))


def until(build: Build) -> float:
    """When its last step ended: what was made later is another build's."""
    return max([build.time, *(action.time for action in build.actions)])


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

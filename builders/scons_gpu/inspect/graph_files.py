"""What the graph is made of, read from disk: which programs a build was of, their manifests and plans, objects and headers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect import builds
from scons_gpu.inspect.planned import PLAN, Plans
from scons_gpu.link import manifest as manifests
from scons_gpu.plan import model as plans
from scons_gpu.store import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scons_gpu.inspect.builds import Build
    from scons_gpu.link.manifest import Manifest
    from scons_gpu.plan.model import Part, Plan

__all__ = ["Half", "Header", "Module", "Program", "Sources", "digests", "of_build", "of_manifests", "planned"]

_BROUGHT = ".gpu-store"
"""Headers in a store were put there from a toolkit."""


@dataclass(frozen=True)
class Header:
    """A file that a compiler read for a source."""

    path: str
    ours: bool
    """Whether it lies in the user's tree."""


@dataclass(frozen=True)
class Half:
    """One module for one architecture."""

    arch: str
    parts: tuple[Part, ...] = ()
    image: str = ""
    """Path; empty in a bundle, and where there is none yet."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Part's digest → key of the object that the link takes, `.dptx` behind it where it is deferred PTX. Others go to the image as PTX."""
    headers: Mapping[str, tuple[Header, ...]] = field(default_factory=dict)
    """Source → what was read for it."""
    assembler: str = ""
    linker: str = ""


@dataclass(frozen=True)
class Module:
    """One module of a program."""

    name: str
    bypass: bool = False
    submodules: tuple[str, ...] = ()
    link: str = ""
    """`image`, `bundle` or `whole`; empty where nothing of it was planned."""
    fatbin: str = ""
    bundle: str = ""
    halves: tuple[Half, ...] = ()


@dataclass(frozen=True)
class Program:
    """One program, as far as it was built."""

    stem: str
    """Path of its manifest, less `.json`."""
    name: str
    modules: tuple[Module, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    """Tool → version; empty where there is no manifest."""


@dataclass(frozen=True)
class Sources:
    """Programs, and what their reader has to know."""

    programs: tuple[Program, ...] = ()
    notes: tuple[str, ...] = ()
    top: str = ""


def of_manifests(store: Path, paths: Sequence[Path]) -> Sources:
    """The programs of these manifests, as their files are now.

    Raises UsageError for one that is not there, DamagedError for what does not read.
    """
    top = _top(store)
    for path in paths:
        if not path.is_file():
            msg = f"there is no manifest {path}"
            raise UsageError(msg, hint="give the .json that a program's build writes, or none for all programs of the last build")
    stems = [str(path.absolute().with_suffix("")) for path in paths]
    read = [_Reading(stem, top=top, text=_now).program(None) for stem in stems]
    return Sources(tuple(program for program, _ in read), tuple(note for _, notes in read for note in notes), top)


def of_build(store: Path, *, build: str | None = None) -> Sources:
    """The programs of a build: of the last that did not only look, where None. With `build`, their plans as they were then.

    Raises UsageError where there was none, or none that planned anything.
    """
    found = builds.of(store, build, holding=builds.PLANNED)
    paths, notes = planned(found)
    if not paths:
        msg = f"build {found.id} of {store} planned no kernel"
        raise UsageError(msg, hint="give a program's manifest, or --build with the id of another build")
    text = _then(store, found) if build is not None else _now
    stems = {str(PurePath(path).parents[1]): None for path in paths} if not found.end else dict.fromkeys(found.end.programs)
    read = [_Reading(stem, top=found.top, text=text).program(_below(paths, stem)) for stem in sorted(stems)]
    programs = tuple(program for program, _ in read if program.modules)
    return Sources(programs, (*notes, *(note for _, more in read for note in more)), found.top)


def digests(store: Path, build: Build, *, then: bool) -> dict[str, tuple[str, ...]]:
    """Plan → digests of its parts; with `then`, as they were when the build had ended. Plans that are gone or do not read are left out."""
    text = _then(store, build) if then else _now
    found: dict[str, tuple[str, ...]] = {}
    for path in planned(build)[0]:
        with contextlib.suppress(DamagedError, ValueError, KeyError, TypeError):
            found[path] = tuple(str(part["digest"]) for part in json.loads(text(path) or "")["parts"])
    return found


def planned(build: Build) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The plans of a build, and what to tell of one that did not come to its end."""
    if build.end is not None:
        return build.end.plans, ()
    made = sorted({action.target for action in build.actions if action.target.endswith(PLAN)})
    stems = sorted({str(PurePath(path).parents[1]) for path in made})
    there = {str(path) for stem in stems for path in Path(stem).glob(f"*/*{PLAN}")}
    note = f"build {build.id} was killed, or still runs: this is what it had planned"
    return tuple(sorted(there | set(made))), (note,)


def _below(paths: Sequence[str], stem: str) -> list[str]:
    return [path for path in paths if str(PurePath(path).parents[1]) == stem]


def _top(store: Path) -> str:
    """The folder of the SConstruct of the last build; where no log tells, where the user is."""
    _, records = log.read_build(store / "log.jsonl", holding=(b'"type":"start"',))
    return next((str(record["top"]) for record in records if record.get("top")), str(Path.cwd()))


def _now(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        msg = f"{path}: not text: {error}"
        raise DamagedError(msg, hint="remove the file; the next build makes it anew") from None


def _then(store: Path, build: Build) -> Callable[[str], str | None]:
    """Plans as they were when the build had ended: from the store's copies, else the files as they are."""
    history = builds.read(store).until(build.id)
    copies = Plans(store, history)

    def text(path: str) -> str | None:
        made = copies.files.get(path, ())
        kept = copies.text(made[-1]) if made else None
        return kept.decode() if kept is not None else _now(path)

    return text


@dataclass(frozen=True)
class _Reading:
    """One program."""

    stem: str
    top: str
    text: Callable[[str], str | None]

    def program(self, paths: Sequence[str] | None) -> tuple[Program, list[str]]:
        """With these plans; where None, those that belong to its manifest."""
        path = Path(f"{self.stem}.json")
        text = _now(str(path))
        manifest = manifests.from_text(text, path=str(path)) if text is not None else None
        notes: list[str] = []
        found = self._plans(manifest, paths, notes)
        names = dict.fromkeys((*(manifest.modules if manifest else ()), *found))
        modules = tuple(self._module(name, manifest, found.get(name, [])) for name in sorted(names))
        tools = {name: tool.version for name, tool in manifest.tools.items()} if manifest else {}
        return Program(self._shown(self.stem), manifest.program if manifest else path.stem, modules, tools), notes

    def _plans(self, manifest: Manifest | None, paths: Sequence[str] | None, notes: list[str]) -> dict[str, list[Plan]]:
        """Module → its plans. One that is not there is told of, and made up for from the manifest."""
        if paths is None:
            paths = sorted(_expected(self.stem, manifest)) if manifest else ()
        found: dict[str, list[Plan]] = {}
        for path in sorted(paths):
            module, arch = PurePath(path).parent.name, PurePath(path).name.removesuffix(PLAN)
            text = self.text(path)
            if text is not None:
                plan = plans.from_text(text, path=path)
                found.setdefault(plan.module, []).append(plan)
            elif manifest is not None and module in manifest.modules:
                notes.append(f"{self._shown(path)} is not there: kernels of {module} for {arch} are those of {self._shown(self.stem)}.json")
                found.setdefault(module, []).append(_from_manifest(manifest.modules[module], module, arch))
            else:
                notes.append(f"{self._shown(path)} is not there, and no manifest tells of {module}")
        return found

    def _module(self, name: str, manifest: Manifest | None, found: Sequence[Plan]) -> Module:
        told = manifest.modules.get(name) if manifest else None
        folder = Path(self.stem).parent
        options = told.options if told else {}
        packed = {kind: value for kind in ("fatbin", "bundle") if (value := getattr(told, kind, None))}
        if told is None:
            suffixes = {"fatbin": ".fatbin", "bundle": ".gpubundle"}
            packed = {
                kind: f"{Path(self.stem).name}/{name}{end}" for kind, end in suffixes.items() if Path(f"{self.stem}/{name}{end}").exists()
            }
        return Module(
            name=name,
            bypass=bool(told and told.bypass),
            submodules=told.submodules if told else (),
            link=str(options.get("link") or (found[0].link if found else "")),
            **{kind: self._shown(str(folder / value)) for kind, value in packed.items()},
            halves=tuple(self._half(plan, told) for plan in found),
        )

    def _half(self, plan: Plan, told: manifests.Module | None) -> Half:
        folder = Path(self.stem) / plan.module
        provider = str(told.options.get("provider") or "") if told else ""
        assembler, _, linker = provider.partition("+")
        return Half(
            arch=plan.arch,
            parts=plan.parts,
            image=self._image(plan, told, folder),
            objects=_objects(folder / f"{plan.arch}.link.json", told, plan.arch),
            headers=self._headers(plan, folder),
            assembler=assembler,
            linker=linker or {"ptxas": "nvlink", "nvptxcompiler": "nvlink"}.get(assembler, assembler),
        )

    def _image(self, plan: Plan, told: manifests.Module | None, folder: Path) -> str:
        """The newest that is there: a build of one module writes no manifest, and another provider another file."""
        known = told.images.get(plan.arch) if told else None
        if told is not None and known is None:
            return ""
        there = [path for end in (".cubin", ".ptx") if (path := folder / f"{plan.arch}{end}").exists()]
        named = Path(self.stem).parent / known.file if known else ""
        return self._shown(str(max(there, key=lambda path: path.stat().st_mtime_ns, default=named)))

    def _headers(self, plan: Plan, folder: Path) -> dict[str, tuple[Header, ...]]:
        sources = dict.fromkeys(source for part in plan.parts for source in (part.source, *(joined.source for joined in part.joins)))
        files = _depfiles(folder)
        return {source: self._read(source, plan.arch, files) for source in sources if source}

    def _read(self, source: str, arch: str, files: Sequence[Path]) -> tuple[Header, ...]:
        """What any of the source's compilations for the architecture read, candidates' included."""
        base = PurePath(source).name
        own = f"{base}.{hashlib.sha256(source.encode()).hexdigest()[:6]}.{arch}."
        named = [file for file in files if file.name.startswith(own)] or [file for file in files if file.name.startswith(f"{base}.{arch}.")]
        lists = dict.fromkeys(_text(file) for file in named)
        return _headers("\n".join(lists), self.top)

    def _shown(self, path: str) -> str:
        """Below the top, where it lies there."""
        return _below_top(path, self.top)


@functools.lru_cache(maxsize=1 << 12)
def _headers(text: str, top: str) -> tuple[Header, ...]:
    """What is listed, each once; one object for equal lists. What is behind a question mark was looked for and not found."""
    lines = dict.fromkeys(line for line in text.splitlines() if line and line[0] != "?")
    return tuple(_header(line, top) for line in lines)


@functools.lru_cache(maxsize=1 << 16)
def _header(line: str, top: str) -> Header:
    path = _below_top(line, top)
    return Header(path, ours=not path.startswith("/") and _BROUGHT not in path.split("/"))


def _below_top(path: str, top: str) -> str:
    prefix = top.rstrip("/") + "/"
    return path.removeprefix(prefix)


@functools.lru_cache(maxsize=1 << 10)
def _depfiles(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.d")))


@functools.lru_cache(maxsize=1 << 12)
def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="backslashreplace")  # a path may be any bytes
    except OSError:
        return ""


def _expected(stem: str, manifest: Manifest) -> Iterator[str]:
    """The plans that a manifest's modules had."""
    for name, module in manifest.modules.items():
        archs = {*module.images, *module.ir, *(arch for kernel in module.kernels.values() for arch in kernel.archs)}
        yield from (f"{stem}/{name}/{arch}{PLAN}" for arch in sorted(archs))


def _objects(sidecar: Path, told: manifests.Module | None, arch: str) -> dict[str, str]:
    """Part's digest → its object's key: from what stands beside the image, else from the manifest."""
    try:
        parts: dict[str, Any] = json.loads(sidecar.read_bytes())["parts"]
        return {digest: str(part["object"]).removesuffix(".cubin").removesuffix(".rel") for digest, part in parts.items() if part["object"]}
    except FileNotFoundError:
        kernels = told.kernels.values() if told else ()
        found = (kernel.archs[arch] for kernel in kernels if arch in kernel.archs)
        return {each.unit: each.object for each in found if each.object}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{sidecar}: not what a link writes beside its image: {error}"
        raise DamagedError(msg, hint="remove the image; the next build links it again") from None


def _from_manifest(module: manifests.Module, name: str, arch: str) -> Plan:
    """What a manifest tells of a plan: its units, without bodies, state and what joins them."""
    units: dict[str, list[plans.PlannedKernel]] = {}
    lowered: dict[str, str] = {}
    for symbol, kernel in module.kernels.items():
        if arch in kernel.archs:
            unit = kernel.archs[arch].unit
            units.setdefault(unit, []).append(plans.PlannedKernel(symbol, kernel.readable, kernel.source))
            lowered[unit] = kernel.archs[arch].lowered_by or ""
    parts = tuple(
        plans.Part(
            digest=digest,
            key=(("lowered-by", lowered[digest]),),
            slice="",
            role="unit",
            source=kernels[0].source,
            bytes=0,
            kernels=tuple(kernels),
            language="ir" if lowered[digest] else "ptx",
        )
        for digest, kernels in sorted(units.items())
    )
    return plans.Plan(module=name, arch=arch, link=str(module.options.get("link") or ""), parts=parts)

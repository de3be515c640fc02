"""The manifest: what a program's build made, for hosts that load it and for people.

The schema is docs/manifest.schema.json. Keys are sorted; there is no time, user, host or absolute path in it, so equal builds have equal
manifests wherever they stand. Resources are those of the final image, which the linker may have changed; spills are not in an image, so
they are the assembler's.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.link import elf
from scons_gpu.link.bundle import object_name
from scons_gpu.link.image import spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.plan.model import Part, Plan, PlannedKernel
    from scons_gpu.store.record import Record

__all__ = [
    "SCHEMA",
    "Build",
    "BuiltArch",
    "BuiltModule",
    "Image",
    "Kernel",
    "Manifest",
    "Module",
    "State",
    "ToolFact",
    "build_manifest",
    "from_text",
    "to_text",
]

SCHEMA = "scons-gpu/manifest/1"
_MOST_THREADS = 1024  # per block, on every architecture since 2.0 (CUDA C++ Programming Guide, technical specifications)


@dataclass(frozen=True)
class ToolFact:
    """One tool that took part."""

    version: str
    identity: str


@dataclass(frozen=True)
class Image:
    """One image file, relative to the manifest."""

    file: str
    sha256: str


@dataclass(frozen=True)
class State:
    """One variable that the host can reach in the module's images."""

    symbol: str
    bytes: int
    space: str


@dataclass(frozen=True)
class Build:
    """One kernel for one architecture. None: not known, or not before the driver assembles the PTX. Bytes and threads."""

    unit: str
    lowered_by: str | None
    object: str | None
    entry: str
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int
    constant_bytes: int | None
    stack_bytes: int | None
    max_threads: int
    """Per block, as launch bounds say; else what every GPU takes."""
    chosen: dict[str, Any] | None = None
    """Which of several candidates was taken, and by what; absent in the file where there were none."""
    origin: dict[str, Any] | None = None
    """IR and options that it comes from, where they are not the module's; absent in the file otherwise."""
    sha256: str | None = None
    """Of its own object, or PTX, in a bundle; absent in the file elsewhere."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a module."""

    readable: str
    source: str
    archs: dict[str, Build] = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """One module."""

    bypass: bool
    submodules: tuple[str, ...] = ()
    fatbin: str | None = None
    bundle: str | None = None
    images: dict[str, Image] = field(default_factory=dict)
    state: tuple[State, ...] = ()
    kernels: dict[str, Kernel] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """What it was built with: link mode, levels, flags. `ptx` is the PTX version of each architecture, 78 for 7.8, `lowered_by` what
    lowered for it."""
    ir: dict[str, list[str]] = field(default_factory=dict)
    """Architecture → the IR of its sources, in their order: what `compare` builds undivided."""

    def files(self) -> tuple[str, ...]:
        """What a loader takes of it: images and fatbin, or the bundle; relative to the manifest, sorted."""
        made = (self.fatbin, self.bundle, *(image.file for image in self.images.values()))
        return tuple(sorted({file for file in made if file is not None}))


@dataclass(frozen=True)
class Manifest:
    """All of it."""

    program: str
    archs: tuple[str, ...]
    tools: dict[str, ToolFact]
    modules: dict[str, Module]


@dataclass(frozen=True)
class BuiltArch:
    """What one module came to for one architecture."""

    plan: Plan
    image: Path | None = None
    """The `.cubin`, or the `.ptx` that the driver finishes; None in a bundle."""
    objects: Mapping[str, Path] = field(default_factory=dict)
    """Part digest → its object, for its name."""
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Part digest → its object's bytes, or its PTX, in a bundle."""
    records: Mapping[str, Record] = field(default_factory=dict)
    """Part digest → its object's record."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Kernel → its entry point's name in the object, where a twin's object is shared."""


@dataclass(frozen=True)
class BuiltModule:
    """One module as it was built."""

    name: str
    bypass: bool = False
    submodules: tuple[str, ...] = ()
    archs: tuple[BuiltArch, ...] = ()
    """Empty for a module that is bypassed or has no kernels and no state."""
    fatbin: Path | None = None
    bundle: Path | None = None
    inner: Module | None = None
    """What the bundle says of itself; it has no `archs` then, the objects need not be there any more."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the module was built with, by the fields' names."""
    ir: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Architecture → the IR of its sources, in their order."""


def build_manifest(
    program: str, *, archs: Sequence[str], modules: Iterable[BuiltModule], tools: Mapping[str, ToolFact], folder: Path
) -> str:
    """The manifest's text. `folder` is where it will lie: files are named relative to it.

    Raises DamagedError for an image that does not read, LinkError for one that lacks a kernel.
    """
    return to_text(
        Manifest(
            program=program,
            archs=tuple(archs),
            tools=dict(tools),
            modules={module.name: _module(module, folder) for module in modules},
        )
    )


def to_text(manifest: Manifest) -> str:
    """The manifest as its file holds it."""
    data = {**vars(manifest), "schema": SCHEMA}
    data["tools"] = {name: vars(tool) for name, tool in manifest.tools.items()}
    data["modules"] = {name: _plain(module) for name, module in manifest.modules.items()}
    return _lines(data, 6) + "\n"


def _plain(module: Module) -> dict[str, Any]:
    kernels = {
        symbol: {**vars(kernel), "archs": {arch: _plain_build(build) for arch, build in kernel.archs.items()}}
        for symbol, kernel in module.kernels.items()
    }
    images = {arch: vars(image) for arch, image in module.images.items()}
    return {**vars(module), "kernels": kernels, "images": images, "state": [vars(state) for state in module.state]}


def _plain_build(build: Build) -> dict[str, Any]:
    return {name: value for name, value in vars(build).items() if value is not None or name not in _SELDOM}


_SELDOM = ("chosen", "origin", "sha256")
"""Fields that are left out where they say nothing."""


_ENCODE = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def _lines(value: Any, depth: int, indent: str = "") -> str:  # noqa: ANN401 - whatever JSON can say
    """JSON with an item a line down to `depth`, so that manifests diff by kernel and architecture; json's indent is ten times slower."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return _ENCODE(value)
    inner = indent + " "
    items = [f"{inner}{_ENCODE(name)}: {_lines(value[name], depth - 1, inner)}" for name in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def from_text(text: str, *, path: str = "manifest") -> Manifest:
    """Reads what `to_text` wrote, and later versions of the schema's number 1: fields that they added are passed over."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            msg = f"{path}: schema {data['schema']!r} is not {SCHEMA!r}"
            raise DamagedError(msg, hint="read it with the version of scons-gpu that wrote it")
        return Manifest(
            program=data["program"],
            archs=tuple(data["archs"]),
            tools={name: _known(ToolFact, tool) for name, tool in data["tools"].items()},
            modules={name: _read_module(module) for name, module in data["modules"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path}: not a manifest: {error}"
        raise DamagedError(msg, hint="build the program again") from None


def _known(kind: Any, data: Mapping[str, Any], **changed: Any) -> Any:  # noqa: ANN401 - a dataclass and JSON
    values = {**data, **changed}
    return kind(**{name: values[name] for name in kind.__dataclass_fields__ if name in values})


def _read_module(data: Mapping[str, Any]) -> Module:
    kernels = {
        symbol: _known(Kernel, kernel, archs={arch: _known(Build, build) for arch, build in kernel["archs"].items()})
        for symbol, kernel in data["kernels"].items()
    }
    images = {arch: _known(Image, image) for arch, image in data["images"].items()}
    state = tuple(_known(State, state) for state in data["state"])
    result: Module = _known(Module, data, submodules=tuple(data["submodules"]), images=images, state=state, kernels=kernels)
    return result


def _module(module: BuiltModule, folder: Path) -> Module:
    if module.inner is not None:
        return replace(
            module.inner,
            bypass=module.bypass,
            submodules=tuple(sorted(module.submodules)),
            options=dict(module.options),
            ir=_ir(module, folder),
            bundle=_relative(module.bundle, folder) if module.bundle else None,
        )
    kernels: dict[str, Kernel] = {}
    state: dict[str, State] = {}
    images = {}
    for built in module.archs:
        arch = built.plan.arch
        if built.image is not None:
            images[arch] = Image(file=_relative(built.image, folder), sha256=hashlib.sha256(built.image.read_bytes()).hexdigest())
        for each in built.plan.state:
            state.setdefault(each.symbol, State(symbol=spelled(each.symbol), bytes=each.bytes, space=each.space))
        for kernel, build in _builds(built):
            kernels.setdefault(kernel.symbol, Kernel(readable=kernel.readable, source=kernel.source)).archs[arch] = build
    return Module(
        bypass=module.bypass,
        submodules=tuple(sorted(module.submodules)),
        fatbin=_relative(module.fatbin, folder) if module.fatbin else None,
        bundle=_relative(module.bundle, folder) if module.bundle else None,
        images=images,
        state=tuple(value for _, value in sorted(state.items())),
        kernels=kernels,
        options=dict(module.options),
        ir=_ir(module, folder),
    )


def _ir(module: BuiltModule, folder: Path) -> dict[str, list[str]]:
    return {arch: [_relative(path, folder) for path in paths] for arch, paths in module.ir.items()}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _builds(built: BuiltArch) -> Iterable[tuple[PlannedKernel, Build]]:
    """Every kernel of the plan with what became of it."""
    image = _image_resources(built.image) if built.image else None
    for part in built.plan.units:
        path = built.objects.get(part.digest)
        found = image if image is not None else _resources(built.contents[part.digest], path.name) if path else {}
        for kernel in part.kernels:
            yield kernel, _build(kernel, part, built, found)


def _image_resources(path: Path) -> dict[str, elf.KernelResources]:
    """By kernel; empty where the driver assembles."""
    return {} if path.suffix == ".ptx" else _resources(path.read_bytes(), path.name)


def _resources(data: bytes, name: str) -> dict[str, elf.KernelResources]:
    return {each.symbol: each for each in elf.read(data, path=name).kernels}


def _build(kernel: PlannedKernel, part: Part, built: BuiltArch, found: Mapping[str, elf.KernelResources]) -> Build:
    entry = built.entries.get(kernel.symbol, kernel.symbol)
    # In an image a kernel has its own name, whatever its object calls it.
    taken = found.get(kernel.symbol if built.image else entry)
    if found and taken is None:
        msg = f"kernel {kernel.readable} is not in what was built for {built.plan.arch}"
        raise LinkError(msg, module=built.plan.module, source=kernel.source)
    threads = (taken.max_threads if taken else None) or kernel.max_threads or _MOST_THREADS
    path = built.objects.get(part.digest)
    return Build(
        unit=part.digest,
        lowered_by=None if part.language == "ptx" else dict(part.key).get("lowered-by"),
        object=object_name(path) if path and path.suffix == ".cubin" else None,
        entry=entry,
        registers=taken.registers if taken else None,
        spill_bytes=_spills(built.records.get(part.digest), entry),
        shared_bytes=taken.shared_bytes if taken else kernel.shared_bytes,
        constant_bytes=taken.constant_bytes if taken else None,
        stack_bytes=taken.stack_bytes if taken else None,
        max_threads=threads,
        chosen=kernel.chosen,
        origin=kernel.origin,
        sha256=hashlib.sha256(built.contents[part.digest]).hexdigest() if part.digest in built.contents else None,
    )


def _spills(record: Record | None, entry: str) -> int | None:
    """Bytes stored and loaded, as the assembler reported them."""
    for each in record.resources if record else ():
        if each.kernel == entry and each.spill_stores is not None:
            return each.spill_stores + (each.spill_loads or 0)
    return None

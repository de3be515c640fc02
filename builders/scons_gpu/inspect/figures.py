"""What each kernel takes, of a program as its manifest and images tell it, or of a build as its log and store do."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect.links import Links
from scons_gpu.inspect.planned import Plans
from scons_gpu.link import elf, manifest
from scons_gpu.link.bundle import read_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.inspect.builds import Action, Build, History
    from scons_gpu.plan.model import Part

__all__ = ["INSTRUCTION_BYTES", "NAMES", "Figures", "Row", "of_build", "of_manifest", "settings_of"]

INSTRUCTION_BYTES = 16
"""Of machine code, on every architecture from sm_70 on."""


@dataclass(frozen=True)
class Figures:
    """None where nobody knows. Bytes where the name does not tell."""

    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    constant_bytes: int | None = None
    stack_bytes: int | None = None
    code_bytes: int | None = None

    @property
    def instructions(self) -> int | None:
        """Of the machine code, what pads it to its alignment included."""
        return None if self.code_bytes is None else self.code_bytes // INSTRUCTION_BYTES

    def value(self, name: str) -> int | None:
        """By one of `NAMES`."""
        found: int | None = getattr(self, name)
        return found


NAMES = (*(each.name for each in fields(Figures)), "instructions")


@dataclass(frozen=True)
class Row:
    """One kernel of one module and architecture."""

    module: str
    symbol: str
    readable: str
    source: str
    arch: str
    unit: str
    figures: Figures
    key: Mapping[str, str] = field(default_factory=dict)
    """Of a build: all that shaped the unit."""

    @property
    def place(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return (self.module, self.symbol, self.arch)


def of_manifest(path: Path) -> list[Row]:
    """The kernels of a program. Raises DamagedError for an image that is not there, or is not the one that the manifest is of."""
    read = manifest.from_text(path.read_text(encoding="utf-8"), path=str(path))
    rows = []
    for name, module in sorted(read.modules.items()):
        code = _Code(path.parent, module)
        for symbol, kernel in sorted(module.kernels.items()):
            for arch, built in sorted(kernel.archs.items()):
                known = {each.name: getattr(built, each.name) for each in fields(Figures) if hasattr(built, each.name)}
                figures = Figures(**known, code_bytes=code.bytes_of(symbol, arch, built))
                rows.append(Row(name, symbol, kernel.readable, kernel.source, arch, built.unit, figures))
    return rows


def settings_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of each module, and tools, as the manifest has them."""
    read = manifest.from_text(path.read_text(encoding="utf-8"), path=str(path))
    tools = {name: [fact.version, fact.identity] for name, fact in read.tools.items()}
    return {name: module.options for name, module in read.modules.items()}, tools


class _Code:
    """Sizes of a module's machine code, read once from its images or its bundle."""

    def __init__(self, folder: Path, module: manifest.Module) -> None:
        self._folder = folder
        self._module = module
        self._sizes: dict[str, dict[str, int | None]] = {}

    def bytes_of(self, symbol: str, arch: str, built: manifest.Build) -> int | None:
        """None for PTX."""
        if self._module.bundle:
            member = f"{arch}/{built.object}.cubin"
            return self._of_bundle().get(member, {}).get(built.entry)
        if arch not in self._sizes:
            self._sizes[arch] = self._of_image(arch)
        return self._sizes[arch].get(symbol)

    def _of_image(self, arch: str) -> dict[str, int | None]:
        image = self._module.images.get(arch)
        if image is None or not image.file.endswith(".cubin"):
            return {}
        path = self._folder / image.file
        if not path.exists():
            msg = f"{path} is not there, though the manifest names it"
            raise DamagedError(msg, hint="build again")
        return _sizes(path.read_bytes(), str(path))

    def _of_bundle(self) -> Mapping[str, dict[str, int | None]]:
        if not self._sizes:
            path = self._folder / str(self._module.bundle)
            found = read_bundle(path.read_bytes(), path=str(path)).objects
            self._sizes = {name: _sizes(data, f"{path}: {name}") for name, data in found.items() if name.endswith(".cubin")}
        return self._sizes


def _sizes(data: bytes, path: str) -> dict[str, int | None]:
    return {kernel.symbol: kernel.code_bytes for kernel in elf.read(data, path=path).kernels}


def of_build(history: History, store: Path, build: Build) -> list[Row]:
    """The kernels of all programs of a build, as it left them; figures are those of units' objects, as their assembler told them.

    Raises UsageError where the log does not hold enough to tell.
    """
    known = history.until(build.id)
    plans = Plans(store, known)
    here = (path for path, made in plans.files.items() if known.build(made[-1].build).top == build.top)
    named = build.end.plans if build.end else tuple(here)
    rows: list[Row] = []
    for path in named:
        made = plans.files.get(path, ())
        parts = plans.parts(made[-1]) if made else None
        if parts is None:
            msg = f"what {path} was in build {build.id} is not known any more"
            raise UsageError(msg, hint="the log or the store's copy of the plan is gone: compare builds that are younger")
        links = Links.of(known, module=made[-1].owners[0], arch=made[-1].arch, top=build.top)
        rows += (row for part in parts.values() if part.role == "unit" for row in _of_part(part, made[-1], known, links))
    return rows


def _of_part(part: Part, plan: Action, history: History, links: Links) -> Iterator[Row]:
    steps = [each for each in history.by_unit.get(part.digest, ()) if each.result == "built"]
    assembled = [each for each in links.taken(steps) if each.stage == "assemble"]
    last = assembled[-1] if assembled else None
    told = {each.get("kernel"): each for each in last.resources} if last else {}
    sizes = _object_sizes(last.target) if last else {}
    key = {**dict(part.key), **({f"object {name}": value for name, value in last.key.items()} if last else {})}
    for kernel in part.kernels:
        resources = told.get(kernel.symbol, {})
        spills = [resources[name] for name in ("spill_stores", "spill_loads") if name in resources]
        known = {name: resources.get(name) for name in ("registers", "shared_bytes", "stack_bytes", "constant_bytes")}
        figures = Figures(**known, spill_bytes=sum(spills) if spills else None, code_bytes=sizes.get(kernel.symbol))
        yield Row(plan.owners[0], kernel.symbol, kernel.readable, kernel.source, plan.arch, part.digest, figures, key)


@functools.lru_cache(maxsize=1 << 17)
def _object_sizes(path: str) -> dict[str, int | None]:
    """Nothing of an object that gc took, or that somebody damaged. Two builds mostly have the same objects, whose names are of content."""
    try:
        return _sizes(Path(path).read_bytes(), path)
    except (OSError, DamagedError):
        return {}

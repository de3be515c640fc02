"""Holds a build against the undivided one, kernel by kernel: machine code, resources and promises. docs/compare.md explains the classes."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import zipfile
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, GpuError, UsageError
from scons_gpu.inspect.cubin import Cubin, stem
from scons_gpu.inspect.disassembly import Program
from scons_gpu.inspect.reference import BuildOptions, Reference, Tools
from scons_gpu.inspect.verdict import CLASSES, Built, Judge, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self


__all__ = ["CLASSES", "Compared", "Report", "compare"]

SCHEMA = "scons-gpu/compare/1"


@dataclass(frozen=True)
class Compared:
    """One kernel of one module and architecture, and how it relates to the undivided build's."""

    module: str
    arch: str
    kernel: str
    readable: str
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """All kernels that were looked at."""

    program: str
    kernels: tuple[Compared, ...]
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def different(self) -> tuple[Compared, ...]:
        """The kernels that make the command fail."""
        return tuple(one for one in self.kernels if one.verdict.kind == CLASSES[-1])

    def counts(self, module: str = "") -> dict[str, int]:
        """Kernels by class, of one module or of all."""
        counted = Counter(one.verdict.kind for one in self.kernels if module in {"", one.module})
        return {kind: counted[kind] for kind in CLASSES}

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "counts": self.counts(),
            "kernels": [_flat(one) for one in self.kernels],
            "notes": list(self.notes),
        }


def _flat(one: Compared) -> dict[str, Any]:
    fields = asdict(one)
    verdict = fields.pop("verdict")
    return {**fields, **verdict}


@dataclass
class _Module:
    """One module of the manifest for one architecture."""

    name: str
    arch: str
    data: dict[str, Any]
    folder: Path
    """Where the manifest lies; its paths are relative to that."""
    stem: str
    origin: dict[str, Any] | None = None
    """IR and options of kernels that come from elsewhere: a candidate's, a helper's."""

    @property
    def is_ptx(self) -> bool:
        """Whether it ends with PTX: its image is, or its bundle holds no object of any kernel."""
        if self.arch.startswith("compute_"):
            return True
        image = (self.data.get("images") or {}).get(self.arch)
        builds = [one["archs"][self.arch] for one in self.data["kernels"].values() if self.arch in one["archs"]]
        return str(image["file"]).endswith(".ptx") if image else all(build.get("object") is None for build in builds)

    def sources(self) -> tuple[str, ...]:
        """Its sources' IR: what the manifest lists, else what lies in the module's folder."""
        if self.origin is not None:
            return tuple(str(self.folder / name) for name in self.origin["ir"])
        listed = (self.data.get("ir") or {}).get(self.arch)
        if listed is not None:
            return tuple(str(self.folder / name) for name in listed if not name.endswith(".ptx"))
        pattern = re.compile(rf".+\.{re.escape(self.arch)}(?:\.[0-9a-f]{{6}})?\.ll")
        there = sorted(path for path in (self.folder / self.stem / self.name).glob("*.ll") if pattern.fullmatch(path.name))
        if not there:
            msg = f"the module's IR is not in {self.folder / self.stem / self.name}"
            raise UsageError(msg, module=self.name, arch=self.arch, hint="build the program again: compare reads what the front end wrote")
        return tuple(map(str, there))

    def ptx_origin(self, symbol: str) -> dict[str, Any] | None:
        """The PTX among the module's sources that has this kernel: no other source is undivided with it. None where none has."""
        files = (self.data.get("ir") or {}).get(self.arch) or ()
        for name in [name for name in files if name.endswith(".ptx")]:
            path = self.folder / name
            if path.is_file() and re.search(rf"\.entry\s+{re.escape(symbol)}(?![\w$])", path.read_text(encoding="utf-8")):
                return {"ir": [name], "options": {}}
        return None

    def private_state(self) -> tuple[str, ...]:
        """Names in the source of private variables that the image shows under another name."""
        symbols = [str(state["symbol"]) for state in self.data.get("state", ())]
        return tuple(sorted({stem(symbol) for symbol in symbols if stem(symbol) != symbol}))

    def state(self) -> frozenset[str]:
        """Every state symbol, as the image has it and as the source has it."""
        symbols = {str(state["symbol"]) for state in self.data.get("state", ())}
        return frozenset(symbols | {stem(symbol) for symbol in symbols})


def compare(  # noqa: PLR0913 - what to compare, how far, and what is known of it
    manifest: Path,
    *,
    tools: Tools,
    arch: str = "",
    kernel: str = "",
    told: Callable[[str], None] = lambda _: None,
    references: dict[object, Reference] | None = None,
) -> Report:
    """Builds every module of the manifest undivided and compares. `arch` and `kernel` (symbol or part of the readable name) narrow that.

    Modules of the same IR share one undivided build; `references` keeps them from one manifest to the next. Raises UsageError for a
    manifest that is none and for one without machine code, GpuError where a reference cannot be built.
    """
    data = _read(manifest)
    compared: list[Compared] = []
    notes: list[str] = []
    references = {} if references is None else references
    for module in _modules(data, manifest, arch=arch):
        wanted = _wanted(module, kernel)
        if not wanted:
            continue
        if module.is_ptx:
            notes.append(f"{module.name} ({module.arch}): PTX, which the driver assembles; not compared")
            continue
        told(f"{module.name} ({module.arch})")
        try:
            for part, kernels in _by_origin(module, wanted):
                reference = _reference(part, tools, references)
                compared += _compare_module(part, kernels, reference=reference, all_wanted=not kernel)
        except GpuError as error:
            raise error.at(module=module.name, arch=module.arch) from None
    if notes and not compared:
        raise _no_machine_code(manifest, notes)
    if kernel and not compared:
        raise _no_kernel(data, manifest, kernel, arch=arch)
    return Report(program=str(data.get("program", "")), kernels=tuple(compared), notes=tuple(notes))


def _no_machine_code(manifest: Path, notes: list[str]) -> UsageError:
    """As below: a build of which nothing was looked at is not one without differences."""
    msg = f"{manifest}: there is no machine code to compare: what was asked about ends with PTX"
    hint = (
        "build it with an assembler (GPU_PROVIDER other than none; scons-gpu doctor shows what is found) for a real architecture "
        "(GPU_ARCHS=sm_90, not compute_90), then compare"
    )
    return UsageError(msg, output="\n".join(notes), hint=hint)


def _no_kernel(data: dict[str, Any], manifest: Path, name: str, *, arch: str) -> UsageError:
    """Nothing that was compared is no proof of anything."""
    readable = {str(one.get("readable", symbol)) for module in data["modules"].values() for symbol, one in module["kernels"].items()}
    near = difflib.get_close_matches(name, sorted({one.partition("(")[0] for one in readable}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"scons-gpu kernels {manifest} lists them"
    return UsageError(f"{manifest}: no kernel is called {name}{f' for {arch}' if arch else ''}, or has that in its name", hint=hint)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise UsageError(msg) from None
    except ValueError as error:
        msg = f"{path}: not JSON: {error}"
        raise UsageError(msg) from None
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("scons-gpu/manifest/"):
        msg = f"{path}: not a manifest of scons-gpu"
        raise UsageError(msg, hint="name the .json file that env.GpuProgram makes")
    return data


def _modules(data: dict[str, Any], manifest: Path, *, arch: str) -> Iterator[_Module]:
    known = [str(name) for name in data.get("archs", ())]
    if arch and arch not in known:
        msg = f"{manifest}: has no {arch}; it has {', '.join(known) or 'none'}"
        raise UsageError(msg)
    for name, module in sorted(data["modules"].items()):
        for one in known:
            if arch in {"", one} and module.get("kernels"):
                yield _Module(name=name, arch=one, data=module, folder=manifest.parent, stem=manifest.stem)


def _wanted(module: _Module, name: str) -> dict[str, Any]:
    kernels = {symbol: one for symbol, one in sorted(module.data["kernels"].items()) if module.arch in one["archs"]}
    return {symbol: one for symbol, one in kernels.items() if name in {"", symbol} or name in str(one.get("readable", ""))}


def _by_origin(module: _Module, wanted: dict[str, Any]) -> Iterator[tuple[_Module, dict[str, Any]]]:
    """The module with the kernels of its own sources, then once more for each other origin, and for each source that is PTX."""
    groups: dict[str, dict[str, Any]] = {}
    origins: dict[str, dict[str, Any] | None] = {}
    for symbol, one in wanted.items():
        origin = one["archs"][module.arch].get("origin") or module.ptx_origin(symbol)
        name = json.dumps(origin, sort_keys=True)
        groups.setdefault(name, {})[symbol], origins[name] = one, origin
    for name, kernels in groups.items():
        yield replace(module, origin=origins[name]), kernels


def _options(module: _Module) -> BuildOptions:
    """From the module's "options"; what they do not say is the default."""
    arch, options = module.arch, dict(module.data.get("options") or {})
    options |= module.origin["options"] if module.origin else {}
    ptx = options.get("ptx") or {}
    if arch not in ptx:
        msg = f"the manifest does not say which PTX version {arch} was built with"
        raise UsageError(msg, hint="build the program again with this version of scons-gpu")
    flags = {name: bool(options.get(name, False)) for name in ("ftz", "fast_math", "debug", "lineinfo")}
    return BuildOptions(
        ptx=int(ptx[arch]),
        opt=int(options.get("opt", 3)),
        maxrregcount=options.get("maxrregcount"),
        ptxas_flags=tuple(options.get("ptxas_flags", ())),
        lowered_by=str(options.get("by") or (options.get("lowered_by") or {}).get(arch, "llvm")),
        **flags,
    )


def _reference(module: _Module, tools: Tools, known: dict[object, Reference]) -> Reference:
    """The undivided build of the module's sources, whoever asked for it first."""
    sources, options = module.sources(), _options(module)
    try:
        content = tuple(hashlib.sha256(Path(source).read_bytes()).hexdigest() for source in sources)
    except OSError as error:
        msg = f"{error.filename}: cannot be read: {error.strerror}"
        raise UsageError(msg, module=module.name, arch=module.arch, hint="build the program again") from None
    key = (content, module.arch, options, tools)
    if key not in known:
        known[key] = Reference(sources=sources, arch=module.arch, options=options, tools=tools)
    return known[key]


def _compare_module(module: _Module, wanted: Mapping[str, Any], *, reference: Reference, all_wanted: bool) -> Iterator[Compared]:
    there = set(reference.whole.cubin.kernels)  # read before the build's own: most of that is the same code
    built = {one.symbol: one for one in _built(module, wanted, tools=reference.tools)}
    linked = bool((module.data.get("images") or {}).get(module.arch)) and (module.data.get("options") or {}).get("link") not in {
        "whole",
        "merge",
    }
    judge = Judge(reference=reference, private=module.private_state(), state=module.state(), linked=linked)
    # What a candidate or a helper brings besides, and what a candidate stands in for, is not the module's.
    more = there - set(module.data["kernels"]) if all_wanted and module.origin is None else set()
    for symbol in sorted({*built, *more}):
        one = built.get(symbol)
        readable = one.readable if one else symbol
        yield Compared(module=module.name, arch=module.arch, kernel=symbol, readable=readable, verdict=judge.verdict(symbol, one))


def _built(module: _Module, wanted: Mapping[str, Any], *, tools: Tools) -> Iterator[Built]:
    """The kernels of the module's image, or of the whole objects in its bundle."""
    image = (module.data.get("images") or {}).get(module.arch)
    units: dict[str, list[str]] = {}
    for symbol, one in sorted(module.data["kernels"].items()):
        units.setdefault(str(one["archs"].get(module.arch, {}).get("unit") or symbol), []).append(symbol)
    mates = {symbol: tuple(unit) for unit in units.values() for symbol in unit}
    with _Programs(module, str(image["file"]) if image else "", tools.nvdisasm) as programs:
        for symbol, one in wanted.items():
            of_arch = one["archs"][module.arch]
            yield Built(
                symbol=symbol,
                readable=str(one["readable"]),
                program=programs.of(str(of_arch.get("object"))),
                entry=symbol if image else str(of_arch.get("entry") or symbol),
                mates=mates[symbol],
                spill_bytes=of_arch.get("spill_bytes"),
            )


class _Programs:
    """A module's image, or the objects of its bundle by key, each read and disassembled once."""

    def __init__(self, module: _Module, image: str, nvdisasm: str) -> None:
        self._path = module.folder / (image or str(module.data.get("bundle")))
        self._image, self._arch, self._nvdisasm = bool(image), module.arch, nvdisasm
        self._known: dict[str, Program] = {}

    def __enter__(self) -> Self:
        try:
            self._bundle = None if self._image else zipfile.ZipFile(self._path)
        except (OSError, zipfile.BadZipFile) as error:
            raise self._damaged(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._bundle:
            self._bundle.close()

    def of(self, key: str) -> Program:
        """The program that a kernel of object `key` is in."""
        name = f"{self._arch}/{key.removesuffix('.cubin')}.cubin" if self._bundle else ""
        if name not in self._known:
            try:
                data = self._bundle.read(name) if self._bundle else self._path.read_bytes()
            except (OSError, KeyError, zipfile.BadZipFile) as error:
                raise self._damaged(error) from None
            self._known[name] = Program(Cubin(data, label=f"{self._path} {name}".strip()), nvdisasm=self._nvdisasm)
        return self._known[name]

    def _damaged(self, error: Exception) -> DamagedError:
        msg = f"{self._path}: does not hold what the manifest names: {error}"
        return DamagedError(msg, hint="build the program again")

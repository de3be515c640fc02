"""Kernels by name, for a Python that has a GPU: `load("build/net.json")["then"]["relu"]` is a cuda.core kernel.

What there is can be listed without a GPU, CUDA or cuda-python; the first kernel that is asked for loads the code that it is in.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from scons_gpu.errors import GpuError, LaunchError, UsageError
from scons_gpu.loading import code as codes
from scons_gpu.loading.device import Device
from scons_gpu.toolchain.running import best_first, fitting
from scons_gpu.tune.naming import names_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping

    from scons_gpu.link import manifest

__all__ = ["Module", "Program", "Variable", "load"]


@dataclass(frozen=True)
class Variable:
    """A module's variable on the current device."""

    symbol: str
    address: int
    """In device memory: what a copy takes."""
    bytes: int
    space: str
    """`global` or `constant`."""


def load(path: str | os.PathLike[str]) -> Program:
    """The program whose manifest is at `path`. Raises DamagedError for what is no manifest, or one of another schema."""
    where = Path(path)
    return Program(where, codes.read_manifest(where))


class Program:
    """A program's modules by name. What its manifest says stays as it was when it was read."""

    def __init__(self, path: Path, read: manifest.Manifest) -> None:
        self.path = path
        self.manifest = read
        """All that the build wrote down (docs/manifest.schema.json)."""
        loaded = _Loaded(path.parent)
        self._modules = {name: Module(name, module, loaded) for name, module in sorted(read.modules.items())}

    def __getitem__(self, name: str) -> Module:
        """The module of that name. Raises UsageError."""
        if name not in self._modules:
            _refuse(name, kind="module", known={each: each for each in self._modules}, where=str(self.path))
        return self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __repr__(self) -> str:
        return f"<program {self.manifest.program}: {', '.join(self._modules)}>"


class Module:
    """A module's kernels by name."""

    def __init__(self, name: str, read: manifest.Module, loaded: _Loaded) -> None:
        self.name = name
        self.manifest = read
        self.kernels: Mapping[str, manifest.Kernel] = MappingProxyType(dict(sorted(read.kernels.items())))
        """Symbol → readable name, source, and what the kernel came to for each architecture."""
        self.state: Mapping[str, manifest.State] = MappingProxyType({state.symbol: state for state in read.state})
        """Symbol → size in bytes, and memory space, of variables that live on between launches."""
        self._loaded = loaded

    @property
    def archs(self) -> tuple[str, ...]:
        """What there is code for, `compute_90` standing for PTX, in the order in which a GPU is offered it."""
        found = [codes.kernel_code(self.manifest, symbol) for symbol in self.kernels]
        return tuple(best_first({arch for each in found for arch in each} | set(codes.images(self.manifest))))

    def symbol(self, name: str) -> str:
        """The symbol of the kernel that is called so: by its symbol, its readable name, or that without parameters.

        Raises UsageError for a name that no kernel has, or several.
        """
        if name in self.kernels:
            return name
        meant = [symbol for symbol, kernel in self.kernels.items() if name in names_of(symbol, kernel.readable)]
        if len(meant) == 1:
            return meant[0]
        if not meant:
            spoken = {each: kernel.readable for symbol, kernel in self.kernels.items() for each in names_of(symbol, kernel.readable)}
            _refuse(name, kind="kernel", known=spoken, where=f"module {self.name}")
        msg = f"{name} may be each of {len(meant)} kernels of module {self.name}"
        raise UsageError(msg, hint="name one in full: " + ", ".join(self.kernels[symbol].readable for symbol in meant))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a cuda.core.Kernel, which mypy cannot follow
        """The kernel that is called so, loaded for the current device, as a `cuda.core.Kernel`.

        Raises UsageError for the name; ToolMissingError where there is no cuda.core, driver or device; LaunchError where no code runs on
        the device, or the driver refuses it; DamagedError for code that is not what was built.
        """
        symbol = self.symbol(name)
        return self._told(symbol, lambda device: self._kernel(symbol, device))

    def variable(self, symbol: str, *, kernel: str = "") -> Variable:
        """Where a variable of the module lies for the current context, and its size.

        In a bundle each kernel has what it uses for itself, so a kernel that uses the variable must be named. Raises as `[]` does.
        """
        if symbol not in self.state:
            _refuse(symbol, kind="variable", known={each: each for each in self.state}, where=f"module {self.name}")
        if self.manifest.bundle is not None and not kernel:
            msg = f"module {self.name} is a bundle, in which each kernel has variables of its own"
            raise UsageError(msg, hint=f'name a kernel that uses it, as in variable("{symbol}", kernel="...")')
        named = self.symbol(kernel) if kernel else ""

        def place(device: Device) -> Variable:
            _, code = self._code(named, device)
            address, size = device.variable(self._loaded.library(code, device), symbol)
            return Variable(symbol=symbol, address=address, bytes=size, space=self.state[symbol].space)

        found: Variable = self._told(named, place, what=f"variable {symbol}")
        return found

    def _kernel(self, symbol: str, device: Device) -> Any:  # noqa: ANN401 - as in `__getitem__`
        entry, code = self._code(symbol, device)
        return self._loaded.kernel(code, entry, device)

    def _code(self, symbol: str, device: Device) -> tuple[str, codes.Code]:
        """What the device takes. In an image all kernels come from one, which may lack some: variables are in it once."""
        mine = codes.kernel_code(self.manifest, symbol) if symbol else codes.images(self.manifest)
        there: Collection[str] = mine if self.manifest.bundle is not None else codes.images(self.manifest)
        arch = fitting(there, device.capability)
        if arch is None:
            msg = f"nothing that was built runs on {device.name}, which is {device.capability}; there is code for {_listed(there)}"
            number = device.capability.replace(".", "")
            raise LaunchError(msg, hint=f"add sm_{number} to GPU_ARCHS, or compute_{number} for all from there on")
        if arch not in mine:
            msg = f"{device.name} takes the module's code for {arch}, which lacks the kernel; it is in that for {_listed(mine)}"
            raise LaunchError(msg, hint="the source leaves it out for that architecture")
        return mine[arch]

    def _told(self, symbol: str, work: Callable[[Device], Any], *, what: str = "") -> Any:  # noqa: ANN401 - whatever `work` gives
        """What goes wrong names the kernel, or the module."""
        try:
            return work(Device.current())
        except LaunchError as error:
            error.what = f"{what}: {error.what}" if what else error.what
            kernel = self.kernels[symbol].readable if symbol else ""
            raise error.at(kernel=kernel, module=self.name, source=self.kernels[symbol].source if symbol else "") from error.__cause__

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self.symbol(name))
        except GpuError:
            return False

    def __repr__(self) -> str:
        return f"<module {self.name}: {', '.join(kernel.readable for kernel in self.kernels.values())}>"


@dataclass
class _Loaded:
    """What was loaded of a program. A library serves every context of the process, so it is loaded once whatever is current."""

    folder: Path
    libraries: dict[codes.Code, Any] = field(default_factory=dict)
    kernels: dict[tuple[codes.Code, str], Any] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    def library(self, code: codes.Code, device: Device) -> Any:  # noqa: ANN401 - cuda.core's
        with self.lock:
            if code not in self.libraries:
                self.libraries[code] = device.library(codes.read(code, folder=self.folder), ptx=code.ptx)
            return self.libraries[code]

    def kernel(self, code: codes.Code, entry: str, device: Device) -> Any:  # noqa: ANN401 - cuda.core's
        with self.lock:
            if (code, entry) not in self.kernels:
                self.kernels[code, entry] = device.kernel(self.library(code, device), entry)
            return self.kernels[code, entry]


def _listed(archs: Collection[str]) -> str:
    return ", ".join(best_first(archs)) if archs else "nothing"


def _refuse(name: str, *, kind: str, known: Mapping[str, str], where: str) -> NoReturn:
    """`known`: each name that would have been right → how it is shown."""
    import difflib  # noqa: PLC0415 - for a mistake alone

    near = dict.fromkeys(known[each] for each in difflib.get_close_matches(name, known, n=3, cutoff=0.5))
    shown = sorted(set(known.values()))[:10]
    hint = f"is {' or '.join(near)} meant?" if near else f"it has {', '.join(shown)}" if shown else f"it has no {kind}s"
    msg = f"{where} has no {kind} {name}"
    raise UsageError(msg, hint=hint)

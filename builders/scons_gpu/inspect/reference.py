"""What `compare` holds a build against, made by starting ptxas and nvlink itself: in one piece, and through one relocatable object."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolError, ToolMissingError
from scons_gpu.inspect import undivided
from scons_gpu.inspect.cubin import Cubin
from scons_gpu.inspect.disassembly import Program
from scons_gpu.inspect.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["BuildOptions", "Reference", "Tools"]

_PROPERTIES = re.compile(r"Function properties for '?([^'\s]+)'?")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class BuildOptions:
    """What shaped the build that is looked at, as its manifest records it."""

    ptx: int
    opt: int = 3
    ftz: bool = False
    fast_math: bool = False
    debug: bool = False
    lineinfo: bool = False
    maxrregcount: int | None = None
    ptxas_flags: tuple[str, ...] = ()
    lowered_by: str = "llvm"


@dataclass(frozen=True)
class Tools:
    """Paths of the programs that make and read references."""

    ptxas: str
    nvdisasm: str
    nvlink: str = ""
    libdevice: str = ""
    nvvm: str = ""
    """Path of libNVVM, for builds that it lowered."""

    @classmethod
    def of(cls, toolchain: Toolchain) -> Tools:
        """Those that were found. Raises ToolMissingError naming what is lacking."""
        for name, tool in (("ptxas", toolchain.ptxas), ("nvdisasm", toolchain.nvdisasm)):
            if tool is None:
                msg = f"no {name} was found, and machine code cannot be compared without"
                raise ToolMissingError(msg, hint=toolchain.where(name) or "install the extra scons-gpu[toolkit]")
        assert toolchain.ptxas  # noqa: S101 - the loop above told
        assert toolchain.nvdisasm  # noqa: S101 - the same
        return cls(
            ptxas=toolchain.ptxas.path,
            nvdisasm=toolchain.nvdisasm.path,
            nvlink=toolchain.nvlink.path if toolchain.nvlink else "",
            libdevice=toolchain.libdevice.path if toolchain.libdevice else "",
            nvvm=nvvm.path if (nvvm := toolchain.library("nvvm")) else "",
        )


@dataclass
class Reference:
    """One module undivided, for one architecture. What is asked for is made when first asked for."""

    sources: tuple[str, ...]
    arch: str
    options: BuildOptions
    tools: Tools
    kernels: tuple[str, ...] = ()
    """Those that are kept; empty keeps all."""
    visible: tuple[str, ...] = ()
    """Private variables made visible, as an image has them."""
    spills: dict[str, int] = field(default_factory=dict)
    """Bytes of spill stores and loads by kernel, known once `whole` was made."""

    def exposing(self, names: Sequence[str]) -> Reference:
        """The same module with private variables made visible."""
        return replace(self, visible=tuple(names), spills={})

    def keeping(self, kernels: Sequence[str]) -> Reference:
        """The same module without its other kernels and what only they name, so that only these kernels' constants lie in its banks."""
        return replace(self, kernels=tuple(kernels), spills={})

    @cached_property
    def listing(self) -> Listing:
        """The module's PTX, to be read."""
        return Listing(self.ptx)

    @cached_property
    def ptx(self) -> str:
        """The module as PTX; one that is PTX is itself, whole."""
        if len(self.sources) == 1 and self.sources[0].endswith(".ptx"):
            whole = Path(self.sources[0]).read_text(encoding="utf-8")
            return Listing(Listing(whole).with_kernels(self.kernels)).without_unused() if self.kernels else whole
        options = self.options
        request = undivided.Request(
            sources=self.sources,
            cpu=self.arch,
            ptx=options.ptx,
            opt=options.opt,
            ftz=options.ftz,
            fast_math=options.fast_math,
            keep_debug=options.debug or options.lineinfo,
            debug=options.debug,
            libdevice=self.tools.libdevice,
            kernels=self.kernels,
            visible=self.visible,
            nvvm=self._nvvm(),
        )
        made = undivided.build(request)
        return Listing(made).without_unused() if self.kernels else made

    def _nvvm(self) -> str:
        """The library that lowers; "" where LLVM does."""
        if self.options.lowered_by == "llvm":
            return ""
        if not self.tools.nvvm:
            msg = "the build was lowered by libNVVM, which was not found, and no other reference tells anything"
            raise ToolMissingError(msg, hint="install the extra scons-gpu[toolkit]")
        return self.tools.nvvm

    @cached_property
    def whole(self) -> Program:
        """Assembled in one piece: the undivided build."""
        return self._program(relocatable=False)

    @cached_property
    def relocatable(self) -> Program:
        """The same PTX through relocatable assembly and nvlink: tells what that alone changes."""
        return self._program(relocatable=True)

    def _program(self, *, relocatable: bool) -> Program:
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as name:
            folder = Path(name)
            (folder / "module.ptx").write_text(self.ptx, encoding="utf-8")
            spelled = self._spelling(self._relocatable() if relocatable else [])
            said = _run([self.tools.ptxas, "-v", *spelled, "module.ptx", "-o", "module.cubin"], folder)
            made = folder / "module.cubin"
            if relocatable:
                made = folder / "image.cubin"
                debug = ["-g"] if self.options.debug else []
                _run([self.tools.nvlink, f"-arch={self.arch}", *debug, "module.cubin", "-o", made.name], folder)
            else:
                self.spills.update(_spills(said))
            data = made.read_bytes()
        return Program(Cubin(data, label="the undivided module"), nvdisasm=self.tools.nvdisasm)

    def _spelling(self, mode: Sequence[str]) -> list[str]:
        """The program's own flags stand last, as in a build: of two values the assembler takes the last."""
        options = self.options
        given = [f"-arch={self.arch}", f"-O{options.opt}"]
        given += ["-lineinfo"] if options.lineinfo else []
        given += ["-g"] if options.debug else []
        given += [f"-maxrregcount={options.maxrregcount}"] if options.maxrregcount is not None else []
        return [*given, *mode, *options.ptxas_flags]

    def _relocatable(self) -> list[str]:
        """Function cloning is asked for where this ptxas knows it, as a build does."""
        return ["-c", *(["-enable-func-clone-sc", "true"] if _clones(self.tools.ptxas) else [])]


@cache
def _clones(ptxas: str) -> bool:
    return "--enable-func-clone-sc" in _run([ptxas, "--help"], Path.cwd())


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{Path(command[0]).name} does not take the undivided module (exit status {done.returncode})"
        raise ToolError(msg, output=(done.stdout + done.stderr)[-4000:])
    return done.stdout + done.stderr


def _spills(said: str) -> Mapping[str, int]:
    """From `ptxas -v`: a function's properties stand in the line after its name."""
    found: dict[str, int] = {}
    lines = said.splitlines()
    for line, following in pairwise(lines):
        name, bytes_ = _PROPERTIES.search(line), _SPILLS.search(following)
        if name and bytes_:
            found[name[1]] = int(bytes_[1]) + int(bytes_[2])
    return found

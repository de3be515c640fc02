"""Decides what these tools can build together: which architectures, which PTX version, and which releases are refused or warned of."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolMissingError, UnsupportedArchError
from scons_gpu.toolchain.gates import refused, version_tuple, warned
from scons_gpu.toolchain.tables import ARCHS, LLVM_PTX, PTX_OF_CUDA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tables import Arch
    from scons_gpu.toolchain.tools import Tool, Toolchain

__all__ = ["check", "check_clang", "check_pair", "known_to_llvm", "known_to_ptxas", "ptx_version", "require", "supported"]

_INSTALL = {
    "clang": "pip install 'scons-gpu[clang]' brings it; GPU_CLANG names one",
    "headers": "pip install 'scons-gpu[clang]' brings them; GPU_CUDA_HEADERS names a toolkit of 12.9 or older",
    "llvmlite": "pip install llvmlite",
}
_INSTALL_TOOLKIT = "pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit"


def require(toolchain: Toolchain, name: str) -> Tool:
    """The tool of that name. Raises ToolMissingError, which tells where it was looked for."""
    tool: Tool | None = getattr(toolchain, name)
    if tool is None:
        msg = f"{name} was not found"
        raise ToolMissingError(msg, output=toolchain.where(name), hint=_INSTALL.get(name, _INSTALL_TOOLKIT))
    return tool


@lru_cache(maxsize=256)
def ptx_version(target: Target, *, llvm: str, ptxas: Tool | None) -> int:
    """The newest PTX version that LLVM writes and the assembler reads: 78 is 7.8. An assembler that tells no version counts as old.

    Raises UnsupportedArchError if the architecture needs a newer one, ToolMissingError without LLVM.
    """
    name = target.cpu.removeprefix("sm_")
    if name not in known_to_llvm(llvm) or (ptxas is not None and target.real and name not in known_to_ptxas(ptxas)):
        raise _unknown(target, llvm=llvm, ptxas=ptxas)
    newest = min([_llvm_ptx(llvm), *([_ptxas_ptx(ptxas)] if ptxas is not None else [])])
    return max(newest, _least_ptx(target))


def check(toolchain: Toolchain, targets: Sequence[Target]) -> tuple[str, ...]:
    """Warnings about the assembler and linker for these architectures, each to be said once.

    Raises ToolMissingError for a release that may not be used and for an assembler newer than its linker, UnsupportedArchError for
    an architecture that one of the tools does not know. What is missing altogether is decided by what is to be built: `require`.
    """
    numbers = [target.number for target in targets]
    warnings: list[str] = []
    for tool in (toolchain.ptxas, toolchain.nvlink):
        if tool is not None:
            warnings += _gate(tool, numbers)
    if toolchain.ptxas is not None and toolchain.nvlink is not None:
        check_pair(toolchain.ptxas, toolchain.nvlink)
    for target in targets:
        ptx_version(target, llvm=toolchain.llvm, ptxas=toolchain.ptxas)
    return tuple(warnings)


def check_clang(toolchain: Toolchain) -> tuple[str, ...]:
    """The same for what CUDA sources need. Raises ToolMissingError if clang or its headers are not there."""
    clang = require(toolchain, "clang")
    if not toolchain.headers:
        msg = "CUDA's headers were not found"
        raise ToolMissingError(msg, output=toolchain.where("headers"), hint=_INSTALL["headers"])
    why = refused("cuda-headers", toolchain.headers_version)
    if why:
        msg = f"the headers of CUDA {toolchain.headers_version} in {toolchain.headers} cannot be used: {why}"
        raise ToolMissingError(msg, hint=_INSTALL["headers"])
    whys = warned("cuda-headers", toolchain.headers_version)
    return (*_gate(clang, []), *(f"CUDA headers {toolchain.headers_version} ({toolchain.headers}): {why}" for why in whys))


def supported(toolchain: Toolchain) -> tuple[int, ...]:
    """The numbers that `all` and `all-major` choose from: what LLVM and the assembler both know."""
    both = _known(toolchain.llvm, toolchain.ptxas)
    return tuple(arch.number for arch in ARCHS if str(arch.number) in both)


def known_to_llvm(llvm: str) -> tuple[str, ...]:
    """As "90", "90a". An LLVM newer than the table counts as the newest in it."""
    return _names(ARCHS, limit=_llvm_ptx(llvm))


def known_to_ptxas(ptxas: Tool) -> tuple[str, ...]:
    """As "90", "90a". One that tells no version is believed to know all: it will say so itself if not."""
    release = version_tuple(ptxas.version)[:2]
    if not release:
        return _names(ARCHS, limit=max(PTX_OF_CUDA.values()))
    kept = [arch for arch in ARCHS if arch.dropped is None or release < arch.dropped]
    return _names(kept, limit=_newest(PTX_OF_CUDA, release))


def _names(archs: Sequence[Arch], *, limit: int) -> tuple[str, ...]:
    least = {f"{arch.number}{suffix}": arch.least_ptx(suffix) for arch in archs for suffix in ("", "a", "f")}
    return tuple(name for name, ptx in least.items() if ptx is not None and ptx <= limit)


def _known(llvm: str, ptxas: Tool | None) -> tuple[str, ...]:
    by_ptxas = known_to_ptxas(ptxas) if ptxas is not None else None
    return tuple(name for name in known_to_llvm(llvm) if by_ptxas is None or name in by_ptxas)


def _llvm_ptx(llvm: str) -> int:
    major = version_tuple(llvm)[:1]
    if not major:
        msg = "llvmlite was not found, or its LLVM tells no version"
        raise ToolMissingError(msg, hint=_INSTALL["llvmlite"])
    return _newest({(key,): value for key, value in LLVM_PTX.items()}, major)


def _ptxas_ptx(ptxas: Tool) -> int:
    """One without a version is taken for the oldest that can be used."""
    return _newest(PTX_OF_CUDA, version_tuple(ptxas.version)[:2] or (11, 8))


def _newest(table: dict[tuple[int, int], int] | dict[tuple[int], int], version: tuple[int, ...]) -> int:
    """The row of the newest version that is not newer than `version`; 0 if all are."""
    rows = [value for key, value in table.items() if key <= version]
    return rows[-1] if rows else 0


def _least_ptx(target: Target) -> int:
    return next(arch.least_ptx(target.suffix) or 0 for arch in ARCHS if arch.number == target.number)


def _unknown(target: Target, *, llvm: str, ptxas: Tool | None) -> UnsupportedArchError:
    by_llvm = target.cpu.removeprefix("sm_") in known_to_llvm(llvm)
    lacking = [] if by_llvm else [f"LLVM {llvm.partition(' ')[0]}"]
    if ptxas is not None and target.real and target.cpu.removeprefix("sm_") not in known_to_ptxas(ptxas):
        lacking.append(f"ptxas {ptxas.version}")
    msg = f"{' and '.join(lacking)} do{'' if len(lacking) > 1 else 'es'} not know {target.name}"
    names = ", ".join(f"sm_{name}" for name in _known(llvm, ptxas if target.real else None))
    return UnsupportedArchError(msg, hint=f"the tools at hand know {names}")


def _gate(tool: Tool, numbers: Sequence[int]) -> list[str]:
    if not version_tuple(tool.version):
        return [f"the version of {tool.name} ({tool.path}) cannot be read; what it makes is not reused by another build"]
    why = refused(tool.name, tool.version)
    if why:
        msg = f"{tool.name} {tool.version} ({tool.path}) cannot be used: {why}"
        raise ToolMissingError(msg, hint=_INSTALL.get(tool.name, _INSTALL_TOOLKIT))
    return [f"{tool.name} {tool.version} ({tool.path}): {why}" for why in warned(tool.name, tool.version, numbers)]


def check_pair(assembler: Tool, linker: Tool) -> None:
    """A linker may not read the objects of an assembler of a later release. Raises ToolMissingError for such a pair."""
    made, read = version_tuple(assembler.version)[:2], version_tuple(linker.version)[:2]
    if made and read and made > read:
        both = ", ".join(f"{tool.name} {tool.version} ({tool.path})" for tool in (assembler, linker))
        msg = f"the assembler is newer than the linker: {both}"
        raise ToolMissingError(msg, hint="take both from one CUDA release; GPU_CUDA_PATH names its folder")

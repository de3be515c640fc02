"""Decides what these tools can build together: which architectures, which PTX version, and which releases are refused or warned of."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolMissingError, UnsupportedArchError
from scons_gpu.toolchain.gates import refused, version_tuple, warned
from scons_gpu.toolchain.tables import ARCHS, CUDA_OF_DRIVER, LLVM_PTX, PTX_OF_CUDA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tables import Arch
    from scons_gpu.toolchain.tools import Tool, Toolchain

__all__ = [
    "check",
    "check_clang",
    "check_pair",
    "family",
    "known_to",
    "known_to_llvm",
    "least_ptx",
    "newest_ptx",
    "ptx_version",
    "reader_of_ptx",
    "require",
    "supported",
]

_INSTALL = {
    "clang": "pip install 'scons-gpu[clang]' brings it; GPU_CLANG names one",
    "headers": "pip install 'scons-gpu[clang]' brings them; GPU_CUDA_HEADERS names a toolkit of 12.9 or older",
    "llvmlite": "pip install llvmlite",
}
_FAMILY = {"nvptxcompiler": "ptxas", "nvjitlink": "ptxas"}
"""What is ptxas under another name."""
_INSTALL_TOOLKIT = "pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit"


def require(toolchain: Toolchain, name: str) -> Tool:
    """The tool of that name. Raises ToolMissingError, which tells where it was looked for."""
    tool: Tool | None = getattr(toolchain, name)
    if tool is None:
        msg = f"{name} was not found"
        raise ToolMissingError(msg, output=toolchain.where(name), hint=_INSTALL.get(name, _INSTALL_TOOLKIT))
    return tool


@lru_cache(maxsize=256)
def ptx_version(target: Target, *, llvm: str, assembler: Tool | None) -> int:
    """The newest PTX version that LLVM writes and the assembler reads: 78 is 7.8. An assembler that tells no version counts as old.

    Raises UnsupportedArchError if the architecture needs a newer one, ToolMissingError without LLVM.
    """
    name = target.cpu.removeprefix("sm_")
    if name not in known_to_llvm(llvm) or (assembler is not None and target.real and name not in known_to(assembler)):
        raise _unknown(target, llvm=llvm, assembler=assembler)
    newest = min([_llvm_ptx(llvm), *([newest_ptx(assembler)] if assembler is not None else [])])
    return max(newest, least_ptx(target))


def reader_of_ptx(assembler: Tool | None) -> tuple[str, int] | None:
    """An assembler as messages call it, and the newest PTX version that it reads; None where its version is not known."""
    if assembler is None or not _release(assembler):
        return None
    return f"{assembler.name} {assembler.version}", newest_ptx(assembler)


def check(targets: Sequence[Target], *, llvm: str, assembler: Tool | None, linker: Tool | None) -> tuple[str, ...]:
    """Warnings about the assembler and linker for these architectures, each to be said once.

    Raises ToolMissingError for a release that may not be used and for an assembler newer than its linker, UnsupportedArchError for
    an architecture that one of the tools does not know. What is missing altogether is decided by what is to be built: `require`.
    """
    numbers = [target.number for target in targets]
    warnings: list[str] = []
    for tool in dict.fromkeys((assembler, linker)):
        if tool is not None:
            warnings += _gate(tool, numbers)
    check_pair(assembler, linker)
    for target in targets:
        ptx_version(target, llvm=llvm, assembler=assembler)
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


def known_to(tool: Tool) -> tuple[str, ...]:
    """As "90", "90a". One that tells no version is believed to know all: it will say so itself if not."""
    release = _release(tool)
    if not release:
        return _names(ARCHS, limit=max(PTX_OF_CUDA.values()))
    kept = [arch for arch in ARCHS if arch.dropped is None or release < arch.dropped]
    return _names(kept, limit=_newest(PTX_OF_CUDA, release))


def _names(archs: Sequence[Arch], *, limit: int) -> tuple[str, ...]:
    least = {f"{arch.number}{suffix}": arch.least_ptx(suffix) for arch in archs for suffix in ("", "a", "f")}
    return tuple(name for name, ptx in least.items() if ptx is not None and ptx <= limit)


def _known(llvm: str, assembler: Tool | None) -> tuple[str, ...]:
    names = known_to(assembler) if assembler is not None else None
    return tuple(name for name in known_to_llvm(llvm) if names is None or name in names)


def _llvm_ptx(llvm: str) -> int:
    major = version_tuple(llvm)[:1]
    if not major:
        msg = "llvmlite was not found, or its LLVM tells no version"
        raise ToolMissingError(msg, hint=_INSTALL["llvmlite"])
    return _newest({(key,): value for key, value in LLVM_PTX.items()}, major)


def newest_ptx(tool: Tool) -> int:
    """The newest PTX version that it reads, 78 for 7.8. One without a version is taken for the oldest that can be used."""
    return _newest(PTX_OF_CUDA, _release(tool) or (11, 8))


def _release(tool: Tool) -> tuple[int, ...]:
    """The CUDA release that a tool is of; () where it does not tell. A driver has numbers of its own."""
    version = version_tuple(tool.version)
    if tool.name == "driver":
        rows = [release for driver, release in CUDA_OF_DRIVER.items() if driver <= version[0]] if version else []
        return rows[-1] if rows else ()
    return version[:2]


def _newest(table: dict[tuple[int, int], int] | dict[tuple[int], int], version: tuple[int, ...]) -> int:
    """The row of the newest version that is not newer than `version`; 0 if all are."""
    rows = [value for key, value in table.items() if key <= version]
    return rows[-1] if rows else 0


def least_ptx(target: Target) -> int:
    """The oldest PTX version that knows it: 78 is 7.8."""
    return next(arch.least_ptx(target.suffix) or 0 for arch in ARCHS if arch.number == target.number)


def _unknown(target: Target, *, llvm: str, assembler: Tool | None) -> UnsupportedArchError:
    by_llvm = target.cpu.removeprefix("sm_") in known_to_llvm(llvm)
    lacking = [] if by_llvm else [f"LLVM {llvm.partition(' ')[0]}"]
    if assembler is not None and target.real and target.cpu.removeprefix("sm_") not in known_to(assembler):
        lacking.append(f"{assembler.name} {assembler.version}")
    msg = f"{' and '.join(lacking)} do{'' if len(lacking) > 1 else 'es'} not know {target.name}"
    names = ", ".join(f"sm_{name}" for name in _known(llvm, assembler if target.real else None))
    return UnsupportedArchError(msg, hint=f"the tools at hand know {names}")


def _gate(tool: Tool, numbers: Sequence[int]) -> list[str]:
    if not version_tuple(tool.version):
        return [f"the version of {tool.name} ({tool.path}) cannot be read; what it makes is not reused by another build"]
    rules = family(tool)
    why = refused(rules, tool.version)
    if why:
        msg = f"{tool.name} {tool.version} ({tool.path}) cannot be used: {why}"
        raise ToolMissingError(msg, hint=_INSTALL.get(tool.name, _INSTALL_TOOLKIT))
    return [f"{tool.name} {tool.version} ({tool.path}): {why}" for why in warned(rules, tool.version, numbers)]


def family(tool: Tool) -> str:
    """What a tool is called where it is measured and gated: NVIDIA's assembler has three names."""
    return _FAMILY.get(tool.name, tool.name)


def check_pair(assembler: Tool | None, linker: Tool | None) -> None:
    """A linker may not read the objects of an assembler of a later release. Raises ToolMissingError."""
    if assembler is None or linker is None or (linker.name == "driver" and version_tuple(linker.version)[:1] > (max(CUDA_OF_DRIVER),)):
        return  # a driver of a later branch than the table's is believed
    made, linked = _release(assembler), _release(linker)
    if made and linked and made > linked:
        pair = ", ".join(f"{tool.name} {tool.version} ({tool.path})" for tool in (assembler, linker))
        msg = f"the assembler is newer than the linker: {pair}"
        raise ToolMissingError(msg, hint="take both from one CUDA release; GPU_CUDA_PATH names its folder")

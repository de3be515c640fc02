"""What `scons-gpu doctor` tells: which tools there are, what exactly they are, where each was looked for, what they can build."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.libraries import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Look, Tool
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["LIBRARIES", "TOOLS", "looks", "lowerings", "report", "rows"]

TOOLS = ("ptxas", "nvlink", "fatbinary", "cuobjdump", "nvdisasm", "libdevice", "clang")
LIBRARIES = NAMES


def report(  # noqa: PLR0913 - one keyword for each thing that is told
    toolchain: Toolchain,
    targets: Sequence[Target] = (),
    *,
    capabilities: dict[str, Any] | None = None,
    choice: Sequence[str] = (),
    assembler: Tool | None = None,
    linker: Tool | None = None,
    lowering: Sequence[dict[str, Any]] = (),
    merging: Sequence[dict[str, str]] = (),
    front_end: str = "",
    bindings: str = "",
) -> dict[str, Any]:
    """A plain dictionary, as printed by `doctor --json`. Starts nothing.

    `capabilities` is what the provider in use can do, `choice` the log of how it was chosen, `assembler` and `linker` what it consists of,
    `lowering` what lowers for each architecture (`arch`, `by`, `ptx`, `why`), `merging` where objects merge (`arch`, `by`,
    `unproven`: why not), `front_end` what compiles `.cu`, `bindings` a file of
    `cuda.bindings`; all come from who asked the tools. `problems` says what cannot be built with these tools, empty if nothing: a missing
    clang is none unless CUDA sources are built.
    """
    warnings, problems = _verdict(toolchain, targets, assembler, linker)
    return {
        "schema": "scons-gpu/doctor/1",
        "tools": {name: _tool(toolchain.tool(name)) for name in TOOLS},
        "libraries": {name: _library(toolchain, name) for name in LIBRARIES},
        "bindings": _bindings(bindings),
        "headers": _headers(toolchain),
        "llvm": _llvm(toolchain.llvm),
        "architectures": _architectures(toolchain),
        "targets": [_target(toolchain, target, assembler, lowering) for target in targets],
        "capabilities": capabilities or {},
        "choice": list(choice),
        "lowering": list(lowering),
        "merging": list(merging),
        "front_end": front_end,
        "warnings": warnings,
        "problems": problems,
        "looked": [{"what": look.what, "where": look.where, "origin": look.origin, "result": look.result} for look in _looked(toolchain)],
    }


def _looked(toolchain: Toolchain) -> list[Look]:
    return [*toolchain.looked, *(look for name in LIBRARIES for look in toolchain.libraries.get(name).looked)]


def rows(report: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """The table of tools: name, version, origin, path, first digits of the identity; "not found" for a version where there is none."""
    table = [_row(name, tool) for name, tool in report["tools"].items()]
    table += [_row(name, library) for name, library in report["libraries"].items()]
    table += [_row("cuda-python", report["bindings"]), _row("headers", report["headers"])]
    return [*table, _row("llvm", report["llvm"])]


def looks(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """The table of places: what, result, origin, where; in the order in which they were looked at."""
    return [(look["what"], look["result"], look["origin"], look["where"]) for look in report["looked"]]


def lowerings(report: dict[str, Any]) -> list[str]:
    """A line for each reason: what lowers, for which architectures, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in report["lowering"]:
        found.setdefault((entry["by"], entry["why"]), []).append(entry["arch"])
    return [f"{by} for {', '.join(archs)}: {why}" for (by, why), archs in found.items()]


def _row(name: str, entry: dict[str, Any] | None) -> tuple[str, str, str, str, str]:
    if entry is None:
        return name, "not found", "", "", ""
    return name, entry["version"] or "unknown", entry["origin"], entry["path"], entry["identity"][:12]


def _tool(tool: Tool | None) -> dict[str, Any] | None:
    if tool is None:
        return None
    return {"path": tool.path, "version": tool.version, "identity": tool.identity, "origin": tool.origin}


def _library(toolchain: Toolchain, name: str) -> dict[str, Any] | None:
    """`path` is what was found; nvPTXCompiler is loaded from a library that was made of it, which is `loaded`."""
    found = _tool(toolchain.library(name))
    taken = next((look for look in toolchain.libraries.get(name).looked if look.result == "taken"), None)
    return {**found, "path": taken.where, "loaded": found["path"]} if found and taken else found


def _bindings(file: str) -> dict[str, Any] | None:
    """What nvJitLink, libNVVM and the driver are called through."""
    if not file:
        return None
    try:
        release = version("cuda-bindings")
    except PackageNotFoundError:  # a copy that no installer knows
        release = ""
    return {"path": str(Path(file).parent), "version": release, "identity": "", "origin": "Python wheel"}


def _headers(toolchain: Toolchain) -> dict[str, Any] | None:
    """`path` is what clang is given; where the wheels are linked together that is a folder of the store, and `source` is theirs."""
    if not toolchain.headers:
        return None
    taken = next((look for look in toolchain.looked if look.what == "headers" and look.result == "taken"), None)
    return {
        "path": toolchain.headers,
        "source": taken.where if taken else toolchain.headers,
        "version": toolchain.headers_version,
        "identity": toolchain.headers_identity,
        "origin": taken.origin if taken else "",
    }


def _llvm(llvm: str) -> dict[str, Any] | None:
    if not llvm:
        return None
    version, _, identity = llvm.partition(" ")
    spec = find_spec("llvmlite")
    return {"path": spec.origin if spec else "", "version": version, "identity": identity, "origin": "llvmlite"}


def _architectures(toolchain: Toolchain) -> dict[str, list[str]]:
    """What each side knows, and what `all` would mean: the names that both know."""
    by_llvm = [f"sm_{name}" for name in versions.known_to_llvm(toolchain.llvm)] if toolchain.llvm else []
    by_ptxas = [f"sm_{name}" for name in versions.known_to(toolchain.ptxas)] if toolchain.ptxas else []
    both = [name for name in by_llvm if not toolchain.ptxas or name in by_ptxas]
    return {"llvm": by_llvm, "ptxas": by_ptxas, "both": both}


def _target(toolchain: Toolchain, target: Target, assembler: Tool | None, lowering: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for chosen in lowering:
        if chosen["arch"] == target.name:
            return {"name": target.name, "ptx": chosen["ptx"], "lowered_by": chosen["by"]}
    try:
        ptx = versions.ptx_version(target, llvm=toolchain.llvm, assembler=assembler or toolchain.ptxas)
    except GpuError:  # told under `problems`
        return {"name": target.name, "ptx": None}
    return {"name": target.name, "ptx": f"{ptx // 10}.{ptx % 10}"}


def _verdict(toolchain: Toolchain, targets: Sequence[Target], assembler: Tool | None, linker: Tool | None) -> tuple[list[str], list[str]]:
    warnings: list[str] = []
    problems = [] if assembler else [f"{name} was not found" for name in ("ptxas", "nvlink") if toolchain.tool(name) is None]
    problems += [] if toolchain.fatbinary else ["fatbinary was not found"]
    try:
        warnings += versions.check(targets, llvm=toolchain.llvm, assembler=assembler or toolchain.ptxas, linker=linker or toolchain.nvlink)
    except GpuError as error:
        problems.append(str(error))
    try:
        warnings += versions.check_clang(toolchain) if toolchain.clang else ()
    except GpuError as error:
        problems.append(str(error))
    return warnings, problems

"""What a module's PTX asks for that no GPU gives: where nothing assembles it, only the driver would say so, when it loads the module.

An assembler refuses the same in words of its own. What is counted here is the least that any of them counts: no room between variables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError, RefusedError
from scons_gpu.link.image import shared_refusal, spelled
from scons_gpu.plan.plan import CONSTANT_BANK
from scons_gpu.source import ptx_reader
from scons_gpu.source.ptx import read_module
from scons_gpu.split import ptx_module, ptx_text
from scons_gpu.split.ptx_graph import PtxGraph
from scons_gpu.toolchain.tables import PARAMETER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.plan.model import Part, Plan

__all__ = ["check_constants", "check_unit", "unit_refusal"]

_SHARED = re.compile(r"(?:\.(?:visible|weak)\s+)?\.shared\b[^;]*;")
_ENTRY = re.compile(rf"{ptx_reader.SKIP}|\.entry\s+(?P<name>[\w$]+)\s*\((?P<parameters>[^)]*)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.[a-z]+(?P<bits>\d+)\b[^\[]*(?:\[\s*(?P<count>\d+)\s*\])?\s*")
_SHOWN = 5


def check_unit(plan: Plan, part: Part, text: str) -> None:
    """Raises RefusedError, with kernel, module and source, for a unit's PTX that has a kernel which asks for too much."""
    if error := unit_refusal(part, text):
        raise error.at(module=plan.module, arch=plan.arch)


def unit_refusal(part: Part, text: str) -> GpuError | None:
    """Why no GPU takes a unit's PTX: the static shared memory, or the parameters, of one of its kernels. None where nothing is wrong."""
    readable = {name: kernel.readable for kernel in part.kernels for name in (kernel.symbol, spelled(kernel.symbol))}
    for symbol, error in _refusals(part, text):
        return error.at(kernel=readable.get(symbol, symbol), source=part.source)
    return None


def check_constants(plan: Plan, text: str, *, part: Part | None = None) -> None:
    """Raises RefusedError, with the largest and their sources, for PTX whose constants do not fit into the bank that it has, used or not.

    `part`: it is that one's alone, not the module's.
    """
    module = ptx_reader.read(text, label=plan.module) if ".const" in text else None
    variables = [each for each in module.statements if each.kind == "variable" and each.space == "const"] if module else []
    sizes = [(one.bytes, one.name) for each in variables if each.linkage != "extern" for one in ptx_text.declarators(each.text)]
    total = sum(size for size, _ in sizes)
    if total <= CONSTANT_BANK:
        return
    sources = {spelled(name): each.source for each in plan.parts for name in each.defines}
    largest = sorted(sizes, key=lambda each: (-each[0], each[1]))[:_SHOWN]
    shown = "\n".join(f"{size:8d} bytes  {name}{f' of {sources[name]}' if name in sources else ''}" for size, name in largest)
    msg = f"its {total} bytes of constants do not fit into the {CONSTANT_BANK} bytes of an image"
    error = RefusedError(msg, output=shown, hint="move the largest into __device__ memory, or into another module")
    kernel = part.kernels[0].readable if part and part.kernels else ""
    raise error.at(kernel=kernel, module=plan.module, source=part.source if part else "", arch=plan.arch)


def _refusals(part: Part, text: str) -> Iterator[tuple[str, GpuError]]:
    """Kernel and error, of each kernel that asks for too much."""
    for symbol, total in _parameters(text).items():
        if total > (most := _most_parameters(text)):
            msg = f"its {total} bytes of parameters are more than the {most} that a kernel can have in its PTX version"
            yield symbol, RefusedError(msg, hint="pass the largest by a pointer to __device__ or __constant__ memory")
    declared = [one for each in _SHARED.findall(text) for one in ptx_text.declarators(each)]
    if shared_refusal([(one.bytes, one.name) for one in declared]) is None:
        return  # nearly always, and without reading it all
    for symbol, taken in _shared(part, text).items():
        if error := shared_refusal(taken):
            yield symbol, error


def _shared(part: Part, text: str) -> Mapping[str, list[tuple[int, str]]]:
    """Kernel → (bytes, name) of the static shared variables that it, or a function that it calls, uses. All that a body declares counts."""
    read = read_module(text, name=part.source)
    if read is None:
        return {}
    module = ptx_module.read(read, source=part.source, lines=False)
    graph = PtxGraph(module)
    found: dict[str, list[tuple[int, str]]] = {}
    for kernel in graph.kernels:
        members = graph.members([kernel], stop=graph.kernels)
        found[kernel] = [(module.variables[name].declarator.bytes, name) for name in members if graph.is_shared(name)]
        bodies = [function for name in members if (function := module.functions.get(name))]
        found[kernel] += [(one.bytes, one.name) for function in bodies for one in function.shared]
    return found


def _parameters(text: str) -> dict[str, int]:
    """Kernel → bytes of its parameters, in their order, each at a multiple of its alignment."""
    return {found["name"]: _laid_out(found["parameters"]) for found in _ENTRY.finditer(text) if found["name"]}


def _laid_out(parameters: str) -> int:
    end = 0
    for each in parameters.split(","):
        if found := _PARAMETER.match(each.strip()):
            size = int(found["bits"]) // 8
            align = int(found["align"] or size)
            end = -(-end // align) * align + size * int(found["count"] or 1)
    return end


def _most_parameters(text: str) -> int:
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
    number = 10 * int(version[1]) + int(version[2]) if version else 0
    return next(most for least, most in PARAMETER_BYTES if number >= least)

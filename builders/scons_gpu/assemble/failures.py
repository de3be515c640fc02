"""Telling a tool's failures apart, by how it ended and by its own words.

Only "tool missing" and "unsupported architecture" may pass on to another provider; every other class is the answer.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import (
    GpuError,
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    RefusedError,
    RegisterError,
    SpillError,
    ToolError,
    ToolSilentError,
    UnsupportedArchError,
)
from scons_gpu.toolchain.process import killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.assemble.report import FunctionReport, Report

__all__ = ["classify", "entry_at", "silent", "spilled", "spills_told"]

# What ptxas refuses without saying where it would work: instructions that exist only on architecture-specific targets.
# From "Target ISA Notes" of each instruction in the PTX ISA 9.x manual.
_NEEDED = (
    ("wgmma.", "sm_90a"),
    ("setmaxnreg", "sm_90a, sm_100a, sm_100f or another of their kind"),
    ("tcgen05.", "sm_100a, sm_100f or another of their family"),
    ("clusterlaunchcontrol.", "sm_100 or higher"),
)


@dataclass(frozen=True)
class _Ended:
    """What a rule may look at."""

    tool: str
    output: str
    arch: str
    ptx: str


def classify(  # noqa: PLR0913 - all that a tool leaves behind when it fails
    code: int, output: str, *, tool: str, arch: str, peak_kib: int = 0, ptx: str = "", result: str = ""
) -> GpuError:
    """The error for a tool that ended with `code` (not 0; minus the signal, where one ended it) and said `output`.

    `result`: what a library in this process calls its code. `ptx` is what an assembler was given: a message with a line number is then
    attributed to the kernel around it.
    """
    ended = _Ended(tool=tool, output=output, arch=arch, ptx=ptx)
    if not result and (code < 0 or 128 < code <= 128 + signal.SIGRTMAX):  # a shell wrapper reports a signal as 128 more
        return killed(tool, -code if code < 0 else code - 128, peak_kib=peak_kib, arch=arch, output=output)
    for pattern, rule in _RULES:
        if found := pattern.search(output):
            return rule(ended, found)
    if meant := next((meant for name, meant in _RESULTS if name in result), None):
        return meant(ended)
    msg = f"{tool} failed{f': {result}' if result else f' with exit code {code}'}" + ("" if output.strip() else " and said nothing")
    return ToolError(msg, arch=arch, output=output)


def silent(*, tool: str, arch: str, output: str) -> ToolSilentError:
    """A tool that ended with 0 and left no output file, or an empty one."""
    msg = f"{tool} ended with exit code 0 but wrote nothing"
    return ToolSilentError(msg, arch=arch, output=output, hint=f"check with scons-gpu doctor that {tool} is what it should be")


def spilled(report: Report, *, arch: str) -> SpillError | None:
    """The error of GPU_FAIL_ON_SPILL, if anything spills. It names each function with its bytes."""
    if not report.spilling:
        return None
    first = report.spilling[0]
    lines = [f"{'' if each.kernel else 'function '}{_readable(each.symbol)}: {_bytes(each)}" for each in report.spilling]
    msg = f"registers spill to local memory ({_bytes(first)})"
    hint = "raise GPU_MAXRREGCOUNT, ask for fewer threads in the launch bounds, or unset GPU_FAIL_ON_SPILL"
    return SpillError(msg, kernel=_readable(first.symbol) if first.kernel else "", arch=arch, output="\n".join(lines), hint=hint)


def spills_told(report: Report) -> str:
    """The warning of GPU_WARN_ON_SPILL: a line for each function that spills; empty where none does."""
    return "".join(
        f"registers of {'kernel' if each.kernel else 'function'} {_readable(each.symbol)} spill to local memory: {_bytes(each)}\n"
        for each in report.spilling
    )


def _bytes(each: FunctionReport) -> str:
    return f"{each.spill_stores or 0} bytes stored, {each.spill_loads or 0} bytes loaded"


def entry_at(ptx: str, line: int) -> str:
    """Symbol of the kernel that holds `line` of `ptx`, or "" where a function or nothing does."""
    found = ""
    for text in ptx.splitlines()[:line]:
        if opened := _OPENED.search(text):
            found = opened.group(1) or ""
    return found


def _lacks(ended: _Ended, _: re.Match[str]) -> GpuError:
    """The source uses what its architecture lacks. One kernel may lack several things: the newest target decides."""
    wants = [(found.group(1), found.group(2)) for found in _REQUIRES.finditer(ended.output)]
    wants += [(found.group(1), _needed(found.group(1))) for found in _NOT_ON.finditer(ended.output)]
    name, needed = max(wants, key=lambda want: _number(want[1]))
    msg = f"{name} needs {needed}" if needed else f"{name} is not supported on {ended.arch}"
    return UnsupportedArchError(
        msg, kernel=_kernel(ended), arch=ended.arch, output=ended.output, hint="build for that architecture, or guard it with __CUDA_ARCH__"
    )


def _needed(instruction: str) -> str:
    return next((arch for prefix, arch in _NEEDED if instruction.startswith(prefix)), "")


def _number(needed: str) -> int:
    found = re.search(r"sm_(\d+)", needed)
    return int(found.group(1)) if found else 0


def _isa(ended: _Ended, found: re.Match[str]) -> GpuError:
    msg = f"{found.group(1)} needs PTX ISA {found.group(2)}, newer than the PTX that was written for {ended.arch}"
    hint = "scons-gpu doctor shows which PTX versions the tools know"
    return PtxSyntaxError(msg, kernel=_kernel(ended), arch=ended.arch, output=ended.output, hint=hint)


def _version(ended: _Ended, found: re.Match[str]) -> GpuError:
    msg = f"{ended.tool} reads PTX up to {found.group(2)}, and this is PTX {found.group(1)}"
    return UnsupportedArchError(msg, arch=ended.arch, output=ended.output, hint="install a newer toolkit: pip install 'scons-gpu[toolkit]'")


def _unknown_arch(ended: _Ended, found: re.Match[str]) -> GpuError:
    msg = f"{ended.tool} does not know {found.group(1)}"
    return UnsupportedArchError(msg, arch=ended.arch, output=ended.output, hint="scons-gpu doctor shows which architectures it knows")


def _target(ended: _Ended, _: re.Match[str]) -> GpuError:
    return UnsupportedArchError("the PTX is written for another architecture", arch=ended.arch, output=ended.output)


def _registers(ended: _Ended, _: re.Match[str]) -> GpuError:
    msg = f"{ended.tool} cannot fit it into its registers"
    hint = "raise GPU_MAXRREGCOUNT, or ask for fewer threads in the launch bounds"
    return RegisterError(msg, kernel=_kernel(ended), arch=ended.arch, output=ended.output, hint=hint)


def _insufficient(ended: _Ended, found: re.Match[str]) -> GpuError:
    given, function, needed = found.groups()
    msg = f"one instruction needs more than {given} registers" + (f": {needed} at least" if needed else "")
    hint = "raise GPU_MAXRREGCOUNT, or ask for fewer threads in the launch bounds"
    return RegisterError(msg, kernel=_readable(function), arch=ended.arch, output=ended.output, hint=hint)


def _callee(ended: _Ended, found: re.Match[str]) -> GpuError:
    kernel, given, callee, needed = found.groups()
    msg = f"its launch bounds leave {given} registers, and it calls {_readable(callee)}, which takes {needed}"
    hint = f"compile the source of {_readable(callee)} with GPU_MAXRREGCOUNT={given}, or define it in the kernel's source"
    return RegisterError(msg, kernel=_readable(kernel), arch=ended.arch, output=ended.output, hint=hint)


def _undefined(ended: _Ended, _: re.Match[str]) -> GpuError:
    names = sorted({name for found in _UNDEFINED.finditer(ended.output) for name in found.groups() if name})
    msg = f"nobody defines {', '.join(_readable(name) for name in names)}"
    return MissingSymbolError(msg, kernel=_kernel(ended), arch=ended.arch, output=ended.output)


def _multiple(ended: _Ended, found: re.Match[str]) -> GpuError:
    msg = f"{_readable(found.group(1))} is defined twice"
    return LinkError(msg, arch=ended.arch, output=ended.output)


def _too_much(ended: _Ended, found: re.Match[str]) -> GpuError:
    kernel, space, size, limit = found.groups()
    msg = f"its {int(size, 16)} bytes of {space} memory are more than the {int(limit, 16)} that a kernel can have"
    hint = "declare the largest array extern and give its size at the launch" if space == "shared" else ""
    return RefusedError(msg, kernel=_readable(kernel), arch=ended.arch, output=ended.output, hint=hint)


def _constants(ended: _Ended, found: re.Match[str]) -> GpuError:
    size, limit = (int(number, 16) for number in found.groups())
    sizes = [(int(count or 1) * (int(bits) // 8), name) for bits, name, count in _CONSTANT.findall(ended.ptx)]
    largest = [f"{size:8d} bytes  {name}" for size, name in sorted(sizes, reverse=True)[:5]]
    msg = f"its {size} bytes of constants do not fit into the {limit} of a program"
    hint = "move the largest into __device__ memory"
    return RefusedError(msg, kernel=_kernel(ended), arch=ended.arch, output="\n".join((ended.output.rstrip(), *largest)), hint=hint)


def _mismatch(ended: _Ended, found: re.Match[str]) -> GpuError:
    return LinkError(f"{found.group(1)} is for another architecture than {ended.arch}", arch=ended.arch, output=ended.output)


def _syntax(ended: _Ended, _: re.Match[str]) -> GpuError:
    return _unread(ended)


def _unread(ended: _Ended) -> GpuError:
    return PtxSyntaxError(f"{ended.tool} does not accept the PTX", kernel=_kernel(ended), arch=ended.arch, output=ended.output)


_CONSTANT = re.compile(r"^[^\n;{/]*\.const\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$]+)(?:\[(\d+)\])?", re.MULTILINE)
_OPENED = re.compile(r"\.entry\s+([\w$]+)|\.func\b")
_REQUIRES = re.compile(r"(?:Feature|Instruction|Modifier) '([^']+)'[^\n]*? requires \.target (sm_\w+(?: or higher)?)")
_NOT_ON = re.compile(r"(?:Feature|Instruction|Modifier) '([^']+)'[^\n]*? not supported on \.target")
_UNDEFINED = re.compile(r"Undefined reference to '([^']+)'|Unresolved extern \w+ '([^']+)'|undefined symbol: '?([\w$]+)")

# First match wins, so what is more telling comes first: an unsupported instruction also ends with "aborted due to errors".
_RULES: tuple[tuple[re.Pattern[str], Callable[[_Ended, re.Match[str]], GpuError]], ...] = (
    (re.compile(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'"), _version),
    (re.compile(r"Unsupported \.target '(\w+)'"), _unknown_arch),
    (re.compile(r"Value '(\w+)' is (?:not defined for|not a recognized value for) option '(?:gpu-name|arch)'"), _unknown_arch),
    (re.compile(r"SM version specified by \.target is higher than|PTX with \.target '\w+' cannot be compiled for"), _target),
    (_REQUIRES, _lacks),
    (_NOT_ON, _lacks),
    (re.compile(r"'([^']+)'[^\n]*? requires PTX ISA \.version ([\d.]+)"), _isa),
    (re.compile(r"Insufficient registers \((\d+)\)[^\n]* in function ([\w$]+)(?:[^\n]*register target of (\d+))?"), _insufficient),
    (re.compile(r"entry function '([^']+)' with max regcount of (\d+) calls function '([^']+)' with regcount of (\d+)"), _callee),
    (re.compile(r"[Rr]egisters? allocation failed|too many registers|[Uu]nable to allocate registers"), _registers),
    (_UNDEFINED, _undefined),
    (re.compile(r"Multiple definition of '([^']+)'"), _multiple),
    (
        re.compile(r"Entry function '([^']+)' uses too much (shared|local|parameter) (?:data|space) \(0x(\w+) bytes, 0x(\w+) max\)"),
        _too_much,
    ),
    (re.compile(r"too much global constant data \(0x(\w+) bytes, 0x(\w+) max\)"), _constants),
    (re.compile(r"Input file '([^']+)' arch does not match target"), _mismatch),
    (
        re.compile(r"Parsing error|Ptx assembly aborted due to errors|Missing \.version directive|does not match type \w+_INPUT_PTX"),
        _syntax,
    ),
)


def _result_arch(ended: _Ended) -> GpuError:
    return UnsupportedArchError(
        f"{ended.tool} does not know {ended.arch}", arch=ended.arch, output=ended.output, hint="scons-gpu doctor shows which release it is"
    )


def _result_options(ended: _Ended) -> GpuError:
    return ToolError(f"{ended.tool} does not accept its options", arch=ended.arch, output=ended.output)


def _result_input(ended: _Ended) -> GpuError:
    return LinkError(f"{ended.tool} does not accept an input", arch=ended.arch, output=ended.output)


def _result_driver(ended: _Ended) -> GpuError:
    msg = f"{ended.tool} is too old for this PTX"
    return UnsupportedArchError(
        msg, arch=ended.arch, output=ended.output, hint="install a newer driver, or let a toolkit's assembler do it"
    )


# What the results of libraries mean where they say nothing else: nvJitLinkResult, and CUresult of the driver. First match wins.
_RESULTS: tuple[tuple[str, Callable[[_Ended], GpuError]], ...] = (
    ("UNRECOGNIZED_ARCH", _result_arch),
    ("UNSUPPORTED_ARCH", _result_arch),
    ("ERROR_NO_BINARY_FOR_GPU", _result_arch),
    ("ERROR_UNSUPPORTED_PTX_VERSION", _result_driver),
    ("UNRECOGNIZED_OPTION", _result_options),
    ("INCOMPATIBLE_OPTIONS", _result_options),
    ("ERROR_INVALID_PTX", _unread),
    ("INCORRECT_INPUT_TYPE", _result_input),
    ("INVALID_INPUT", _result_input),
)


def _kernel(ended: _Ended) -> str:
    found = re.search(r"\bline (\d+);", ended.output)
    symbol = entry_at(ended.ptx, int(found.group(1))) if found and ended.ptx else ""
    return _readable(symbol) if symbol else ""


def _readable(symbol: str) -> str:
    from scons_gpu.split.readable import demangle  # noqa: PLC0415 - only a failure needs it, and it loads a library

    return demangle(symbol)

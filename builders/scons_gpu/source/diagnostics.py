"""What clang says, sorted: which error it is, and what the user can do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError, SourceError, ToolKilledError, ToolMissingError, UnsupportedArchError
from scons_gpu.toolchain.process import killed

if TYPE_CHECKING:
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.process import Finished

__all__ = ["classify", "missing_headers", "warnings_of"]

_SUMMARY = re.compile(r"^\d+ (?:warning|error)s?(?: and \d+ errors?)? generated(?: when compiling for [\w.]+)?\.$")
_MISSING = re.compile(r"fatal error: '([^']+)' file not found")
_UNDECLARED = re.compile(r"use of undeclared identifier '(\w+)'")
_ARGUMENT = re.compile(r"error: (?:unknown argument:?|unsupported option) '([^']+)'")
_FEATURE = re.compile(r"'(\w+)' needs target feature ([\w|,()]+)")
# Its wrapper for CUDA includes these before the first line of the source.
_STANDARD = {
    "algorithm",
    "array",
    "assert.h",
    "bits/c++config.h",
    "cassert",
    "cctype",
    "climits",
    "cmath",
    "complex",
    "cstddef",
    "cstdint",
    "cstdio",
    "cstdlib",
    "cstring",
    "functional",
    "initializer_list",
    "iostream",
    "iterator",
    "limits",
    "limits.h",
    "math.h",
    "memory",
    "new",
    "stdint.h",
    "stdio.h",
    "stdlib.h",
    "string",
    "string.h",
    "tuple",
    "type_traits",
    "utility",
    "vector",
}

# Clang's and CUDA's headers declare these from an architecture on, so below it they are just unknown names.
_DECLARED_FROM = (
    (re.compile(r"__match_\w+_sync"), 70),
    (re.compile(r"__reduce_\w+_sync|__nv_memcpy_async_\w+|__nv_associate_access_property"), 80),
    (re.compile(r"__cluster\w+|__threadfence_cluster|__isClusterShared|__isCtaShared"), 90),
)


def classify(done: Finished, *, source: str, target: Target | None) -> GpuError:
    """The error that a failed clang means; its words stay whole, `file:line:column` with them. `target` is None for the host's half."""
    said, arch = done.output, target.name if target else ""
    if done.status < 0:
        return killed("clang", -done.status, peak_kib=done.peak_kib, arch=arch, output=said).at(source=source)
    if re.search(r"frontend command failed due to signal|PLEASE submit a bug report", said):
        msg = "clang crashed"
        return ToolKilledError(msg, source=source, arch=arch, output=said)
    if "No space left on device" in said:
        msg = "clang ran out of disk space for its temporary files"
        return GpuError(msg, source=source, arch=arch, output=said, hint="make room there, or point TMPDIR elsewhere")
    return _of_words(said, status=done.status, source=source, target=target)


def _of_words(said: str, *, status: int, source: str, target: Target | None) -> GpuError:
    arch = target.name if target else ""
    missing = _MISSING.search(said)
    if missing and missing[1] in _STANDARD:
        msg = f"clang finds no C++ standard library: <{missing[1]}> is missing"
        hint = "install a C++ compiler, whose headers clang uses (Debian: apt install g++; Fedora: dnf install gcc-c++)"
        return ToolMissingError(msg, source=source, arch=arch, output=said, hint=hint)
    if target and "unsupported CUDA gpu architecture" in said:
        msg = f"clang does not know {target.cpu}"
        return UnsupportedArchError(msg, source=source, arch=target.name, output=said)
    msg = "clang cannot compile it" if said.strip() else f"clang ended with status {status} and said nothing"
    return SourceError(msg, source=source, arch=arch, output=said, hint=_hint(said, missing, target))


def _hint(said: str, missing: re.Match[str] | None, target: Target | None) -> str:
    feature = _FEATURE.search(said)
    if target and feature:
        return f"{target.name} has no {feature[1]}: {_needed(feature[2])}"
    for undeclared in _UNDECLARED.finditer(said):
        since = next((number for names, number in _DECLARED_FROM if names.fullmatch(undeclared[1])), 0)
        if target and since > target.number:
            return f"{target.name} has no {undeclared[1]}: it needs sm_{since} or newer"
    unknown = _ARGUMENT.search(said)
    if unknown:
        return (
            f"clang compiles both halves of a .cu, and has no {unknown[1]}: give this file flags of its own, as env.Object(..., CCFLAGS=[])"
        )
    if missing and missing[1].startswith("curand"):
        return "the headers of cuRAND are a wheel of their own: pip install nvidia-curand-cu12"
    if missing:
        return f"if {missing[1]} lies in another folder, add that to CPPPATH"
    return ""


def _needed(features: str) -> str:
    """From clang's `sm_90|sm_90a,(ptx80|...)`: the least architecture of the list."""
    numbers = sorted(int(number) for number in re.findall(r"sm_(\d+)", features))
    return f"it needs sm_{numbers[0]} or newer" if numbers else f"it needs {features}"


def missing_headers(said: str) -> tuple[str, ...]:
    """The headers that are not found, as the source spells them."""
    return tuple(dict.fromkeys(_MISSING.findall(said)))


def warnings_of(said: str) -> str:
    """Clang's warnings without the line that counts them."""
    return "\n".join(line for line in said.splitlines() if not _SUMMARY.match(line)).strip()

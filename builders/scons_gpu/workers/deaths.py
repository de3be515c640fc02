"""What LLVM's last words mean when it takes its process along: which architecture a unit needs, or that it is a crash."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from scons_gpu.errors import GpuError, ToolError, ToolKilledError, ToolStoppedError, UnsupportedArchError
from scons_gpu.toolchain.process import killed
from scons_gpu.workers.output import condense

__all__ = ["NEEDS", "Need", "death", "lacking"]

_SELECT = re.compile(r"Cannot select: (?:intrinsic %?(?P<intrinsic>llvm\.[\w.]+)|(?P<node>.+))")
_INTRINSIC = re.compile(r"@(llvm\.nvvm\.[\w.]+)\(")
_FUNCTION = re.compile(r"^In function: (\S+)", re.MULTILINE)
_WORDS = re.compile(
    r"^(?:LLVM ERROR|error|fatal error): (?:<unknown>:0:0: in function (?P<function>\S+) [^:]*: )?(?P<what>.+)$", re.MULTILINE
)
_TOO_OLD = re.compile(
    r"requires? .*(?:sm_\d|PTX)|(?:PTX|sm_\d+).*(?:or (?:newer|higher|above)|>=|introduced)"
    r"|unsupported cmpxchg|not supported on|does not support target"
)


@dataclass(frozen=True)
class Need:
    """What a family of intrinsics asks for."""

    prefix: str
    instruction: str
    arch: str


# The longest prefix that fits counts. From NVIDIA's PTX ISA 9.0, section "Target ISA Notes" of each instruction.
NEEDS = (
    Need("llvm.nvvm.barrier.cluster.", "barrier.cluster", "sm_90"),
    Need("llvm.nvvm.read.ptx.sreg.cluster", "%cluster special registers", "sm_90"),
    Need("llvm.nvvm.is_explicit_cluster", "%is_explicit_cluster", "sm_90"),
    Need("llvm.nvvm.mapa", "mapa", "sm_90"),
    Need("llvm.nvvm.getctarank", "getctarank", "sm_90"),
    Need("llvm.nvvm.cp.async.bulk.", "cp.async.bulk", "sm_90"),
    Need("llvm.nvvm.fence.proxy.", "fence.proxy", "sm_90"),
    Need("llvm.nvvm.fence.sc.cluster", "fence.sc.cluster", "sm_90"),
    Need("llvm.nvvm.tensormap.replace.", "tensormap.replace", "sm_90a"),
    Need("llvm.nvvm.elect.sync", "elect.sync", "sm_90"),
    Need("llvm.nvvm.griddepcontrol.", "griddepcontrol", "sm_90"),
    Need("llvm.nvvm.setmaxnreg.", "setmaxnreg", "sm_90a"),
    Need("llvm.nvvm.wgmma.", "wgmma", "sm_90a"),
    Need("llvm.nvvm.stmatrix.", "stmatrix", "sm_90"),
    Need("llvm.nvvm.tcgen05.", "tcgen05", "sm_100a"),
    Need("llvm.nvvm.clusterlaunchcontrol.", "clusterlaunchcontrol", "sm_100"),
    Need("llvm.nvvm.cp.async.", "cp.async", "sm_80"),
    Need("llvm.nvvm.mbarrier.", "mbarrier", "sm_80"),
    Need("llvm.nvvm.redux.sync.f", "redux.sync of floats", "sm_100a"),
    Need("llvm.nvvm.redux.sync.", "redux.sync", "sm_80"),
    Need("llvm.nvvm.ldmatrix.", "ldmatrix", "sm_75"),
    Need("llvm.nvvm.mma.", "mma", "sm_70"),
    Need("llvm.nvvm.wmma.", "wmma", "sm_70"),
    Need("llvm.nvvm.match.", "match.sync", "sm_70"),
    Need("llvm.nvvm.nanosleep", "nanosleep", "sm_70"),
)


def lacking(text: str, arch: str) -> GpuError | None:
    """What a unit asks for that `arch` lacks, told from the intrinsics in its text: where what lowers says no more than "unsupported"."""
    for name in dict.fromkeys(_INTRINSIC.findall(text)):
        need = _need(name)
        if need is not None and not _reaches(arch, need.arch):
            return _lacking(name, "", arch)
    return None


def death(*, code: int, said: str, peak_kib: int, arch: str, runs: str = "LLVM") -> GpuError:
    """The error for a worker that ended with exit status `code` (negative: a signal) in the middle of a task for `arch`.

    `runs` is what it ran: LLVM, or a provider that is a library.
    """
    words = _WORDS.search(said) if runs == "LLVM" else None
    who = f"the {runs} worker"
    # An abort or exit with last words is LLVM's own way of refusing an input; any other end is a crash.
    if words and code in (1, -signal.SIGABRT):
        return _refusal(words["what"].strip(), words["function"] or "", said, arch)
    if code == 0:
        return ToolStoppedError(f"{who} was ended before it was done", arch=arch)
    if code < 0:
        return killed(who, -code, peak_kib=peak_kib, arch=arch, output=condense(said))
    return ToolKilledError(f"{who} ended with status {code}", arch=arch, output=condense(said))


def _refusal(words: str, function: str, said: str, arch: str) -> GpuError:
    match = _SELECT.search(words)
    kernel = function or (found[1] if (found := _FUNCTION.search(said)) else "")
    if match and match["intrinsic"]:
        return _lacking(match["intrinsic"], kernel, arch)
    if match or _TOO_OLD.search(words):
        return UnsupportedArchError("uses what this architecture or PTX version lacks", kernel=kernel, arch=arch, output=condense(said))
    return ToolError("LLVM does not lower this unit", kernel=kernel, arch=arch, output=condense(said))


def _lacking(intrinsic: str, kernel: str, arch: str) -> GpuError:
    need = _need(intrinsic)
    if need is None or _reaches(arch, need.arch):
        return UnsupportedArchError(f"{intrinsic} does not exist for this architecture and PTX version", kernel=kernel, arch=arch)
    msg = f"{intrinsic} ({need.instruction}) needs {need.arch}"
    return UnsupportedArchError(
        msg, kernel=kernel, arch=arch, hint=f"build this source for {need.arch}, or keep the instruction out below it"
    )


def _reaches(arch: str, needed: str) -> bool:
    """Whether an architecture is not the reason: then the PTX version is, or LLVM."""
    numbers = [int(found[0]) if (found := re.search(r"\d+", name)) else 0 for name in (arch, needed)]
    return numbers[0] >= numbers[1] and (needed[-1].isdigit() or not arch[-1:].isdigit())


def _need(intrinsic: str) -> Need | None:
    fitting = [need for need in NEEDS if intrinsic.startswith(need.prefix)]
    return max(fitting, key=lambda need: len(need.prefix), default=None)

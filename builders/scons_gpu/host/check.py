"""Whether all that the host's half registers is in the device's half: what is not would fail when the program launches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.errors import RefusedError
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.host.registered import Registered
    from scons_gpu.plan import Plan

__all__ = ["check"]

_HINT = "both halves are compiled from one source: do not let __CUDA_ARCH__ decide whether a kernel exists"


def check(registered: Registered, plans: Mapping[str, Plan]) -> str:
    """Holds registrations against the plans, by architecture. Gives what to tell of what is not there, on some architectures or on any.

    Raises RefusedError for a kernel that none has, and for one that is registered twice. A variable may be one that host code only reads
    as a constant of its own: clang registers it all the same.
    """
    kernels = {arch: {kernel.symbol for part in plan.units for kernel in part.kernels} for arch, plan in plans.items()}
    variables = {arch: {state.symbol for state in plan.state} for arch, plan in plans.items()}
    said = []
    for name in dict.fromkeys((*registered.kernels, *registered.stubs)):
        lacking = _lacking(name, kernels)
        if len(lacking) == len(plans):
            msg = f"kernel {demangle(name)} is in the host's half of the source, and not in the device's"
            raise RefusedError(msg, hint=_HINT)
        if registered.kernels.count(name) > 1:
            msg = f"kernel {demangle(name)} is registered {registered.kernels.count(name)} times"
            raise RefusedError(msg)
        said += [f"kernel {demangle(name)} is not there for {', '.join(lacking)}: to launch it there will fail"] if lacking else []
    for name in registered.variables:
        if lacking := _lacking(name, variables):
            said.append(f"variable {demangle(name)} is not there for {', '.join(lacking)}: to copy to it or from it there will fail")
    return "\n".join(said)


def _lacking(name: str, held: Mapping[str, set[str]]) -> list[str]:
    return [arch for arch, there in held.items() if name not in there]

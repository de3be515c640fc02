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

_HINT = (
    "both halves are compiled from one source: do not let __CUDA_ARCH__ decide whether a kernel, or a variable that the host names, exists"
)


def check(registered: Registered, plans: Mapping[str, Plan]) -> str:
    """Holds registrations against the plans, by architecture. Gives what to tell of those that only some architectures have.

    Raises RefusedError for what none has, and for what is registered twice.
    """
    kernels = {arch: {kernel.symbol for part in plan.units for kernel in part.kernels} for arch, plan in plans.items()}
    variables = {arch: {state.symbol for state in plan.state} for arch, plan in plans.items()}
    if registered.stubs and not any(kernels.values()):
        raise _nowhere(f"kernel {demangle(registered.stubs[0]).replace('__device_stub__', '')}")
    said = [*_missing("kernel", registered.kernels, kernels), *_missing("variable", registered.variables, variables)]
    return "\n".join(said)


def _missing(what: str, names: tuple[str, ...], held: Mapping[str, set[str]]) -> list[str]:
    said = []
    for name in names:
        lacking = [arch for arch, there in held.items() if name not in there]
        if len(lacking) == len(held):
            raise _nowhere(f"{what} {demangle(name)}")
        if names.count(name) > 1:
            msg = f"{what} {demangle(name)} is registered {names.count(name)} times"
            raise RefusedError(msg)
        if lacking:
            said.append(f"{what} {demangle(name)} is not there for {', '.join(lacking)}: to launch it there will fail")
    return said


def _nowhere(what: str) -> RefusedError:
    return RefusedError(f"{what} is in the host's half of the source, and not in the device's", hint=_HINT)

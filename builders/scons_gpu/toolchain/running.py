"""Which code a GPU runs, and which of several it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.toolchain.arch import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Span", "best_first", "fitting", "loaded_as", "runs_on", "span"]

# GPUs of Tegra: their machine code runs on no other GPU, nor other GPUs' on them (CUDA C++ Programming Guide, "Binary Compatibility").
_TEGRA = frozenset({53, 62, 72, 87, 101, 110})
_LAST = 9999  # GPUs to come


def runs_on(arch: str, capability: str) -> bool:
    """Whether code of `arch` (`sm_80`, `sm_90a`, `sm_100f`, `compute_80`) runs on a GPU of this compute capability (`8.6`).

    Machine code runs on its own generation, from its own number on, but never between Tegra and other GPUs; PTX on all that is newer;
    `a` on that one GPU, `f` from its own number on, within the generation. Raises UsageError for what is no architecture.
    """
    target = _target(arch)
    device, number = int(capability.replace(".", "")), target.number
    if target.suffix == "a" or device == number:
        return device == number
    if target.real and {device, number} & _TEGRA:
        return False
    return device > number and (device // 10 == number // 10 or not (target.real or target.suffix))


def loaded_as(arch: str, *, ptx: bool) -> str:
    """What code for `arch` is to a loader: PTX for `sm_90`, as it is made where nothing assembles, is PTX for `compute_90`."""
    return arch.replace("sm_", "compute_") if ptx else arch


def best_first(archs: Iterable[str]) -> list[str]:
    """In the order in which a GPU should be offered them: machine code before PTX, newer before older, `a` before `f` before neither.

    The first that runs on a GPU is then the best of those that do, whichever GPU it is.
    """
    return sorted(archs, key=_rank)


def fitting(archs: Iterable[str], capability: str) -> str | None:
    """The best of `archs` for a GPU of this compute capability; None where none runs on it."""
    return next((arch for arch in best_first(archs) if runs_on(arch, capability)), None)


def _rank(arch: str) -> tuple[bool, int, int]:
    target = _target(arch)
    return not target.real, -target.number, "af".find(target.suffix) if target.suffix else 2


def _target(arch: str) -> Target:
    return Target(name=arch, real=arch.startswith("sm_"))


@dataclass(frozen=True)
class Span:
    """The GPUs that code runs on: compute capabilities (90 for 9.0) from `least` to `most` whose minor number's bit is set in `minors`."""

    least: int
    most: int
    minors: int


def span(arch: str) -> Span:
    """What `runs_on` says of `arch`, as numbers for a program that does not know the rules."""
    number = _target(arch).number
    generation = number // 10 * 10
    if runs_on(arch, f"{generation // 10 + 1}.0"):
        return Span(least=number, most=_LAST, minors=0x3FF)
    fits = [device for device in range(generation, generation + 10) if runs_on(arch, f"{device // 10}.{device % 10}")]
    return Span(least=number, most=max(fits), minors=sum(1 << device % 10 for device in fits))

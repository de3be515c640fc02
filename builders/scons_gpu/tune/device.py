"""What measuring asks of a GPU. `tune/cuda.py` does it by cuda.core, `tune/apart.py` has that done by a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scons_gpu.tune.apart import Apart
    from scons_gpu.tune.launch import Launch
    from scons_gpu.tune.solution import Device

__all__ = ["Gpu", "connect"]


class Gpu(Protocol):
    """One GPU, with one kernel loaded at a time.

    Whatever a kernel does wrong, a LaunchError comes of it, and the next `load` begins anew: a kernel that fails spoils nothing for
    the next one.
    """

    @property
    def facts(self) -> Device:
        """What it is."""

    def load(self, image: bytes, *, entry: str, launch: Launch, ptx: bool) -> None:
        """Loads a kernel in place of the one before, and makes its buffers. Raises LaunchError where it cannot be loaded."""

    def run(self) -> tuple[bytes, ...]:
        """Fills the buffers, launches once, and gives what the `out` and `inout` buffers then hold, in the arguments' order."""

    def time(self, *, samples: int, repeat: int) -> list[float]:
        """How long a launch takes, `samples` times: microseconds between two events, `repeat` launches apart, divided by these."""

    def close(self) -> None:
        """Lets go of the device."""


def connect(index: int) -> Apart:
    """The GPU of that number.

    Raises ToolMissingError, which says what is missing: package, driver or device; UsageError for a number that there is not.
    """
    from scons_gpu.tune.apart import Apart  # noqa: PLC0415 - only who measures starts a process

    return Apart(index)

"""What measuring asks of a GPU. `tune/cuda.py` does it by cuda.core, `tune/apart.py` has that done by a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import TracebackType

    from scons_gpu.tune.launch import Launch

__all__ = ["Device", "Facts", "connect"]


@dataclass(frozen=True)
class Facts:
    """What a device is."""

    name: str
    """As the driver calls it: `NVIDIA H200`."""
    capability: str
    """Its compute capability: `9.0`."""
    driver: str
    """The newest CUDA that its driver knows: `13.0`."""


class Device(Protocol):
    """One GPU, with one kernel loaded at a time.

    Whatever a kernel does wrong, a LaunchError comes of it, and the next `load` begins anew: a kernel that fails spoils nothing for
    the next one.
    """

    @property
    def facts(self) -> Facts:
        """What it is."""

    def load(self, image: bytes, *, entry: str, launch: Launch, ptx: bool) -> None:
        """Loads a kernel in place of the one before, and makes its buffers. Raises LaunchError where it cannot be loaded."""

    def run(self) -> tuple[bytes, ...]:
        """Fills the buffers, launches once, and gives what the `out` and `inout` buffers then hold, in the arguments' order."""

    def time(self, *, samples: int, repeat: int) -> list[float]:
        """How long a launch takes, `samples` times: microseconds between two events, `repeat` launches apart, divided by these."""

    def close(self) -> None:
        """Lets go of the device."""

    def __enter__(self) -> Device: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def connect(index: int) -> Device:
    """The GPU of that number. Raises ToolMissingError, which says what is missing: package, driver or device; UsageError for a number
    that there is not.
    """
    from scons_gpu.tune.apart import Apart  # noqa: PLC0415 - only who measures starts a process

    return Apart(index)

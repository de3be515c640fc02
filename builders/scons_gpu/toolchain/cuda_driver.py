"""The CUDA driver in this process, reached by cuda.core and cuda.bindings: whether it starts, and code that it is given."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from scons_gpu.errors import LaunchError, ToolMissingError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Packages", "checked", "code", "devices", "packages", "words"]


class Packages(NamedTuple):
    """NVIDIA's two packages."""

    core: ModuleType
    driver: ModuleType


def packages(extra: str) -> Packages:
    """Both of them. Raises ToolMissingError, which names the extra that brings them."""
    try:
        return Packages(import_module("cuda.core"), import_module("cuda.bindings.driver"))
    except ImportError as error:
        msg = f"cuda.core cannot be loaded by this Python: {error}"
        raise ToolMissingError(msg, hint=f"pip install 'scons-gpu[{extra}]'") from None


def devices(driver: Any, *, elsewhere: str) -> int:  # noqa: ANN401 - cuda.bindings.driver, or what stands for it
    """How many there are; `elsewhere` says what to do where there is none.

    cuda.core itself must not be asked before this: without a driver it fails in ways that say little.
    """
    try:
        status = driver.cuInit(0)[0]
        status, count = driver.cuDeviceGetCount() if not status.value else (status, 0)
    except RuntimeError as error:  # cuda.pathfinder finds no libcuda
        msg = "there is no CUDA driver on this machine"
        raise ToolMissingError(msg, output=str(error), hint=elsewhere) from None
    if status.name == "CUDA_ERROR_NO_DEVICE" or (not status.value and not count):
        msg = "there is a CUDA driver on this machine, and no device"
        raise ToolMissingError(msg, hint=elsewhere)
    if status.value:
        msg = f"the CUDA driver does not start: {status.name}"
        raise ToolMissingError(msg, hint="`nvidia-smi` may say more")
    return int(count)


def code(core: Any, image: bytes, *, ptx: bool) -> Any:  # noqa: ANN401 - cuda.core, or what stands for it
    """Machine code, or PTX that the driver finishes, as cuda.core has it. The driver sees it when a kernel is asked for."""
    kind = core.ObjectCode
    return (kind.from_ptx if ptx else kind.from_cubin)(image)


def checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a function of the driver gave, without its status. Raises LaunchError for one that is no success."""
    status, *values = answer
    if status.value:
        msg = f"the driver says {status.name}"
        raise LaunchError(msg)
    return tuple(values)


def words(error: Exception) -> str:
    """On one line: cuda.core appends the driver's documentation."""
    return " ".join(str(error).split()) or type(error).__name__

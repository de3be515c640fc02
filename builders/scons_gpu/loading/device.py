"""The current GPU, as loading needs it: what it is, and libraries, kernels and variables on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, LaunchError
from scons_gpu.toolchain import cuda_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Device"]

_ELSEWHERE = "kernels are loaded on a machine with an NVIDIA GPU; they can be listed on any"
_CONTEXT = "make a device current: cuda.core.Device().set_current()"


@dataclass(frozen=True)
class Device:
    """One GPU, and the packages that reach it."""

    name: str
    capability: str
    """`9.0`."""
    packages: cuda_driver.Packages

    @staticmethod
    def current() -> Device:
        """That of the current context; cuda.core says which it is where there is none. Raises ToolMissingError, LaunchError."""
        packages = cuda_driver.packages("load")
        cuda_driver.devices(packages.driver, elsewhere=_ELSEWHERE)
        with _told("the current device cannot be used"):
            device = packages.core.Device()
            major, minor = device.compute_capability
            return Device(name=device.name, capability=f"{major}.{minor}", packages=packages)

    def library(self, code: bytes, *, ptx: bool) -> Any:  # noqa: ANN401 - cuda.core.ObjectCode
        """Code, ready to be loaded when a kernel or variable of it is asked for."""
        return cuda_driver.code(self.packages.core, code, ptx=ptx)

    def kernel(self, library: Any, entry: str) -> Any:  # noqa: ANN401 - cuda.core's
        """A kernel of it, as a cuda.core.Kernel. Raises LaunchError."""
        with _told("it does not load"):
            return library.get_kernel(entry)

    def variable(self, library: Any, symbol: str) -> tuple[int, int]:  # noqa: ANN401 - cuda.core's
        """Address and bytes, in the current context. Raises LaunchError.

        cuda.core has no way to ask: the driver does (cuLibraryGetGlobal).
        """
        with _told("it does not load"):
            address, size = cuda_driver.checked(self.packages.driver.cuLibraryGetGlobal(library.handle, symbol.encode()))
            return int(address), int(size)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """cuda.core raises its own kinds of errors, and others."""
    try:
        yield
    except GpuError as error:
        error.hint = error.hint or (_CONTEXT if "CONTEXT" in error.what else "")
        raise
    except Exception as error:
        said = cuda_driver.words(error)
        msg = f"{what}: {said}"
        raise LaunchError(msg, hint=_CONTEXT if "CONTEXT" in said else "") from error

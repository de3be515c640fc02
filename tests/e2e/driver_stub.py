"""A CUDA driver for machines that have none: the functions that cuLink needs, over the real nvJitLink, for one device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

if TYPE_CHECKING:
    from scons_gpu.assemble.nvjitlink_library import Library

OK = driver.CUresult.CUDA_SUCCESS


@dataclass
class DriverStub:
    """Stands for the module cuda.bindings.driver. `calls` are the functions that were called, in order."""

    library: Library
    major: int = 9
    minor: int = 0
    init: Any = OK
    devices: int = 1
    calls: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    inputs: list[tuple[str, bytes]] = field(default_factory=list)
    image: Any = None

    CUjit_option = driver.CUjit_option
    CUjitInputType = driver.CUjitInputType
    CUdevice_attribute = driver.CUdevice_attribute

    def cuInit(self, flags: int) -> tuple[Any]:  # noqa: N802 - the driver's name, as all below
        assert flags == 0
        self.calls.append("cuInit")
        return (self.init,)

    def cuDeviceGetCount(self) -> tuple[Any, int]:  # noqa: N802
        return OK, self.devices

    def cuDeviceGet(self, index: int) -> tuple[Any, int]:  # noqa: N802
        assert index == 0
        return OK, 7

    def cuDeviceGetAttribute(self, wanted: Any, device: int) -> tuple[Any, int]:  # noqa: N802
        assert device == 7
        return OK, self.major if wanted.name.endswith("MAJOR") else self.minor

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, str]:  # noqa: N802
        assert device == 7
        self.calls.append("retain")
        return OK, "context"

    def cuCtxPushCurrent(self, context: str) -> tuple[Any]:  # noqa: N802
        assert context == "context"
        self.calls.append("push")
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[Any, str]:  # noqa: N802
        self.calls.append("pop")
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any]:  # noqa: N802
        assert device == 7
        self.calls.append("release")
        return (OK,)

    def cuLinkCreate(self, count: int, names: list[Any], values: list[Any]) -> tuple[Any, str]:  # noqa: N802
        assert count == len(names) == len(values)
        self.calls.append("create")
        self.options = {name.name.removeprefix("CU_JIT_"): value for name, value in zip(names, values, strict=True)}
        self.inputs = []
        return OK, "state"

    def cuLinkAddData(  # noqa: N802, PLR0917
        self, state: str, kind: Any, data: bytes, size: int, name: bytes, count: int, names: list[Any], values: list[Any]
    ) -> tuple[Any]:
        assert (state, size, count, names, values) == ("state", len(data), 0, [], [])
        if kind == driver.CUjitInputType.CU_JIT_INPUT_PTX:
            assert data.endswith(b"\0")
            alone = self.library.link([*self._spelled(), "-r"], [(name.decode(), data[:-1])])
            if alone.code:
                self._log("ERROR", alone.errors)
                return (driver.CUresult.CUDA_ERROR_INVALID_PTX,)
            data = data[:-1]
        self.inputs.append((name.decode(), data))
        return (OK,)

    def cuLinkComplete(self, state: str) -> tuple[Any, int, int]:  # noqa: N802
        assert state == "state"
        answer = self.library.link(self._spelled(), self.inputs)
        self._log("ERROR", answer.errors)
        self._log("INFO", answer.info)
        self.image = ctypes.create_string_buffer(answer.image, len(answer.image) or 1)
        status = driver.CUresult.CUDA_ERROR_UNKNOWN if answer.code else OK
        return status, ctypes.addressof(self.image), len(answer.image)

    def cuLinkDestroy(self, state: str) -> tuple[Any]:  # noqa: N802
        assert state == "state"
        ctypes.memset(self.image, 0, len(self.image)) if self.image else None
        self.calls.append("destroy")
        return (OK,)

    def _spelled(self) -> list[str]:
        given = [f"-arch=sm_{self.major}{self.minor}"]
        given += ["-Xptxas=-v"] if self.options.get("LOG_VERBOSE") else []
        given += [f"-maxrregcount={self.options['MAX_REGISTERS']}"] if "MAX_REGISTERS" in self.options else []
        given += [f"-Xptxas=-O{self.options['OPTIMIZATION_LEVEL']}"] if "OPTIMIZATION_LEVEL" in self.options else []
        given += ["-g"] if self.options.get("GENERATE_DEBUG_INFO") else []
        return given + (["-lineinfo"] if self.options.get("GENERATE_LINE_INFO") else [])

    def _log(self, which: str, text: str) -> None:
        log = self.options[f"{which}_LOG_BUFFER"]
        data = text.encode()[: self.options[f"{which}_LOG_BUFFER_SIZE_BYTES"] - 1]
        log[: len(data)] = data

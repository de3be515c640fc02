"""The CUDA driver's linker in this process: which GPU it links for, and one call of it from first option to image.

It is reached through cuda.bindings.driver, or what stands for that in a test: every function gives a tuple, its status first.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.library import Answer
from scons_gpu.errors import ToolError, ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scons_gpu.assemble.provider import AssembleOptions

__all__ = ["DriverLibrary", "bindings"]

_LOG_BYTES = 1 << 16
_ONE = threading.Lock()
_NO_GPU = {"CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}


def bindings() -> Any:  # noqa: ANN401 - they have no types that mypy reads
    """cuda.bindings.driver. Raises ToolMissingError without it; whether there is a driver, the first call tells."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = "the CUDA driver is reached through cuda.bindings, which is not there"
        raise ToolMissingError(msg, output=str(error), hint="pip install 'scons-gpu[toolkit]' brings it") from None
    return driver


class DriverLibrary:
    """The first device of this machine, and its linker."""

    def __init__(self, api: Any) -> None:  # noqa: ANN401 - as `bindings` gives it
        self._api = api

    def arch(self) -> str:
        """What it can link for, as `sm_90`. Raises ToolMissingError where there is no driver, or no device."""
        try:
            _ok("cuInit", self._api.cuInit(0))
            if not _ok("cuDeviceGetCount", self._api.cuDeviceGetCount()):
                msg = "there is a CUDA driver on this machine, and no device"
                raise ToolMissingError(msg)
            major, minor = self._attribute("MAJOR"), self._attribute("MINOR")
        except RuntimeError as error:  # the bindings look for the library when the first function is called
            msg = "there is no CUDA driver on this machine: libcuda.so.1 was not found"
            raise ToolMissingError(msg, output=str(error), hint="every other provider links without one") from None
        return f"sm_{major}{minor}"

    def link(self, inputs: Sequence[tuple[str, bytes]], *, options: AssembleOptions) -> Answer:
        """One call. An input is its name, which ends in .ptx for PTX, and its bytes."""
        with _ONE, self._context():
            start, begun = time.monotonic(), time.thread_time()
            answer = self._linked(inputs, options)
            return replace(answer, seconds=time.monotonic() - start, cpu=time.thread_time() - begun)

    def _attribute(self, which: str) -> int:
        wanted = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}")
        return int(_ok("cuDeviceGetAttribute", self._api.cuDeviceGetAttribute(wanted, self._device())))

    def _device(self) -> Any:  # noqa: ANN401 - a handle
        return _ok("cuDeviceGet", self._api.cuDeviceGet(0))

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        """The device's primary context, current in this thread: what is linked is for its GPU."""
        api, device = self._api, self._device()
        context = _ok("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(device))
        try:
            _ok("cuCtxPushCurrent", api.cuCtxPushCurrent(context))
            try:
                yield
            finally:
                api.cuCtxPopCurrent()
        finally:
            api.cuDevicePrimaryCtxRelease(device)

    def _linked(self, inputs: Sequence[tuple[str, bytes]], options: AssembleOptions) -> Answer:
        api = self._api
        info, errors = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        asked = self._asked(options, info=info, errors=errors)
        status, state = api.cuLinkCreate(len(asked), list(asked), list(asked.values()))
        if status.value:
            return Answer(int(status.value), f"cuLinkCreate: {status.name}")
        try:
            answer = self._fed(state, inputs)
        finally:
            api.cuLinkDestroy(state)
        return replace(answer, errors=_text(errors), info=_text(info))

    def _fed(self, state: Any, inputs: Sequence[tuple[str, bytes]]) -> Answer:  # noqa: ANN401 - a handle
        api, kinds = self._api, self._api.CUjitInputType
        names = [name.encode() for name, _ in inputs]  # alive until the link is done
        for position, (name, (_, data)) in enumerate(zip(names, inputs, strict=True)):
            if name.endswith(b".ptx"):
                kind, text = kinds.CU_JIT_INPUT_PTX, data + b"\0"  # the zero byte counts
            else:
                kind, text = kinds.CU_JIT_INPUT_CUBIN, data
            (status,) = api.cuLinkAddData(state, kind, text, len(text), name, 0, [], [])
            if status.value:
                return Answer(int(status.value), f"cuLinkAddData: {status.name}", failed_at=position)
        status, image, size = api.cuLinkComplete(state)
        if status.value:
            return Answer(int(status.value), f"cuLinkComplete: {status.name}")
        return Answer(0, "", image=ctypes.string_at(int(image), size))  # copied: it is the state's, which goes

    def _asked(self, options: AssembleOptions, *, info: bytearray, errors: bytearray) -> dict[Any, Any]:
        """The report is asked for, as of every provider."""
        names = self._api.CUjit_option
        return {
            names.CU_JIT_INFO_LOG_BUFFER: info,
            names.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: len(info),
            names.CU_JIT_ERROR_LOG_BUFFER: errors,
            names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(errors),
            names.CU_JIT_LOG_VERBOSE: 1,
            **({names.CU_JIT_MAX_REGISTERS: options.maxrregcount} if options.maxrregcount is not None else {}),
            **({names.CU_JIT_OPTIMIZATION_LEVEL: options.opt} if options.opt != 3 else {}),
            **({names.CU_JIT_GENERATE_DEBUG_INFO: 1} if options.debug else {}),
            **({names.CU_JIT_GENERATE_LINE_INFO: 1} if options.lineinfo else {}),
        }


def _ok(function: str, returned: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever the driver gives
    """What came with a success. Raises ToolMissingError for a status that means that there is no GPU, else ToolError."""
    status, *values = returned
    if not status.value:
        return values[0] if values else None
    msg = f"{function} of the CUDA driver says {status.name}"
    raise (ToolMissingError if status.name in _NO_GPU else ToolError)(msg, hint="`nvidia-smi` may say more")


def _text(log: bytearray) -> str:
    return bytes(log).partition(b"\0")[0].decode(errors="replace").rstrip()

"""A GPU by cuda.core: loading, launching, events. Runs in a process of its own (tune/apart.py), which a faulting kernel may take along."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda import core
from cuda.bindings import driver

from scons_gpu.errors import GpuError, LaunchError, ToolError, UsageError
from scons_gpu.toolchain.cuda_driver import checked, code, devices, words
from scons_gpu.tune.data import contents
from scons_gpu.tune.launch import TYPES, Buffer
from scons_gpu.tune.solution import Device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.tune.launch import Launch, Scalar

__all__ = ["CudaDevice", "open_device"]

_ELSEWHERE = "a dump is measured on a machine with an NVIDIA GPU: copy it there and run this command on it"
_SCALARS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64}
_SCALARS |= {"u8": np.uint8, "u32": np.uint32, "u64": np.uint64}


def open_device(index: int) -> CudaDevice:
    """The device of that number. Raises ToolMissingError, which says whether driver or device is missing; UsageError for the number."""
    count = devices(driver, elsewhere=_ELSEWHERE)
    if not 0 <= index < count:
        msg = f"--device {index}: there is no such device; there {'is one, 0' if count == 1 else f'are {count}, from 0'}"
        raise UsageError(msg)
    try:
        return CudaDevice(index)
    except Exception as error:
        msg = f"device {index} cannot be used: {words(error)}"
        raise ToolError(msg, hint="`nvidia-smi` says who uses it") from error


class CudaDevice:
    """`tune/device.py` says what each method is for. After an error for which `lost` is true, the process can be thrown away."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._device = core.Device(index)
        self._device.set_current()
        self._stream = self._device.create_stream()
        self._code: Any = None
        self._kernel: Any = None
        self._config: Any = None
        self._arguments: list[Any] = []
        self._buffers: list[tuple[Buffer, Any, int]] = []
        """Each with its device memory and its place among the arguments."""

    @property
    def facts(self) -> Device:
        """What it is."""
        major, minor = self._device.compute_capability
        (version,) = checked(driver.cuDriverGetVersion())
        newest = f"{version // 1000}.{version % 1000 // 10}"  # 13020 is 13.2, as cuDriverGetVersion documents it
        return Device(name=self._device.name, capability=f"{major}.{minor}", driver=newest)

    @property
    def lost(self) -> bool:
        """Whether a kernel left the context useless, as an illegal address does for the rest of the process."""
        return bool(driver.cuCtxSynchronize()[0].value)

    def load(self, image: bytes, *, entry: str, launch: Launch, ptx: bool) -> None:
        """Loads a kernel and makes its buffers."""
        self._unload()
        with self._told("does not load"):
            self._code = code(core, image, ptx=ptx)
            self._kernel = self._code.get_kernel(entry)
            self._check_parameters(launch)
            self._allow_shared(launch.shared)
            self._config = core.LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.shared)
            self._make_arguments(launch)

    def _check_parameters(self, launch: Launch) -> None:
        """A launch that passes too little or the wrong sizes would run, and read whatever lies there."""
        try:
            sizes = [each.size for each in self._kernel.arguments_info]
        except NotImplementedError:  # drivers before 12.4 do not tell
            return
        given = [8 if isinstance(each, Buffer) else TYPES[each.type] for each in launch.arguments]
        if given != sizes:
            msg = f"its parameters have {_sizes(sizes)}, the launch's arguments have {_sizes(given)}"
            raise LaunchError(msg)

    def _allow_shared(self, size: int) -> None:
        """More than 48 KiB of dynamic shared memory must be asked for, kernel by kernel."""
        if size:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (device,) = checked(driver.cuDeviceGet(self._index))
            checked(driver.cuKernelSetAttribute(attribute, size, self._kernel.handle, device))

    def _make_arguments(self, launch: Launch) -> None:
        for place, each in enumerate(launch.arguments):
            if isinstance(each, Buffer):
                memory = self._device.allocate(each.bytes, stream=self._stream)
                self._buffers.append((each, memory, place))
                self._arguments.append(memory)
            else:
                self._arguments.append(_scalar(each))
        self._fill()

    def _fill(self) -> None:
        for buffer, memory, place in self._buffers:
            data = np.frombuffer(contents(buffer, place=place), dtype=np.uint8)
            checked(driver.cuMemcpyHtoDAsync(int(memory.handle), data.ctypes.data, buffer.bytes, self._stream.handle))
            self._stream.sync()  # `data` must live until then

    def run(self) -> tuple[bytes, ...]:
        """Fills the buffers, launches once, gives the outputs."""
        with self._told("does not run"):
            self._fill()
            self._launch()
            self._stream.sync()
            return tuple(self._read(buffer, memory) for buffer, memory, _ in self._buffers if buffer.direction != "in")

    def _read(self, buffer: Buffer, memory: Any) -> bytes:  # noqa: ANN401 - cuda.core's
        data = np.empty(buffer.bytes, dtype=np.uint8)
        checked(driver.cuMemcpyDtoHAsync(data.ctypes.data, int(memory.handle), buffer.bytes, self._stream.handle))
        self._stream.sync()
        return data.tobytes()

    def time(self, *, samples: int, repeat: int) -> list[float]:
        """Microseconds a launch, `samples` times over `repeat` launches."""
        with self._told("does not run"):
            options = core.EventOptions(timing_enabled=True)
            pairs = []
            for _ in range(samples):
                before = self._stream.record(options=options)
                for _ in range(repeat):
                    self._launch()
                pairs.append((before, self._stream.record(options=options)))
            self._stream.sync()
            return [(after - before) * 1000 / repeat for before, after in pairs]  # events tell milliseconds

    def close(self) -> None:
        """Lets go of the memory."""
        self._unload()

    def _launch(self) -> None:
        core.launch(self._stream, self._config, self._kernel, *self._arguments)

    def _unload(self) -> None:
        for _, memory, _ in self._buffers:
            memory.close(self._stream)
        self._buffers, self._arguments = [], []
        self._kernel = self._code = self._config = None

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """What goes wrong inside is the kernel's fault. cuda.core raises its own kinds, and others where arguments do not fit."""
        try:
            yield
        except GpuError:
            raise
        except Exception as error:
            msg = f"it {what}: {words(error)}"
            raise LaunchError(msg) from error


def _scalar(scalar: Scalar) -> Any:  # noqa: ANN401 - numpy's types
    """As cuda.core takes it: of the parameter's very size. It has no bfloat16, whose upper half of a float passes as 16 bits."""
    if scalar.type == "bf16":
        return (np.float32(scalar.value).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return _SCALARS[scalar.type](scalar.value)


def _sizes(sizes: list[int]) -> str:
    return f"{len(sizes)} of {', '.join(map(str, sizes))} bytes" if sizes else "none"

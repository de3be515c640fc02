"""What we ask of cuda.core, against a stand-in that keeps memory on the host; the real one is asked only whether it has those names."""

from __future__ import annotations

import ctypes
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from cuda import core as real_core
from cuda.bindings import driver as real_driver

from scons_gpu.errors import LaunchError, ToolError, ToolMissingError, UsageError
from scons_gpu.tune import cuda
from scons_gpu.tune.data import contents
from scons_gpu.tune.launch import Buffer, read_launch
from scons_gpu.tune.solution import Device

LAUNCH = read_launch(
    {"grid": [2, 3], "block": [32], "shared": 65536, "args": ["in f32 4", "out f32 4", "inout i32 2", "i32 4", "bf16 -1.5", "f16 2"]}
)


class Status(NamedTuple):
    name: str
    value: int


class Parameter(NamedTuple):
    offset: int
    size: int


GOOD = Status("CUDA_SUCCESS", 0)


@dataclass
class Memory:
    data: np.ndarray
    closed: list[str]

    @property
    def handle(self) -> int:
        return int(self.data.ctypes.data)

    def close(self, stream: Any) -> None:
        self.closed.append(stream.handle)


@dataclass
class World:
    """A machine with GPUs. Its kernel copies its first argument to its second, and doubles what its third holds."""

    devices: int = 2
    init: Status = GOOD
    health: Status = GOOD
    sizes: tuple[int, ...] = (8, 8, 8, 4, 2, 2)
    log: list[str] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    now: float = 0.0

    def did(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]
        self.log.append(what)

    def core(self) -> Any:
        def code(kind: str) -> Any:
            return lambda image: SimpleNamespace(get_kernel=lambda entry: self._kernel(f"{kind} {image.decode()} {entry}"))

        return SimpleNamespace(
            Device=self._device,
            ObjectCode=SimpleNamespace(from_cubin=code("cubin"), from_ptx=code("ptx")),
            LaunchConfig=lambda **options: options,
            EventOptions=lambda **options: options,
            launch=self._launch,
        )

    def _device(self, index: int) -> Any:
        self.did(f"device {index}")
        return SimpleNamespace(
            name="NVIDIA H200",
            compute_capability=(9, 0),
            set_current=lambda: None,
            create_stream=lambda: SimpleNamespace(handle="s", sync=lambda: self.did("sync"), record=self._event),
            allocate=self._memory,
        )

    def _memory(self, size: int, *, stream: Any) -> Memory:
        assert stream.handle == "s"
        self.did("allocate")
        return Memory(np.full(size, 0xFF, np.uint8), self.log)

    def _event(self, *, options: dict[str, Any]) -> float:
        assert options == {"timing_enabled": True}
        return self.now

    def _kernel(self, what: str) -> Any:
        self.did(what)
        return SimpleNamespace(handle="kernel", arguments_info=[Parameter(0, size) for size in self.sizes])

    def _launch(self, stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        first, second, third, *rest = arguments
        assert (stream.handle, kernel.handle) == ("s", "kernel")
        assert config == {"grid": (2, 3, 1), "block": (32, 1, 1), "shmem_size": 65536}
        assert [(type(each), each.tobytes()) for each in rest] == [
            (np.int32, b"\4\0\0\0"),
            (np.uint16, b"\xc0\xbf"),  # 0xbfc0 is -1.5
            (np.float16, b"\0\x40"),
        ]
        self.did("launch")
        second.data[:] = first.data
        third.data.view(np.int32)[:] *= 2
        self.now += 0.25  # milliseconds

    def driver(self) -> Any:
        def copy(to: int, source: int, size: int, stream: str) -> tuple[Status]:
            assert stream == "s"
            ctypes.memmove(to, source, size)
            return (GOOD,)

        def attribute(which: str, value: int, kernel: str, device: int) -> tuple[Status]:
            self.did(f"{which} {value} {kernel} {device}")
            return (GOOD,)

        return SimpleNamespace(
            cuInit=lambda _: (self.init,),
            cuDeviceGetCount=lambda: (GOOD, self.devices),
            cuDriverGetVersion=lambda: (GOOD, 13020),
            cuDeviceGet=lambda index: (GOOD, index),
            cuCtxSynchronize=lambda: (self.health,),
            cuKernelSetAttribute=attribute,
            cuMemcpyHtoDAsync=copy,
            cuMemcpyDtoHAsync=copy,
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(cuda, "core", made.core())
    monkeypatch.setattr(cuda, "driver", made.driver())
    return made


def test_a_device_says_what_it_is(world: World) -> None:
    device = cuda.open_device(1)
    assert (device.facts, device.lost) == (Device("NVIDIA H200", "9.0", "13.2"), False)
    assert world.log == ["device 1"]
    world.health = Status("CUDA_ERROR_ILLEGAL_ADDRESS", 700)
    assert device.lost


def test_m13_what_a_kernel_makes_of_its_buffers_comes_back(world: World) -> None:
    device = cuda.open_device(0)
    device.load(b"code", entry="k", launch=LAUNCH, ptx=False)
    assert world.log[1:3] == ["cubin code k", "shared 65536 kernel 0"]
    first = contents(Buffer("in", "f32", 4), place=0)
    third = np.frombuffer(contents(Buffer("inout", "i32", 2), place=2), np.int32)
    for _ in range(2):  # buffers are filled anew each time
        copied, doubled = device.run()
        assert (copied, np.frombuffer(doubled, np.int32).tolist()) == (first, (third * 2).tolist())


def test_times_are_microseconds_of_one_launch(world: World) -> None:
    device = cuda.open_device(0)
    device.load(b"code", entry="k", launch=LAUNCH, ptx=True)
    assert "ptx code k" in world.log
    assert device.time(samples=3, repeat=4) == [250.0, 250.0, 250.0]
    assert world.log.count("launch") == 12


def test_the_next_kernel_takes_the_place_of_the_one_before(world: World) -> None:
    device = cuda.open_device(0)
    device.load(b"code", entry="k", launch=LAUNCH, ptx=False)
    device.load(b"other", entry="k", launch=LAUNCH, ptx=False)
    assert world.log.count("s") == 3  # buffers that were let go
    assert len(device.run()) == 2
    device.close()
    assert world.log.count("s") == 6


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((8, 8), "2 of 8, 8 bytes"), ((8, 8, 8, 8, 2, 2), "6 of 8, 8, 8, 8, 2, 2 bytes"), ((), "none")],
)
def test_a_launch_that_does_not_fit_the_kernel_is_refused(world: World, sizes: tuple[int, ...], said: str) -> None:
    world.sizes = sizes
    with pytest.raises(LaunchError, match=f"its parameters have {said}, the launch's arguments have 6 of 8, 8, 8, 4, 2, 2 bytes"):
        cuda.open_device(0).load(b"code", entry="k", launch=LAUNCH, ptx=False)
    assert "launch" not in world.log


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("cubin code k", "it does not load: CUDA_ERROR_NOT_FOUND: no such kernel"),
        ("allocate", "it does not load: CUDA_ERROR_NOT_FOUND: no such kernel"),
        ("launch", "it does not run: CUDA_ERROR_NOT_FOUND: no such kernel"),
    ],
)
def test_what_goes_wrong_is_the_kernels_fault(world: World, where: str, message: str) -> None:
    world.fails[where] = RuntimeError("CUDA_ERROR_NOT_FOUND:\n  no such kernel")
    device = cuda.open_device(0)
    with pytest.raises(LaunchError) as caught:  # noqa: PT012 - whichever of the two it is
        device.load(b"code", entry="k", launch=LAUNCH, ptx=False)
        device.run()
    assert str(caught.value) == message


def test_m13_what_is_missing_is_told_apart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--device 2: there is no such device; there are 2, from 0"):
        cuda.open_device(2)
    world.devices = 1
    with pytest.raises(UsageError, match="--device 1: there is no such device; there is one, 0"):
        cuda.open_device(1)
    world.devices = 0
    with pytest.raises(ToolMissingError, match="there is a CUDA driver on this machine, and no device"):
        cuda.open_device(0)
    world.init = Status("CUDA_ERROR_NO_DEVICE", 100)
    with pytest.raises(ToolMissingError, match="there is a CUDA driver on this machine, and no device"):
        cuda.open_device(0)
    world.init = Status("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 803)
    with pytest.raises(ToolMissingError, match="the CUDA driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"):
        cuda.open_device(0)

    def none(_: int) -> None:
        msg = "no libcuda"
        raise RuntimeError(msg)

    monkeypatch.setattr(cuda, "driver", SimpleNamespace(cuInit=none))
    with pytest.raises(ToolMissingError, match="there is no CUDA driver on this machine\n    no libcuda\n"):
        cuda.open_device(0)


def test_a_device_that_somebody_else_holds_is_named(world: World) -> None:
    world.fails["device 0"] = RuntimeError("CUDA_ERROR_DEVICE_UNAVAILABLE")
    with pytest.raises(ToolError, match="device 0 cannot be used: CUDA_ERROR_DEVICE_UNAVAILABLE"):
        cuda.open_device(0)


def test_cuda_core_has_what_is_asked_of_it() -> None:
    assert real_core.EventOptions(timing_enabled=True).timing_enabled
    config = real_core.LaunchConfig(grid=(2, 3, 1), block=(32, 1, 1), shmem_size=65536)
    assert (config.grid, config.block, config.shmem_size) == ((2, 3, 1), (32, 1, 1), 65536)
    for kind, names in {
        real_core.Device: ("name", "compute_capability", "set_current", "create_stream", "allocate"),
        real_core.Stream: ("record", "sync", "handle"),
        real_core.Event: ("__sub__",),
        real_core.Buffer: ("handle", "close"),
        real_core.ObjectCode: ("from_cubin", "from_ptx", "get_kernel"),
        real_core.Kernel: ("handle", "arguments_info"),
    }.items():
        assert [name for name in names if not hasattr(kind, name)] == []
    assert callable(real_core.launch)


def test_the_bindings_have_what_is_asked_of_them() -> None:
    for name, count in {
        "cuInit": 1,
        "cuDeviceGetCount": 0,
        "cuDeviceGet": 1,
        "cuDriverGetVersion": 0,
        "cuCtxSynchronize": 0,
        "cuKernelSetAttribute": 4,
        "cuMemcpyHtoDAsync": 4,
        "cuMemcpyDtoHAsync": 4,
    }.items():
        assert len(inspect.signature(getattr(real_driver, name)).parameters) == count
    assert real_driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert real_driver.CUresult.CUDA_ERROR_NO_DEVICE.name == "CUDA_ERROR_NO_DEVICE"
    assert not real_driver.CUresult.CUDA_SUCCESS.value

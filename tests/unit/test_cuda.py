"""What we ask of cuda.core, against a stand-in that keeps memory on the host; the real one is asked only whether it has those names."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from cuda import core as real_core
from cuda.bindings import driver as real_driver
from cuda_world import Status, World

from scons_gpu.errors import LaunchError, ToolError, ToolMissingError, UsageError
from scons_gpu.tune import cuda
from scons_gpu.tune.data import contents
from scons_gpu.tune.launch import Buffer, read_launch
from scons_gpu.tune.solution import Device

LAUNCH = read_launch(
    {"grid": [2, 3], "block": [32], "shared": 65536, "args": ["in f32 4", "out f32 4", "inout i32 2", "i32 4", "bf16 -1.5", "f16 2"]}
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
        real_core.ObjectCode: ("from_cubin", "from_ptx", "get_kernel", "handle"),
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
        "cuLibraryGetGlobal": 2,
        "cuKernelSetAttribute": 4,
        "cuMemcpyHtoDAsync": 4,
        "cuMemcpyDtoHAsync": 4,
    }.items():
        assert len(inspect.signature(getattr(real_driver, name)).parameters) == count
    assert real_driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert real_driver.CUresult.CUDA_ERROR_NO_DEVICE.name == "CUDA_ERROR_NO_DEVICE"
    assert not real_driver.CUresult.CUDA_SUCCESS.value

"""A machine with GPUs for those that have none: what stands for cuda.core and cuda.bindings.driver, with memory on the host."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

__all__ = ["GOOD", "Status", "World"]


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
    """Its kernel copies its first argument to its second, and doubles what its third holds."""

    devices: int = 2
    init: Status = GOOD
    health: Status = GOOD
    found: Status = GOOD
    capability: tuple[int, int] = (9, 0)
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
            def library(image: bytes) -> Any:
                what = f"{kind} {image.decode(errors='replace')}"
                return SimpleNamespace(handle=what, get_kernel=lambda entry: self._kernel(f"{what} {entry}"))

            return library

        return SimpleNamespace(
            Device=self._device,
            ObjectCode=SimpleNamespace(from_cubin=code("cubin"), from_ptx=code("ptx")),
            LaunchConfig=lambda **options: options,
            EventOptions=lambda **options: options,
            launch=self._launch,
        )

    def _device(self, index: int | None = None) -> Any:
        self.did(f"device {'current' if index is None else index}")
        return SimpleNamespace(
            name="NVIDIA H200",
            compute_capability=self.capability,
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
        return SimpleNamespace(handle="kernel", what=what, arguments_info=[Parameter(0, size) for size in self.sizes])

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

        def variable(library: str, symbol: bytes) -> tuple[Any, ...]:
            self.did(f"{library} {symbol.decode()}")
            return self.found, 0x7000, 4

        return SimpleNamespace(
            cuInit=lambda _: (self.init,),
            cuDeviceGetCount=lambda: (GOOD, self.devices),
            cuDriverGetVersion=lambda: (GOOD, 13020),
            cuDeviceGet=lambda index: (GOOD, index),
            cuLibraryGetGlobal=variable,
            cuCtxSynchronize=lambda: (self.health,),
            cuKernelSetAttribute=attribute,
            cuMemcpyHtoDAsync=copy,
            cuMemcpyDtoHAsync=copy,
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        )

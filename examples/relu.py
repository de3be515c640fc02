"""Runs a kernel of a program that was built: `python examples/relu.py build/net.json`. Where there is no GPU it says what is missing."""

import sys

import numpy as np

import scons_gpu
from scons_gpu.errors import GpuError

COUNT = 1 << 20


def run(manifest: str) -> None:
    then = scons_gpu.load(manifest)["then"]
    print(f"then has {len(then)} kernels, for {', '.join(then.archs)}")
    relu = then["relu"]

    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, launch

    device = Device()
    device.set_current()
    stream = device.create_stream()
    x = np.linspace(-1, 1, COUNT, dtype=np.float32)
    y = np.empty_like(x)
    source, target = (device.allocate(x.nbytes, stream=stream) for _ in range(2))
    driver.cuMemcpyHtoDAsync(int(source.handle), x.ctypes.data, x.nbytes, stream.handle)
    launch(stream, LaunchConfig(grid=COUNT // 256, block=256), relu, source, target, np.int64(COUNT))
    driver.cuMemcpyDtoHAsync(y.ctypes.data, int(target.handle), y.nbytes, stream.handle)
    stream.sync()
    wrong = int(np.count_nonzero(y != np.maximum(x, 0)))
    print(f"relu of {COUNT} numbers on {device.name}: {wrong} wrong")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    try:
        run(*sys.argv[1:] or ["build/net.json"])
    except GpuError as error:
        sys.exit(f"error: {error}")

"""Kernels of a program on a real device: from an image, a bundle and PTX, their variables, and the example of examples/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from project import LL_HEAD, Project, ll

import scons_gpu
from scons_gpu.errors import LaunchError
from scons_gpu.tune.device import connect

if TYPE_CHECKING:
    from scons_gpu.loading.program import Module

pytestmark = pytest.mark.gpu

TOP = Path(__file__).parents[2]
STATE = "@counter = addrspace(1) externally_initialized global i32 7, align 4\n"
COUNTS = """
define ptx_kernel void @counts(ptr addrspace(1) %data) {
  %old = load i32, ptr addrspace(1) @counter, align 4
  %new = add i32 %old, 1
  store i32 %new, ptr addrspace(1) @counter, align 4
  store i32 %new, ptr addrspace(1) %data, align 4
  ret void
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    device = connect(0)
    arch = f"sm_{device.facts.capability.replace('.', '')}"
    device.close()
    project = Project(tmp_path_factory.mktemp("load"))
    project.write("add.ll", ll("add=2.0"))
    project.write("counts.ll", LL_HEAD + STATE + COUNTS)
    project.write(
        "SConstruct",
        f"""
modules = [
    env.GpuModule("image", ["add.ll", "counts.ll"], GPU_ARCHS="{arch}"),
    env.GpuModule("bundle", ["add.ll", "counts.ll"], GPU_ARCHS="{arch}", GPU_LINK="bundle"),
    env.GpuModule("ptx", ["add.ll", "counts.ll"], GPU_ARCHS="compute_75"),
    env.GpuModule("none", ["add.ll"], GPU_ARCHS="sm_75" if "{arch}" != "sm_75" else "sm_80"),
    env.GpuModule("then", [{str(TOP / "kernels/common/relu.ll")!r}], GPU_ARCHS="{arch}"),
]
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=modules))
""",
    )
    project.build("-j2")
    return project


def launched(kernel: Any, data: np.ndarray) -> np.ndarray:
    from cuda import core  # noqa: PLC0415 - only where there is a GPU
    from cuda.bindings import driver  # noqa: PLC0415 - the same

    device = core.Device()
    device.set_current()
    stream = device.create_stream()
    memory = device.allocate(data.nbytes, stream=stream)
    driver.cuMemcpyHtoDAsync(int(memory.handle), data.ctypes.data, data.nbytes, stream.handle)
    core.launch(stream, core.LaunchConfig(grid=1, block=32), kernel, memory)
    result = np.empty_like(data)
    driver.cuMemcpyDtoHAsync(result.ctypes.data, int(memory.handle), data.nbytes, stream.handle)
    stream.sync()
    memory.close(stream)
    return result


def set_to(module: Module, value: int) -> None:
    from cuda.bindings import driver  # noqa: PLC0415 - only where there is a GPU

    variable = module.variable("counter", kernel="counts")
    assert variable.bytes == 4
    data = np.array([value], np.int32)
    assert not driver.cuMemcpyHtoD(variable.address, data.ctypes.data, 4)[0].value


@pytest.mark.parametrize("name", ["image", "bundle", "ptx"])
def test_a_kernel_runs_and_its_variable_can_be_set(built: Project, name: str) -> None:
    module = scons_gpu.load(built.path("build/net.json"))[name]
    data = np.arange(32, dtype=np.float32)
    assert launched(module["add"], data).tolist() == (data + 2).tolist()
    assert launched(module["counts"], np.zeros(1, np.int32)).tolist() == [8]
    set_to(module, 100)
    assert launched(module["counts"], np.zeros(1, np.int32)).tolist() == [101]


def test_another_gpus_code_is_refused_in_words(built: Project) -> None:
    with pytest.raises(LaunchError, match=r"nothing that was built runs on .*; there is code for sm_"):
        scons_gpu.load(built.path("build/net.json"))["none"]["add"]


def test_the_example_runs(built: Project) -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "examples/relu.py"), "build/net.json"],
        cwd=built.root,
        env=built.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith(": 0 wrong")

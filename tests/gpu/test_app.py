"""The program of this tree on a real device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from project import Project

pytestmark = pytest.mark.gpu

TOP = Path(__file__).parents[2]


def test_gpu_and_host_agree(project: Project) -> None:
    shutil.copytree(TOP / "kernels", project.path("kernels"))
    project.write(
        "SConstruct",
        'import scons_gpu\nenv = Environment(tools=["default", "gpu"], toolpath=[scons_gpu.TOOLPATH], GPU_ARCHS=["sm_80", "compute_80"])\n'
        'SConscript("kernels/app/SConscript", exports="env", variant_dir="build/app", duplicate=False)\n',
    )
    project.build()
    done = subprocess.run([project.path("build/app/app")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "app: sum 250750, largest 500.5: right\n")

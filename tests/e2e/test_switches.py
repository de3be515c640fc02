"""R5 and R7 with every provider that needs no GPU: what only looks, what cleans, what goes on, what is interrupted; and without cuda-python."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import Project, ll
from test_interrupts import settled, wait_for

import scons_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """\
then = env.GpuModule("then", ["then.ll"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[then]))
"""
NET = ll(*(f"k{number}={number}.0" for number in range(1, 7)))
THEN = ll("k1=1.0", "last=9.0")
WAYS = {
    "ptxas": (),
    "nvptxcompiler+nvlink": ("GPU_PROVIDER=nvptxcompiler+nvlink",),
    "ptxas+nvjitlink": ("GPU_PROVIDER=ptxas+nvjitlink",),
    "nvjitlink": ("GPU_PROVIDER=nvjitlink",),
    "deferred": ("GPU_DEFER=always",),
    "none": ("GPU_PROVIDER=none",),
}
BROKEN = {
    "none": ("declare void @nobody()", "call void @nobody()", "bad uses nobody, which nobody defines"),
}
"""What is wrong with a kernel, where that is not what an assembler says."""
ASM = ("", 'call void asm sideeffect "bogus.u32 nonsense;", ""()', "does not accept the PTX")
ENTRIES = ("ptx", "object", "deferred")
STARTED = """
import subprocess
start = subprocess.Popen.__init__
def told(self, args, *rest, **more):
    with open({log!r}, "a") as file:
        print(args, file=file)
    start(self, args, *rest, **more)
subprocess.Popen.__init__ = told
"""


@dataclass(frozen=True)
class Built:
    """A project that was built in one of the ways, and what came of that."""

    project: Project
    way: str
    made: dict[str, bytes]

    @property
    def arguments(self) -> tuple[str, ...]:
        return WAYS[self.way]

    def again(self) -> None:
        """Builds, and nothing is different from what it was at first."""
        self.project.build("-j2", *self.arguments)
        assert self.project.files("build/**/*") == self.made

    def entries(self) -> list[Path]:
        """The data of what the store holds for links."""
        found = (path for kind in ENTRIES for path in self.project.root.glob(f".gpu-store/{kind}/*/*"))
        return sorted(path for path in found if path.suffix in {".ptx", ".cubin", ".dptx"})


@pytest.fixture(scope="module", params=WAYS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    project = Project(tmp_path_factory.mktemp("switches") / "project")
    project.write("net.ll", NET)
    project.write("then.ll", THEN)
    project.write("SConstruct", PROGRAM)
    project.build("-j2", *WAYS[request.param])
    return Built(project, request.param, project.files("build/**/*"))


@pytest.fixture
def started(built: Built, tmp_path: Path) -> Iterator[Path]:
    """A file that names each process which SCons starts, but for what SCons itself looks for (a C compiler)."""
    log = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(STARTED.format(log=str(log)))
    log.touch()
    before = built.project.environ["PYTHONPATH"]
    built.project.environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    yield log
    built.project.environ["PYTHONPATH"] = before


def test_r7_what_only_looks_changes_nothing_and_starts_nothing(built: Built, started: Path) -> None:
    """Not even what is damaged in the store goes: the build that makes it anew is the one to tell."""
    project = built.project
    for path in (*project.root.glob("build/net/*/sm_90.cubin"), *project.root.glob("build/net/*/sm_90.ptx")):
        path.unlink()
    damaged = built.entries()
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-3])
    before = project.files()
    said = project.run("-n", "-j2", *built.arguments)
    assert (said.returncode, said.stdout.count("\nlower "), said.stdout.count("\nlink ")) == (0, 7, 2)
    assert project.run("-q", *built.arguments).returncode == 1
    assert project.files() == before
    assert [line for line in started.read_text().splitlines() if "scons_gpu" in line or "nvidia" in line] == []
    assert project.build("-j2", *built.arguments).stderr.count("it is made again") == len(damaged)
    assert project.files("build/**/*") == built.made


def test_r7_the_rest_is_finished_and_what_failed_is_named(built: Built) -> None:
    project = built.project
    declared, broken, says = BROKEN.get(built.way, ASM)
    project.write("net.ll", f"{NET}{declared}\ndefine ptx_kernel void @bad() {{\n  {broken}\n  ret void\n}}\n")
    project.write("then.ll", THEN.replace("9.0", "11.0"))
    result = project.fail("-k", "-j2", *built.arguments)
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: kernel bad of net/net.ll (sm_90): ")
    assert says in line
    assert project.bytes("build/net/then.fatbin") != built.made["build/net/then.fatbin"]
    assert project.compiled() == sorted(["last", *(["bad"] if built.way != "none" else [])])
    project.write("net.ll", NET)
    project.write("then.ll", THEN)
    built.again()
    assert project.compiled() == []


def test_r7_what_was_built_is_cleaned_and_the_store_is_not(built: Built) -> None:
    project = built.project
    store = {path: path.read_bytes() for path in built.entries()}
    project.build("-n", "-c", *built.arguments)
    assert project.files("build/**/*") == built.made
    project.build("-c", *built.arguments)
    assert project.files("build/**/*") == {}
    assert {path: path.read_bytes() for path in built.entries()} == store


def test_r5_an_interrupt_leaves_nothing_half_done(built: Built) -> None:
    project = built.project
    for folder in ("build", *(f".gpu-store/{kind}" for kind in ENTRIES)):
        shutil.rmtree(project.path(folder), ignore_errors=True)
    process = project.start("-j2", *built.arguments)
    wait_for(lambda: list(project.root.glob(".gpu-store/ptx/*/*.json")), process)
    os.killpg(process.pid, signal.SIGINT)
    output = "".join(process.communicate(timeout=60))
    assert process.returncode in {0, 2}, output
    assert "Traceback" not in output
    assert settled(process.pid) == []
    assert list(project.root.rglob(".tmp-*")) == []
    assert project.files("build/**/*").items() <= built.made.items()
    built.again()


def without(folder: Path, package: str) -> str:
    """A Python like this one that has all packages but one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and not path.name.startswith((package, "scons_gpu")):
            (packages / path.name).symlink_to(path)
    shutil.copytree(Path(scons_gpu.__file__).parent, packages / "scons_gpu")  # its links would lead to its neighbours
    return str(folder / "bin/python")


def test_without_cuda_python_the_rest_is_taken_and_what_is_called_through_it_says_so(project: Project, tmp_path: Path) -> None:
    python = without(tmp_path / "python", "cuda")
    environ = {name: value for name, value in project.environ.items() if name != "PYTHONPATH"}  # where the package is installed, all is
    project.write("net.ll", NET)
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *arguments], cwd=project.root, env=environ, capture_output=True, text=True, timeout=300, check=False)

    built = run("-m", "SCons", "-j2")
    assert (built.returncode, built.stderr) == (0, "")
    assert len(project.kernels("net")) == 6
    lacks = "it is called through cuda-python (cuda.bindings), which is not installed for "
    for argument in ("GPU_PROVIDER=nvjitlink", "GPU_PROVIDER=ptxas+nvjitlink", "GPU_LOWER=nvvm"):
        said = run("-m", "SCons", argument, "GPU_ARCHS=sm_100")
        assert said.returncode == 2
        assert re.search(rf"/lib(nvJitLink|nvvm)\.so\S+?,? .*{re.escape(lacks)}", said.stderr), said.stderr
        assert "scons-gpu[toolkit]" in said.stderr
    doctor = run("-c", "import sys; from scons_gpu.cli import main; sys.exit(main())", "doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert re.search(r"^cuda-python +not found", doctor.stdout, re.MULTILINE)
    assert "provider: ptxas: taken" in doctor.stdout
    assert f": {lacks}" in doctor.stdout

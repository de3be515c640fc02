"""R5: a build that is stopped, at any moment and in any way, leaves nothing that the next one takes for good."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import IMAGE, Project, ll

from scons_gpu.store.files import TEMPORARY

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from kill import Rounds

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from toolkits import Toolkit

    from scons_gpu.toolchain.tools import Toolchain

NET = IMAGE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
KERNELS = [f"k{number}={number}.0" for number in range(12)]


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll(*KERNELS))
    return project


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Until something is there, while the build runs."""
    while not what():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Processes that a process started itself."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def group(pgid: int) -> list[int]:
    """Living processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def settled(pgid: int) -> list[int]:
    """Those that are still there after a while."""
    for _ in range(500):
        if not group(pgid):
            return []
        time.sleep(0.01)
    return group(pgid)


def test_r5_an_interrupt_of_the_group_ends_everything_and_loses_nothing_that_was_made(
    net: Project, toolkit: Toolkit, toolchain: Toolchain
) -> None:
    # An assembler that takes its time: on a quick machine all would be made before the signal comes.
    assert toolchain.ptxas is not None
    toolkit.wrap("ptxas", Path(toolchain.ptxas.path), before="sleep 0.3")
    tools = f"GPU_CUDA_PATH={toolkit.root}"
    process = net.start("-j2", tools)
    wait_for(lambda: len(list(net.root.glob(".gpu-store/object/*/*.json"))) >= 3, process)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode != 0, output
    assert "Traceback" not in output + errors
    assert settled(process.pid) == []
    assert list(net.root.rglob(".tmp-*")) == []
    assert not net.exists("build/net/net.fatbin")
    net.build("-j2", tools)
    assert 0 < net.done()["assemble"] < len(KERNELS)
    assert net.done()["source"] == net.done()["split"] == 0, "what was made before the interrupt is kept"
    assert len(net.kernels("net")) == len(KERNELS)
    assert net.run("-q", tools).returncode == 0


def test_r5_workers_end_when_their_build_is_killed(net: Project) -> None:
    process = net.start("-j2")
    wait_for(lambda: net.exists("build/net/net/sm_90.plan.json"), process)
    process.kill()  # not the group: nobody tells the workers
    process.communicate(timeout=60)
    assert settled(process.pid) == []


def test_r5_a_killed_worker_is_an_error_that_names_the_kernel_and_the_next_build_is_right(net: Project) -> None:
    net.write("net.ll", ll(*KERNELS, "slow=99.0"))
    process = net.start("-j1")
    wait_for(lambda: list(net.root.glob(".gpu-store/ptx/*/*.ptx")), process)
    for pid in children(process.pid):
        if b"scons_gpu.workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert "Traceback" not in output + errors
    if process.returncode:
        assert re.search(r"error: kernel (k\d+|slow) of net/net\.ll \(sm_90\): .*killed", errors), errors
        assert not net.exists("build/net/net.fatbin")
    # Between two tasks nobody was waiting for it, and another one is started.
    net.build()
    assert len(net.kernels("net")) == len(KERNELS) + 1
    assert net.run("-q").returncode == 0


def test_r5_a_killed_assembler_fails_its_unit_alone_under_keep_going(net: Project, toolkit: Toolkit, toolchain: Toolchain) -> None:
    assert toolchain.ptxas is not None
    real = Path(toolchain.ptxas.path)
    # Under the name of a flag, so that exactly one of all calls is killed.
    flag = toolkit.root / "kill-one"
    flag.mkdir()
    toolkit.wrap("ptxas", real, before=f"rmdir {flag} 2>/dev/null && kill -9 $$")
    option = f"GPU_CUDA_PATH={toolkit.root}"
    result = net.fail("-k", "-j2", option)
    assert len(re.findall(r"^error: kernel k\d+ of net/net\.ll \(sm_90\): ptxas was killed", result.stderr, re.MULTILINE)) == 1, (
        result.stderr
    )
    assert net.done()["assemble"] == len(KERNELS) - 1
    assert not net.exists("build/net/net.fatbin")
    net.build(option)
    assert net.done()["assemble"] == 1
    assert net.run("-q", option).returncode == 0


def test_r5_a_tool_killed_in_the_middle_of_its_output_is_not_believed(net: Project, toolkit: Toolkit, toolchain: Toolchain) -> None:
    """The linker and the packer leave half a file, then die."""
    assert toolchain.nvlink is not None
    assert toolchain.fatbinary is not None
    options = ("-j2", f"GPU_CUDA_PATH={toolkit.root}")
    for name, real, output in (("nvlink", toolchain.nvlink, "image.cubin"), ("fatbinary", toolchain.fatbinary, "out.fatbin")):
        toolkit.wrap(name, Path(real.path), before=f"printf half > {output}; printf half > image; kill -9 $$")
        result = net.fail(*options)
        assert re.search(rf"^error: .*{name} was killed", result.stderr, re.MULTILINE), result.stderr
        assert not net.exists("build/net/net.fatbin")
        toolkit.wrap(name, Path(real.path))
        net.build(*options)
        assert net.run("-q", *options).returncode == 0
        net.edit("net.ll", "11.0", "11.5") if "11.0" in net.read("net.ll") else net.edit("net.ll", "11.5", "11.25")


def test_r5_an_edit_taken_back_after_a_kill_is_built(net: Project) -> None:
    net.build("-j2")
    made = net.files("build/**/*")
    for appears in ("build/net/net/net.ll.sm_90.ll", "build/net/net/sm_90.plan.json", "build/net/net/sm_90.cubin"):
        path = net.path(appears)
        before = path.stat().st_mtime_ns
        net.edit("net.ll", "11.0", "11.5")
        process = net.start("-j2")
        wait_for(lambda path=path, then=before: path.exists() and path.stat().st_mtime_ns != then, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        net.edit("net.ll", "11.5", "11.0")
        net.build("-j2")
        left = {name: data for name, data in net.files("build/**/*").items() if TEMPORARY not in name}  # nobody reads what a kill left
        assert left == made, appears
        assert net.run("-q").returncode == 0


@pytest.mark.slow
def test_r5_random_kills(tmp_path: Path) -> None:
    """A few rounds of what benchmarks/kill.py does fifty of."""
    rounds = Rounds(tmp_path, seed=int.from_bytes(os.urandom(2), "big"), kernels=4)
    assert [said for said in (rounds.round() for _ in range(2)) if said] == []


INTERRUPTED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background deaf to it
os.kill(os.getpid(), signal.SIGINT)
"""


def test_r5_an_interrupt_while_sconstructs_are_read_is_no_build(net: Project) -> None:
    net.write("SConstruct", NET + INTERRUPTED)
    result = net.fail()
    assert "nothing to do" not in result.output
    assert not net.exists(".gpu-store/log.jsonl")

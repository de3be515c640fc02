from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import scons_gpu
from scons_gpu.cli import program
from scons_gpu.errors import LaunchError, ToolMissingError, UsageError
from scons_gpu.tune.apart import Apart, open_here
from scons_gpu.tune.device import connect
from scons_gpu.tune.dump import DumpedCandidate, DumpedProblem, write_dump
from scons_gpu.tune.launch import read_launch
from scons_gpu.tune.model import Problem, Result
from scons_gpu.tune.solution import Device

ROOT = str(Path(scons_gpu.__file__).parents[1])
LAUNCH = read_launch({"grid": [1], "block": [1]})
# What `Apart` starts, but for the device: what a kernel does stands in its image.
STUB = """
import sys
sys.path.insert(0, sys.argv[1])
import os, time
from scons_gpu.errors import LaunchError, ToolMissingError
from scons_gpu.tune.apart import serve
from scons_gpu.tune.solution import Device

class Stub:
    lost = False
    def __init__(self, index):
        if index == 7:
            raise ToolMissingError("there is no GPU", hint="go elsewhere")
        self.facts = Device(name=f"stub {index}, process {os.getpid()}", capability="9.0", driver="13.0")
    def load(self, image, *, entry, launch, ptx):
        self.does = image.decode()
        if self.does == "reports":
            raise LaunchError(f"{entry} of {launch.grid} {ptx}")
    def run(self):
        if self.does == "faults":
            self.lost = True
            raise LaunchError("CUDA_ERROR_ILLEGAL_ADDRESS")
        if self.does == "dies":
            print("k.cu:3: assertion failed", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 9)
        if self.does == "loops":
            time.sleep(600)
        return (b"result", str(os.getpid()).encode())
    def time(self, *, samples, repeat):
        return [float(repeat)] * samples

serve(int(sys.argv[2]), Stub)
"""


def load(gpu: Apart, does: str) -> None:
    gpu.load(does.encode(), entry="k", launch=LAUNCH, ptx=False)


def test_all_that_is_asked_is_done_in_the_other_process() -> None:
    with closing(Apart(2, start=STUB)) as gpu:
        load(gpu, "works")
        result, process = gpu.run()
        assert (result, int(process) != os.getpid()) == (b"result", True)
        assert gpu.facts == Device(name=f"stub 2, process {int(process)}", capability="9.0", driver="13.0")
        assert gpu.time(samples=3, repeat=5) == [5.0, 5.0, 5.0]
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_an_error_comes_back_as_it_was_raised_and_costs_no_process() -> None:
    with closing(Apart(0, start=STUB)) as gpu:
        with pytest.raises(LaunchError, match=r"^k of \(1, 1, 1\) False$"):
            load(gpu, "reports")
        load(gpu, "works")
        assert gpu.facts.name == f"stub 0, process {int(gpu.run()[1])}"


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("faults", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("dies", "it took its process along\n    k.cu:3: assertion failed"),
        ("loops", "it did not end within 1 s"),
    ],
)
def test_a_kernel_that_spoils_its_process_spoils_nothing_else(does: str, message: str) -> None:
    with closing(Apart(0, start=STUB, limit=60)) as gpu:
        load(gpu, does)
        gpu._limit = 1.0 if does == "loops" else 60.0
        with pytest.raises(LaunchError) as caught:
            gpu.run()
        assert str(caught.value) == message
        gpu._limit = 60.0
        load(gpu, "works")
        assert gpu.run()[0] == b"result"
        assert gpu.facts.name != f"stub 0, process {int(gpu.run()[1])}"  # those of the first: a device does not change


def test_m13_what_is_missing_is_told_when_the_device_is_opened() -> None:
    with pytest.raises(ToolMissingError, match=r"^there is no GPU\n  go elsewhere$"):
        Apart(7, start=STUB)


def test_the_process_ends_when_whoever_asks_is_killed() -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {ROOT!r}); from scons_gpu.tune.apart import Apart\n"
        f"gpu = Apart(0, start={STUB!r}); print(gpu.facts.name.split()[-1], flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_m13_a_python_without_cuda_core_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ToolMissingError, match=r"cuda\.core cannot be loaded by this Python: .*\n  pip install 'scons-gpu\[bench\]'"):
        open_here(0)


def test_m13_this_machine_says_what_it_lacks(tmp_path: Path) -> None:
    """The whole way, by cuda.core: on a machine with a GPU the number that is asked for is one that there is not."""
    dump = tmp_path / "net.gpudump"
    candidate = DumpedCandidate(Result((("TILE", "1"),)), image=b"cubin")
    dump.write_bytes(write_dump([DumpedProblem(Problem("k", "sm_90"), "k", LAUNCH, (candidate,))], tools={}))
    done = CliRunner().invoke(program, ["-C", str(tmp_path), "bench", "net.gpudump", "-o", "tuning.json", "--device", "4096"])
    if done.exit_code == 2:
        assert done.stderr.startswith("error: --device 4096: there is no such device; ")
        return
    assert done.exit_code == 1
    first, *_, last = done.stderr.splitlines()
    assert first in {"error: there is no CUDA driver on this machine", "error: there is a CUDA driver on this machine, and no device"}
    assert last == "  a dump is measured on a machine with an NVIDIA GPU: copy it there and run this command on it"
    assert not (tmp_path / "tuning.json").exists()
    with pytest.raises((ToolMissingError, UsageError)):
        connect(4096)

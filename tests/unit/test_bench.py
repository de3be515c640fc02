from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Ran

import scons_gpu
from scons_gpu.cli import program
from scons_gpu.errors import LaunchError, ToolMissingError, UsageError
from scons_gpu.tune import device as devices
from scons_gpu.tune.bench import Bench, bench, middle
from scons_gpu.tune.data import contents
from scons_gpu.tune.dump import Dump, DumpedCandidate, DumpedProblem, write_dump
from scons_gpu.tune.launch import Launch, read_launch
from scons_gpu.tune.model import Problem, Result, pairs
from scons_gpu.tune.solution import Device
from scons_gpu.tune.tuning import read

H200 = Device(name="NVIDIA H200", capability="9.0", driver="13.0")
LAUNCH = read_launch({"grid": [64], "block": [256], "args": ["in f32 64", "out f32 64", "i32 64"]})


@dataclass
class Stub:
    """A GPU whose kernels are what their image says, and whose time is a script: `12 12 30` are the samples' microseconds, over again.

    What else an image may say: `load` or `run`, where it fails; `off`, by how much its result is.
    """

    facts: Device = H200
    now: float = 0.0
    """Seconds that all launches took together."""
    loaded: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    launch: Launch = LAUNCH
    place: int = 0

    def load(self, image: bytes, *, entry: str, launch: Launch, ptx: bool) -> None:
        self.loaded = dict(part.split("=") for part in image.decode().split(";"))
        self.launch, self.place = launch, 0
        self.calls.append(f"load {entry}{' as PTX' if ptx else ''}")
        self._fail("load")

    def run(self) -> tuple[bytes, ...]:
        self.calls.append("run")
        self._fail("run")
        off = float(self.loaded.get("off", 0))
        data = bytearray(contents(replace(self.launch.outputs[0], direction="in"), place=0))
        data[:4] = struct.pack("<f", 1 + off)
        return (bytes(data),)

    def time(self, *, samples: int, repeat: int) -> list[float]:
        self.calls.append(f"time {samples} x {repeat}")
        self._fail("time")
        script = [float(word) for word in self.loaded["us"].split()]
        times = [script[(self.place + number) % len(script)] for number in range(samples)]
        self.place += samples
        self.now += sum(times) * repeat / 1e6
        return times

    def close(self) -> None:
        self.calls.append("close")

    def _fail(self, where: str) -> None:
        if self.loaded.get("fails") == where:
            msg = f"it does not {where}: CUDA_ERROR_OUT_OF_MEMORY"
            raise LaunchError(msg)


def candidate(tile: int, image: str = "", *, failure: str = "", launch: Launch | None = None) -> DumpedCandidate:
    return DumpedCandidate(Result(pairs({"TILE": tile}), failure=failure), image=image.encode() or None, entry="gemm", launch=launch)


def problem(
    *candidates: DumpedCandidate, kernel: str = "gemm(float*)", arch: str = "sm_90", launch: Launch | None = LAUNCH
) -> DumpedProblem:
    return DumpedProblem(Problem(kernel, arch, pairs({"n": 64})), "gemm", launch, candidates)


def measure(*problems: DumpedProblem, stub: Stub | None = None, **options: object) -> tuple[Bench, list[str]]:
    stub = stub or Stub()
    said: list[str] = []
    result = bench(Dump(problems, {"ptxas": "13.5.37"}), stub, clock=lambda: stub.now, say=said.append, **options)
    return result, said


def test_m13_the_fastest_that_gives_the_same_is_the_solution() -> None:
    result, said = measure(problem(candidate(32, "us=150"), candidate(64, "us=110;off=0.00001"), candidate(128, "us=120")))
    assert said == [
        "gemm(float*) sm_90 n=64: TILE=32: 150.00 us, spread 0.0%, 50 launches",
        "gemm(float*) sm_90 n=64: TILE=64: 110.00 us, spread 0.0%, 50 launches",
        "gemm(float*) sm_90 n=64: TILE=128: 120.00 us, spread 0.0%, 50 launches",
    ]
    (solution,) = result.solutions
    assert (solution.problem, solution.values, solution.time_us, solution.spread) == (problem().problem, (("TILE", "64"),), 110.0, 0.0)
    assert (solution.candidates, solution.device, solution.tools) == (3, H200, (("ptxas", "13.5.37"),))
    assert result.unsolved == ()


def test_the_first_of_equally_fast_ones_wins() -> None:
    result, _ = measure(problem(candidate(32, "us=150"), candidate(64, "us=110"), candidate(128, "us=110")))
    assert result.solutions[0].label == "TILE=64"


def test_each_is_loaded_checked_warmed_up_and_timed() -> None:
    stub = Stub()
    measure(
        problem(candidate(32, "us=400")),
        problem(candidate(64, "us=2"), kernel="k"),
        problem(candidate(1, "us=900000"), arch="compute_80"),
        stub=stub,
    )
    # 250 ms of samples, eight to fifty; a sample of 100 us or more.
    assert stub.calls == [
        *("load gemm", "run", "time 5 x 1", "time 50 x 1"),
        *("load gemm", "run", "time 5 x 1", "time 50 x 50"),
        *("load gemm as PTX", "run", "time 5 x 1", "time 8 x 1"),
    ]


def test_the_mean_is_that_of_the_middle_half() -> None:
    assert middle([1, 100, 11, 9, 10, 10, 500, 0]) == (10.0, 0.2)
    assert middle([7.0]) == (7.0, 0.0)
    assert middle([4.0, 4.0, 4.0]) == (4.0, 0.0)
    assert middle([0.0, 0.0]) == (0.0, 0.0)


def test_more_runs_until_the_spread_is_three_per_cent() -> None:
    slow = "us=" + " ".join(["200"] * 5 + [str(300 - number) for number in range(50)] + ["200"] * 150)
    stub = Stub()
    result, said = measure(problem(candidate(32, slow)), stub=stub)
    assert stub.calls.count("time 50 x 1") == 4  # 50 that fall, until they are in the upper quarter
    assert (result.solutions[0].time_us, result.solutions[0].spread) == (200.0, 0.0)
    assert said == ["gemm(float*) sm_90 n=64: TILE=32: 200.00 us, spread 0.0%, 200 launches"]


@pytest.mark.parametrize(("seconds", "batches"), [(0.0, 1), (0.05, 4), (0.1, 8)])
def test_more_runs_until_the_time_is_used_up(seconds: float, batches: int) -> None:
    stub = Stub()
    result, _ = measure(problem(candidate(32, "us=200 300")), stub=stub, seconds=seconds)
    assert stub.calls.count("time 50 x 1") == batches
    assert (result.solutions[0].time_us, result.solutions[0].spread) == (250.0, 0.4)


def test_m13_whoever_fails_or_gives_another_result_is_left_out_and_said() -> None:
    result, said = measure(
        problem(
            candidate(1, failure="ptxas: too much shared data"),
            candidate(2, "us=1;fails=load"),
            candidate(4, "us=150"),
            candidate(8, "us=1;fails=run"),
            candidate(16, "us=1;off=0.5"),
            candidate(32, "us=1;fails=time"),
            candidate(64, "us=140", launch=replace(LAUNCH, args=("in f32 64", "out f32 32", "i32 64"))),
        )
    )
    name = "gemm(float*) sm_90 n=64: TILE="
    assert said == [
        f"{name}1: left out: it has no image: ptxas: too much shared data",
        f"{name}2: left out: it does not load: CUDA_ERROR_OUT_OF_MEMORY",
        f"{name}4: 150.00 us, spread 0.0%, 50 launches",
        f"{name}8: left out: it does not run: CUDA_ERROR_OUT_OF_MEMORY",
        f"{name}16: left out: its result is not that of TILE=4: `out f32 64`: 1 of 64 values differ, the first at 0: 1.5 for 1.0 (tolerance 0.0001)",
        f"{name}32: left out: it does not time: CUDA_ERROR_OUT_OF_MEMORY",
        f"{name}64: left out: its result cannot be compared with that of TILE=4: it has other outputs",
    ]
    assert [each.label for each in result.problems[0].candidates if each.timing] == ["TILE=4"]
    assert (result.solutions[0].label, result.solutions[0].candidates) == ("TILE=4", 1)


def test_the_tolerance_is_the_users_if_one_is_given() -> None:
    pair = problem(candidate(1, "us=150"), candidate(2, "us=120;off=0.5"))
    assert measure(pair)[0].solutions[0].label == "TILE=1"
    assert measure(pair, tolerance=0.5)[0].solutions[0].label == "TILE=2"


def test_a_candidate_may_have_a_launch_of_its_own() -> None:
    own = read_launch({"grid": [1], "block": [1], "args": ["out f32 64"]})
    stub = Stub()
    result, _ = measure(problem(candidate(1, "us=150", launch=own), launch=None), stub=stub)
    assert (stub.launch, len(result.solutions)) == (own, 1)


def test_a_problem_without_launch_data_is_skipped_and_said() -> None:
    result, said = measure(problem(candidate(1, "us=150"), launch=None))
    assert said == ["gemm(float*) sm_90 n=64: skipped: nobody said how it is launched: give its candidates `launch`"]
    assert (result.solutions, result.unsolved) == ((), ())


@pytest.mark.parametrize(("arch", "fits"), [("sm_90", True), ("sm_90a", True), ("compute_80", True), ("sm_80", False), ("sm_100", False)])
def test_code_for_another_gpu_is_not_measured(arch: str, fits: bool) -> None:  # noqa: FBT001 - a parameter of the test
    result, said = measure(problem(candidate(1, "us=150"), arch=arch))
    assert bool(result.solutions) is fits
    assert fits or said == [f"gemm(float*) {arch} n=64: skipped: code for {arch} does not run on this device (9.0)"]


def test_a_problem_without_a_candidate_that_runs_is_unsolved() -> None:
    result, _ = measure(problem(candidate(1, "us=1;fails=load")), problem(candidate(1, "us=150"), kernel="k"))
    assert result.unsolved == ("gemm(float*) sm_90 n=64",)
    assert [each.problem.kernel for each in result.solutions] == ["k"]


@pytest.mark.parametrize(
    ("pattern", "kernels"),
    [
        ("gemm", ["gemm(float*)", "void f<int (*)(int)>(float (*)(int))"]),  # both have that symbol
        ("gemm(float*)", ["gemm(float*)"]),
        ("void f<int (*)(int)>", ["void f<int (*)(int)>(float (*)(int))"]),
        ("*float*", ["gemm(float*)", "void f<int (*)(int)>(float (*)(int))"]),
        ("void*", ["void f<int (*)(int)>(float (*)(int))"]),
    ],
)
def test_problems_are_named_as_kernels_are(pattern: str, kernels: list[str]) -> None:
    both = (problem(candidate(1, "us=150")), problem(candidate(1, "us=150"), kernel="void f<int (*)(int)>(float (*)(int))"))
    assert [each.problem.kernel for each in measure(*both, kernel=pattern)[0].solutions] == kernels


def test_a_name_that_no_problem_has_is_wrong_use() -> None:
    with pytest.raises(UsageError, match=r"--kernel conv: the dump has no such problem\n  it has gemm\(float\*\)"):
        measure(problem(candidate(1, "us=150")), kernel="conv")


# The command.


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub()
    monkeypatch.setattr(devices, "connect", lambda index: made if index == 0 else pytest.fail("another device was asked for"))
    return made


def run(folder: Path, *problems: DumpedProblem, options: tuple[str, ...] = ()) -> Ran:
    (folder / "net.gpudump").write_bytes(write_dump(problems, tools={"ptxas": "13.5.37"}))
    return CliRunner().invoke(program, ["-C", str(folder), "bench", "net.gpudump", "-o", "tuning.json", *options])


def test_m13_bench_writes_what_it_measured(tmp_path: Path, stub: Stub) -> None:
    done = run(
        tmp_path,
        problem(candidate(32, "us=150"), candidate(64, "us=110"), candidate(128, failure="no")),
        problem(candidate(1, "us=1"), kernel="k", launch=None),
    )
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "NVIDIA H200 (9.0), CUDA 13.0",
        "gemm(float*) sm_90 n=64: TILE=32: 150.00 us, spread 0.0%, 50 launches",
        "gemm(float*) sm_90 n=64: TILE=64: 110.00 us, spread 0.0%, 50 launches",
        "gemm(float*) sm_90 n=64: TILE=128: left out: it has no image: no",
        "k sm_90 n=64: skipped: nobody said how it is launched: give its candidates `launch`",
    ]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["NVIDIA", "H200", "(9.0)"]
    assert ["gemm(float*)", "sm_90", "n=64", "TILE=64", "110.00", "0.0%", "fastest"] in rows
    assert done.stdout.splitlines()[-1] == "tuning.json: 1 problem measured"
    assert stub.calls[-1] == "close"
    (solution,) = read(tmp_path / "tuning.json").solutions
    assert (solution.label, solution.time_us, solution.device, solution.tools) == ("TILE=64", 110.0, H200, (("ptxas", "13.5.37"),))


@pytest.mark.usefixtures("stub")
def test_what_is_measured_again_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    run(tmp_path, problem(candidate(32, "us=150")), problem(candidate(1, "us=200"), kernel="k"))
    before = {each.problem.kernel: each for each in read(tmp_path / "tuning.json").solutions}
    run(tmp_path, problem(candidate(32, "us=300"), candidate(64, "us=290")))
    after = {each.problem.kernel: each for each in read(tmp_path / "tuning.json").solutions}
    assert after["k"] == before["k"]
    assert (before["gemm(float*)"].label, after["gemm(float*)"].label) == ("TILE=32", "TILE=64")


@pytest.mark.usefixtures("stub")
def test_json_has_it_all(tmp_path: Path) -> None:
    done = run(tmp_path, problem(candidate(32, "us=150"), candidate(64, "us=1;fails=run")), options=("--json",))
    data = json.loads(done.stdout)
    assert (data["schema"], data["device"]) == ("scons-gpu/bench/1", vars(H200))
    assert data["problems"][0]["solution"]["values"] == {"TILE": "32"}
    assert data["problems"][0]["candidates"] == [
        {"label": "TILE=32", "failure": "", "time_us": 150.0, "spread": 0.0, "launches": 50},
        {"label": "TILE=64", "failure": "it does not run: CUDA_ERROR_OUT_OF_MEMORY", "time_us": None, "spread": None, "launches": 0},
    ]


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (problem(candidate(1, "us=1;fails=load")), "error: nothing was measured: no candidate ran\n  tuning.json is as it was\n"),
        (problem(candidate(1, "us=1"), arch="sm_80"), "error: nothing was measured: code for sm_80 does not run on this device (9.0)\n"),
    ],
)
def test_where_nothing_is_measured_nothing_is_written(tmp_path: Path, broken: DumpedProblem, message: str) -> None:
    done = run(tmp_path, broken)
    assert (done.exit_code, message in done.stderr) == (1, True)
    assert not (tmp_path / "tuning.json").exists()


@pytest.mark.usefixtures("stub")
def test_an_unsolved_problem_fails_after_the_others_are_written(tmp_path: Path) -> None:
    assert run(tmp_path, problem(candidate(1, "us=1;fails=load")), problem(candidate(1, "us=150"), kernel="k")).exit_code == 1
    assert [each.problem.kernel for each in read(tmp_path / "tuning.json").solutions] == ["k"]


def test_a_file_that_cannot_be_added_to_is_found_before_anything_is_measured(tmp_path: Path, stub: Stub) -> None:
    (tmp_path / "tuning.json").write_text("{}")
    done = run(tmp_path, problem(candidate(1, "us=150")))
    assert (done.exit_code, "tuning.json" in done.stderr, stub.calls) == (1, True, [])
    assert (tmp_path / "tuning.json").read_text() == "{}"


def test_a_damaged_dump_is_one_message(tmp_path: Path, stub: Stub) -> None:
    (tmp_path / "net.gpudump").write_bytes(b"PK")
    done = CliRunner().invoke(program, ["-C", str(tmp_path), "bench", "net.gpudump", "-o", "tuning.json"])
    assert (done.exit_code, done.stderr.startswith("error: net.gpudump: not a whole dump: "), stub.calls) == (1, True, [])


def test_m13_what_is_missing_is_said_and_the_device_is_asked_for_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(index: int) -> None:
        msg = f"there is no GPU {index}"
        raise ToolMissingError(msg, hint="go elsewhere")

    monkeypatch.setattr(devices, "connect", missing)
    done = run(tmp_path, problem(candidate(1, "us=150")), options=("--device", "3"))
    assert (done.exit_code, done.output) == (1, "error: there is no GPU 3\n  go elsewhere\n")


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_bench import Stub, devices, program
calls = 0
def counted(frame, event, argument):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
devices.connect = lambda index: Stub()
import scons_gpu.tune.bench, scons_gpu.tune.tuning, scons_gpu.store.files  # so that their own loading is not counted
import scons_gpu.inspect.tables, rich.console, rich.table, rich.text, rich.box
sys.setprofile(counted)
try:
    program(["-C", sys.argv[2], "bench", "net.gpudump", "-o", "tuning.json"])
finally:
    sys.setprofile(None)
    print(calls, file=sys.stderr)
"""


def test_a_killed_run_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    data = write_dump([problem(candidate(1, "us=150"), candidate(2, "us=120"))], tools={"ptxas": "1"})
    (tmp_path / "net.gpudump").write_bytes(data)
    environ = {**os.environ, "PYTHONPATH": str(Path(scons_gpu.__file__).parents[1])}

    def start(moment: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path), str(moment)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)

    whole = start(-1)
    assert whole.returncode == 0, whole.stderr
    new = (tmp_path / "tuning.json").read_bytes()
    last = int(whole.stderr.split()[-1])
    old = new.replace(b"120.0", b"999.0")
    seen = set()
    for moment in range(last // 12, last, last // 12):
        (tmp_path / "tuning.json").write_bytes(old)
        assert start(moment).returncode == -signal.SIGKILL
        seen.add((tmp_path / "tuning.json").read_bytes())
    assert seen == {old, new}

"""One real dump on a real device: kernels that are right, wrong, unloadable, too large to launch, and one that faults."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from scons_gpu.cli import program
from scons_gpu.tune.device import connect
from scons_gpu.tune.dump import DumpedCandidate, DumpedProblem, write_dump
from scons_gpu.tune.launch import read_launch
from scons_gpu.tune.model import Problem, Result, pairs
from scons_gpu.tune.tuning import read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

COUNT = 1 << 22
LAUNCH = {"grid": [COUNT // 256], "block": [256], "args": [f"in f32 {COUNT}", f"out f32 {COUNT}", f"u32 {COUNT}", "f32 2.5"]}
# out[i] = x * in[i], after as many rounds of work as are asked for; `address` is where it is put.
SCALE = """
.version 7.8
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 source, .param .u64 target, .param .u32 count, .param .f32 factor)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<6>;
  .reg .f32 %f<5>;
  .reg .b64 %d<6>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r1, %r1, %r2, %r3;
  ld.param.u32 %r2, [count];
  setp.ge.u32 %p1, %r1, %r2;
  @%p1 bra DONE;
  ld.param.u64 %d1, [source];
  ld.param.u64 %d2, [target];
  ld.param.f32 %f1, [factor];
  mul.wide.u32 %d3, %r1, 4;
  add.u64 %d1, %d1, %d3;
  add.u64 %d2, {address}, %d3;
  mov.u32 %r4, 0;
AGAIN:
  ld.volatile.global.f32 %f2, [%d1];
  mul.f32 %f3, %f2, %f1;
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p2, %r4, {rounds};
  @%p2 bra AGAIN;
  add.f32 %f3, %f3, {off};
  st.global.f32 [%d2], %f3;
DONE:
  ret;
}}
"""


def ptx(*, rounds: int = 1, off: str = "0f00000000", address: str = "%d2") -> str:
    return SCALE.format(rounds=rounds, off=off, address=address)


def cubin(folder: Path, arch: str, text: str) -> bytes:
    (folder / "k.ptx").write_text(text)
    done = CliRunner().invoke(program, ["-C", str(folder), "assemble", "k.ptx", "--whole", "--arch", arch, "-o", "k.cubin"])
    assert done.exit_code == 0, done.output
    return (folder / "k.cubin").read_bytes()


def candidate(name: str, image: bytes, *, launch: dict[str, object] | None = None) -> DumpedCandidate:
    return DumpedCandidate(Result(pairs({"IS": name})), image=image, entry="scale", launch=read_launch(launch) if launch else None)


def test_m13_a_dump_is_measured_on_this_gpu(tmp_path: Path) -> None:
    with closing(connect(0)) as device:
        capability, name = device.facts.capability, device.facts.name
    arch = f"sm_{capability.replace('.', '')}"
    good, slow = cubin(tmp_path, arch, ptx()), cubin(tmp_path, arch, ptx(rounds=64))
    candidates = (
        candidate("foreign", b"no cubin at all"),
        candidate("slow", slow),
        candidate("wrong", cubin(tmp_path, arch, ptx(off="0f3F800000"))),
        candidate("fault", cubin(tmp_path, arch, ptx(address="64"))),
        candidate("large", good, launch=LAUNCH | {"shared": 1 << 30}),
        candidate("short", good, launch=LAUNCH | {"args": LAUNCH["args"][:3]}),
        candidate("good", good),
    )
    by_driver = (candidate("slow", ptx(rounds=64).encode()), candidate("good", ptx().encode()))
    problems = [
        DumpedProblem(Problem("scale", arch), "scale", read_launch(LAUNCH), candidates),
        DumpedProblem(Problem("scale", "compute_75"), "scale", read_launch(LAUNCH), by_driver),
    ]
    (tmp_path / "net.gpudump").write_bytes(write_dump(problems, tools={"ptxas": "13.5.37"}))
    done = CliRunner().invoke(program, ["-C", str(tmp_path), "bench", "net.gpudump", "-o", "tuning.json", "--seconds", "1"])
    assert done.exit_code == 0, done.output
    left_out = [
        label for label in ("foreign", "wrong", "fault", "large", "short") if f"scale {arch}: IS={label}: left out: " in done.stderr
    ]
    assert left_out == ["foreign", "wrong", "fault", "large", "short"], done.stderr
    solutions = read(tmp_path / "tuning.json").solutions
    assert {each.problem.arch: (each.label, each.candidates) for each in solutions} == {arch: ("IS=good", 2), "compute_75": ("IS=good", 2)}
    for each in solutions:
        assert (each.device.name, each.device.capability) == (name, capability)
        # Thirty-two megabytes move in no less than two microseconds, and in no more than a second, whatever the GPU.
        assert 2 < each.time_us < 1e6

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from measured import ENTRY

from scons_gpu.cli import program
from scons_gpu.tune.model import Problem, pairs
from scons_gpu.tune.tuning import Device, Solution, to_text, write

if TYPE_CHECKING:
    from pathlib import Path


def one(kernel: str = "gemm(float*)", **fields: Any) -> Solution:
    said = {**ENTRY, **fields}
    return Solution(
        problem=Problem(kernel, "sm_90", pairs(said["keys"])),
        values=pairs(said["values"]),
        time_us=said["time_us"],
        spread=said["spread"],
        candidates=said["candidates"],
        device=Device(**said["device"]),
        tools=pairs(said["tools"]),
    )


def run(*arguments: object) -> Result:
    return CliRunner().invoke(program, ["tuning", *map(str, arguments)])


def test_merge_joins_files_and_says_what_it_kept(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    write(ours, [one(), one(kernel="a")])
    write(theirs, [one(values={"TILE": 8}, time_us=9)])
    done = run("merge", ours, theirs, "-o", ours)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        f"conflict: gemm(float*) sm_90 n=4096: TILE=8 (9.00 us, {theirs}) is kept, TILE=64 (12.50 us, {ours}) is not: it is faster\n"
        f"{ours}: 2 entries of 2 files\n"
    )
    assert ours.read_text() == to_text([one(kernel="a"), one(values={"TILE": 8}, time_us=9)])


def test_merge_writes_nothing_where_a_file_does_not_read(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write(good, [one()])
    bad.write_text(json.dumps({"schema": "scons-gpu/tuning/1", "entries": [{**ENTRY, "values": None}]}))
    done = run("merge", good, bad, "-o", tmp_path / "out.json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {bad}: entry 1 (gemm(float*) sm_90) is undecided: it has no values\n  a tuning file")
    assert not (tmp_path / "out.json").exists()
    assert run("merge", tmp_path / "none.json", "-o", tmp_path / "out.json").exit_code == 2


def test_check_reads_every_file(tmp_path: Path) -> None:
    good, bad, odd = (tmp_path / name for name in ("good.json", "bad.json", "odd.json"))
    write(good, [one()])
    bad.write_text("{")
    write(odd, [one(device={"name": "A10", "capability": "8.6"}), one(kernel="a")])
    assert (run("check", good).exit_code, run("check", good).output) == (0, f"{good}: 1 entry\n")
    assert (run("check", bad, good).exit_code, run("check", odd, good).exit_code) == (1, 1)
    done = run("check", bad, odd, good)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {bad}: this is not JSON: ")
    assert done.stdout == (
        f"{odd}: gemm(float*) sm_90 n=4096: A10 (8.6), which is said to have measured it, cannot run code for sm_90\n"
        f"{odd}: 2 entries, of which 1 can never count\n"
        f"{good}: 1 entry\n"
    )


def test_show_is_a_table_or_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write(path, [one(), one(kernel="fill", keys={}, values={}, device={"name": "B200", "capability": "10.0"}, tools={})])
    head, rule, fill, gemm = run("show", path).output.splitlines()
    assert head.split() == ["kernel", "arch", "keys", "solution", "time", "us", "spread", "%", "of", "device", "tools"]
    assert set(rule) == {"─"}
    assert fill.split() == ["fill", "sm_90", "as", "written", "12.50", "2.10", "3", "B200", "(10.0)"]
    assert gemm.split()[-10:] == ["2.10", "3", "NVIDIA", "H200", "(9.0),", "driver", "580.1", "llvm", "22.1.0", "ptxas", "13.5.37"][-10:]
    data = json.loads(run("show", path, "--json").output)
    assert data == {
        "schema": "scons-gpu/tuning-entries/1",
        "entries": [{"file": str(path), **each} for each in json.loads(path.read_text())["entries"]],
    }
    two = run("show", path, path).output
    assert two.count(str(path)) == 2
    assert json.loads(run("show", path, path, "--json").output)["entries"] == data["entries"] * 2


@pytest.mark.parametrize("name", ["merge", "check", "show"])
def test_each_command_has_help_and_wants_files(name: str) -> None:
    assert "FILE..." in run(name, "--help").output.splitlines()[0]
    assert run(name).exit_code == 2


def test_what_several_commands_share_holds_here_too(tmp_path: Path) -> None:
    write(tmp_path / "t.json", [one()])
    done = CliRunner().invoke(program, ["-C", str(tmp_path), "tuning", "merge", "t.json", "-o", "made/u.json"])
    assert (done.exit_code, done.output) == (0, "made/u.json: 1 entry of 1 file\n")
    assert (tmp_path / "made/u.json").read_text() == (tmp_path / "t.json").read_text()
    (tmp_path / "image.json").write_bytes(b"\xff")
    done = run("show", tmp_path / "image.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path}/image.json: cannot be read: ")
    done = run("merge", tmp_path / "t.json", "-o", tmp_path / "t.json" / "below.json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: cannot write {tmp_path}/t.json/below.json: ")

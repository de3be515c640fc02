from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scons_gpu
from scons_gpu.errors import DamagedError, GpuError
from scons_gpu.store.archive import read_zip, write_zip
from scons_gpu.tune.dump import DumpedCandidate, DumpedProblem, read_dump, write_dump
from scons_gpu.tune.launch import read_launch
from scons_gpu.tune.model import Problem, Result, pairs

LAUNCH = read_launch({"grid": [64], "block": [256], "args": ["in f32 16", "out f32 16", "i32 16"]})
GEMM = DumpedProblem(
    problem=Problem(kernel="gemm(float const*, float*)", arch="sm_90", keys=pairs({"n": 4096, "type": "f32"})),
    entry="_Z4gemmPKfPf",
    launch=LAUNCH,
    candidates=(
        DumpedCandidate(Result(pairs({"TILE": 64}), registers=32, spill_bytes=0, max_threads=256), image=b"first", entry="_Z4gemmPKfPf"),
        DumpedCandidate(Result(pairs({"TILE": 128}), registers=128), image=b"second", entry="k", launch=replace(LAUNCH, grid=(32, 1, 1))),
        DumpedCandidate(Result(pairs({"TILE": 256}), failure="too much shared data")),
    ),
)
COPY = DumpedProblem(Problem("copy", "compute_90"), "copy", None, (DumpedCandidate(Result(()), image=b"// ptx"),))
TOOLS = {"ptxas": "13.5.37", "llvm": "22.1.0"}


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "net.gpudump"
    path.write_bytes(data)
    return path


def test_m13_what_goes_in_comes_out(tmp_path: Path) -> None:
    dump = read_dump(written(tmp_path, write_dump([GEMM, COPY], tools=TOOLS)))
    assert dump.problems == (COPY, GEMM)
    assert dump.tools == TOOLS


def test_m13_equal_dumps_are_equal_bytes() -> None:
    data = write_dump([GEMM, COPY], tools=TOOLS)
    assert data == write_dump([COPY, GEMM, COPY], tools=dict(reversed(TOOLS.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    names = ["__main__.py", "bench.py", "dump.json", "p000/c00.ptx", "p001/c00.cubin", "p001/c01.cubin"]
    assert [member.filename for member in members] == names
    assert {(member.date_time, member.compress_type) for member in members} == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)}


def test_the_order_of_candidates_is_kept_since_the_first_is_the_one_to_be_compared_with() -> None:
    other = replace(GEMM, candidates=GEMM.candidates[::-1])
    assert write_dump([other], tools={}) != write_dump([GEMM], tools={})


def test_m12_two_problems_of_one_identity_must_be_one() -> None:
    other = replace(GEMM, candidates=GEMM.candidates[:1])
    with pytest.raises(GpuError, match=r"two problems of the dump are both gemm\(float const\*, float\*\) sm_90 n=4096 type=f32"):
        write_dump([GEMM, other], tools={})


def test_what_is_no_dump_is_named(tmp_path: Path) -> None:
    data = write_dump([GEMM], tools=TOOLS)
    for bad in (
        b"",
        b"PK",
        data[:-30],
        data[10:],
        data.replace(b"second", b"sekond"),
        write_zip({"a": b"b"}),
        write_zip({"dump.json": b"["}),
    ):
        with pytest.raises(DamagedError, match=r"net\.gpudump: not a whole dump: .*"):
            read_dump(written(tmp_path, bad))


def members(**changes: bytes | None) -> dict[str, bytes]:
    found = read_zip(write_dump([GEMM], tools=TOOLS)) | {name: data for name, data in changes.items() if data is not None}
    return {name: data for name, data in found.items() if name not in changes or changes[name] is not None}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"p000/c01.cubin": None}, "there is no p000/c01.cubin in it"),
        ({"p000/c01.cubin": b"other"}, "p000/c01.cubin is not what was written"),
        ({"p000/c09.cubin": b"other"}, "p000/c09.cubin is no part of it"),
        ({"bench.py": None}, "there is no bench.py in it"),
        ({"dump.json": None}, "there is no dump.json in it"),
    ],
)
def test_every_member_is_accounted_for(tmp_path: Path, changes: dict[str, bytes | None], why: str) -> None:
    with pytest.raises(DamagedError, match=why):
        read_dump(written(tmp_path, write_zip(members(**changes))))


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("schema",), "scons-gpu/dump/2", "schema 'scons-gpu/dump/2' is not 'scons-gpu/dump/1'"),
        (("tools",), {"ptxas": 13}, "13 is no text"),
        (("tools",), [], "not a whole dump"),
        (("problems",), None, "not a whole dump"),
        (("problems", 0, "kernel"), None, "None is no text"),
        (("problems", 0, "keys"), {"n": 4}, "4 is no text"),
        (("problems", 0, "launch"), {"grid": [1], "block": [1], "args": ["in f33 4"]}, "'f33' is no type"),
        (("problems", 0, "candidates", 0, "registers"), "many", "'many' is no number"),
        (("problems", 0, "candidates", 0, "image"), "dump.json", "dump.json is not what was written"),
        (("problems", 0, "candidates", 0, "image"), "../../etc/passwd", "there is no ../../etc/passwd in it"),
        (("problems", 0, "candidates", 0, "sha256"), None, "p000/c00.cubin is not what was written"),
    ],
)
def test_a_description_that_does_not_read_is_damage(tmp_path: Path, place: tuple[Any, ...], value: Any, why: str) -> None:
    data = json.loads(members()["dump.json"])
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(DamagedError) as caught:
        read_dump(written(tmp_path, write_zip(members(**{"dump.json": json.dumps(data).encode()}))))
    assert why in str(caught.value)


def test_an_unpacked_dump_reads_as_the_packed_one(tmp_path: Path) -> None:
    data = write_dump([GEMM, COPY], tools=TOOLS)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "open")
    (tmp_path / "open/tuning.json").write_text("what a run left there")
    assert read_dump(tmp_path / "open") == read_dump(written(tmp_path, data))
    (tmp_path / "open/p001/c00.cubin").write_bytes(b"fjrst")
    with pytest.raises(DamagedError, match=r"p001/c00\.cubin is not what was written"):
        read_dump(tmp_path / "open")
    (tmp_path / "open/p001/c00.cubin").unlink()
    with pytest.raises(DamagedError, match=r"there is no p001/c00\.cubin in it"):
        read_dump(tmp_path / "open")
    with pytest.raises(DamagedError, match=r"there is no dump\.json in it"):
        read_dump(tmp_path)


def test_the_dump_runs_itself_and_says_what_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, write_dump([GEMM], tools=TOOLS))
    bare = subprocess.run([sys.executable, "-S", "-I", path, "-o", "t.json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (bare.returncode, bare.stderr.splitlines()[1:]) == (1, ["  pip install 'scons-gpu[bench]'"])
    assert bare.stderr.startswith("error: scons-gpu cannot be loaded by this Python: ")
    ours = {**os.environ, "PYTHONPATH": str(Path(scons_gpu.__file__).parents[1])}
    helped = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True, cwd=tmp_path, env=ours)
    assert helped.stdout.startswith("Usage: ")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "open")
    opened = subprocess.run([sys.executable, "open/bench.py", "--help"], capture_output=True, text=True, check=True, cwd=tmp_path, env=ours)
    assert opened.stdout.startswith("Usage: bench.py bench ") or opened.stdout.startswith("Usage: scons-gpu bench ")

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import GpuError
from scons_gpu.store.log import BuildLog, read, rotated

if TYPE_CHECKING:
    from pathlib import Path


def test_records_come_back_with_build_and_time(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "store/log.jsonl", build="b1")
    log.write(type="start", argv=["scons", "-j2"], looking=False, jobs=2)
    log.write(type="action", stage="lower", later={"deep": [None, 1.5]}, output="two\nlines · ä \udcff")
    found = list(read(tmp_path / "store/log.jsonl"))
    assert found == log.written
    assert [record["build"] for record in found] == ["b1", "b1"]
    assert found[0]["time"] <= found[1]["time"]
    assert found[1]["later"] == {"deep": [None, 1.5]}
    assert found[1]["output"] == "two\nlines · ä \udcff"
    assert (tmp_path / "store/log.jsonl").read_bytes().count(b"\n") == 2


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    assert list(read(tmp_path / "log.jsonl")) == []
    assert list(tmp_path.iterdir()) == []


def test_r5_a_torn_line_is_passed_over_and_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b")
    log.write(number=1)
    log.write(number=2)
    path.write_bytes(path.read_bytes()[:-9])
    assert [record["number"] for record in read(path)] == [1]
    log.write(number=3)
    assert [record["number"] for record in read(path)] == [1, 3]


def test_lines_that_are_no_record_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'\n[1]\n"x"\n\xff\xfe\nnot json\n' + b"[" * 100_000 + b'\n{"build":"b","number":1}\n')
    assert [record["number"] for record in read(path)] == [1]


def test_a_full_log_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b", limit=500)
    for number in range(20):
        log.write(number=number)
    assert rotated(path) == tmp_path / "log.1.jsonl"
    assert path.stat().st_size <= 500
    assert rotated(path).stat().st_size <= 500
    numbers = [record["number"] for record in read(path)]
    assert numbers == list(range(numbers[0], 20))
    assert len(numbers) > 8
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.1.jsonl", "log.jsonl"]


def test_a_record_longer_than_the_limit_is_kept(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "log.jsonl", build="b", limit=100)
    log.write(output="x" * 1000)
    assert len(list(read(tmp_path / "log.jsonl"))) == 1


def test_only_the_part_put_aside_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    BuildLog(path, build="b").write(number=1)
    path.rename(rotated(path))
    assert [record["number"] for record in read(path)] == [1]


def test_a_reader_sees_what_was_there_when_it_began(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b", limit=300)
    log.write(number=0)
    log.write(number=1)
    reader = read(path)
    assert next(reader)["number"] == 0
    for number in range(2, 20):
        log.write(number=number)
    assert [record["number"] for record in reader] == [1]


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(GpuError, match=r"cannot write .*log\.jsonl"):
        BuildLog(tmp_path / "log.jsonl", build="b").write(number=1)


def test_r5_a_full_disk_leaves_no_half_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b")
    log.write(number=1)
    before = path.read_bytes()
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(GpuError, match="no space left"):
            log.write(number=2)
    assert path.read_bytes() == before
    assert [record["number"] for record in log.written] == [1]


def test_t2_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b", limit=20_000)

    def write(thread: int) -> None:
        for number in range(50):
            log.write(thread=thread, number=number, text="x" * (number * 7))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.written) == 300
    lines = path.read_bytes().splitlines() + rotated(path).read_bytes().splitlines()
    assert all(len(json.loads(line)["text"]) % 7 == 0 for line in lines)


def test_t2_a_writer_waits_its_turn_and_follows_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = BuildLog(path, build="b")
    log.write(number=0)
    writer = threading.Thread(target=log.write, kwargs={"number": 1})
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        path.rename(rotated(path))  # as the other build does when the log is full
    writer.join()
    assert [json.loads(line)["number"] for line in path.read_bytes().splitlines()] == [1]
    assert [record["number"] for record in read(path)] == [0, 1]


WRITER = """
import sys
from pathlib import Path
from scons_gpu.store.log import BuildLog
log = BuildLog(Path(sys.argv[1]), build=sys.argv[2], limit=int(sys.argv[3]))
for number in range(200):
    log.write(number=number, text="y" * (number % 50) * 20)
"""


@pytest.mark.parametrize("limit", [1 << 30, 250_000])
def test_t2_processes_write_one_log(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "log.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), build, str(limit)]) for build in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert rotated(path).exists() == (limit == 250_000)
    found = list(read(path))
    assert len(found) == 600
    for build in "abc":
        assert [record["number"] for record in found if record["build"] == build] == list(range(200))

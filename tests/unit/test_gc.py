from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from scons_gpu.store import builds
from scons_gpu.store import gc as gc_module
from scons_gpu.store import record as records
from scons_gpu.store.gc import GcResult, gc
from scons_gpu.store.lock import locked
from scons_gpu.store.store import LOCK, Store, record_path

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600.0
KEY = (("k", "v"),)


def put(root: Path, number: int, *, key: tuple[tuple[str, str], ...] = KEY) -> Path:
    store = Store([root])
    path = store.claim("object", f"{number:032x}", key, suffix=".rel.cubin")
    store.save(path, b"12345", records.make(b"12345", key=key))
    return path


def age(root: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def files(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


def test_r7_keeps_what_is_named_and_what_is_young(tmp_path: Path) -> None:
    named, unnamed = put(tmp_path, 1), put(tmp_path, 2)
    store = Store([tmp_path])
    kept, lost = store.put_text("slice", "kept"), store.put_text("slice", "lost")
    age(tmp_path, 2 * HOUR)
    young = put(tmp_path, 3)
    expected = unnamed.stat().st_size + record_path(unnamed).stat().st_size + len("lost")
    result = gc(tmp_path, keep=[named.name, kept], older_than=HOUR, now=time.time())
    assert files(tmp_path) == {kept, *(path.name for entry in (named, young) for path in (entry, record_path(entry)))}
    assert result.removed == 2
    assert result.removed_bytes == expected
    assert result.kept == 3
    assert lost not in files(tmp_path)


def test_r7_what_is_kept_is_still_good(tmp_path: Path) -> None:
    path = put(tmp_path, 1)
    age(tmp_path, 2 * HOUR)
    gc(tmp_path, keep=[f"{1:032x}"], older_than=HOUR, now=time.time())
    assert Store([tmp_path]).check(path)


def test_r7_what_a_running_build_uses_is_young(tmp_path: Path) -> None:
    path = put(tmp_path, 1)
    age(tmp_path, 2 * HOUR)
    assert Store([tmp_path]).check(path)
    gc(tmp_path, keep=[], older_than=HOUR, now=time.time())
    assert path.exists()


def test_entries_of_one_hash_stay_together(tmp_path: Path) -> None:
    put(tmp_path, 1)
    second = put(tmp_path, 1, key=(("k", "other"),))
    age(tmp_path, 2 * HOUR)
    assert gc(tmp_path, keep=[f"{1:032x}"], older_than=HOUR, now=time.time()) == GcResult(
        kept=2, kept_bytes=sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    )
    assert second.name.endswith(".2.rel.cubin")


def test_halves_go_too(tmp_path: Path) -> None:
    record_path(put(tmp_path, 1)).unlink()
    put(tmp_path, 2).unlink()
    age(tmp_path, 2 * HOUR)
    assert gc(tmp_path, keep=[], older_than=HOUR, now=time.time()).removed == 2
    assert not files(tmp_path)


def test_leaves_alone_what_the_store_did_not_make(tmp_path: Path) -> None:
    for name in (
        "object/00/notes.txt",
        "object/readme",
        "tools/facts.json",
        "log.jsonl",
        f"elsewhere/00/{1:032x}",
        f"object/xyz/{1:032x}.cubin",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / f"{2:032x}.cubin").touch()
    (tmp_path / "object/00" / f"{3:032x}.cubin").symlink_to(outside / f"{2:032x}.cubin")
    before = files(tmp_path)
    age(tmp_path, 2 * HOUR)
    assert gc(tmp_path, keep=[], older_than=HOUR, now=time.time()) == GcResult()
    assert files(tmp_path) == before


def test_temporary_files_of_killed_builds(tmp_path: Path) -> None:
    for name in ("object/00/.tmp-1-a", "tools/.tmp-2-b", ".tmp-3-c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    age(tmp_path, 2 * HOUR)
    (tmp_path / ".tmp-4-d").touch()
    assert gc(tmp_path, keep=[], older_than=HOUR, now=time.time()) == GcResult(temporaries=3, removed_bytes=12)
    assert files(tmp_path) == {".tmp-4-d"}


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert gc(tmp_path / "none", keep=[], older_than=HOUR, now=time.time()) == GcResult()
    assert not (tmp_path / "none").exists()


BUILDER = """
import sys
from pathlib import Path
from scons_gpu.store import record
from scons_gpu.store.store import Store
for turn in range(40):
    store = Store([Path(sys.argv[1])])
    for number in range(8):
        key = (("number", str(number)),)
        path = store.claim("object", f"{number:032x}", key, suffix=".cubin")
        data = str(number).encode() * 1000
        store.save(path, data, record.make(data, key=key))
    assert store.drain_warnings() == []
"""


def test_t2_gc_beside_a_build_never_takes_half_an_entry(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", BUILDER, str(tmp_path)], stderr=subprocess.PIPE, text=True) as builder:
        while builder.poll() is None:
            # As if every entry were old: far more than any real gc takes.
            for folder in tmp_path.glob("object/*"):
                gc_module._sweep(folder, frozenset(), time.time() + HOUR)
        assert builder.stderr
        assert builder.stderr.read() == ""
    store = Store([tmp_path])
    for path in tmp_path.rglob("*.cubin"):
        assert store.check(path)


def test_t2_gc_waits_for_an_entry_that_is_being_made(tmp_path: Path) -> None:
    path = put(tmp_path, 1)
    age(tmp_path, 2 * HOUR)
    collector = threading.Thread(target=gc, args=(tmp_path,), kwargs={"keep": [], "older_than": HOUR, "now": time.time()})
    with locked(path.parent / LOCK):
        collector.start()
        collector.join(0.2)
        assert collector.is_alive()
        os.utime(path)
    collector.join()
    assert path.exists()


def test_the_record_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, 1)
    age(tmp_path, 2 * HOUR)
    gone: list[Path] = []
    monkeypatch.setattr(gc_module, "_remove", gone.append)
    gc(tmp_path, keep=[], older_than=HOUR, now=time.time())
    assert gone == [record_path(path), path]


# --- which builds named what ---


def test_the_last_builds_of_each_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for number in range(4):
        builds.remember(tmp_path, f"b{number}", program="/here/net", names=[f"n{number}"])
    builds.remember(tmp_path, "b3", program="/there/net", names=["other"])
    assert builds.kept(tmp_path, last=2) == {"n2", "n3", "other"}
    assert builds.forget(tmp_path, last=2) == 2
    assert builds.kept(tmp_path, last=100) == {"n2", "n3", "other"}
    assert len(list((tmp_path / "builds").iterdir())) == 3


def test_a_build_may_say_more_later(tmp_path: Path) -> None:
    builds.remember(tmp_path, "b", program="net", names=["one"])
    builds.remember(tmp_path, "b", program="net", names=["one", "two"])
    assert builds.kept(tmp_path, last=1) == {"one", "two"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "scons-gpu/build/1"}', '{"format": "x", "program": "p", "names": [], "time": 0}']
)
def test_a_damaged_note_counts_as_none(tmp_path: Path, text: str) -> None:
    builds.remember(tmp_path, "b", program="net", names=["one"])
    (tmp_path / "builds/c.json").write_text(text)
    assert builds.kept(tmp_path, last=5) == {"one"}


def test_no_notes(tmp_path: Path) -> None:
    assert builds.kept(tmp_path, last=5) == frozenset()
    assert builds.forget(tmp_path, last=5) == 0

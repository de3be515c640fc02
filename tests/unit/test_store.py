from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import DamagedError, GpuError, UsageError
from scons_gpu.store import record as records
from scons_gpu.store import sealed
from scons_gpu.store.names import content
from scons_gpu.store.record import Record, Resources
from scons_gpu.store.store import Store, record_path, writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIGEST = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
KEY = (("arch", "sm_90"), ("slice", "1"))
OTHER_KEY = (("arch", "sm_90a"), ("slice", "1"))


def put(store: Store, data: bytes = b"object", *, digest: str = DIGEST, key: tuple[tuple[str, str], ...] = KEY) -> Path:
    path = store.claim("object", digest, key, suffix=".rel.cubin")
    store.save(path, data, records.make(data, key=key))
    return path


@pytest.fixture
def plain_user() -> Iterator[Path]:
    """A folder of somebody whom permissions hold back, which they do not do with root."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in folder.rglob("*"):
            path.chmod(0o700)
        shutil.rmtree(folder)


# --- entries ---


def test_an_entry_comes_back_with_its_record(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = store.claim("object", DIGEST, KEY, suffix=".rel.cubin")
    assert path == tmp_path / "object/01" / f"{DIGEST}.rel.cubin"
    assert store.check(path) is None
    uses = Resources(kernel="k", registers=24, spill_stores=0, spill_loads=0)
    record = records.make(b"cubin", key=KEY, output="a warning", seconds=0.25, resources=[uses])
    assert store.save(path, b"cubin", record) == record
    assert Store([tmp_path]).check(path) == record
    assert record.resources == (uses,)
    assert record_path(path) == tmp_path / "object/01" / f"{DIGEST}.rel.cubin.json"
    assert store.drain_warnings() == []


def test_order_of_key_fields_does_not_matter(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store, key=KEY)
    again = Store([tmp_path])
    assert again.claim("object", DIGEST, KEY[::-1], suffix=".rel.cubin") == path
    assert again.check(path) is not None


def test_discard(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store)
    store.discard(path)
    assert not path.exists()
    assert not record_path(path).exists()
    store.discard(path)
    store.discard(tmp_path / "object/ff/never.cubin")
    assert not (tmp_path / "object/ff").exists()


def test_the_first_good_entry_stays(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store, b"first")
    kept = store.save(path, b"second", records.make(b"second", key=KEY))
    assert path.read_bytes() == b"first"
    assert kept.bytes == 5


def test_a_record_of_a_later_version_is_read(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store)
    data = sealed.from_text(record_path(path).read_bytes())
    data["later"] = 1
    data["resources"] = [{"kernel": "k", "registers": 8, "later": 2}]
    record_path(path).write_text(sealed.to_text(data))
    found = store.check(path)
    assert found is not None
    assert found.resources == (Resources(kernel="k", registers=8),)


# --- D7, T9: collisions ---


def test_d7_a_collision_is_another_name(tmp_path: Path) -> None:
    store = Store([tmp_path])
    paths = [put(store, key[0][1].encode(), key=key) for key in (KEY, OTHER_KEY)]
    assert [path.name for path in paths] == [f"{DIGEST}.rel.cubin", f"{DIGEST}.2.rel.cubin"]
    again = Store([tmp_path])
    for key, path in ((OTHER_KEY, paths[1]), (KEY, paths[0])):
        assert again.claim("object", DIGEST, key, suffix=".rel.cubin") == path
        record = again.check(path)
        assert record is not None
        assert record.key == key
    third = again.claim("object", DIGEST, (("arch", "sm_80"),), suffix=".rel.cubin")
    assert third.name == f"{DIGEST}.3.rel.cubin"


def test_d7_keys_claimed_but_not_saved_stay_apart(tmp_path: Path) -> None:
    store = Store([tmp_path])
    first = store.claim("ptx", DIGEST, KEY, suffix=".ptx")
    second = store.claim("ptx", DIGEST, OTHER_KEY, suffix=".ptx")
    assert first != second
    assert first == store.claim("ptx", DIGEST, KEY, suffix=".ptx")


def test_d7_another_build_took_the_name_first(tmp_path: Path) -> None:
    here, there = Store([tmp_path]), Store([tmp_path])
    path = here.claim("object", DIGEST, KEY, suffix=".rel.cubin")
    assert put(there, key=OTHER_KEY) == path
    assert here.check(path) is None
    assert "that of something else" in here.drain_warnings()[0]
    assert put(Store([tmp_path])).name == f"{DIGEST}.2.rel.cubin"


def test_t9_texts_of_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCONS_GPU_TEST_HASH_BITS", "4")
    store = Store([tmp_path])
    texts = [f"define void @k{number}()" for number in range(100)]
    names = [store.put_text("slice", text) for text in texts]
    assert len(set(names)) == 100
    assert len({name.partition(".")[0] for name in names}) <= 16
    again = Store([tmp_path])
    assert [again.get_text("slice", name) for name in names] == texts
    assert [again.put_text("slice", text) for text in reversed(texts)] == names[::-1]


def test_claims_of_many_threads(tmp_path: Path) -> None:
    store = Store([tmp_path])
    claims: list[dict[int, Path]] = [{} for _ in range(8)]

    def claim(mine: dict[int, Path]) -> None:
        for number in range(40):
            mine[number] = store.claim("object", DIGEST, (("number", str(number)),), suffix=".cubin")

    threads = [threading.Thread(target=claim, args=(mine,)) for mine in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == claims[0] for mine in claims)
    assert len(set(claims[0].values())) == 40


# --- T1: damage ---


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_text("somebody else's file, longer than what was here")


def folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def no_record(path: Path) -> None:
    record_path(path).unlink()


def half_a_record(path: Path) -> None:
    truncate(record_path(path))
    truncate(record_path(path))


def empty_record(path: Path) -> None:
    record_path(path).write_bytes(b"")


def odd_record(path: Path) -> None:
    record_path(path).write_text("[" * 100_000)


def changed_record(path: Path) -> None:
    """What the checksum does not cover: seconds, resources, what the tool said."""
    data = json.loads(record_path(path).read_text())
    record_path(path).write_text(json.dumps({**data, "seconds": 1.5}))


def record_folder(path: Path) -> None:
    folder(record_path(path))


DAMAGE = [truncate, empty, flip, foreign, folder, pipe, no_record, half_a_record, empty_record, odd_record, changed_record, record_folder]


@pytest.mark.parametrize("damage", DAMAGE)
def test_t1_a_damaged_entry_is_a_miss_with_a_warning_and_is_healed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = put(Store([tmp_path]))
    damage(path)
    store = Store([tmp_path])
    assert store.claim("object", DIGEST, KEY, suffix=".rel.cubin") == path
    assert store.check(path) is None
    assert store.check(path) is None
    [warning] = store.drain_warnings()
    assert warning.startswith(f"store: {path}: ")
    assert warning.endswith("; it is made again")
    assert put(store) == path
    assert store.check(path) == records.make(b"object", key=KEY)
    assert store.drain_warnings() == []


@pytest.mark.parametrize("damage", [*DAMAGE, dangling])
def test_t1_a_damaged_entry_can_be_discarded(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = Store([tmp_path])
    path = put(store)
    damage(path)
    store.discard(path)
    assert not os.path.lexists(path)
    assert not os.path.lexists(record_path(path))


def test_t1_a_dangling_link_is_healed(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store)
    dangling(path)
    assert store.check(path) is None
    put(store)
    assert store.check(path)
    assert not path.is_symlink()


def exchange(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


@pytest.mark.parametrize("moved", ["objects", "objects and records"])
def test_t1_two_good_entries_exchanged(tmp_path: Path, moved: str) -> None:
    before = Store([tmp_path])
    paths = [put(before, b"one", digest=DIGEST), put(before, b"two", digest=OTHER, key=OTHER_KEY)]
    for path in paths:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    exchange(*paths)
    if "records" in moved:
        exchange(*(record_path(path) for path in paths))
    store = Store([tmp_path])
    assert store.claim("object", DIGEST, KEY, suffix=".rel.cubin") == paths[0]
    assert store.claim("object", OTHER, OTHER_KEY, suffix=".rel.cubin") == paths[1]
    assert [store.check(path) for path in paths] == [None, None]
    assert len(store.drain_warnings()) == 2
    put(store, b"one")
    put(store, b"two", digest=OTHER, key=OTHER_KEY)
    assert [record.bytes for path in paths if (record := store.check(path))] == [3, 3]


def test_t1_an_unreadable_entry(plain_user: Path) -> None:
    store = Store([plain_user])
    path = put(store)
    path.chmod(0)
    assert store.check(path) is None
    assert store.drain_warnings() == [f"store: {path}: cannot be read (Permission denied); it is made again"]
    put(store)
    assert store.check(path)
    record_path(path).chmod(0)
    assert store.check(path) is None
    put(store)
    assert store.check(path)


def test_t1_an_unreadable_text(plain_user: Path) -> None:
    store = Store([plain_user])
    name = store.put_text("slice", "text")
    (plain_user / "slice" / name[:2] / name).chmod(0)
    with pytest.raises(DamagedError):
        store.get_text("slice", name)
    assert store.put_text("slice", "text") == name
    assert store.get_text("slice", name) == "text"


def test_a_folder_that_cannot_be_written_is_an_error(plain_user: Path) -> None:
    store = Store([plain_user])
    (plain_user / "object").mkdir(mode=0o500)
    with pytest.raises(GpuError, match=r"cannot write .*object/01.*: permission denied\n  make its folder writable"):
        put(store)


# --- texts ---


def test_texts_are_named_by_content(tmp_path: Path) -> None:
    store = Store([tmp_path])
    name = store.put_text("slice", "define @ä\n")
    assert name == content("define @ä\n".encode())
    assert (tmp_path / "slice" / name[:2] / name).read_text() == "define @ä\n"
    assert store.put_text("slice", "define @ä\n") == name
    assert store.get_text("slice", name) == "define @ä\n"
    with pytest.raises(KeyError):
        store.get_text("slice", OTHER)


@pytest.mark.parametrize("damage", [truncate, empty, flip, foreign, folder, pipe])
def test_t1_a_damaged_text_is_found_and_replaced(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = Store([tmp_path])
    name = store.put_text("slice", "some text")
    damage(tmp_path / "slice" / name[:2] / name)
    with pytest.raises(DamagedError, match="build again"):
        store.get_text("slice", name)
    assert len(store.drain_warnings()) == 1
    assert store.put_text("slice", "some text") == name
    assert store.get_text("slice", name) == "some text"


# --- roots ---


def test_a_second_root_is_read_and_never_written(tmp_path: Path) -> None:
    shared = put(Store([tmp_path / "shared"]))
    name = Store([tmp_path / "shared"]).put_text("slice", "text")
    for path in (shared, record_path(shared)):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = {path: path.stat() for path in (tmp_path / "shared").rglob("*") if path.is_file()}
    store = Store([tmp_path / "own", tmp_path / "shared"])
    assert store.claim("object", DIGEST, KEY, suffix=".rel.cubin") == shared
    assert store.check(shared)
    assert store.put_text("slice", "text") == name
    assert store.get_text("slice", name) == "text"
    new = put(store, digest=OTHER)
    assert new.is_relative_to(tmp_path / "own")
    store.discard(shared)
    after = {path: path.stat() for path in (tmp_path / "shared").rglob("*") if path.is_file()}
    assert {path: (status.st_mtime_ns, status.st_size) for path, status in before.items()} == {
        path: (status.st_mtime_ns, status.st_size) for path, status in after.items()
    }
    assert not (tmp_path / "own/slice").exists()


def test_a_damaged_entry_of_a_second_root_is_made_in_the_first(tmp_path: Path) -> None:
    shared = put(Store([tmp_path / "shared"]))
    flip(shared)
    store = Store([tmp_path / "own", tmp_path / "shared"])
    assert put(store).is_relative_to(tmp_path / "own")


def test_t1_a_read_only_store_is_read_and_new_entries_go_elsewhere(plain_user: Path) -> None:
    first = plain_user / "shared"
    path = put(Store([first]))
    first.chmod(0o500)
    roots, sentence = writable([first], plain_user / "build/.gpu-store")
    assert roots == [plain_user / "build/.gpu-store", first]
    assert sentence == f"store {first} is read-only: it is read, and new entries go to {plain_user}/build/.gpu-store"
    assert Store(roots).claim("object", DIGEST, KEY, suffix=".rel.cubin") == path


def test_t1_a_read_only_file_system_holds_root_back_too(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "ro", "none", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        for first in (disk, disk / "not/there/yet"):
            assert writable([first], tmp_path / "own")[0] == [tmp_path / "own", first]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_asking_whether_a_store_can_be_written_makes_nothing(tmp_path: Path) -> None:
    assert writable([tmp_path / "new/store", tmp_path / "other"], tmp_path / "own") == ([tmp_path / "new/store", tmp_path / "other"], "")
    assert writable([tmp_path], tmp_path / "own") == ([tmp_path], "")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_a_file_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        writable([tmp_path / "file"], tmp_path / "own")


# --- use keeps young ---


def test_use_makes_an_entry_young_without_touching_its_data(tmp_path: Path) -> None:
    store = Store([tmp_path])
    path = put(store)
    name = store.put_text("slice", "text")
    text = tmp_path / "slice" / name[:2] / name
    old = time.time() - 10_000
    for file in (path, record_path(path), text):
        os.utime(file, (old, old))
    store.check(path)
    store.get_text("slice", name)
    assert path.stat().st_mtime == pytest.approx(old)
    assert record_path(path).stat().st_mtime > old + 1000
    assert text.stat().st_mtime > old + 1000


def test_record_text_is_for_one_name_only() -> None:
    record = Record(sha256="0", bytes=1, key=KEY)
    text = records.to_text(record, name="a.cubin")
    assert records.from_text(text, name="a.cubin") == record
    assert records.from_text(text, name="b.cubin") is None

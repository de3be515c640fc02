from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import GpuError
from scons_gpu.store.files import TEMPORARY, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def leftovers(folder: Path) -> list[str]:
    return [name for _, _, files in os.walk(folder) for name in files if name.startswith(TEMPORARY)]


def test_writes_bytes_and_text_and_makes_folders(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a/b/text", "ä\n")
    write_atomic(tmp_path / "a/b/bytes", b"\x00\xff")
    assert (tmp_path / "a/b/text").read_bytes() == "ä\n".encode()
    assert (tmp_path / "a/b/bytes").read_bytes() == b"\x00\xff"
    assert not leftovers(tmp_path)


def test_replaces_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "long content")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "long content"
    assert path.read_text() == "new"


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", "")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_name_as_long_as_names_get(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("n" * 255), "fits")
    with pytest.raises(GpuError, match="shorten the names"):
        write_atomic(tmp_path / ("n" * 256), "does not")
    assert not leftovers(tmp_path)


def test_r5_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("fsync")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_atomic(tmp_path / "artefact", "x")
    write_atomic(tmp_path / "entry", "x", sync=False)
    assert done == ["fsync", "rename", "rename"]


def test_r5_a_full_disk_is_an_error_that_names_the_path(small_disk: Path) -> None:
    write_atomic(small_disk / "old", b"o" * 1000)
    with pytest.raises(GpuError) as failed:
        write_atomic(small_disk / "old", b"n" * 200_000)
    assert str(failed.value) == (
        f"cannot write {small_disk}/old: no space left on device\n  make room there and build again; nothing half-written was left"
    )
    assert (small_disk / "old").read_bytes() == b"o" * 1000
    assert [path.name for path in small_disk.iterdir()] == ["old"]


def test_r5_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", "x")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(GpuError, match=r"cannot write .*/file: is a directory"):
        write_atomic(tmp_path / "file", "x")
    (tmp_path / "plain").touch()
    with pytest.raises(GpuError, match=r"cannot write .*/plain/file"):
        write_atomic(tmp_path / "plain/file", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "plain"]


def test_r5_killed_at_any_moment_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = "import sys\nfrom pathlib import Path\nfrom scons_gpu.store.files import write_atomic\nprint(flush=True)\n"
    script += "while True:\n  for c in 'ab': write_atomic(Path(sys.argv[1]), c * 500_000)\n"
    for pause in (0.0, 0.003, 0.007, 0.011):
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            writer.stdout.readline()
            time.sleep(pause)
            writer.send_signal(signal.SIGKILL)
        if path.exists():
            assert path.read_text() in ("a" * 500_000, "b" * 500_000)


def test_a_device_is_written_into(tmp_path: Path) -> None:
    """`-o /dev/null`, by root: a rename would put a plain file in its place, for the whole machine. A link to it stands for it here."""
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_atomic(link, b"gone")
    assert link.is_symlink()
    assert link.is_char_device()
    assert list(tmp_path.iterdir()) == [link]


def test_what_a_process_has_open_is_written_into() -> None:
    """`-o /dev/stdout`, and what a shell calls `>(command)`."""
    reading, writing = os.pipe()
    write_atomic(Path(f"/proc/self/fd/{writing}"), "through a pipe")
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "through a pipe"


def test_a_link_to_a_file_is_replaced(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("old")
    link.symlink_to(kept)
    write_atomic(link, "new")
    assert (link.is_symlink(), link.read_text(), kept.read_text()) == (False, "new", "old")

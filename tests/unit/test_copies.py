from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from scons_gpu.store import copies
from scons_gpu.store.gc import gc

if TYPE_CHECKING:
    from pathlib import Path


def only(root: Path) -> Path:
    [path] = (path for path in root.rglob("*.z") if path.is_file())
    return path


def test_a_copy_comes_back(tmp_path: Path) -> None:
    name = copies.keep(tmp_path, b"a plan\n" * 1000)
    assert copies.load(tmp_path, name) == b"a plan\n" * 1000
    assert only(tmp_path).stat().st_size < 200
    assert copies.keep(tmp_path, b"a plan\n" * 1000) == name == copies.name_of(b"a plan\n" * 1000)


def test_what_is_gone_damaged_or_exchanged_is_no_copy(tmp_path: Path) -> None:
    name = copies.keep(tmp_path, b"one")
    place = only(tmp_path)
    other = tmp_path / "other"
    copies.keep(other, b"two")
    place.write_bytes(only(other).read_bytes())
    assert copies.load(tmp_path, name) is None
    place.write_bytes(b"no zlib")
    assert copies.load(tmp_path, name) is None
    place.unlink()
    assert copies.load(tmp_path, name) is None
    assert copies.load(tmp_path, "") is None


def test_gc_takes_copies_that_no_recent_build_names(tmp_path: Path) -> None:
    kept, lost = copies.keep(tmp_path, b"kept"), copies.keep(tmp_path, b"lost")
    for path in tmp_path.rglob("*.z"):
        os.utime(path, (0, 0))
    assert gc(tmp_path, keep=[kept], older_than=60, now=time.time()).removed == 1
    assert copies.load(tmp_path, kept) == b"kept"
    assert copies.load(tmp_path, lost) is None

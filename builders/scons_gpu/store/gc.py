"""Takes out of a store what no recent build names and nobody used lately. It makes nothing stale, only work."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.store import copies
from scons_gpu.store.files import TEMPORARY, unwritable
from scons_gpu.store.lock import locked
from scons_gpu.store.store import LOCK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["KINDS", "GcResult", "gc"]

KINDS = ("slice", "ptx", "object", "deferred", "failure", copies.KIND)
"""The folders that gc looks into; temporary files it takes anywhere in the store."""

_ENTRY = re.compile(r"([0-9a-f]{32})(?:\.[0-9]+)?(?:\.[a-z.]+)?")
"""A file name that the store gives: digest, number after a collision, suffix. Nothing else is touched."""


@dataclass(frozen=True)
class GcResult:
    """Entries count with their records; sizes in bytes."""

    removed: int = 0
    removed_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    temporaries: int = 0
    """Files that killed builds had left."""

    def __add__(self, other: GcResult) -> GcResult:
        return GcResult(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


def gc(store_root: Path, *, keep: Collection[str], older_than: float, now: float) -> GcResult:
    """Takes away entries that `keep` does not name and that were neither made nor used in the last `older_than` seconds.

    `keep`: slice names, digests, object names; what follows the first dot is passed over, so all entries of one hash stay together.
    Safe beside running builds: what they use is younger than that. Raises GpuError where the store cannot be written.
    """
    hashes = {name.partition(".")[0] for name in keep}
    before = now - older_than
    total = GcResult()
    for kind in KINDS:
        for folder in _folders(store_root / kind):
            total += _sweep(folder, hashes, before)
    return total + _temporaries(store_root, before)


def _folders(kind: Path) -> Iterator[Path]:
    yield from (folder for folder in sorted(kind.glob("[0-9a-f][0-9a-f]")) if folder.is_dir())


def _sweep(folder: Path, hashes: Collection[str], before: float) -> GcResult:
    total = GcResult()
    # Under the lock, so that an entry which is being made anew is not taken by its old age.
    with locked(folder / LOCK):
        for digest, paths in _entries(folder):
            statuses = [status for path in paths if (status := _status(path)) is not None]
            size = sum(status.st_size for status in statuses)
            if digest in hashes or any(status.st_mtime >= before for status in statuses):
                total += GcResult(kept=1, kept_bytes=size)
                continue
            for path in paths:
                _remove(path)
            total += GcResult(removed=1, removed_bytes=size)
    return total


def _entries(folder: Path) -> list[tuple[str, list[Path]]]:
    """Digest and files of each entry, the record first: data without a record is no entry, and never looks like a damaged one."""
    entries: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if _ENTRY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            entries.setdefault(path.name.removesuffix(".json"), []).append(path)
    return [(name[:32], sorted(paths, key=lambda path: len(path.name), reverse=True)) for name, paths in sorted(entries.items())]


def _temporaries(root: Path, before: float) -> GcResult:
    total = GcResult()
    for folder, _, files in os.walk(root):
        for path in (Path(folder, name) for name in files if name.startswith(TEMPORARY)):
            status = _status(path)
            if status is not None and status.st_mtime < before:
                _remove(path)
                total += GcResult(removed_bytes=status.st_size, temporaries=1)
    return total


def _status(path: Path) -> os.stat_result | None:
    """None where a running build has just renamed or removed it."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error

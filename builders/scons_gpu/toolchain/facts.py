"""What was found out about a file (its version, its hash), kept until the file changes: a build with nothing to do starts no tool."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError
from scons_gpu.store import sealed
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Facts"]

_FORMAT = 3


@dataclass(frozen=True)
class Facts:
    """A folder of small JSON files, one per asked file: what it and all that it leads to looked like, and what was found out then."""

    folder: Path

    def learn(
        self, kind: str, file: str, *, files: Callable[[], Sequence[str]], find_out: Callable[[Sequence[str]], Mapping[str, str]]
    ) -> dict[str, str]:
        """What `find_out` says about `file`, from the cache if nothing that it leads to has changed: same size, time and inode each.

        `files` gives all that `file` leads to, itself first; it is asked only on a miss. None at all: nothing is kept.
        An unreadable entry is a miss, and an entry that cannot be written costs time only, so neither is an error.
        """
        path = self._path(kind, file)
        known = _read(path)
        if known is not None:
            return known
        chain = list(files())
        looks = [_look(each) for each in chain]  # before it is found out, so that a change meanwhile is seen the next time
        found = dict(find_out(chain))
        if looks:
            with contextlib.suppress(GpuError):
                write_atomic(path, sealed.to_text({"format": _FORMAT, "files": looks, "found": found}))
        return found

    def _path(self, kind: str, file: str) -> Path:
        name = hashlib.sha256(f"{kind}\0{file}".encode(errors="surrogateescape")).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.json"


def _look(file: str) -> list[str | int]:
    """Symbolic links are followed: one that points elsewhere now shows another inode. The time is the inode's, which nobody can set."""
    try:
        stat = Path(file).stat()
    except OSError:
        return [file]
    return [file, stat.st_size, stat.st_ctime_ns, stat.st_ino]


def _read(path: Path) -> dict[str, str] | None:
    try:
        entry = sealed.from_text(path.read_bytes())
        if entry["format"] != _FORMAT or not entry["files"] or any(_look(str(look[0])) != look for look in entry["files"]):
            return None
        found = dict(entry["found"])
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None
    return found if all(isinstance(value, str) for value in found.values()) else None

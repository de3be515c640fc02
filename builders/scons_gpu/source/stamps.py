"""Whether files stayed as they are while a tool read them.

SCons records what a header holds after the compiler is through. A header that is edited meanwhile would be recorded with a content
that the compiler never saw, and the stale result would pass as current for good.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Stamp", "moved", "stamps"]

Stamp = tuple[int, int, int]
"""Time, size and inode."""

_SECOND = 1_000_000_000
_LATE = 11_000_000
"""Nanoseconds by which a file system's clock may be behind: it is read once a tick, which takes 10 ms at most."""


def stamps(paths: Iterable[str], *, top: str) -> dict[str, Stamp]:
    """A stamp of each file, relative paths from `top` on. The time is the inode's own: that of the content can be set by anybody."""
    return {path: _stamp(Path(top, path)) for path in paths}


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ctime_ns, found.st_size, found.st_ino


def moved(now: Mapping[str, Stamp], before: Mapping[str, Stamp], *, begun: int) -> list[str]:
    """Files that are not as they were `before`, or where that is not known, that were written since `begun` (nanoseconds)."""
    return [path for path, stamp in now.items() if (stamp != before[path] if path in before else _since(stamp, begun))]


def _since(stamp: Stamp, begun: int) -> bool:
    late = _SECOND if stamp[0] % _SECOND == 0 else _LATE  # few file systems still count whole seconds
    return stamp[0] > begun - late

"""A lock that processes and threads share, given back by the system when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from scons_gpu.store.files import unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["locked", "take"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds `path` (made if need be, never removed) while the block runs. Not to be taken again inside.

    Every call opens the file anew, which is what makes the lock work between threads too.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        take(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def take(descriptor: int, lock: int) -> None:
    """Locks an open file. A file system without locks goes unguarded: what is guarded here is checked by content whenever it is read."""
    try:
        fcntl.flock(descriptor, lock)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise

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

__all__ = ["locked"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds `path` (made if need be, never removed) while the block runs. Not to be taken again inside.

    Every call opens the file anew, which is what makes the lock work between threads too. On a file system without locks
    the block runs unguarded: what it guards is checked by content whenever it is read.
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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)

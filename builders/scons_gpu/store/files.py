"""Files that are there whole or not at all: written privately in the same folder, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TEMPORARY", "unwritable", "write_atomic"]

TEMPORARY = ".tmp-"
"""How the name of every temporary file begins, so that `gc` knows what a killed build left. Short: real names may be long already."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


def write_atomic(path: Path, data: bytes | str, *, sync: bool = True) -> None:
    """Puts `data` at `path`, making its folder if need be. Readers see the old file or the new one, so does a build after a crash.

    `sync` is for all that is believed without looking into it. Entries of the store are checked against a checksum whenever they
    are used, so they go without: on ext4 a small file takes 0.09 ms, and 0.6 ms synced.
    What is no file to be replaced, /dev/null and /dev/stdout above all, is written into.
    Raises GpuError that names the path (a full disk, a folder that cannot be written); no temporary file stays behind.
    """
    content = data.encode() if isinstance(data, str) else data
    if _is_stream(path):
        _write_into(path, content)
        return
    temporary = path.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        try:
            _write(temporary, content, sync=sync)
            temporary.replace(path)
        except BaseException:
            # An interrupt too: what was begun is taken away again.
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> GpuError:
    """What to tell a user whose file could not be written."""
    if error.errno in _FULL:
        hint = "make room there and build again; nothing half-written was left"
    elif error.errno in _CLOSED:
        hint = "make its folder writable, or choose another one"
    elif error.errno == errno.ENAMETOOLONG:
        hint = "the path is longer than this file system allows: shorten the names it is made of"
    else:
        hint = ""
    return GpuError(f"cannot write {path}: {(error.strerror or str(error)).lower()}", hint=hint)


def _is_stream(path: Path) -> bool:
    """Whether there is a device, or one of the links by which a process names what it has open: a rename would take those away."""
    try:
        return stat.S_ISCHR(path.stat().st_mode) or (path.is_symlink() and path.parts[:2] in {("/", "dev"), ("/", "proc")})
    except OSError:
        return False


def _write_into(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as stream:
            stream.write(data)
    except OSError as error:
        raise unwritable(path, error) from error


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        # 0o666 less the umask, unlike tempfile's 0o600: a store may be shared by users.
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    try:
        rest = memoryview(data)
        while rest:  # a write may be short, on a nearly full disk for one
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)

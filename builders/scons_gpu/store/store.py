"""The content-addressed store: slices, PTX and objects, each under a name made of what it is made of.

Two kinds of entry. A *text* (a slice) is named by its own content and proves itself. An *entry* (PTX, an object, deferred PTX) is
named by what it was made from, and has a record beside it (`<file name>.json`) with its checksum and its whole key. Data is
renamed into place first and the record second, so what a killed build leaves is data without a record, which counts as missing.
Nothing here is believed: truncated, foreign, exchanged or unreadable files are misses, and the next `save` or `put_text` heals them.
That is also why entries are not synced to disk, which would take six times as long as writing them (see `write_atomic`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import os
import shutil
import stat
import threading
import time
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, GpuError, UsageError
from scons_gpu.store import names
from scons_gpu.store import record as records
from scons_gpu.store.files import TEMPORARY, unwritable, write_atomic
from scons_gpu.store.lock import locked
from scons_gpu.store.record import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scons_gpu.store.record import Record

__all__ = ["LOCK", "Store", "record_path", "writable"]

LOCK = ".lock"
"""In each folder of entries: held while an entry and its record are put there or taken away."""

_FRESH_SECONDS = 600.0
"""What is used gets a new time, so that `gc` sees it; not more often than this, a null build should write nothing."""

_CHUNK = 1 << 20
_RECORD = ".json"
_Key = tuple[tuple[str, str], ...]


class Store:
    """One or more roots: the first is written, the others are only read. Safe between threads, and between processes."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.absolute() for root in roots)
        self.root = self.roots[0]
        self._prefix = f"{self.root}{os.sep}"
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str, str, _Key], Path] = {}
        self._keys: dict[Path, _Key] = {}
        self._warnings: list[str] = []
        self._faults: dict[Path, str] = {}
        self._told: set[str] = set()

    def put_text(self, kind: str, text: str) -> str:
        """Keeps `text` and gives its name: its hash, or `<hash>.2`, `.3`… where another text of that hash was first."""
        data = text.encode()
        stem = names.name(data)
        for name in _numbered(stem):
            held = self._text_at(kind, name)
            if held is None:
                path = self._path(self.root, kind, name)
                with locked(path.parent / LOCK):
                    held = self._text_at(kind, name)
                    if held is None:
                        _clear(path)
                        write_atomic(path, data, sync=False)
                        return name
            if held == data:
                return name
        raise AssertionError  # the names do not end

    def get_text(self, kind: str, name: str) -> str:
        """The text of that name. Raises KeyError where there is none, DamagedError where there is another content under the name."""
        data = self._text_at(kind, name)
        if data is not None:
            return data.decode()
        path = self._path(self.root, kind, name)
        if any(os.path.lexists(self._path(root, kind, name)) for root in self.roots):
            msg = f"{path}: its content is not what its name says"
            raise DamagedError(msg, hint="build again: what is damaged in the store is made anew")
        raise KeyError(name)

    def _text_at(self, kind: str, name: str) -> bytes | None:
        for root in self.roots:
            path = self._path(root, kind, name)
            try:
                data, written = _read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._warn(path, f"cannot be read ({error.strerror or error})")
                continue
            if names.name(data) == name.partition(".")[0]:
                self._touch(path, written)
                return data
            self._warn(path, "its content is not what its name says")
        return None

    def claim(self, kind: str, digest: str, key: Iterable[tuple[str, str]], *, suffix: str) -> Path:
        """Where the entry of this digest and key is, or is to be: `<root>/<kind>/<2 hex>/<digest>[.N]<suffix>`.

        One key has one path as long as this store lives. A record of another key, on disk or claimed here, makes N grow;
        a good entry in a root that is only read is taken where it lies.
        """
        whole = tuple(sorted(key))
        claim = (kind, suffix, digest, whole)
        with self._lock:
            if claim not in self._claims:
                path = self._find(kind, digest, whole, suffix)
                self._claims[claim] = path
                self._keys[path] = whole
            return self._claims[claim]

    def _find(self, kind: str, digest: str, key: _Key, suffix: str) -> Path:
        for stem in _numbered(digest):
            own, *others = [self._path(root, kind, stem + suffix) for root in self.roots]
            record, _ = self._record(own)
            if record is not None and record.key == key:
                return own
            for path in others:
                found, _ = self._examine(path)
                if isinstance(found, Entry) and found.record.key == key:
                    return path
            if record is None and self._keys.get(own, key) == key:
                return own
        raise AssertionError  # the names do not end

    def check(self, path: Path) -> Record | None:
        """The record of a good entry; None where there is none, or a damaged one or one of another key, which becomes a warning."""
        entry = self.load(path)
        return entry.record if entry else None

    def load(self, path: Path) -> Entry | None:
        """Like `check`, with the bytes that were checked."""
        found, written = self._examine(path)
        if isinstance(found, str) and self._is_own(path):
            # Another build may be between its two renames: look again when it is done.
            with contextlib.suppress(GpuError), locked(path.parent / LOCK):
                found, written = self._examine(path)
        if isinstance(found, str):
            self._warn(path, found)
            return None
        if found is not None:
            self._touch(record_path(path), written)
        return found

    def save(self, path: Path, data: bytes, record: Record) -> Record:
        """Puts an entry in its place, and gives the record that is there now: where a good one was already, made of the same, it stays.

        Raises GpuError that names the path where it cannot be written.
        """
        record = dataclasses.replace(record, key=tuple(sorted(record.key)))
        with locked(path.parent / LOCK):
            there, _ = self._examine(path)
            if isinstance(there, Entry) and there.record.key == record.key:
                return there.record
            # The old record goes first: new data beside it would look damaged to whoever reads now.
            _clear(record_path(path))
            if there is not None:
                _clear(path)
            write_atomic(path, data, sync=False)
            write_atomic(record_path(path), records.to_text(record, name=path.name), sync=False)
        return record

    def discard(self, path: Path) -> None:
        """Takes an entry and its record away. What lies in a root that is only read stays."""
        if not self._is_own(path) or not (os.path.lexists(path) or os.path.lexists(record_path(path))):
            return
        with locked(path.parent / LOCK):
            _clear(record_path(path))
            _clear(path)

    def fault(self, path: Path) -> str:
        """What was found wrong with the entry at `path`, the last time that it was looked at; empty where nothing was."""
        with self._lock:
            return self._faults.get(path, "")

    def drain_warnings(self) -> list[str]:
        """What was found damaged since the last call, a line each. The same is said once."""
        with self._lock:
            drained, self._warnings = self._warnings, []
        return drained

    def _examine(self, path: Path) -> tuple[Entry | str | None, float]:
        """A good entry, None where there is none, or what is wrong with it; and when its record was last used."""
        try:
            data, _ = _read(path)
        except FileNotFoundError:
            return None, 0.0
        except OSError as error:
            return f"cannot be read ({error.strerror or error})", 0.0
        record, written = self._record(path)
        if record is None:
            return "it has no record that can be read", 0.0
        if record.key != self._keys.get(path, record.key):
            return "its record is that of something else", 0.0
        return _difference(data, record) or Entry(path=path, data=data, record=record), written

    @staticmethod
    def _record(path: Path) -> tuple[Record | None, float]:
        try:
            text, written = _read(f"{path}{_RECORD}")
        except OSError:
            return None, 0.0
        return records.from_text(text, name=path.name), written

    def _warn(self, path: Path, what: str) -> None:
        line = f"store: {path}: {what}; it is made again"
        with self._lock:
            self._faults[path] = what
            if line not in self._told:
                self._told.add(line)
                self._warnings.append(line)

    def _touch(self, path: Path, written: float) -> None:
        if time.time() - written > _FRESH_SECONDS and self._is_own(path):
            with contextlib.suppress(OSError):
                os.utime(path)

    def _is_own(self, path: Path) -> bool:
        """Whether it lies in the root that is written."""
        return str(path).startswith(self._prefix)

    @staticmethod
    def _path(root: Path, kind: str, name: str) -> Path:
        return root.joinpath(kind, name[:2], name)


def record_path(path: Path) -> Path:
    """Where the record of the entry at `path` is."""
    return path.with_name(path.name + _RECORD)


def writable(roots: Sequence[Path], fallback: Path) -> tuple[list[Path], str]:
    """The roots with one first that can be written, and the sentence to say once where that is not the one asked for.

    Leaves nothing behind: `-n` and `-q` ask too. Raises UsageError where the first root is a file.
    """
    first = roots[0]
    if os.path.lexists(first) and not first.is_dir():
        msg = f"GPU_STORE={first} is not a folder"
        raise UsageError(msg, hint="name a folder, or remove the file")
    if _can_write(first):
        return list(roots), ""
    return [fallback, *roots], f"store {first} is read-only: it is read, and new entries go to {fallback}"


def _can_write(folder: Path) -> bool:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    if not os.access(existing, os.W_OK | os.X_OK):
        return False
    if existing != folder:
        return True
    # Some network file systems tell only when asked to write, and root only then.
    probe = folder / f"{TEMPORARY}{os.getpid()}-probe"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        probe.unlink()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)  # full is not read-only, and is said when something is written
    return True


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    for number in itertools.count(2):
        yield f"{stem}.{number}"


def _read(path: Path | str) -> tuple[bytes, float]:
    """The bytes of a plain file, and when it was written; OSError for anything else, where a fifo would block.

    A build reads thousands of small ones: this takes a third of the time of a `Path`'s own way.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            msg = "not a plain file"
            raise OSError(0, msg)
        data = os.read(descriptor, facts.st_size + 1)
        while len(data) != facts.st_size and (more := os.read(descriptor, _CHUNK)):  # short on some file systems
            data += more
        return data, facts.st_mtime
    finally:
        os.close(descriptor)


def _difference(data: bytes, record: Record) -> str:
    if len(data) != record.bytes:
        return f"it has {len(data)} bytes, {record.bytes} by its record"
    return "" if hashlib.sha256(data).hexdigest() == record.sha256 else "its checksum is not the recorded one"


def _clear(path: Path) -> None:
    """Takes away whatever is at `path`; a folder in an entry's place is not ours, but the place is."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if not path.is_dir():
            raise unwritable(path, error) from error
        shutil.rmtree(path, ignore_errors=True)

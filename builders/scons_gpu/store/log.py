"""The build log: what each build did, as one JSON object a line in `<store>/log.jsonl`.

Every record has `build` (an id), `time` (seconds since 1970, when it was written) and `type`:

`start`   `argv`, `looking` (true for -n and -q, which build nothing), `jobs`, `top` (the folder of the SConstruct)
`action`  `stage` (source, split, plan, lower, assemble, defer, verify, choose, link, pack, manifest, embed, budget, dump, host), `name`
          (readable), `target` (the file, absolute), `unit` (digest or null), `role` (unit, state or table; where there is a `unit`),
          `candidate` (its values, of a unit that is one), `owners` (modules), `key` (the fields that shaped the output, besides its
          inputs; of an object, besides its PTX, which `unit` names), `because` (why it ran: store/because.py; of a unit only where
          the store's entry was damaged), `result` (built, reused, failed; refused: a candidate that cannot be made, with why as the
          `output`; same or differs where `stage` is verify; empty where there is rightly no file), `content` (a hash of the file;
          not of units), `plan` (of what writes one: its copy in the store, store/copies.py), `resources` (of what was assembled:
          what each kernel takes), `start`, `end` (seconds since 1970), `worker`, `peak_kib`, `cpu` (seconds, child processes
          included), `output` (what the tool said). One `link` record an image
`end`     `ok`, `programs`, `plans` (paths), `modules`, `kernels`, `twins` (counts), `references` (units of all plans, for each
          module and architecture), `unique` (different digests among them), `units_needed` (digests of the units of
          every image whose link was due in this build, be it linked or failed), `units_deferred` (those of them that the link
          takes as PTX), `unmerged` (why `GPU_LINK=auto` links images and does not merge → modules), `wall_seconds`

Fields may be added, and are kept; readers pass over types and fields that they do not know. A build that was killed has no `end`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from scons_gpu.store.files import unwritable
from scons_gpu.store.lock import take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["LIMIT", "BuildLog", "read", "read_build", "rotated"]

LIMIT = 64 << 20
"""Bytes after which a log is put aside; the one put aside before goes."""


class BuildLog:
    """One build's hand on the log. Threads and processes write to one log at once."""

    def __init__(self, path: Path, *, build: str, limit: int = LIMIT) -> None:
        self.path = path
        self.build = build
        self.limit = limit
        self.written: list[dict[str, Any]] = []
        """This build's own records: what the summary at the end needs, without reading the log."""

    def write(self, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can say
        """Adds a record. Raises GpuError that names the log where it cannot be written; a record is never left in half."""
        record = {"build": self.build, "time": round(time.time(), 6), **fields}
        # ASCII escapes keep a record on one line, and take names that are no UTF-8.
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            _append(self.path, line, self.limit)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.written.append(record)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every record, oldest first, those put aside included. Lines that are no record (torn by a crash) are passed over."""
    for line in _lines(path):
        if record := _record(line):
            yield record


def read_build(path: Path, build: str | None = None, *, holding: Sequence[bytes] = (b"",)) -> tuple[str, list[dict[str, Any]]]:
    """One build's id and its records; of the last that did not only look, where None. Others' records are not decoded.

    `holding`: only records whose line holds one of these. The id is empty where there is no such build.
    """
    name, mark, kept = "", b"", list[bytes]()
    if build is not None:
        mark = _mark(build)
    for line in _lines(path):
        if build is None and b'"type":"start"' in line and (start := _record(line)) and not start.get("looking", False):
            name, kept = str(start.get("build", "")), []
            mark = _mark(name)
        if mark and mark in line and any(part in line for part in holding):
            kept.append(line)
    wanted = name if build is None else build
    records = [record for line in kept if (record := _record(line)) and record.get("build") == wanted]
    return (wanted if records else ""), records


def _mark(build: str) -> bytes:
    return b'"build":' + json.dumps(build).encode()


def _record(line: bytes) -> dict[str, Any]:
    """Empty for a line that is none."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(line.decode())  # given bytes, json guesses their encoding first
        if isinstance(record, dict):
            return record
    return {}


def _lines(path: Path) -> Iterator[bytes]:
    for file, size in _opened(path):
        with file:
            left = size
            while left > 0 and (line := file.readline()):
                left -= len(line)
                yield line


def rotated(path: Path) -> Path:
    """Where a full log is put aside: `log.jsonl` becomes `log.1.jsonl`."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


def _opened(path: Path) -> list[tuple[BinaryIO, int]]:
    """The log put aside and the current one, each with the length to read. Opened under one lock, so that no rotation falls in between."""
    files: list[tuple[BinaryIO, int]] = []
    with contextlib.ExitStack() as holding:
        current = None
        with contextlib.suppress(FileNotFoundError):
            current = os.fdopen(_locked(path, os.O_RDONLY, fcntl.LOCK_SH), "rb")
            holding.callback(fcntl.flock, current.fileno(), fcntl.LOCK_UN)
        with contextlib.suppress(FileNotFoundError):
            aside = rotated(path).open("rb")
            files.append((aside, os.fstat(aside.fileno()).st_size))
        if current is not None:
            files.append((current, os.fstat(current.fileno()).st_size))
    return files


def _append(path: Path, line: bytes, limit: int) -> None:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    try:
        descriptor = _locked(path, flags, fcntl.LOCK_EX)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path, flags, fcntl.LOCK_EX)
    try:
        size = os.fstat(descriptor).st_size
        if size and size + len(line) > limit:
            path.replace(rotated(path))
            os.close(descriptor)
            descriptor = _locked(path, flags, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # somebody was killed in the middle of a line: it stays alone
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def _locked(path: Path, flags: int, lock: int) -> int:
    """A descriptor of the file that is at `path`, locked until it is closed."""
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            take(descriptor, lock)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # rotated away while we waited for it

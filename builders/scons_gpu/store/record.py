"""The record beside an entry: what the entry's bytes are, what it was made from, and what its tool said."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.store import sealed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FORMAT", "Entry", "Record", "Resources", "from_text", "make", "to_text"]

FORMAT = "scons-gpu/record/3"
_KEPT = 4096
"""Records that are remembered by their text: a build asks for each up to four times, and parsing one takes longer than its file."""


@dataclass(frozen=True)
class Resources:
    """What the assembler reports of one kernel. None where it does not say; bytes where the name does not tell."""

    kernel: str
    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None
    constant_bytes: int | None = None


@dataclass(frozen=True)
class Record:
    """An entry is good only if its bytes are these and its key is the one asked for."""

    sha256: str
    bytes: int
    key: tuple[tuple[str, str], ...]
    """All that shaped the entry, as (field, value). Compared whole: the hash in a file's name may collide."""
    output: str = ""
    """What the tool said, to be shown again when the entry is reused."""
    seconds: float = 0.0
    """How long it took to make: the scheduler's guess for the next time."""
    resources: tuple[Resources, ...] = ()


@dataclass(frozen=True)
class Entry:
    """An entry as it was found good: the bytes are those that were checked."""

    path: Path
    data: bytes
    record: Record


def make(
    data: bytes, *, key: Iterable[tuple[str, str]], output: str = "", seconds: float = 0.0, resources: Iterable[Resources] = ()
) -> Record:
    """The record of `data`."""
    return Record(
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        key=tuple(sorted(key)),
        output=output,
        seconds=seconds,
        resources=tuple(resources),
    )


def to_text(record: Record, *, name: str) -> str:
    """The record as its file holds it. `name` is the entry's file name, so that a pair moved elsewhere is known for what it is."""
    fields = {**vars(record), "resources": [vars(resources) for resources in record.resources]}
    return sealed.to_text({"format": FORMAT, "name": name, **fields})


@functools.lru_cache(maxsize=_KEPT)
def from_text(text: str | bytes, *, name: str) -> Record | None:
    """Reads what `to_text` wrote for `name`; None for anything else. Fields that a later version added are passed over."""
    try:
        data = sealed.from_text(text)
        if data["format"] != FORMAT or data["name"] != name:
            return None
        return _record(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


_RESOURCES = tuple(field.name for field in dataclasses.fields(Resources))


def _record(data: dict[str, Any]) -> Record:
    resources = tuple(Resources(**{field: value[field] for field in _RESOURCES if field in value}) for value in data["resources"])
    return Record(
        sha256=str(data["sha256"]),
        bytes=int(data["bytes"]),
        key=tuple(sorted((str(field), str(value)) for field, value in data["key"])),
        output=str(data["output"]),
        seconds=float(data["seconds"]),
        resources=resources,
    )

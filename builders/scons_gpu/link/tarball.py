"""Tar files whose bytes follow from their members alone: plain ustar, sorted by name, owned by nobody, dated 1980-01-01, readable by all.

The reader takes what the writer makes and nothing else: no links, folders, devices or extensions, no name that leaves the folder it is
unpacked in. Python's own reader takes far more, and passes over a damaged header.
"""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BLOCK", "misnamed", "read_tar", "where", "write_tar"]

BLOCK = 512
_EPOCH = 315532800  # 1980-01-01T00:00:00Z: GNU tar warns of a file from 1970
_MAGIC = b"ustar\x0000"  # POSIX.1-1988
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_TYPES = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe"}


def write_tar(members: Mapping[str, bytes]) -> bytes:
    """The archive of `members`, by name. Raises ValueError for a name that it cannot hold."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as archive:
        for name in sorted(members):
            if wrong := misnamed(name):
                msg = f"{name!r} {wrong}"
                raise ValueError(msg)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(members[name]), _EPOCH, 0o644
            archive.addfile(info, io.BytesIO(members[name]))
    return buffer.getvalue()


def misnamed(name: str) -> str:
    """What is wrong with a member's name; nothing where it stays below its folder, wherever it is unpacked."""
    parts = name.split("/")
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "is no path below a folder"
    return "has a character that checksum files cannot hold" if _CONTROL.search(name) else ""


def read_tar(data: bytes) -> dict[str, bytes]:
    """The members by name, in the file's order. Raises ValueError, which names the member, for all that `write_tar` never makes."""
    members: dict[str, bytes] = {}
    place = 0
    while place + BLOCK <= len(data) and any(block := data[place : place + BLOCK]):
        name, size = _header(block, place)
        start = place + BLOCK
        if name in members:
            msg = f"{name}: there twice"
            raise ValueError(msg)
        if start + size > len(data):
            msg = f"{name}: cut short: {len(data) - start} of {size} bytes are there"
            raise ValueError(msg)
        members[name] = data[start : start + size]
        place = start + -(-size // BLOCK) * BLOCK
    if not members:
        msg = "no tar file, or one without members"
        raise ValueError(msg)
    return members


def _header(block: bytes, place: int) -> tuple[str, int]:
    """Name and length."""
    try:
        name = (_text(block[345:500]) + b"/" + _text(block[:100])).decode().removeprefix("/")
        size, checksum = int(_text(block[124:136]), 8), int(_text(block[148:156]).strip(), 8)
    except ValueError:
        msg = f"the header at byte {place} does not read"
        raise ValueError(msg) from None
    wrong = ""
    if sum(block) - sum(block[148:156]) + 8 * ord(" ") != checksum:
        wrong = "the checksum of its header is another"
    elif block[257:265] != _MAGIC:
        wrong = "its header is not ustar's"
    elif block[156:157] != b"0":
        wrong = f"it is {_TYPES.get(block[156:157], 'of a kind')} that a release never holds"
    elif misnamed(name):
        wrong = f"its name {misnamed(name)}"
    elif size < 0:
        wrong = "its length is negative"
    if wrong:
        msg = f"{name!r}, whose header is at byte {place}: {wrong}"
        raise ValueError(msg)
    return name, size


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def where(members: Mapping[str, bytes], place: int) -> str:
    """What the byte at `place` of the archive of `members` is part of."""
    start = 0
    for name in sorted(members):
        size = len(members[name])
        if place < start + BLOCK:
            return f"the header of {name}"
        if place < start + BLOCK + size:
            return f"byte {place - start - BLOCK} of {name}"
        start += BLOCK + -(-size // BLOCK) * BLOCK
        if place < start:
            return f"the padding behind {name}"
    return "the padding at the end"

"""Where two files differ, in their own terms: the section of an ELF file, the entry of a fatbin, the member of an archive, the line."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError
from scons_gpu.inspect.verify import unpack
from scons_gpu.link import fatbin_entries
from scons_gpu.store.archive import read_zip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Place", "places"]

_ZSTD, _ELF, _ZIP, _FATBIN = b"\x28\xb5\x2f\xfd", b"\x7fELF", b"PK\x03\x04", b"\x50\xed\x55\xba"
_TEXT = re.compile(rb"[\x20-\x7e]{4,}")
_MOST = 1 << 30
_SHOWN = 160


@dataclass(frozen=True)
class Place:
    """One part of a file that differs."""

    where: str
    """From the outside in, as `net/net.fatbin: sm_90: .text.k`; empty for the file itself."""
    one: str
    """What the first has there, in short."""
    other: str

    def below(self, where: str) -> Place:
        """The same, as part of something."""
        return Place(where=f"{where}: {self.where}" if self.where else where, one=self.one, other=self.other)


def places(one: bytes, other: bytes) -> list[Place]:
    """The parts that differ; none for equal files. What does not read as what it seems to be is compared as bytes."""
    if one == other:
        return []
    for start, parts in ((_ZSTD, _release), (_ELF, _sections), (_ZIP, read_zip), (_FATBIN, _images)):
        if one.startswith(start) and other.startswith(start):
            try:
                found = list(_members(parts(one), parts(other)))
            except (ValueError, GpuError):
                break
            return found or [Place("what lies around its parts", *_bytes(one, other))]
    return [_text(one, other)]


def _members(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[Place]:
    for name in dict.fromkeys((*one, *other)):
        if name not in one or name not in other:
            yield Place(name, *("there" if name in each else "not there" for each in (one, other)))
        else:
            yield from (place.below(name) for place in places(one[name], other[name]))
    if list(one) != list(other) and set(one) == set(other):
        yield Place("order of parts", ", ".join(one)[:_SHOWN], ", ".join(other)[:_SHOWN])


def _release(data: bytes) -> dict[str, bytes]:
    name, files, _ = unpack(data, most=_MOST)
    return {"name": name.encode(), **files}


def _images(data: bytes) -> dict[str, bytes]:
    entries = fatbin_entries.read_fatbin(data, path="fatbin", most=_MOST)
    return {f"{'sm' if each.kind == 'elf' else 'compute'}_{each.number}": each.data or b"" for each in entries}


def _sections(data: bytes) -> dict[str, bytes]:
    """By name; a second one of a name has a number. Raises ValueError for what is no ELF file."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - only where something differs
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - the same

    found: dict[str, bytes] = {}
    try:
        for section in ELFFile(io.BytesIO(data)).iter_sections():
            names = itertools.chain([section.name], (f"{section.name} #{number}" for number in itertools.count(2)))
            name = next(each for each in names if each not in found)
            found[name] = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
    except (ELFError, KeyError, IndexError, TypeError, OverflowError) as error:
        msg = str(error)
        raise ValueError(msg) from None
    return found


def _text(one: bytes, other: bytes) -> Place:
    """The first line that differs, or the first bytes."""
    try:
        lines = [each.decode().splitlines() for each in (one, other)]
    except UnicodeDecodeError:
        return Place("", *_bytes(one, other))
    if any("\0" in line for text in lines for line in text):
        return Place("", *_bytes(one, other))
    for number, (mine, theirs) in enumerate(itertools.zip_longest(*lines), 1):
        if mine != theirs:
            return Place(f"line {number}", *_around(mine or "", theirs or ""))
    return Place("", *_bytes(one, other))


def _around(one: str, other: str) -> tuple[str, str]:
    """Two lines from shortly before where they part."""
    if max(len(one), len(other)) <= _SHOWN:
        return one.strip(), other.strip()
    first = next((place for place, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs), min(len(one), len(other)))
    start = max(first - 40, 0)
    return one[start : start + _SHOWN].strip(), other[start : start + _SHOWN].strip()


def _bytes(one: bytes, other: bytes) -> tuple[str, str]:
    """The text around the first byte that differs, where there is some; else the bytes."""
    first = next((place for place, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs), min(len(one), len(other)))
    texts = [_string(each, first) for each in (one, other)]
    if all(texts):
        return texts[0], texts[1]
    shown = [f"{each[first : first + 16].hex(' ') or 'nothing'} at byte {first} of {len(each)}" for each in (one, other)]
    return shown[0], shown[1]


def _string(data: bytes, place: int) -> str:
    """The printable text that the byte at `place` is part of."""
    start = max(place - 1000, 0)
    for found in _TEXT.finditer(data, start, place + 1000):
        if found.start() <= place < found.end():
            return found[0].decode()[:_SHOWN]
    return ""

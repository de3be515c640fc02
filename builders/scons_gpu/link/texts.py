"""The names in a table of an ELF file, by their places: a module has thousands, so cutting one out is to be quick."""

from __future__ import annotations

__all__ = ["Texts"]


class Texts:
    """One table of names."""

    __slots__ = ("_data", "_plain", "_start")

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data, self._start = data, start
        table = data[start : start + size]
        self._plain = table.decode("ascii") if table.isascii() else ""
        """Where a character is a byte, a name is cut out of text."""

    def at(self, place: int) -> str:
        """Raises ValueError where no name ends behind it, or is no text."""
        if self._plain:
            return self._plain[place : self._plain.index("\0", place)]
        place += self._start
        return self._data[place : self._data.index(b"\0", place)].decode()

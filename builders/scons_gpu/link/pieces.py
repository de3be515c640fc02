"""What a whole-program cubin is made of: what belongs to one function, what belongs to the file, each reference by what it means.

ELF numbers sections and symbols through a file, and writes those numbers into headers, relocations and attributes. Here they are
`Symbol` objects and names of sections, so that pieces of several files can stand in one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAIN", "MERCURY", "Head", "Part", "Piece", "Section", "Symbol", "Table", "Whole"]

MAIN, MERCURY = ".symtab", ".nv.merc.symtab"
"""The two symbol tables: from sm_100 on a file holds its functions a second time, in a form that drivers finish (`.nv.merc.…`)."""


class Symbol:
    """One entry of a symbol table. Told from others by identity: two files may have symbols of one name."""

    __slots__ = ("info", "name", "other", "reserve", "section", "size", "value")

    def __init__(self, name: str, info: int, other: int, section: str | int, value: int, size: int, reserve: bytes = b"") -> None:  # noqa: PLR0913, PLR0917 - Elf64_Sym
        self.name = name
        self.info = info
        self.other = other
        self.section = section
        """Name of its section, or one of ELF's reserved numbers (0: undefined)."""
        self.value = value
        self.size = size
        self.reserve = reserve
        """What stands behind its name in the string table: one that the assembler took back."""


@dataclass(slots=True)
class Section:
    """One section, without its place in the file."""

    name: str
    type: int
    flags: int
    align: int
    entry: int
    size: int
    data: bytes
    """Empty where it takes no room in the file."""
    link: str = ""
    """Name of the section that `sh_link` means."""
    info: Symbol | str | int = 0
    """What `sh_info` means: a symbol, the name of a section, or nothing."""
    high: int = 0
    """What the upper byte of `sh_info` says besides: registers of a function, in the older layout."""
    kind: str = ""
    """Which of the kinds that `sections.ranks` orders it is of."""
    fixups: Sequence[tuple[int, Symbol]] = ()
    """(offset, symbol): where in `data` four bytes are the index of a symbol."""


@dataclass(slots=True)
class Part:
    """What one function has in a section of the file."""

    data: bytes = b""
    fixups: list[tuple[int, Symbol]] = field(default_factory=list)
    """As a section's."""
    moved: list[int] = field(default_factory=list)
    """Where in `data` eight bytes are an offset in the same section."""


@dataclass(slots=True)
class Table:
    """A function's symbols, or a file's, in one symbol table."""

    local: list[Symbol] = field(default_factory=list)
    globals: list[Symbol] = field(default_factory=list)
    last: list[Symbol] = field(default_factory=list)
    """Local ones behind the global ones: sections of constants."""


@dataclass(slots=True)
class Piece:
    """One function with a section of its own: a kernel, or a function that is called through memory."""

    name: str
    sections: list[Section] = field(default_factory=list)
    """In the file's order."""
    tables: dict[str, Table] = field(default_factory=lambda: {MAIN: Table(), MERCURY: Table()})
    parts: dict[str, list[Part]] = field(default_factory=dict)
    """Section of the file → what this function has in it."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """Table of names → what stands in it for this function, in the older layout."""


@dataclass(frozen=True)
class Head:
    """What files must have alike to stand in one."""

    ident: bytes
    kind: int
    machine: int
    version: int
    flags: int
    tail: int
    """Zero bytes behind the names of sections: of sections that were not written in the end."""
    older: bool
    """Whether it has the layout of sm_75 to sm_89: names in the order in which they were made, also of what was not written; code behind
    parameters."""


@dataclass(slots=True)
class Whole:
    """One file."""

    label: str
    head: Head
    pieces: list[Piece]
    """In the file's order."""
    shared: list[Section]
    """Sections of the file, in its order; those that functions have parts of are without data."""
    first: dict[str, list[Symbol]]
    """Symbol table → what stands before the functions' local symbols."""
    last: dict[str, list[Symbol]]
    """Symbol table → what stands between local and global ones: sections of the file."""
    names: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    """Table of names → what stands in it before what functions have there, and behind it; in the older layout."""
    moved: dict[int, Symbol] = field(default_factory=dict)
    """`id` of a symbol that went → the one that references to it mean: where several files have become this one."""

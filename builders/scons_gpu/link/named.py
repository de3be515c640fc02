"""The object of a kernel without a name of its own becomes that of a kernel with one: what it is called stands in names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.link.twins import ANONYMOUS

if TYPE_CHECKING:
    from scons_gpu.link.pieces import Piece, Section, Whole

__all__ = ["call"]

_ENDS, _STARTS = f".{ANONYMOUS}", f"${ANONYMOUS}$"


def call(whole: Whole, name: str) -> None:
    """Calls the anonymous kernel of `whole`, its sections and its own functions by `name`."""

    def named(text: str) -> str:
        if text == ANONYMOUS:
            return name
        if text.endswith(_ENDS):
            return text.removesuffix(ANONYMOUS) + name
        return f"${name}${text.removeprefix(_STARTS)}" if text.startswith(_STARTS) else text

    def section(each: Section) -> None:
        each.name, each.link = named(each.name), named(each.link)
        if isinstance(each.info, str):
            each.info = named(each.info)

    def piece(each: Piece) -> None:
        each.name = named(each.name)
        for one in each.sections:
            section(one)
        for table in each.tables.values():
            for symbol in (*table.local, *table.globals, *table.last):
                symbol.name = named(symbol.name)
                symbol.section = named(symbol.section) if isinstance(symbol.section, str) else symbol.section
        each.names = {table: [named(text) for text in names] for table, names in each.names.items()}

    for each in whole.pieces:
        piece(each)

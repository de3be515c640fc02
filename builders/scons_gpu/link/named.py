"""The object of a kernel without a name of its own becomes that of a kernel with one: what it is called stands in names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.link.twins import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scons_gpu.link.pieces import Section, Whole

__all__ = ["call", "call_local"]

_ENDS, _STARTS = f".{ANONYMOUS}", f"${ANONYMOUS}$"


def call(whole: Whole, name: str) -> None:
    """Calls the anonymous kernel of `whole`, its sections and its own functions by `name`."""

    def named(text: str) -> str:
        if text == ANONYMOUS:
            return name
        if text.endswith(_ENDS):
            return text.removesuffix(ANONYMOUS) + name
        return f"${name}${text.removeprefix(_STARTS)}" if text.startswith(_STARTS) else text

    for piece in whole.pieces:
        piece.name = named(piece.name)
        piece.names = {table: [named(text) for text in names] for table, names in piece.names.items()}
        for section in piece.sections:
            _call_section(section, named)
        for table in piece.tables.values():
            for symbol in (*table.local, *table.globals, *table.last):
                symbol.name = named(symbol.name)
                symbol.section = named(symbol.section) if isinstance(symbol.section, str) else symbol.section


def _call_section(section: Section, named: Callable[[str], str]) -> None:
    section.name, section.link = named(section.name), named(section.link)
    section.info = named(section.info) if isinstance(section.info, str) else section.info


def call_local(whole: Whole, names: Mapping[str, str]) -> None:
    """Calls the functions that kernels of `whole` have of their own, `$kernel$function`, by other names."""
    for piece in whole.pieces:
        start = f"${piece.name}$"
        new = {start + old: start + name for old, name in names.items()}
        piece.names = {table: [new.get(text, text) for text in found] for table, found in piece.names.items()}
        for table in piece.tables.values():
            for symbol in table.local:
                symbol.name = new.get(symbol.name, symbol.name)

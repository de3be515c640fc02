"""Tables on a terminal or in a pipe: columns aligned, nothing wrapped or coloured where nobody looks at it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Cell", "show"]

Cell = str | int | float | None


def show(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "") -> None:
    """Prints a table. Columns that hold numbers are aligned to the right; None shows as `-`."""
    from rich import box  # noqa: PLC0415 - only who prints a table loads it
    from rich.console import Console  # noqa: PLC0415 - the same
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", show_edge=False, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    wide = None if sys.stdout.isatty() else 100_000  # a pipe is never wrapped
    console = Console(file=sys.stdout, width=wide, highlight=False)
    with console.capture() as printed:
        console.print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in printed.get().splitlines()))


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)

"""The report as the JSON that its page holds: a table is a list of columns, and a string that occurs twice stands there once."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.inspect.report.model import Report

__all__ = ["SCHEMA", "encode"]

SCHEMA = "scons-gpu/report/1"


def encode(report: Report) -> str:
    """JSON that may stand inside a `<script>`: whatever a name holds, the text has neither `<` nor anything but ASCII."""
    strings = _Strings()
    tables = {field.name: _table(getattr(report, field.name), strings) for field in dataclasses.fields(report) if field.name != "overview"}
    data = {"schema": SCHEMA, "overview": dataclasses.asdict(report.overview), "tables": tables, "strings": list(strings.places)}
    # Names that are no UTF-8 come as lone surrogates, which only escapes can hold.
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")


class _Strings:
    """Every string that rows hold, by first use."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def _table(rows: Sequence[Any], strings: _Strings) -> dict[str, Any]:
    """Columns by name; `text` and `texts` name those whose values are places in the strings, and lists of such."""
    if not rows:
        return {"rows": 0, "text": [], "texts": [], "columns": {}}
    columns: dict[str, list[Any]] = {}
    text, texts = [], []
    for name in (field.name for field in dataclasses.fields(rows[0])):
        values = [getattr(row, name) for row in rows]
        if isinstance(values[0], str):
            text.append(name)
            columns[name] = [strings.place(value) for value in values]
        elif isinstance(values[0], tuple) and all(isinstance(each, str) for value in values for each in value):
            texts.append(name)
            columns[name] = [[strings.place(each) for each in value] for value in values]
        else:
            columns[name] = [_plain(value) for value in values]
    return {"rows": len(rows), "text": text, "texts": texts, "columns": columns}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a row holds
    """Numbers as they are, shortened to what a page shows; rows within a row as objects."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, tuple):
        return [dataclasses.asdict(each) for each in value]
    return value

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from report_data import generated

from scons_gpu.errors import ToolMissingError
from scons_gpu.inspect.report.encode import SCHEMA, encode
from scons_gpu.inspect.report.libraries import Libraries, libraries, versions
from scons_gpu.inspect.report.model import Overview, Report, Tool
from scons_gpu.inspect.report.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE = Libraries(plot="[]", table='""', table_style="", licences="")


def decoded(text: str) -> dict[str, list[dict[str, Any]]]:
    """Tables as lists of rows."""
    data = json.loads(text)
    assert data["schema"] == SCHEMA
    return {name: list(_rows(table, data["strings"])) for name, table in data["tables"].items()}


def _rows(table: dict[str, Any], strings: list[str]) -> Iterator[dict[str, Any]]:
    for row in range(table["rows"]):
        values = {name: column[row] for name, column in table["columns"].items()}
        values |= {name: strings[values[name]] for name in table["text"]}
        yield values | {name: [strings[place] for place in values[name]] for name in table["texts"]}


def test_rows_come_back_as_they_were() -> None:
    report = generated(40, modules=5)
    tables = decoded(encode(report))
    assert [unit["digest"] for unit in tables["units"]] == [unit.digest for unit in report.units]
    assert [unit["modules"] for unit in tables["units"]] == [list(unit.modules) for unit in report.units]
    assert tables["modules"][0]["files"][1] == {"path": "net/net.fatbin", "arch": "", "bytes": 4100 * 8}
    assert tables["kernels"][3] == {**vars(report.kernels[3]), "chosen": ""}
    assert [(edge["input"], edge["user"]) for edge in tables["edges"]] == [(edge.input, edge.user) for edge in report.edges]
    assert encode(report) == encode(generated(40, modules=5))


def test_10_000_units_are_a_few_megabytes() -> None:
    assert len(encode(generated(10_000))) < 5e6


@pytest.mark.parametrize("name", ["</script><script>alert(1)", "\u2028 \udcff é", '"\\', "{{ style }}"])
def test_a_name_ends_no_element(name: str) -> None:
    text = page(Report(overview=Overview(programs=(name,)), tools=(Tool(name, name, "1", ""),)), shipped=BARE)
    text.encode("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    assert decoded(found[1])["tools"] == [{"program": name, "name": name, "version": "1", "identity": ""}]
    assert text.count("<title>") == text.count("</title>") == 1
    assert "<script>alert" not in text


def test_the_page_is_whole_and_asks_nobody() -> None:
    text = page(Report(), shipped=BARE)
    assert "{{" not in text
    assert re.findall(r"https?://[^\s\"'<]+", text) == []
    assert "default-src 'none'" in text


def test_the_libraries_end_no_element() -> None:
    shipped = libraries()
    assert "<" not in shipped.plot + shipped.table
    assert len(json.loads(shipped.plot)) >= 2
    assert "DataTable" in json.loads(shipped.table)
    assert re.fullmatch(r"bokeh [\d.]+ \(BSD-3-Clause\); itables [\d.]+ \(MIT License\)", shipped.licences)
    assert len(versions()) == 2


@pytest.mark.parametrize("name", ["bokeh.resources", "itables"])
def test_a_library_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolMissingError, match=rf"from {name}, which is not installed") as caught:
        libraries()
    assert caught.value.hint == "pip install 'scons-gpu[report]' brings it"

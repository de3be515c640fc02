"""The table of nvcc's options against the real nvcc's help, and the page that shows it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.scons.settings import VARIABLES
from scons_gpu.source.nvcc_options import IGNORED, LIST, MAPPED, NONE, ONE, TABLE, TOLD, rows
from scons_gpu.toolchain.frontends import choose

if TYPE_CHECKING:
    from scons_gpu.source.nvcc_options import Row
    from scons_gpu.toolchain.tools import Toolchain

PAGE = Path(__file__).parents[2] / "docs/from-nvcc.md"
_HELP = re.compile(r"^(--\S+)(?: +(\S.*?))? +(?:\((-\S+)\)|(--\S+))\s*$", re.MULTILINE)


@pytest.fixture(scope="module")
def documented(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Both names of each option that nvcc knows → what it takes."""
    nvcc = choose(toolchain, wanted="nvcc", environ={"PATH": os.environ["PATH"]}, facts=tmp_path_factory.mktemp("facts")).tool
    told = subprocess.run([nvcc.path, "--help"], capture_output=True, text=True, check=True).stdout
    return {(long, short or other): _takes(value) for long, value, short, other in _HELP.findall(told)}


def _takes(value: str) -> str:
    return LIST if value.endswith(",...") else ONE if value else NONE


def test_every_option_of_nvcc_has_a_row(documented: dict[tuple[str, str], str]) -> None:
    assert len(documented) > 150
    known = {(row.names[0], row.names[-1]) for row in TABLE if row.documented}
    assert set(documented) - known == set()
    assert known - set(documented) == set(), "or nvcc has it and says nothing of it: documented=False"


def test_what_an_option_takes_is_what_nvcc_says(documented: dict[tuple[str, str], str]) -> None:
    # Where the help says otherwise than nvcc does; a comma of the third does not part values.
    silent = {"--qpp-config": ONE, "--dependency-output": ONE, "--generate-code": ONE}
    told = {(row.names[0], row.names[-1]): row.takes for row in TABLE if row.documented}
    assert {names: takes for names, takes in told.items() if silent.get(names[0], documented[names]) != takes} == {}


def test_a_row_is_complete() -> None:
    for row in TABLE:
        assert row.why, row
        assert (row.does == MAPPED) == bool(row.to), row
        assert not row.kept or row.does in (MAPPED, IGNORED, TOLD), row
    assert {row.to for row in TABLE} - set(VARIABLES) <= {"", "CPPPATH", "CPPDEFINES", "GPU_HOSTFLAGS", "GPU_RDC"}


def test_rows_of_one_option_end_with_the_one_for_any_other_value_or_name_them_all() -> None:
    for row in TABLE:
        same = rows(row.names[0])
        assert rows(row.names[-1]) == same
        assert len({each.takes for each in same}) == 1
        assert [each.value for each in same[:-1]].count("") == 0, "what comes behind is never reached"


def shown(row: Row) -> str:
    """A line of the page."""
    names = ", ".join(f"`{name} {row.value}`" if row.value else f"`{name}`" for name in _names(row))
    return f"| {names} | {_becomes(row)} | {row.why.replace('{}', 'NAME')} |"


def _names(row: Row) -> list[str]:
    return [f"-{row.short}"] if row.short == row.long else list(dict.fromkeys((row.names[-1], row.names[0])))


def _becomes(row: Row) -> str:
    if row.does != MAPPED:
        return {TOLD: "ignored, told"}.get(row.does, row.does)
    if isinstance(row.sets, bool):
        return f"`{row.to}={int(row.sets)}`"
    words = row.sets.replace("{}", row.value or "…")
    return f"`{row.to}`" if words in ("…", "", row.value) else f"`{row.to}`: `{words}`"


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text[text.index("## All flags") :].splitlines() if line.startswith("| `-")]
    assert lines == [shown(row) for row in TABLE]

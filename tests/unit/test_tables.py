from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.inspect import tables

if TYPE_CHECKING:
    import pytest


def test_a_long_table_reads_as_a_short_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"kernel_{number}é漢", number, number * 1.5, "x y" if number % 3 else None) for number in range(12)]
    for title in ("", "a title"):
        tables.show(("name", "number", "seconds", "perhaps"), rows, title=title)
        short = capsys.readouterr().out
        monkeypatch.setattr(tables, "_MANY", 5)
        tables.show(("name", "number", "seconds", "perhaps"), rows, title=title)
        assert capsys.readouterr().out == short
        monkeypatch.undo()
    assert short.splitlines()[3].split() == ["kernel_0é漢", "0", "0.00", "-"]

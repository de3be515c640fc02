from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from scons_gpu.assemble.choose import choose
from scons_gpu.toolchain.bindings import bindings
from scons_gpu.toolchain.tools import discover


@pytest.mark.parametrize("name", ["nvvm", "nvjitlink", "driver"])
def test_a_tool_called_cuda_in_this_process_changes_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """SCons enters a tool under its bare name, with nothing that tells where it came from."""
    before = bindings(name)
    assert Path(before).name.startswith(f"{name}.")
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    assert bindings(name) == before


def test_nor_does_it_to_what_is_called_through_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    tools = discover(environ={}, prefix=sys.prefix, facts=tmp_path)
    assert choose(tools, wanted="nvjitlink", needs=["relocatable", "link"], facts=tmp_path).name == "nvjitlink"


def test_none_where_there_is_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bindings("nothing_of_that_name")
    monkeypatch.setattr(sys, "path", [])
    assert not bindings("nvvm")

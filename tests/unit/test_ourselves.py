"""Code of ours that makes files stands in what decides whether they are made anew."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import scons_gpu
from scons_gpu.toolchain import ourselves

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("file", "recipe", "identity"),
    [
        ("lower/llvm.py", True, True),
        ("lower/libdevice.py", True, True),
        ("split/canonical.py", False, True),
        ("link/ptx.py", False, True),
        ("inspect/summary.py", False, False),
    ],
)
def test_r2_other_code_is_another_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, *, recipe: bool, identity: bool
) -> None:
    shutil.copytree(ourselves._PACKAGE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))

    def told() -> tuple[str, str]:
        ourselves.recipe.cache_clear()
        ourselves.identity.cache_clear()
        return ourselves.recipe(), ourselves.identity()

    here = told()
    assert here[1].startswith(f"{scons_gpu.__version__} ")
    try:
        monkeypatch.setattr(ourselves, "_PACKAGE", tmp_path / "copy")
        assert told() == here  # wherever it is installed
        with (tmp_path / "copy" / file).open("a") as edited:
            edited.write("# other code\n")
        there = told()
        assert (there[0] != here[0], there[1] != here[1]) == (recipe, identity)
    finally:
        monkeypatch.undo()
        told()

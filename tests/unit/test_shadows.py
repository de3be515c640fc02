"""Files that a compiler would read today though it did not the last time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scons_gpu.source.shadows import _listing, asked_for, folders, named_files, shadows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _listing.cache_clear()
    return tmp_path


def put(top: Path, *names: str) -> None:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("// here\n")


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ("first/value.h", ["first/value.h"]),
        ("src/value.h", ["src/value.h"]),
        ("inc/deep/value.h", ["inc/deep/value.h"]),
        ("last/value.h", []),
        ("first/other.h", []),
        ("first/value.h/file", []),
    ],
)
def test_r1_what_stands_in_an_earlier_place_is_found(top: Path, there: str, found: list[str]) -> None:
    put(top, there, "inc/deep/a.h", "inc/value.h", "src/k.cu")
    assert shadows("src/k.cu", ["inc/deep/a.h", "inc/value.h"], [], search=["first", "inc", "last"]) == found


def test_r1_what_has_include_asks_for_is_looked_for_everywhere(top: Path) -> None:
    (top / "k.cu").write_text('#if __has_include("opt/one.h") || __has_include (<two.h>)\n#endif\n')
    asked = asked_for(["k.cu", "gone.h", "/usr/include/stdio.h"], top=str(top))
    assert asked == ("opt/one.h", "two.h")
    assert shadows("k.cu", [], asked, search=["inc", "last"]) == []
    put(top, "last/two.h", "opt/one.h")
    _listing.cache_clear()
    assert shadows("k.cu", [], asked, search=["inc", "last"]) == ["opt/one.h", "last/two.h"]


def test_r1_folders_come_in_clangs_order() -> None:
    flags = ("-isystem", "system", "-Wall", "-Igiven", "-I", "apart", "-iquote", "quoted/", "-idirafter", "after")
    assert folders(("path",), flags) == ("quoted", "path", "given", "apart", "system", "after")


def test_r2_files_that_flags_name_are_known(top: Path) -> None:
    put(top, "overlay.yaml", "profile.data", "folder/x")
    assert named_files(["-ivfsoverlay", "overlay.yaml", "-fprofile-use=profile.data", "-Ifolder", "folder", "-O3"]) == [
        "overlay.yaml",
        "profile.data",
    ]

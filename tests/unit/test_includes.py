from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.source.includes import includes

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_h", ".h").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_r1_headers_are_found_where_the_compiler_finds_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        src__k_cu='#include "a.h"\n # include <b.h>\n#if 0\n#include "lost.h"\n#endif\n#include "src.h"\n',
        src__a_h='#include "../up.h"\n#include \\\n  "a.h"\n',
        up_h="#pragma once\n",
        inc__b_h='#include "c.h"\n#include MACRO\n',
        inc__c_h='// #include "said.h"\n',
        other__b_h="#error never\n",
    )
    found = includes("src/k.cu", search=["src", "inc", "other"], top=str(tmp_path))
    assert list(found.files) == ["src/a.h", "inc/b.h", "up.h", "inc/c.h"]
    assert list(found.missing) == ["lost.h", "src.h"]
    assert list(found.unknown) == ["MACRO"]


def test_angled_names_are_not_looked_for_beside_the_file(tmp_path: Path) -> None:
    write(tmp_path, src__k_cu="#include <a.h>\n", src__a_h="\n", inc__a_h="\n")
    assert list(includes("src/k.cu", search=["inc"], top=str(tmp_path)).files) == ["inc/a.h"]


def test_a_source_that_includes_itself_ends(tmp_path: Path) -> None:
    write(tmp_path, k_cu='#include "k.cu"\n#include "a.h"\n', a_h='#include "a.h"\n#include "k.cu"\n')
    assert list(includes("k.cu", search=["."], top=str(tmp_path)).files) == ["a.h"]


def test_r2_the_toolkits_headers_are_read_and_what_they_lack_is_not_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        k_cu='#include <half.h>\n#include "a.h"\n',
        a_h="#pragma once\n",
        kit__half_h='#include "half.hpp"\n#include <of_the_host>\n#include HIDDEN\n',
        kit__half_hpp="#pragma once\n",
        kit__a_h="#error never\n",
    )
    found = includes("k.cu", search=["."], top=str(tmp_path), toolkit=[str(tmp_path / "kit")])
    assert list(found.files) == [f"{tmp_path}/kit/half.h", "a.h", f"{tmp_path}/kit/half.hpp"]
    assert (list(found.missing), list(found.unknown)) == ([], [])

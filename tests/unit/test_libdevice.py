from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from scons_gpu.errors import ToolError
from scons_gpu.lower import libdevice
from scons_gpu.lower.libdevice import Libdevice, load

PATH = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/nvvm/libdevice/libdevice.10.bc"))


@pytest.fixture
def library() -> Libdevice:
    return load(str(PATH))


def defined(text: str) -> list[str]:
    return re.findall(r"^define [^@]*@([\w.]+)\(", text, re.MULTILINE)


def verified(text: str) -> None:
    with binding.create_context() as context, binding.parse_assembly(text, context) as module:
        module.verify()


def test_every_definition_is_cut_out(library: Libdevice) -> None:
    with binding.create_context() as context, binding.parse_bitcode(PATH.read_bytes(), context) as module:
        functions = [function.name for function in module.functions]
        variables = [variable.name for variable in module.global_variables]
    assert set(library.members) == {*functions, *variables}


def test_only_what_is_needed_goes_along(library: Libdevice) -> None:
    text = library.module(["__nv_fabsf"], defined=(), precise_sqrt=True, head="")
    assert defined(text) == ["__nv_fabsf"]
    assert "__cudart" not in text
    verified(text)


def test_what_is_needed_goes_along_in_the_files_order(library: Libdevice) -> None:
    text = library.module(["__nv_sin", "__nv_sinf"], defined=(), precise_sqrt=True, head="")
    assert defined(text) == ["__nv_sinf", "__internal_trig_reduction_slowpathd", "__nv_sin"]
    assert "@__cudart_sin_cos_coeffs" in text
    verified(text)


def test_the_whole_library_verifies(library: Libdevice) -> None:
    names = [name for name in library.members if name.startswith("__nv_")]
    assert len(names) > 300
    verified(library.module(names, defined=(), precise_sqrt=True, head=""))
    verified(library.module(names, defined=names[::2], precise_sqrt=False, head=""))


def test_no_source_locations_are_left(library: Libdevice) -> None:
    assert not any("!srcloc" in text for text in library.members.values())


def test_loop_hints_stay(library: Libdevice) -> None:
    with_loop = next(name for name, text in library.members.items() if "!llvm.loop" in text and text.startswith("define"))
    assert '!"llvm.loop.unroll.count"' in library.module([with_loop], defined=(), precise_sqrt=True, head="")


def test_printed_text_is_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load.cache_clear()
    first = load(str(PATH), str(tmp_path))
    load.cache_clear()
    monkeypatch.setattr(libdevice, "_printed", lambda *_: pytest.fail("printed again"))
    assert load(str(PATH), str(tmp_path)) == first
    load.cache_clear()


@pytest.mark.parametrize("damage", [b"", b"; sha256 0\nrubbish", b"\xff\xfe", None])
def test_t1_a_damaged_cache_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    load.cache_clear()
    first = load(str(PATH), str(tmp_path))
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    file.write_bytes(good.replace(b"fmul float", b"fadd float", 1) if damage is None else damage)
    load.cache_clear()
    assert load(str(PATH), str(tmp_path)) == first
    assert file.read_bytes() == good
    load.cache_clear()


def test_r2_another_file_behind_the_same_path_is_another_cache(tmp_path: Path) -> None:
    file = tmp_path / "libdevice.10.bc"
    with binding.create_context() as context, binding.parse_assembly("define float @__nv_one() {\n  ret float 1.0\n}\n", context) as module:
        file.write_bytes(module.as_bitcode())
    load.cache_clear()
    load(str(PATH), str(tmp_path / "cache"))
    assert list(load(str(file), str(tmp_path / "cache")).members) == ["__nv_one"]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    load.cache_clear()


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    load.cache_clear()
    assert load(str(PATH), str(tmp_path / "file" / "cache")).members
    load.cache_clear()


def test_a_file_that_is_no_bitcode_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "libdevice.10.bc"
    bad.write_bytes(b"BC\xc0\xde truncated")
    with pytest.raises(ToolError, match=str(bad)):
        load(str(bad))
    with pytest.raises(ToolError, match="cannot be read"):
        load(str(tmp_path / "absent.bc"))

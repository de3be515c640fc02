"""The host's half through the real clang, in a folder of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import RefusedError, SourceError, ToolMissingError
from scons_gpu.host.clang import HostOptions, command, compile_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scons_gpu.source.clang import Compiled
    from scons_gpu.toolchain.tools import Toolchain

BARE = ("-nocudainc",)


def options(**fields: object) -> HostOptions:
    return HostOptions(**{"clang_flags": BARE, **fields})  # type: ignore[arg-type]


def words(toolchain: Toolchain, **fields: object) -> list[str]:
    assert toolchain.clang is not None
    return command(
        toolchain.clang, "/top/k.cu", options=options(**fields), headers="/cuda", fatbin="", output="k.o", depfile="k.d", top="/top"
    )


def compiled(
    toolchain: Toolchain, top: Path, check: Callable[[bytes], None] = lambda _: None, headers: str = "", **fields: object
) -> Compiled:
    assert toolchain.clang is not None
    return compile_host(
        toolchain.clang,
        "k.cu",
        options=options(**fields),
        headers=headers or toolchain.headers,
        fatbin=None,
        output=top / "k.o",
        top=str(top),
        check=check,
    )


def test_later_flags_win(toolchain: Toolchain) -> None:
    line = words(toolchain, clang_flags=("-O0",), flags=("-O1", "-DA"), defines=("B",), cpppath=("/top/inc",), host_flags=("-O2",))
    assert [word for word in line if word[:2] in {"-O", "-D", "-I"}] == ["-O0", "-O1", "-DA", "-DB", "-Iinc", "-O2"]
    assert line[-1] == "k.cu"


@pytest.mark.parametrize(("flags", "count"), [((), 1), (("-fPIC",), 1), (("-fpic",), 0)])
def test_a_shared_object_is_position_independent_as_the_project_wants_it(toolchain: Toolchain, flags: tuple[str, ...], count: int) -> None:
    assert words(toolchain, flags=flags, shared=True).count("-fPIC") == count
    assert "-fPIC" not in words(toolchain)


def test_what_was_read_comes_out(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/a b.h").write_text("#define TWO 2\n")
    (tmp_path / "k.cu").write_text('#include "a b.h"\nint two() { return TWO; }\n')
    found = compiled(toolchain, tmp_path, cpppath=("inc",))
    assert "inc/a b.h" in found.dependencies
    assert "k.cu" not in found.dependencies
    assert (tmp_path / "k.o").read_bytes().startswith(b"\x7fELF")


def test_what_the_check_refuses_is_not_published(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("int k() { return 1; }\n")

    def refuse(data: bytes) -> None:
        assert data.startswith(b"\x7fELF")
        raise RefusedError("no")  # noqa: EM101 - as short as can be

    with pytest.raises(RefusedError):
        compiled(toolchain, tmp_path, refuse)
    assert not (tmp_path / "k.o").exists()


def test_mistakes_are_told_without_an_architecture(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file"):
        compiled(toolchain, tmp_path)
    (tmp_path / "k.cu").write_text("int k() { return x; }\n")
    with pytest.raises(SourceError) as caught:
        compiled(toolchain, tmp_path)
    assert str(caught.value).splitlines()[0] == "k.cu: clang cannot compile it"
    assert "k.cu:1:18: error: use of undeclared identifier 'x'" in str(caught.value)
    assert toolchain.clang is not None
    with pytest.raises(ToolMissingError, match="none were found"):
        compile_host(
            toolchain.clang,
            "k.cu",
            options=options(),
            headers="",
            fatbin=None,
            output=tmp_path / "k.o",
            top=str(tmp_path),
            check=lambda _: None,
        )

"""What libraries bring to a device link. That cuobjdump's answer is read right, the tests of whole programs show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble import inputs
from scons_gpu.assemble.provider import LinkInput
from scons_gpu.errors import DamagedError, LinkError, ToolMissingError
from scons_gpu.link import library
from scons_gpu.link.library import Library, Member
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from pathlib import Path

ONE = Member(identity="_1", kernels=("k",), others=("f", "g"))
TWO = Member(identity="_2", kernels=(), others=("h",))
SILENT = Member(identity="", kernels=(), others=("i",))
ARCHIVE = Library("lib.a", (ONE, TWO, SILENT), archive=True)
OBJECT = Library("o.o", (Member(identity="_3", kernels=("l",), others=("f",)),), archive=False)


def entry(name: str, data: bytes) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)


def test_the_first_that_defines_a_symbol_is_who_has_it() -> None:
    assert library.defined([ARCHIVE, OBJECT]) == {"k": "lib.a", "f": "lib.a", "g": "lib.a", "h": "lib.a", "i": "lib.a", "l": "o.o"}
    assert library.defined([]) == {}


def test_of_an_archive_counts_what_an_image_has_and_objects_always_do() -> None:
    assert library.linked([ARCHIVE, OBJECT], {"h", "i", "mine"}) == ("_2", "_3")
    assert library.linked([ARCHIVE], {"k"}) == ("_1",)
    assert library.linked([ARCHIVE], set()) == ()


def test_the_file_gives_back_what_was_written() -> None:
    found = [ARCHIVE, OBJECT, Library("none.a", (), archive=True)]
    assert library.from_text(library.to_text(found), path="libraries.json") == tuple(found)
    for text in (
        "",
        "{}",
        library.to_text(found).replace("libraries/1", "libraries/0"),
        '{"format": "scons-gpu/libraries/1", "libraries": [{"name": 1}]}',
    ):
        with pytest.raises(DamagedError, match=r"libraries\.json: not a list of libraries"):
            library.from_text(text, path="libraries.json")


def test_what_has_no_device_code_needs_no_tool(tmp_path: Path) -> None:
    archive = tmp_path / "lib.a"
    archive.write_bytes(b"!<arch>\n" + entry("/", b"abc") + entry("plain.o", b"\x7fELF nothing"))
    assert library.read(archive, name="lib.a", cuobjdump=None) == Library("lib.a", (), archive=True)
    archive.write_bytes(b"!<arch>\n" + entry("odd.o", b"odd") + entry("device.o", b"\0__nv_relfatbin\0"))
    with pytest.raises(ToolMissingError, match=r"lib\.a holds device code, and cuobjdump, which reads it, was not found"):
        library.read(archive, name="lib.a", cuobjdump=None)
    archive.write_bytes(b"!<arch>\n" + entry("plain.o", b"1234").replace(b"4         `", b"four      `"))
    with pytest.raises(DamagedError, match=r"lib\.a is no archive that can be read"):
        library.read(archive, name="lib.a", cuobjdump=None)


def test_who_links_no_libraries_says_so(tmp_path: Path) -> None:
    given = [LinkInput(path=tmp_path / "lib.a", label="lib.a", library=True)]
    with pytest.raises(LinkError, match=r"lib\.a: nvjitlink takes no device code out of libraries\n  GPU_PROVIDER=ptxas"):
        inputs.read(given, target=parse("sm_90")[0], linker="nvjitlink")

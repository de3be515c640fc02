"""Merged images are, byte for byte, what the assembler makes in one piece; what cannot be merged is refused by name."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scons_gpu.errors import DamagedError, GpuError, LinkError
from scons_gpu.link import elf
from scons_gpu.link.merge import Input, merge_objects, understood
from scons_gpu.link.proof import prove
from scons_gpu.link.proof_ptx import SINGLE, STATE, TOGETHER, unit
from scons_gpu.link.twins import anonymous
from scons_gpu.link.unknown import UnknownError
from scons_gpu.toolchain.arch import parse

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
ARCHS = ("sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_120")
LAYOUTS = ("sm_80", "sm_90", "sm_120")
"""One of each: the older one, the newer one, the newer one with functions in two forms."""


@cache
def made(text: str, arch: str, *flags: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "x.ptx").write_text(text)
        command = [str(BIN / "ptxas"), "-arch", arch, *flags, str(path / "x.ptx"), "-o", str(path / "x.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return (path / "x.cubin").read_bytes()


def text(*bodies: str, arch: str = "sm_90") -> str:
    return unit("".join(bodies), parse(arch)[0], "9.0")


def single(name: str, arch: str = "sm_90") -> Input:
    return Input(label=f"the object of {name}", data=made(text(SINGLE[name], arch=arch), arch))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_set_of_units_merges_to_the_bytes_of_one_piece(arch: str) -> None:
    assert prove(parse(arch)[0], lambda ptx: made(ptx, arch)) == ""


@pytest.mark.parametrize("arch", LAYOUTS)
def test_units_of_any_order_do_too(arch: str) -> None:
    shuffled = random.Random(arch)  # noqa: S311 - equal in each run
    names = [name for name in SINGLE if name != "dynamic"]
    for _ in range(3):
        shuffled.shuffle(names)
        one_piece = made(text(*(SINGLE[name] for name in names), arch=arch), arch)
        assert merge_objects([single(name, arch) for name in names]) == one_piece


@pytest.mark.parametrize("arch", LAYOUTS)
def test_an_anonymous_object_becomes_that_of_the_name(arch: str) -> None:
    for name in ("division", "shared", "dynamic"):
        shared = Input("twin", made(anonymous(text(SINGLE[name], arch=arch)), arch), name=name)
        assert merge_objects([shared]) == single(name, arch).data
        renamed = text(SINGLE[name].replace(f".entry {name}(", ".entry other("), arch=arch)
        twins = merge_objects([shared, Input("twin", shared.data, name="other")], dynamic=16 if name == "dynamic" else 0)
        if name != "dynamic":
            assert twins == made(renamed + SINGLE[name], arch) or twins == made(
                text(SINGLE[name], arch=arch) + renamed.split("64\n", 1)[1], arch
            )
        assert [each.symbol for each in elf.read(twins).kernels] == sorted((name, "other"))


@pytest.mark.parametrize("arch", LAYOUTS)
def test_other_tools_read_it(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "image.cubin"
    path.write_bytes(merge_objects([single(name, arch) for name in SINGLE], dynamic=16))
    for command in (
        ["cuobjdump", "-sass", "-res-usage"],
        ["nvdisasm"],
        ["fatbinary", f"--create={tmp_path / 'x.fatbin'}", f"--image3=kind=elf,sm={arch[3:]},file="],
    ):
        *start, last = command
        argv = (
            [str(BIN / start[0]), *start[1:], f"{last}{path}"]
            if start and last.endswith("file=")
            else [str(BIN / command[0]), *command[1:], str(path)]
        )
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), argv
    assert {each.symbol for each in elf.read(path.read_bytes()).kernels} == set(SINGLE)


def refused(*objects: Input, kind: type[GpuError] = LinkError) -> str:
    with pytest.raises(kind) as caught:
        merge_objects(objects)
    assert type(caught.value) is kind
    return caught.value.what


def test_what_does_not_go_together_is_named() -> None:
    plain, division = single("plain"), single("division")
    assert refused(plain, plain) == "plain is defined by both the object of plain and the object of plain"
    assert refused(single("plain", "sm_80"), division).startswith("the object of division and the object of plain differ in the flags")
    assert "differ in .note.nv.tkinfo" in refused(plain, Input("slow", made(text(SINGLE["division"]), "sm_90", "-O1")))
    holders = [
        Input(name, made(text(STATE.replace("counter", f"c{name}").replace("table", f"t{name}"), SINGLE[name]), "sm_90"))
        for name in ("plain", "root")
    ]
    assert refused(*holders) == "root and plain both hold memory of the module"
    assert (
        refused(Input("relocatable", made(text(SINGLE["plain"]), "sm_90", "-c"))) == "relocatable is relocatable: it was assembled with -c"
    )
    assert refused() == "there is nothing to merge"


def test_what_is_not_known_is_named() -> None:
    lines = Input("lines", made(text(SINGLE["plain"]), "sm_90", "-lineinfo"))
    assert refused(lines, kind=UnknownError) == "lines holds what merging does not know: section .debug_line"
    plain = single("plain").data
    attribute = plain.replace(struct.pack("<BBH", 3, 0x50, 0), struct.pack("<BBH", 3, 0x70, 0))
    assert refused(Input("new", attribute), kind=UnknownError) == "new holds what merging does not know: attribute 0x70 in .nv.info.plain"
    older = bytearray(plain)
    older[8] = 7
    assert refused(Input("old", bytes(older)), kind=UnknownError) == "old holds what merging does not know: ELF ABI version 7"
    only = made(text(STATE), "sm_90")
    assert refused(Input("state", only), kind=UnknownError) == "state holds what merging does not know: no function"


def test_what_was_understood_before_is_read_alone() -> None:
    """A file with something behind it: who says that these bytes were taken before is believed."""
    plain, more = single("plain"), single("plain").data + b"more"
    assert refused(Input("more", more), kind=UnknownError) == "more is not laid out as merging knows it"
    assert merge_objects([Input("more", more, known=True)]) == plain.data


def test_a_function_with_a_point_in_its_name_keeps_its_sections() -> None:
    data = single("division").data.replace(b"division\0", b"div.sion\0")
    assert [piece.name for piece in understood(data, label="x").pieces] == ["div.sion"]


@pytest.mark.parametrize("arch", LAYOUTS)
def test_damaged_objects_are_errors_of_ours(arch: str) -> None:
    """A byte, a run of bytes or the rest of a file: what comes out is an error, or a file that differs in code and contents alone."""
    shaken = random.Random(arch)  # noqa: S311 - equal in each run
    whole = [single(name, arch).data for name in ("division", "shared", "called")]
    whole.append(made(text(STATE, TOGETHER["prints"], arch=arch), arch))
    refusals = 0
    for turn in range(400):
        data = bytearray(whole[turn % len(whole)])
        place = shaken.randrange(len(data))
        if turn % 5 == 0:
            del data[place:]
        elif turn % 5 == 1:
            data[place : place + 8] = shaken.randbytes(8)
        else:  # where numbers are: headers, symbols, relocations
            place = place if turn % 5 == 2 else shaken.randrange(len(data) - 1200, len(data))
            data[place] = shaken.randrange(256)
        try:
            understood(bytes(data), label="damaged")
        except (DamagedError, LinkError):
            refusals += 1
    assert refusals > 150


def test_foreign_files_are_errors_of_ours() -> None:
    for data in (b"", b"\x7fELF", Path(sys.executable).resolve().read_bytes()[:20000], b"PK\x03\x04" * 100, bytes(5000)):
        with pytest.raises(DamagedError, match=re.escape("foreign: ")):
            understood(data, label="foreign")

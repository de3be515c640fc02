from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scons_gpu.errors import LinkError, ToolError, ToolKilledError, ToolMissingError, ToolSilentError
from scons_gpu.link.fatbin import pack
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import Tool

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
PTX = '.version 8.0\n.target {}\n.address_size 64\n// a comment\n.visible .entry k(.param .u64 p)\n{{\n\t.pragma "nounroll";\n\tret;\n}}\n'


def tool(path: Path) -> Tool:
    return Tool(name="fatbinary", path=str(path), version="13.5", identity="0", origin="test")


FATBINARY = tool(BIN / "fatbinary")


def ptx(folder: Path, cpu: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cpu}.ptx"
    path.write_text(PTX.format(cpu))
    return path


def cubin(folder: Path, cpu: str) -> Path:
    source = ptx(folder, cpu)
    path = source.with_suffix(".cubin")
    subprocess.run([BIN / "ptxas", f"-arch={cpu}", source.name, "-o", path.name], cwd=folder, check=True)
    return path


def images(folder: Path) -> list[tuple[Target, Path]]:
    sm_80, sm_90, compute_90 = parse("sm_80 sm_90 compute_90")
    return [(sm_80, cubin(folder, "sm_80")), (sm_90, cubin(folder, "sm_90")), (compute_90, ptx(folder, "sm_90"))]


def unpack(data: bytes, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    (folder / "x.fatbin").write_bytes(data)
    for option in ("-xelf", "-xptx"):
        subprocess.run([BIN / "cuobjdump", option, "all", "x.fatbin"], cwd=folder, check=True, capture_output=True)
    return {path.name.split(".", 2)[2]: path.read_bytes() for path in folder.iterdir() if path.name != "x.fatbin"}


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    given = images(tmp_path / "in")
    out = unpack(pack(given, fatbinary=FATBINARY), tmp_path / "out")
    assert sorted(out) == ["sm_80.cubin", "sm_90.cubin", "sm_90.ptx"]
    assert out["sm_80.cubin"] == given[0][1].read_bytes()
    assert out["sm_90.cubin"] == given[1][1].read_bytes()
    # fatbinary takes comments out of PTX, and nothing else.
    assert out["sm_90.ptx"].split() == PTX.format("sm_90").replace("// a comment", "").encode().split()


def test_r7_neither_order_nor_path_changes_a_byte(tmp_path: Path) -> None:
    given = images(tmp_path / "in")
    odd = tmp_path / "a, comma=and a 'quote'" / ("long" * 40)
    again = images(odd)
    assert pack(given, fatbinary=FATBINARY) == pack(again[::-1], fatbinary=FATBINARY)


def test_t10_the_temporary_folder_may_hold_a_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = images(tmp_path / "in")
    plain = pack(given, fatbinary=FATBINARY)
    (tmp_path / "t,m p").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t,m p"))
    assert pack(given, fatbinary=FATBINARY) == plain
    assert list((tmp_path / "t,m p").iterdir()) == []


def test_a2_an_architecture_and_its_specific_one_side_by_side(tmp_path: Path) -> None:
    sm_90, sm_90a = parse("sm_90 sm_90a")
    out = unpack(pack([(sm_90a, cubin(tmp_path, "sm_90a")), (sm_90, cubin(tmp_path, "sm_90"))], fatbinary=FATBINARY), tmp_path / "out")
    assert sorted(out) == ["sm_90.cubin", "sm_90a.cubin"]


def test_a2_ptx_for_other_gpus_is_refused(tmp_path: Path) -> None:
    (compute_90,) = parse("compute_90")
    with pytest.raises(LinkError, match=r"image sm_90a\.ptx for compute_90: its PTX is for sm_90a"):
        pack([(compute_90, ptx(tmp_path, "sm_90a"))], fatbinary=FATBINARY)


def test_l7_ptx_alone_serves_a_real_and_a_virtual_architecture(tmp_path: Path) -> None:
    sm_90, compute_90 = parse("sm_90 compute_90")
    out = unpack(pack([(sm_90, ptx(tmp_path, "sm_90")), (compute_90, ptx(tmp_path / "2", "sm_90"))], fatbinary=FATBINARY), tmp_path / "out")
    assert sorted(out) == ["sm_90.ptx"]


def test_two_images_of_one_architecture_are_refused(tmp_path: Path) -> None:
    (sm_90,) = parse("sm_90")
    one = cubin(tmp_path, "sm_90")
    with pytest.raises(LinkError, match="two images for sm_90"):
        pack([(sm_90, one), (sm_90, one)], fatbinary=FATBINARY)


def test_different_ptx_for_one_architecture_is_refused(tmp_path: Path) -> None:
    sm_90, compute_90 = parse("sm_90 compute_90")
    other = ptx(tmp_path / "2", "sm_90")
    other.write_text(other.read_text().replace("k(", "l("))
    with pytest.raises(LinkError, match="two images for compute_90"):
        pack([(sm_90, ptx(tmp_path, "sm_90")), (compute_90, other)], fatbinary=FATBINARY)


def test_no_image_is_refused() -> None:
    with pytest.raises(LinkError, match="nothing to pack"):
        pack([], fatbinary=FATBINARY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "neither machine code nor PTX"),
        (b"hello", "neither machine code nor PTX"),
        (b"\x7fELF\x02\x01", "not an object: no ELF header"),
    ],
)
def test_l8_what_is_no_image_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (sm_90,) = parse("sm_90")
    (tmp_path / "x.cubin").write_bytes(content)
    with pytest.raises(LinkError, match=rf"image x\.cubin for sm_90: {said}"):
        pack([(sm_90, tmp_path / "x.cubin")], fatbinary=FATBINARY)


def test_l8_machine_code_of_another_architecture_is_refused(tmp_path: Path) -> None:
    (sm_90,) = parse("sm_90")
    with pytest.raises(LinkError, match="it is made for sm_80"):
        pack([(sm_90, cubin(tmp_path, "sm_80"))], fatbinary=FATBINARY)


def test_l8_machine_code_is_no_virtual_architectures_image(tmp_path: Path) -> None:
    (compute_90,) = parse("compute_90")
    with pytest.raises(LinkError, match="a virtual architecture takes PTX"):
        pack([(compute_90, cubin(tmp_path, "sm_90"))], fatbinary=FATBINARY)


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("echo image-0 is bad; exit 3", ToolError, r"fatbinary failed with exit code 3\n    the PTX for compute_90 is bad"),
        ("exit 0", ToolSilentError, "wrote nothing"),
        ("kill -9 $$", ToolKilledError, "fatbinary was killed by SIGKILL"),
    ],
)
def test_l10_the_tools_failures_are_told_apart(tmp_path: Path, script: str, kind: type[ToolError], said: str) -> None:
    (compute_90,) = parse("compute_90")
    stub = tmp_path / "fatbinary"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    with pytest.raises(kind, match=said):
        pack([(compute_90, ptx(tmp_path, "sm_90"))], fatbinary=tool(stub))


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a", "sm_100f"])
def test_l7_without_fatbinary_ptx_is_packed_as_it_would_pack_it(tmp_path: Path, arch: str) -> None:
    target = parse(arch)[0]
    path = ptx(tmp_path, arch)
    path.write_text(path.read_text().replace("// a comment\n", "").replace("\t", ""))  # fatbinary leaves out comments and indents
    option = f"--image3=kind=ptx,sm={arch.removeprefix('sm_')},file={path.name}"
    subprocess.run([FATBINARY.path, "-64", "--create=x.fatbin", option, "--compress=false"], cwd=tmp_path, check=True)
    assert pack([(target, path)], fatbinary=None) == (tmp_path / "x.fatbin").read_bytes()


def test_l7_two_architectures_of_ptx_and_no_machine_code(tmp_path: Path) -> None:
    sm_80, sm_90, compute_90 = parse("sm_80 sm_90 compute_90")
    data = pack([(sm_90, ptx(tmp_path, "sm_90")), (sm_80, ptx(tmp_path, "sm_80"))], fatbinary=None)
    assert sorted(unpack(data, tmp_path / "out")) == ["sm_80.ptx", "sm_90.ptx"]
    with pytest.raises(ToolMissingError, match="fatbinary was not found, and without it the image for sm_80 cannot be packed"):
        pack([(sm_80, cubin(tmp_path, "sm_80")), (compute_90, ptx(tmp_path, "sm_90"))], fatbinary=None)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scons_gpu.errors import DamagedError
from scons_gpu.inspect.cubin import Cubin
from scons_gpu.link import elf
from scons_gpu.link.notes import without_notes

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
PTX = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n.maxntid 64\n{\n\tbar.sync 0;\n\tret;\n}\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "k.ptx").write_text(PTX)
    subprocess.run([BIN / "ptxas", "-arch=sm_90a", "k.ptx", "-o", "k.cubin"], cwd=folder, check=True)
    return (folder / "k.cubin").read_bytes()


def test_what_tools_say_of_themselves_goes_and_all_else_stays(image: bytes, tmp_path: Path) -> None:
    bare = without_notes(image, path="k")
    assert b"Cuda compilation tools" in image
    assert b"Cuda compilation tools" not in bare
    assert b"-arch" not in bare
    one, other = (Cubin(data).sections for data in (image, bare))
    assert {name for name in one if one[name] != other[name]} == {".note.nv.tkinfo"}
    assert list(one) == list(other)
    assert len(bare) == len(image)
    assert elf.read(bare).kernels == elf.read(image).kernels
    assert without_notes(bare, path="k") == bare
    (tmp_path / "k.cubin").write_bytes(bare)  # NVIDIA's own tools read it
    for tool in ([BIN / "cuobjdump", "-elf"], [BIN / "nvdisasm"]):
        assert ".text.k" in subprocess.run([*tool, "k.cubin"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout


def test_ptx_stays_and_what_does_not_read_is_told(image: bytes) -> None:
    assert without_notes(PTX.encode(), path="k") == PTX.encode()
    for data in (image[:60], image[:-10], b"\x7fELF" + bytes(100)):
        with pytest.raises(DamagedError, match=r"^k: "):
            without_notes(data, path="k")

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scons_gpu.errors import DamagedError
from scons_gpu.link.fatbin import pack
from scons_gpu.link.fatbin_entries import filled, read_fatbin
from scons_gpu.link.fatbin_ptx import pack_ptx
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.tools import Tool

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
PTX = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n" + "\tbar.sync 0;\n" * 40 + "\tret;\n}\n"


@pytest.mark.parametrize("parameters", [1, 2, 3, 4])
def test_what_fatbinary_packs_is_read(tmp_path: Path, parameters: int) -> None:
    source, image = tmp_path / "k.ptx", tmp_path / "k.cubin"
    source.write_text(PTX.replace(".param .u64 p", ", ".join(f".param .u32 p{number}" for number in range(parameters))))
    subprocess.run([BIN / "ptxas", "-arch=sm_90", source, "-o", image], check=True)
    assert len(image.read_bytes()) % 8 == 4 * (parameters % 2)  # it is filled up, or need not be
    tool = Tool(name="fatbinary", path=str(BIN / "fatbinary"), version="13.5", identity="0", origin="test")
    sm_90, compute_90 = parse("sm_90 compute_90")
    data = pack([(sm_90, image), (compute_90, source)], fatbinary=tool)
    entries = read_fatbin(data, path="f", most=1 << 20)
    assert [(each.kind, each.number) for each in entries] == [("elf", 90), ("ptx", 90)]
    assert entries[0].data == filled(image.read_bytes())
    assert (entries[1].data or b"").rstrip(b"\0").split() == source.read_bytes().split()
    with pytest.raises(DamagedError, match=r"^f: not a fatbin: it unpacks to more than 100 bytes"):
        read_fatbin(data, path="f", most=100)
    for size in (0, 10, 20, 90, len(data) - 1):
        with pytest.raises(DamagedError, match=r"^f: not a fatbin: "):
            read_fatbin(data[:size], path="f", most=1 << 20)


def test_what_we_pack_ourselves_is_read_too() -> None:
    data = pack_ptx([("90", PTX)])
    entry = read_fatbin(data, path="f", most=1 << 20)[0]
    assert (entry.kind, entry.number, (entry.data or b"").rstrip(b"\0").decode()) == ("ptx", 90, PTX)
    with pytest.raises(DamagedError, match="entry 0 does not read"):
        read_fatbin(data[:16] + b"\7" + data[17:], path="f", most=1 << 20)
    with pytest.raises(DamagedError, match="its head is another"):
        read_fatbin(b"\0" + data[1:], path="f", most=1 << 20)

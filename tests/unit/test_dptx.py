from __future__ import annotations

import json

import pytest

from scons_gpu.assemble import dptx
from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import DamagedError, GpuError, LinkError

PTX = '.version 7.8\n.target sm_75\n// ü .entry no()\r\n.file 1 "a .func b"\n.visible .entry _Z1kPf(.param .u64 p)\n{\n ret;\n}\n\n'
OPTIONS = AssembleOptions(opt=1, maxrregcount=40, flags=("-dlcm=ca", "-x y"), fail_on_spill=True, unit="d" * 32)


def made(ptx: str = PTX) -> bytes:
    return dptx.write(ptx, arch="sm_90a", spelled=("-arch=sm_90a", "-c"), options=OPTIONS)


def test_l3_the_ptx_is_kept_byte_for_byte() -> None:
    read = dptx.read(made(), label="it")
    assert made().endswith(b"\n" + PTX.encode())
    assert read.ptx == PTX
    assert (read.arch, read.spelled, read.unit, read.kernels) == ("sm_90a", ("-arch=sm_90a", "-c"), "d" * 32, ("_Z1kPf",))
    assert read.shaping == {"opt": 1, "lineinfo": False, "debug": False, "maxrregcount": 40, "flags": ("-dlcm=ca", "-x y")}
    assert not read.options.fail_on_spill, "it shapes no byte, so it is the link's to ask"
    assert made() == made()
    assert dptx.is_deferred(made())


def test_m6_nothing_of_an_owner_stands_in_it() -> None:
    header = json.loads(made().partition(b"\n")[0])
    assert sorted(header) == ["arch", "bytes", "format", "kernels", "options", "spelled", "unit"]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b"", DamagedError, "is empty"),
        (made()[:-1], DamagedError, f"holds {len(PTX.encode()) - 1} bytes of PTX where its header says {len(PTX.encode())}"),
        (made() + b"\n", DamagedError, "bytes of PTX where its header says"),
        (made()[:40], DamagedError, "ends within its header"),
        (made().partition(b"\n")[0], DamagedError, "ends with its header"),
        (b"\x7fELF" + b"\0" * 100, LinkError, "an object, not deferred PTX"),
        (PTX.encode(), DamagedError, "has no header that reads"),
        (b"[]\n" + PTX.encode(), DamagedError, "has no header that reads"),
        (b"{}\n" + PTX.encode(), DamagedError, "has no header that reads"),
        (made().replace(b"dptx/1", b"dptx/2"), LinkError, "in the format scons-gpu/dptx/2, and this scons-gpu reads scons-gpu/dptx/1"),
        (made().replace(b'"arch"', b'"area"'), DamagedError, "does not read: KeyError 'arch'"),
        (made().replace("ü".encode(), b"\xff\xff"), DamagedError, "does not read: UnicodeDecodeError"),
    ],
)
def test_l3_what_is_no_deferred_ptx_is_named(data: bytes, kind: type[GpuError], said: str) -> None:
    with pytest.raises(kind) as caught:
        dptx.read(data, label="kernel k of net/k.cu")
    assert caught.value.what.startswith("kernel k of net/k.cu: ")
    assert said in caught.value.what


def test_l5_kernels_are_known_by_name_also_of_ptx_that_does_not_read() -> None:
    odd = '.entry a() { ret; }\n.weak .entry /* not b */ c() {\n // .entry no()\n .pragma ".entry neither"; ( }\n.func d() {\n'
    assert dptx.read(made(odd), label="it").kernels == ("a", "c")


@pytest.mark.parametrize(
    ("body", "empty"),
    [
        ("", True),
        ("// .entry k() {}\n/* .global .u32 x; */\n", True),
        ('.file 1 "x.func.cu"\n.pragma "nounroll";\n', True),
        (".visible .entry k() { ret; }\n", False),
        (".func f() { ret; }\n", False),
        (".visible .global .align 4 .u32 x;\n", False),
        (".const .u32 x = 1;\n", False),
        (".extern .shared .align 16 .b8 x[];\n", False),
    ],
)
def test_l3_an_empty_part(body: str, *, empty: bool) -> None:
    assert dptx.read(made(f".version 7.8\n.target sm_75\n.address_size 64\n{body}"), label="it").empty is empty

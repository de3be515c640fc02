from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from scons_gpu.errors import DamagedError
from scons_gpu.link import elf

NVIDIA = Path(sysconfig.get_path("purelib")) / "nvidia"
BIN = NVIDIA / "cu13" / "bin"
OLD = NVIDIA / "cuda_nvcc" / "bin" / "ptxas"  # 12.9: ELF of ABI version 7 up to sm_90

PTX = """\
.version 7.8
.target sm_75
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
EXTERNS
.visible .global .align 4 .b8 gvis[40];
.visible .global .align 4 .b32 ginit = 5;
.weak .global .align 4 .b32 gweak = 5;
.visible .const .align 4 .b8 cvis[16];
.const .align 4 .b32 cinit[2] = {1, 2};
.visible .func (.param .b32 r) rec(.param .b32 a)
{
 .reg .b32 %r<4>; .reg .pred %p<2>;
 .local .align 4 .b8 loc[64];
 ld.param.b32 %r1, [a];
 st.local.b32 [loc], %r1;
 setp.lt.s32 %p1, %r1, 2;
 @%p1 bra L;
 sub.s32 %r1, %r1, 1;
 { .param .b32 pa; .param .b32 pr; st.param.b32 [pa], %r1; call (pr), rec, (pa); ld.param.b32 %r2, [pr]; }
 ld.local.b32 %r3, [loc];
 mad.lo.s32 %r1, %r2, 3, %r3;
L: st.param.b32 [r], %r1;
 ret;
}
.visible .entry recurses(.param .u64 p, .param .u32 n) .maxntid 32, 4, 1
{
 .reg .b32 %r<8>; .reg .b64 %rd<8>;
 .shared .align 4 .b8 sh[100];
 ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
 { .param .b32 pa; .param .b32 pr; st.param.b32 [pa], %r1; call (pr), rec, (pa); ld.param.b32 %r2, [pr]; }
 { .param .b64 pa; .param .b64 pb; .param .b32 pr; st.param.b64 [pa], %rd1; st.param.b64 [pb], %rd1; call (pr), vprintf, (pa, pb); ld.param.b32 %r3, [pr]; }
 st.shared.b32 [sh], %r2;
 bar.sync 0;
 ld.global.b32 %r4, [gvis]; add.s32 %r2, %r2, %r4;
 ld.const.b32 %r4, [cinit+4]; add.s32 %r2, %r2, %r4;
 ld.shared.b32 %r4, [sh+4]; add.s32 %r2, %r2, %r4;
 ld.global.b32 %r4, [gweak]; add.s32 %r2, %r2, %r4;
USES
 st.global.b32 [%rd1], %r2;
 ret;
}
.weak .entry bound(.param .u64 p) .reqntid 128
{
 .reg .b64 %rd<4>;
 ld.param.u64 %rd1, [p];
 st.global.b64 [%rd1], %rd1;
 ret;
}
.visible .entry frame(.param .u64 p)
{
 .reg .b32 %r<4>; .reg .b64 %rd<4>;
 .local .align 16 .b8 buffer[256];
 ld.param.u64 %rd1, [p];
 ld.global.b32 %r1, [%rd1];
 and.b32 %r1, %r1, 252;
 mov.u32 %r2, buffer; add.s32 %r2, %r2, %r1;
 st.local.b32 [%r2], %r1;
 ld.local.b32 %r3, [buffer+8];
 st.global.b32 [%rd1], %r3;
 ret;
}
"""
EXTERNS = ".extern .global .align 4 .b8 gfar[40];\n.extern .const .align 4 .b8 cfar[40];\n.extern .shared .align 16 .b8 dynamic[];"
USES = "\n".join(
    f"ld.{space}.b32 %r4, [{name}]; add.s32 %r2, %r2, %r4;"
    for space, name in (("global", "gfar"), ("const", "cfar"), ("shared", "dynamic"))
)
CLOSED = PTX.replace("EXTERNS", "").replace("USES", "")
OPEN = PTX.replace("EXTERNS", EXTERNS).replace("USES", USES)


def assemble(folder: Path, arch: str, *, ptx: str = CLOSED, rel: bool = False, ptxas: Path = BIN / "ptxas") -> Path:
    (folder / "k.ptx").write_text(ptx)
    made = folder / f"{arch}.{'rel' if rel else 'whole'}.cubin"
    subprocess.run([ptxas, "-w", f"-arch={arch}", *(["-c"] if rel else []), "k.ptx", "-o", made], cwd=folder, check=True)
    return made


def link(folder: Path, arch: str, *inputs: Path) -> Path:
    made = folder / f"{arch}.image.cubin"
    subprocess.run([BIN / "nvlink", "-w", f"-arch={arch}", *inputs, "-o", made], check=True)
    return made


def dumped(path: Path) -> dict[str, dict[str, str]]:
    """What cuobjdump says, by function: {"REG": "8", "CONSTANT[0]": "360", …}."""
    text = subprocess.run([BIN / "cuobjdump", "--dump-resource-usage", path], check=True, capture_output=True, text=True).stdout
    functions = re.findall(r"Function (\S+):\n\s+(.*)", text)
    return {name: dict(part.rsplit(":", 1) for part in figures.split()) for name, figures in functions}


def files(folder: Path, arch: str, ptxas: Path) -> dict[str, Path]:
    rel = assemble(folder, arch, rel=True, ptxas=ptxas)
    return {"whole": assemble(folder, arch, ptxas=ptxas), "rel": rel, "image": link(folder, arch, rel)}


@pytest.mark.parametrize(
    ("arch", "ptxas"),
    [
        *(
            (arch, BIN / "ptxas")
            for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103a", "sm_110f", "sm_120f")
        ),
        *((arch, OLD) for arch in ("sm_75", "sm_90", "sm_100")),
    ],
    ids=lambda value: value if isinstance(value, str) else "12.9" if value == OLD else "13.x",
)
def test_figures_are_those_of_cuobjdump(tmp_path: Path, arch: str, ptxas: Path) -> None:
    for form, path in files(tmp_path, arch, ptxas).items():
        said, cubin = dumped(path), elf.read(path.read_bytes())
        assert cubin.relocatable == (form == "rel")
        assert [each.symbol for each in cubin.kernels] == ["bound", "frame", "recurses"]
        for kernel in cubin.kernels:
            figures = said[kernel.symbol]
            assert kernel.registers == int(figures["REG"])
            assert dict(kernel.constants) == {int(name[9]): int(size) for name, size in figures.items() if name.startswith("CONSTANT[")}
            reserved = 1024 if form != "rel" and int(re.sub(r"\D", "", arch)) >= 90 and int(figures["SHARED"]) else 0
            assert kernel.shared_bytes == int(figures["SHARED"]) - reserved
            with path.open("rb") as file:  # cuobjdump does not say
                assert kernel.code_bytes == ELFFile(file).get_section_by_name(f".text.{kernel.symbol}")["sh_size"]
            if form != "rel":  # cuobjdump says 0 of every relocatable kernel, nvlink decides
                assert kernel.stack_bytes == (None if figures["STACK"] == "UNKNOWN" else int(figures["STACK"]))


def test_what_cuobjdump_does_not_say(tmp_path: Path) -> None:
    for form, path in files(tmp_path, "sm_90", BIN / "ptxas").items():
        bound, frame, recurses = elf.read(path.read_bytes()).kernels
        assert (bound.max_threads, frame.max_threads, recurses.max_threads) == (128, None, 128)
        assert (bound.barriers, recurses.barriers) == (None, 1)
        assert (frame.stack_bytes, frame.shared_bytes) == (256, 0)
        assert recurses.shared_bytes == 100
        assert recurses.stack_bytes is None or form == "rel"
        assert bound.constant_bytes == dict(bound.constants)[0]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_symbols(tmp_path: Path, arch: str) -> None:
    cubin = elf.read(assemble(tmp_path, arch, ptx=OPEN, rel=True).read_bytes())
    found = {
        each.name: (each.kind, each.space, each.bytes, each.binding, each.defined) for each in cubin.symbols if each.kind == "variable"
    }
    assert {name: what for name, what in found.items() if not name.startswith("$")} == {
        "gvis": ("variable", "global", 40, "global", True),
        "ginit": ("variable", "global", 4, "global", True),
        "gweak": ("variable", "global", 4, "weak", True),
        "cvis": ("variable", "constant", 16, "global", True),
        "cinit": ("variable", "constant", 8, "local", True),
        "gfar": ("variable", "global", 40, "global", False),
        "cfar": ("variable", "constant", 40, "global", False),
        "dynamic": ("variable", "shared", 0, "global", False),
    }
    assert {each.name: (each.kind, each.binding) for each in cubin.symbols if each.kind != "variable"} == {
        "rec": ("function", "global"),
        "vprintf": ("function", "global"),
        "bound": ("kernel", "weak"),
        "frame": ("kernel", "global"),
        "recurses": ("kernel", "global"),
    }
    assert cubin.undefined == ("cfar", "gfar", "vprintf"), "dynamic shared memory is nobody's to define"
    assert cubin.constants == ((3, 24),)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_g6_an_image_has_each_variable_once_with_its_space(tmp_path: Path, arch: str) -> None:
    image = elf.read(link(tmp_path, arch, assemble(tmp_path, arch, rel=True)).read_bytes())
    assert sorted((each.name, each.space, each.bytes, each.binding) for each in image.variables) == [
        ("cinit", "constant", 8, "local"),
        ("cvis", "constant", 16, "global"),
        ("ginit", "global", 4, "global"),
        ("gvis", "global", 40, "global"),
        ("gweak", "global", 4, "weak"),
    ]
    assert image.undefined == ("vprintf",)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_120a"])
def test_the_architecture_is_the_one_asked_for(tmp_path: Path, arch: str) -> None:
    assert [elf.read(path.read_bytes()).arch for path in files(tmp_path, arch, BIN / "ptxas").values()] == [arch] * 3


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_the_architecture_of_an_object_without_a_note(tmp_path: Path, arch: str) -> None:
    assert elf.read(assemble(tmp_path, arch, ptxas=OLD).read_bytes()).arch == arch


@pytest.mark.parametrize("form", ["whole", "rel", "image"])
def test_the_library_reads_the_same_symbols(tmp_path: Path, form: str) -> None:
    data = files(tmp_path, "sm_100", BIN / "ptxas")[form].read_bytes()
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    ours = [(each.name, each.bytes, each.binding) for each in elf.read(data).symbols]
    theirs = [(each.name, each["st_size"], each["st_info"]["bind"].removeprefix("STB_").lower()) for each in table.iter_symbols()]
    assert ours
    assert [each for each in theirs if each in ours] == ours
    left = {name for name, _, _ in set(theirs) - set(ours)}
    assert all(name.startswith((".", "__UFT", "__UDT", "__nv_reserved", "_param")) or not name for name in left)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF", "no ELF header"),
        (b"hello" * 100, "no ELF header"),
        (b"\x7fELF\x02\x01" + bytes(100), "not a GPU object"),
    ],
)
def test_what_is_no_cubin(data: bytes, message: str) -> None:
    with pytest.raises(DamagedError, match=f"net/then.cubin: .*{message}"):
        elf.read(data, path="net/then.cubin")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return files(tmp_path_factory.mktemp("elf"), "sm_90", BIN / "ptxas")["image"].read_bytes()


def test_truncation_anywhere_is_found(image: bytes) -> None:
    for length in range(0, len(image), 97):
        with pytest.raises(DamagedError):
            elf.read(image[:length])


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8))
def test_damage_gives_clean_errors_only(image: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(image)
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(DamagedError):
        elf.read(bytes(data))

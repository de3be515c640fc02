"""Objects of several compilers, and of clang with flags that move code and strings about."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

from scons_gpu.errors import DamagedError
from scons_gpu.host.registered import Registered, read

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

SOURCE = """\
extern void __cudaRegisterFunction(void**, const void*, const char*, const char*, int);
extern void __cudaRegisterVar(void**, void*, const char*, const char*, int);
extern void other(const char*, double);
static int a, b;
static const int table[4] = {1, 2, 3, 4};
void __device_stub__plain(void) {}
void start(void** handle) {
  other("a string that is no name", 2.5);
  __cudaRegisterFunction(handle, &a, "first", "first", -1);
  other("another", 3.5);
  __cudaRegisterFunction(handle, &b, "second", "second", -1);
  __cudaRegisterVar(handle, &b, "third", "third", 4);
  __cudaRegisterVar(handle, (void*)&table, "fourth", "fourth", 4);
}
"""


@pytest.mark.parametrize("flags", ["-O0", "-O2", "-O3 -fPIC", "-Os -ffunction-sections -fdata-sections", "-O1 -g"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_names_are_read_in_order(toolchain: Toolchain, tmp_path: Path, compiler: str, flags: str) -> None:
    assert toolchain.clang is not None
    (tmp_path / "k.c").write_text(SOURCE)
    command = [toolchain.clang.path if compiler == "clang" else "gcc", *flags.split(), "-c", "-o", "k.o", "k.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    found = read((tmp_path / "k.o").read_bytes(), path="k.o")
    assert found == Registered(kernels=("first", "second"), variables=("third", "fourth"), stubs=("plain",))
    with (tmp_path / "k.o").open("rb") as file:
        assert ELFFile(file).num_sections() > 5


def test_stubs_are_named_as_their_kernels(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text(
        "template <int N> void __device_stub__add(float*) {}\nnamespace n2 { namespace { void __device_stub__own() {} } void __device_stub__two(int) {} }\n"
        "void start() { __device_stub__add<3>(nullptr); n2::__device_stub__own(); }\nvoid __device_stub__elsewhere();\nauto* used = &__device_stub__elsewhere;\n"
    )
    assert toolchain.clang is not None
    subprocess.run([toolchain.clang.path, "-O0", "-fno-plt", "-c", "-o", "k.o", "k.cpp"], check=True, cwd=tmp_path)
    found = read((tmp_path / "k.o").read_bytes(), path="k.o")
    assert found.stubs == ("_Z3addILi3EEvPf", "_ZN2n212_GLOBAL__N_13ownEv", "_ZN2n23twoEi")


def test_nothing_is_registered_by_what_only_calls_others(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text('extern void other(const char*);\nvoid start(void) { other("name"); }\n')
    subprocess.run(["gcc", "-c", "-o", "k.o", "k.c"], check=True, cwd=tmp_path)
    assert read((tmp_path / "k.o").read_bytes(), path="k.o") == Registered(kernels=(), variables=())


@pytest.mark.parametrize("data", [b"", b"BC\xc0\xde", b"\x7fELF\x02\x01" + b"\xff" * 80])
def test_what_is_no_object_is_named(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^k\.o is no object that can be read"):
        read(data, path="k.o")

"""What is written for C++: types that a name tells, names that C++ takes, text that a compiler reads as it was. tests/e2e compiles it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu import INCLUDE
from scons_gpu.errors import DamagedError
from scons_gpu.link.bundle import Entry, write_bundle
from scons_gpu.link.manifest import Build, Image, Kernel, Manifest, Module
from scons_gpu.loading.embed import identifier, literal, table
from scons_gpu.loading.header import header
from scons_gpu.loading.parameters import parameters
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from pathlib import Path

BUILD = Build(
    unit="u",
    lowered_by="llvm",
    object="key",
    entry="k",
    registers=None,
    spill_bytes=None,
    shared_bytes=0,
    constant_bytes=None,
    stack_bytes=None,
    max_threads=1024,
)


def program(name: str = "net", **modules: tuple[str, ...]) -> Manifest:
    """An image for sm_90 in each module, of kernels by symbol."""
    made = {
        module: Module(
            bypass=False,
            fatbin=f"{module}.fatbin",
            images={"sm_90": Image(file="x.cubin", sha256="")},
            kernels={symbol: Kernel(readable=demangle(symbol), source=f"{module}.cu", archs={"sm_90": BUILD}) for symbol in symbols},
        )
        for module, symbols in modules.items()
    }
    return Manifest(program=name, archs=("sm_90",), tools={}, modules=made)


@pytest.mark.parametrize(
    ("symbol", "types"),
    [
        ("_Z4reluPfi", ("float*", "int")),
        ("_Z1kv", ()),
        ("_Z1kPKdPvPKvPPfP6float4", ("const double*", "void*", "const void*", "void*", "void*")),
        ("_Z1kbcahst", ("bool", "char", "signed char", "unsigned char", "short", "unsigned short")),
        ("_Z1kjlmxyfd", ("unsigned int", "long", "unsigned long", "long long", "unsigned long long", "float", "double")),
        ("_Z7softmaxILi256EfEvPT0_S0_", ("float*", "float")),
        ("_Z1kIPFiiEEvT_", "the type of a parameter is int (*)(int)"),
        ("_Z1k6Configi", "the type of a parameter is Config"),
        ("_Z1kRKf", "the type of a parameter is float const&"),
        ("_Z1kPA4_f", "the type of a parameter is float (*) [4]"),
        ("_Z1k6VectorIfLi3EEPf", "the type of a parameter is Vector<float, 3>"),
        ("_ZN12_GLOBAL__N_14reluEPf", ("float*",)),
        ("relu", "its name does not tell its parameters"),
    ],
)
def test_the_types_that_a_name_tells(symbol: str, types: tuple[str, ...] | str) -> None:
    assert parameters(demangle(symbol), symbol=symbol) == types


def test_functions_are_named_as_cpp_allows() -> None:
    """Keywords, digits, signs, instances of one template, overloads, and two modules of nearly one name."""
    text = header(
        program(
            "2 nets",
            **{
                "else": ("_Z3newPf", "_Z3newPd"),
                "a.b": ("_ZN2ns7softmaxILi2EEEvPf",),
                "a_b": ("_Z1kP6float4", "_Z1kP4int4"),
                "program": ("plain",),
            },
        )
    )
    assert re.findall(r"^(?:inline void|namespace) ([^ {]+)", text, re.MULTILINE) == [
        "_2_nets",
        "a_2e_b",
        "ns_softmax_2(const",
        "a_5f_b",
        "kernel_Z1kP6float4(const",
        "kernel_Z1kP4int4(const",
        "else_",
        "new_(const",
        "new_(const",
        "program_",
    ]
    assert (
        '// plain of program.cu has no function here: its name does not tell its parameters. program().kernel("program", "plain")' in text
    )


def test_nothing_of_the_text_depends_on_where_the_program_lies(tmp_path: Path) -> None:
    made = program(net=("_Z4reluPfi",))
    assert table(made, folder=tmp_path, spelled=lambda path: path.name) == table(
        made, folder=tmp_path / "b", spelled=lambda path: path.name
    )


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_a_literal_is_what_it_was(text: str) -> None:
    inner = literal(text)[1:-1]
    assert inner.isascii()
    assert '"' not in inner.replace('\\"', "")
    assert re.sub(rb"\\([0-7]{3})|\\(.)", _read, inner.encode()) == text.encode()


def _read(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)]) if found[1] else {b"n": b"\n"}.get(found[2], found[2])


def test_the_assembler_takes_in_files_with_any_name_and_members_of_a_bundle(tmp_path: Path) -> None:
    name = 'a "quoted" b\\n.fatbin'
    (tmp_path / name).write_bytes(b"fatbin \0 bytes")
    entries = [Entry("sm_90", "key.cubin", b"object"), Entry("compute_80", "u.ptx", b"// text")]
    (tmp_path / "b.gpubundle").write_bytes(write_bundle(entries, manifest="{}"))
    archs = {"sm_90": BUILD, "compute_80": Build(**{**vars(BUILD), "object": None})}
    modules = {
        "image": Module(
            bypass=False, fatbin=name, images={"sm_90": Image("x.cubin", "")}, kernels={"k": Kernel("k", "k.ll", {"sm_90": BUILD})}
        ),
        "bundle": Module(
            bypass=False, bundle="b.gpubundle", kernels={"k": Kernel("k", "k.ll", archs), "twin": Kernel("twin", "k.ll", archs)}
        ),
    }
    text = table(Manifest(program="é", archs=(), tools={}, modules=modules), folder=tmp_path, spelled=lambda path: path.name)
    (tmp_path / "a.cpp").write_text("#define SCONS_GPU_TABLES\n" + text[text.index("#include") :], encoding="utf-8")
    subprocess.run(["c++", "-c", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "a.cpp"], cwd=tmp_path, check=True)
    made = (tmp_path / "a.o").read_bytes()
    for taken in (b"fatbin \0 bytes", b"object", b"// text\0"):
        assert made.count(taken) == 1  # twins share theirs
    (tmp_path / "b.gpubundle").write_bytes(write_bundle([], manifest="{}"))
    with pytest.raises(DamagedError, match=r"b\.gpubundle: not the bundle that its manifest names: .*key\.cubin"):
        table(Manifest(program="net", archs=(), tools={}, modules=modules), folder=tmp_path, spelled=str)


def test_a_program_without_kernels_is_an_empty_table(tmp_path: Path) -> None:
    text = table(program(), folder=tmp_path, spelled=str)
    (tmp_path / "a.cpp").write_text(text)
    subprocess.run(["c++", "-c", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "a.cpp"], cwd=tmp_path, check=True)
    assert "namespace else" not in header(program())


def test_identifiers() -> None:
    assert [identifier(name) for name in ("net", "a.b-c", "é")] == ["net", "a_b_c", "_"]

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scons_gpu.errors import UsageError
from scons_gpu.source import nvrtc
from scons_gpu.source.nvcc_flags import split, translate
from scons_gpu.source.nvcc_options import MAPPED, NONE, REFUSED, TABLE
from scons_gpu.source.options import ClangOptions
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.frontends import choose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scons_gpu.source.nvcc_options import Row
    from scons_gpu.source.translation import Translation
    from scons_gpu.toolchain.tools import Toolchain


def read(line: str) -> Translation:
    return translate(tuple(split(line)))


def sets(line: str) -> list[tuple[str, str | bool]]:
    return [(setting.name, setting.value) for setting in read(line).settings]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-arch=sm_90", [("GPU_ARCHS", "sm_90"), ("GPU_ARCHS", "compute_90")]),
        ("-arch sm_80 -arch compute_90", [("GPU_ARCHS", "compute_90")]),
        ("-arch=compute_80 -code=sm_80,compute_80", [("GPU_ARCHS", "sm_80"), ("GPU_ARCHS", "compute_80")]),
        ("-gencode arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90", [("GPU_ARCHS", "sm_80"), ("GPU_ARCHS", "sm_90")]),
        ("--generate-code 'arch=compute_90,code=[sm_90]' -arch=compute_80", [("GPU_ARCHS", "compute_80"), ("GPU_ARCHS", "sm_90")]),
        ("-O2 -O 3 --optimize=1", [("GPU_HOSTFLAGS", "-O2"), ("GPU_HOSTFLAGS", "-O3"), ("GPU_HOSTFLAGS", "-O1")]),
        ("-Xptxas -O3,-v", []),
        ("-Xptxas=-v --ptxas-options -O1", [("GPU_PTXASFLAGS", "-O1")]),
        ("-Xptxas '-v -dlcm=ca' -Xptxas -warn-spills", [("GPU_PTXASFLAGS", "-dlcm=ca"), ("GPU_WARN_ON_SPILL", True)]),
        ("-Xptxas --maxrregcount=32,-lineinfo", [("GPU_MAXRREGCOUNT", "32"), ("GPU_LINEINFO", True)]),
        ("-use_fast_math --use_fast_math", [("GPU_FAST_MATH", True), ("GPU_FAST_MATH", True)]),
        ("-ftz=true -ftz false", [("GPU_FTZ", True), ("GPU_FTZ", False)]),
        ("-prec-div=true -fmad=true", []),
        ("-fmad=false", [("GPU_CLANGFLAGS", "-ffp-contract=off")]),
        ("-maxrregcount=64 -maxrregcount 0", [("GPU_MAXRREGCOUNT", "64")]),
        ("-lineinfo -G", [("GPU_DEBUG", True)]),
        ("-G -dopt on", [("GPU_LINEINFO", True)]),
        ("-dopt=on", []),
        ("-g -pg", [("GPU_HOSTFLAGS", "-g"), ("GPU_HOSTFLAGS", "-pg")]),
        ("--std c++17 -include a.h", [("GPU_CLANGFLAGS", "-std=c++17"), ("GPU_CLANGFLAGS", "-include"), ("GPU_CLANGFLAGS", "a.h")]),
        ("-isystem sys -I inc -I=b,c -Id", [("CPPPATH", "inc"), ("CPPPATH", "b"), ("CPPPATH", "c"), ("CPPPATH", "d"), ("CPPPATH", "sys")]),
        ("-DA -D B=1,C '-DD=\\\"x y\\\"' -UE", [(*p,) for p in (("CPPDEFINES", d) for d in ("A", "B=1", "C", 'D=\\"x y\\"'))] + [("GPU_CLANGFLAGS", "-UE")]),
        ('-DD=\\"x\\" -DE="y z"', [("CPPDEFINES", 'D="x"'), ("CPPDEFINES", "E=y z")]),
        ("--expt-relaxed-constexpr --expt-extended-lambda -extended-lambda", []),
        ("-Xcompiler -fPIC,-O3 -Xcompiler='-Wall -g' --compiler-options -DX=a\\\\,b", [("GPU_HOSTFLAGS", flag) for flag in ("-fPIC", "-O3", "-Wall", "-g", "-DX=a,b")]),
        ("-Wno-deprecated-gpu-targets -t 4 -t0 --threads=2 -keep -MD -MF x.d -c -x cu -m64 -m 64 -cudart static -Xcudafe --diag_suppress=1", []),
        ("-rdc=true", [("GPU_RDC", True)]),
        ("-dc", [("GPU_RDC", True)]),
        ("-rdc true -rdc=false", [("GPU_RDC", True), ("GPU_RDC", False)]),
        ("-w -Werror all-warnings,reorder -Werror cross-execution-space-call", [("GPU_CLANGFLAGS", flag) for flag in ("-w", "-Werror", "-Werror=reorder")]),
        ("-default-stream=per-thread", [("GPU_CLANGFLAGS", "-Xclang"), ("GPU_CLANGFLAGS", "-fgpu-default-stream=per-thread")]),
        ("-forward-unknown-to-host-compiler -fPIC -lineinfo", [("GPU_HOSTFLAGS", "-fPIC"), ("GPU_LINEINFO", True)]),
    ],
)  # fmt: skip
def test_flags_as_people_write_them(line: str, expected: list[tuple[str, str | bool]]) -> None:
    assert sets(line) == expected


def test_the_last_counts_as_with_nvcc() -> None:
    found = read("-maxrregcount=32 -ftz=true -maxrregcount 64")
    assert found.last("GPU_MAXRREGCOUNT") == found.settings[-1]
    assert found.settings[-1].flag == "-maxrregcount 64"
    assert found.last("GPU_LINEINFO") is None


def test_only_those_who_know_a_flag_are_given_it() -> None:
    found = read("-std=c++17 --extended-lambda -prec-div=false -ccbin g++ -default-device -no-compress -Xcompiler -Wall -arch=sm_90")
    assert found.passed("nvcc") == ("--std=c++17", "--extended-lambda", "--prec-div=false", "--compiler-bindir=g++")
    assert found.passed("nvrtc") == ("--std=c++17", "--prec-div=false", "--device-as-default-execution-space")
    assert found.passed("object")[-1] == "--no-compress"


def test_what_is_lost_is_told() -> None:
    first, second, third = read("-prec-sqrt=false -restrict -arch=compute_80 -code=sm_86").remarks
    assert first.text.startswith("-prec-sqrt=false of GPU_NVCCFLAGS is left out: square roots stay exact")
    assert first.unless == ("nvcc", "nvrtc", "object")
    assert "write __restrict__" in second.text
    assert third.text == "-arch=compute_80 of GPU_NVCCFLAGS: sm_86: __CUDA_ARCH__ is that of the code, not of compute_80"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-Wall", "-Wall: nvcc has no such flag; for the host compiler it is -Xcompiler -Wall"),
        ("-maxregcount=32", "-maxregcount=32: nvcc has no such flag; is -maxrregcount or --maxrregcount meant?"),
        ("--arch=sm_90", "--arch=sm_90: nvcc has no such flag"),
        ("k.cu", "k.cu: it is no flag; sources"),
        ("-ptx", '-ptx: env.Ptx("k.ptx", ["k.cu"]) makes it'),
        ("-lcublas", '-lcublas: it is for the link: LIBS=["cublas"]'),
        ("-L /usr/lib", '-L /usr/lib: it is for the link: LIBPATH=["/usr/lib"]'),
        ("-o k.o", "-o k.o: the builder's first argument names what is made"),
        ("-dlink", "-dlink: GPU_RDC=1 links device code once"),
        ("-arch", "-arch: its value is missing"),
        ("-lineinfo=true", "-lineinfo=true: it takes no value"),
        ("-ftz=maybe", "-ftz=maybe: it takes true or false"),
        ("-O fast", "-O fast: it takes a number"),
        ("-arch=native", "-arch=native: it asks for a GPU at build time"),
        ("-code=sm_90", "-code=sm_90: -arch is missing"),
        ("-x c++", "-x c++: a file's suffix says what it is"),
        ("-m32", "-m32: programs have 64 bits"),
        ("-use_fast_math -prec-div=true", "-prec-div=true: -use_fast_math says otherwise"),
        ("-ftz=false --use_fast_math", "-ftz=false: -use_fast_math says otherwise"),
        ("-Xnvlink -v,-kernels-used=k", "-Xnvlink -kernels-used=k: the link of device code has no flags"),
        ("-DX='a", "No closing quotation"),
        ("-I$(CUDA_HOME)/include", "$(CUDA_HOME) is a variable of make's\n  SCons' own are written ${NAME}"),
    ],
)
def test_what_is_refused_says_what_to_do(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(line)
    assert str(caught.value).startswith("GPU_NVCCFLAGS: ")
    assert words in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read("-Wall -O3 -ptx -gencode arch=compute_90,code=sm_80")
    lines = str(caught.value).splitlines()
    assert lines[0] == "GPU_NVCCFLAGS: 3 flags cannot be taken over"
    assert [line.split(":")[0].strip() for line in lines[1:4]] == ["-Wall", "-ptx", "-gencode arch=compute_90,code=sm_80"]


def test_every_row_is_reached_by_its_own_spelling() -> None:
    values = {"arch": "sm_90", "gencode": "arch=compute_90,code=sm_90", "code": "sm_90", "O": "2"}
    for row in TABLE:
        value = row.value or values.get(row.short, "1")
        words = [row.names[-1]] if row.takes == NONE else [row.names[-1], value]
        line = ["-arch=compute_90", *words] if row.short == "code" else words
        if row.does == REFUSED or row.long == "options-file":
            with pytest.raises(UsageError):
                translate(tuple(line))
            continue
        found = translate(tuple(line))
        silent = row.does != MAPPED or row.long in ("dopt", "forward-unknown-to-host-compiler")
        assert silent == (not found.settings), row


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from([name for row in TABLE for name in row.names]), st.text("-=,IDOlarch90_ ", max_size=8)), max_size=5)
)
def test_no_line_breaks_it(words: list[str]) -> None:
    try:
        found = translate(tuple(words))
    except UsageError:
        return
    assert all(setting.flag for setting in found.settings)


@pytest.fixture(scope="module")
def dryrun(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What the real nvcc would do with flags."""
    folder: Path = tmp_path_factory.mktemp("nvcc")
    (folder / "k.cu").write_text("__global__ void k() {}\n")
    nvcc = choose(toolchain, wanted="nvcc", environ={"PATH": os.environ["PATH"]}, facts=folder).tool

    def run(line: str) -> str:
        argv = [nvcc.path, "--dryrun", "-c", "k.cu", "-o", "k.o", *split(line)]
        return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False).stderr

    return run


@pytest.mark.parametrize(
    "line",
    [
        "-arch=sm_90",
        "-arch compute_80",
        "-arch=sm_80 -arch=sm_90a",
        "-arch=compute_80 -code=sm_80,sm_86",
        "-arch=sm_80 -gencode arch=compute_90,code=sm_90",
        "-gencode arch=compute_80,code=sm_80 -gencode 'arch=compute_90,code=[sm_90,compute_90]'",
        "-gencode=code=sm_90,arch=compute_90",
        "--generate-code 'arch=compute_90a,code=\"sm_90a,compute_90a\"'",
    ],
)
def test_a1_architectures_are_those_that_nvcc_makes(dryrun: Callable[[str], str], line: str) -> None:
    made = re.findall(r"--image3=kind=(elf|ptx),sm=(\w+),", dryrun(line))
    kinds = {"elf": "sm", "ptx": "compute"}
    assert made
    assert set(read(line).all("GPU_ARCHS")) == {f"{kinds[kind]}_{number}" for kind, number in made}


@pytest.mark.parametrize(
    "line",
    [
        "-O2 -Xcompiler -Wall,-fPIC -g",
        "-Xcompiler '-Wall -DN=\"a b\"' -Xcompiler=-fopenmp",
        "--compiler-options -DX=a\\\\,b -noeh",
        "-forward-unknown-to-host-compiler -march=native -Wextra",
    ],
)
def test_the_hosts_flags_are_those_that_nvcc_hands_on(dryrun: Callable[[str], str], line: str) -> None:
    compiled = next(text for text in dryrun(line).splitlines() if " -c -x c++ " in text)
    handed = shlex.split(compiled.removeprefix("#$ "))
    assert [flag for flag in read(line).all("GPU_HOSTFLAGS") if flag not in handed] == []


@pytest.mark.parametrize(
    "line", ["-Wall", "--arch=sm_90", "-lineinfo=true", "-ftz", "-ftz=maybe", "-Ofast", "-gencode arch=compute_90", "-code=sm_90"]
)
def test_what_nvcc_does_not_take_is_not_taken(dryrun: Callable[[str], str], line: str) -> None:
    assert "nvcc fatal" in dryrun(line)
    with pytest.raises(UsageError):
        read(line)


VALUES = {
    "include": "e.h",
    "std": "c++17",
    "U": "X",
    "Ofc": "max",
    "opt-info": "inline",
    "jtd": "50",
    "brief-diag": "true",
    "ccbin": "g++",
    "stdlib": "libstdc++",
    "Werror": "reorder",
    "ftemplate-depth": "900",
    "Xcudafe": "--diag_suppress=20",
    "Xcicc": "-O3",
}


def spelled(row: Row) -> tuple[str, ...]:
    """The option with a value that it takes."""
    return (row.names[0],) if row.takes == NONE else (row.names[0], row.value or VALUES.get(row.short, "20"))


def test_what_is_passed_on_nvrtc_takes(toolchain: Toolchain, tmp_path: Path) -> None:
    library = choose(toolchain, wanted="nvrtc", environ={"PATH": os.environ["PATH"]}, facts=tmp_path).tool.path
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    (tmp_path / "e.h").touch()
    passed = [
        flag for row in TABLE if "nvrtc" in row.kept and row.long != "disable-warnings" for flag in translate(spelled(row)).passed("nvrtc")
    ]
    assert len(passed) > 20
    for flag in passed:
        told = ClangOptions(nvcc_flags=(flag,))
        nvrtc.compile_cuda(library, "k.cu", target=parse("sm_90")[0], options=told, output=tmp_path / "k.ptx", top=str(tmp_path))


def test_what_is_passed_on_nvcc_takes(dryrun: Callable[[str], str]) -> None:
    taken = [row for row in TABLE if "nvcc" in row.kept and not row.value and row.short != "err-no"]  # which -no-err-no contradicts
    passed = [flag for row in taken for flag in translate(spelled(row)).passed("nvcc")]
    assert len(passed) > 30
    assert "fatal" not in dryrun(" ".join(passed))


def test_what_becomes_clangs_clang_takes(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "e.h").touch()
    flags = [flag for row in TABLE if row.to == "GPU_CLANGFLAGS" for flag in translate(spelled(row)).all("GPU_CLANGFLAGS") if flag != "-w"]
    assert toolchain.clang
    basic = [toolchain.clang.path, "-x", "cuda", "--cuda-device-only", "--offload-arch=sm_90", "-nocudainc", "-nocudalib", "-fsyntax-only"]
    ran = subprocess.run([*basic, "-Wno-unknown-cuda-version", *flags, "e.h"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")

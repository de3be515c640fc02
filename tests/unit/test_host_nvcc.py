from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import SourceError, ToolMissingError
from scons_gpu.host.nvcc import NvccOptions, command, compile_object, gencode, link_command
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.frontends import choose

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Tool, Toolchain

SM_90 = parse("sm_90")


@pytest.fixture(scope="module")
def nvcc(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return choose(toolchain, wanted="nvcc", environ={"PATH": os.environ["PATH"]}, facts=tmp_path_factory.mktemp("facts")).tool


def words(nvcc: Tool, **options: object) -> list[str]:
    return command(nvcc, "/top/k.cu", options=NvccOptions(SM_90, **options), output="k.o", depfile="k.d", top="/top")  # type: ignore[arg-type]


def test_each_dialect_is_compiled_once() -> None:
    assert gencode(parse("sm_80 sm_90 compute_90 sm_90a")) == [
        "-gencode",
        "arch=compute_80,code=[sm_80]",
        "-gencode",
        "arch=compute_90,code=[sm_90,compute_90]",
        "-gencode",
        "arch=compute_90a,code=[sm_90a]",
    ]


def test_options_are_spelled_as_nvcc_has_them(nvcc: Tool) -> None:
    made = words(nvcc, cpppath=("inc",), defines=("A=1",), flags=("-std=gnu++17", "-O2"), host_flags=("-std=c++20",), compiler="/bin/g++")
    assert made[1:6] == ["-x", "cu", "-c", "-gencode", "arch=compute_90,code=[sm_90]"]
    assert made[6:12] == ["-DA=1", "-Iinc", "-ccbin", "/bin/g++", "-std=c++20", "-Xcompiler=-O2"]
    assert made[-3:] == ["-o", "k.o", "k.cu"]
    assert words(nvcc, relocatable=True)[3] == "-dc"
    assert "-Xcompiler=-fPIC" in words(nvcc, shared=True)
    assert words(nvcc, shared=True, flags=("-fPIC",)).count("-Xcompiler=-fPIC") == 1
    theirs = words(nvcc, nvcc_flags=("--std=c++17", "--compiler-bindir=g++-12"), flags=("-std=c++20",), compiler="/bin/g++")
    assert [word for word in theirs if "std" in word or "ccbin" in word or "bindir" in word] == ["--std=c++17", "--compiler-bindir=g++-12"]


@pytest.mark.parametrize("flag", ['-DQ="z"', "-DM=f(x,y)", "-DC='a'", "-DB=a\\b", '-DS="a b"', "-DP=$x", "-DW=a b;c", "-Wl,-rpath,/x"])
def test_a_flag_reaches_the_host_compiler_as_it_is(nvcc: Tool, tmp_path: Path, flag: str) -> None:
    (tmp_path / "k.cu").touch()
    options = NvccOptions(SM_90, host_flags=(flag,), defines=(flag[2:],) if flag.startswith("-D") else ())
    argv = command(nvcc, "k.cu", options=options, output="k.o", depfile="k.d", top=str(tmp_path))
    told = subprocess.run([*argv, "--dryrun"], cwd=tmp_path, capture_output=True, text=True, check=True).stderr.splitlines()
    handed = [shlex.split(line.removeprefix("#$ ")) for line in told if " -x c++ " in line]
    assert all(flag in line for line in handed if "-c" in line)
    preprocessed = next(line for line in handed if "-E" in line)
    assert not options.defines or preprocessed[preprocessed.index("-D") + 1] == flag[2:]


CALLED = 'extern "C" __device__ int twice(int x) { return 2 * x; }\n'
CALLING = """\
#include "k.h"
extern "C" __device__ int twice(int x);
template <int N> __global__ void k(int* p) { *p = twice(N); }
int main() { k<NUMBER><<<1, 1>>>(nullptr); return cudaGetLastError() == cudaSuccess; }
"""


def test_objects_and_their_device_link_make_a_program(nvcc: Tool, tmp_path: Path) -> None:
    """With relocatable code: it is the same but for one letter, and the link is another command."""
    (tmp_path / "called.cu").write_text(CALLED)
    (tmp_path / "k.cu").write_text(CALLING)
    (tmp_path / "k.h").write_text("#define NUMBER 3\n")
    options = NvccOptions(SM_90, relocatable=True)
    read = [
        compile_object(nvcc, f"{name}.cu", options=options, output=tmp_path / f"{name}.o", top=str(tmp_path)).dependencies
        for name in ("k", "called")
    ]
    assert "k.h" in read[0]
    assert "k.h" not in read[1]
    subprocess.run(["ar", "rc", "libcalled.a", "called.o"], cwd=tmp_path, check=True)
    subprocess.run(link_command(nvcc, ["k.o", "libcalled.a"], options=options, output="device.o"), cwd=tmp_path, check=True)
    libraries = Path(nvcc.path).resolve().parent.parent / "lib"
    runtime = [f"-L{libraries}", "-lcudadevrt", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    subprocess.run(["g++", "-o", "app", "k.o", "device.o", "libcalled.a", *runtime], cwd=tmp_path, check=True)
    assert subprocess.run(["./app"], cwd=tmp_path, check=False).returncode == 0, "there is no GPU, so that the launch failed"


def test_a_mistake_is_told_in_nvccs_words(nvcc: Tool, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(int* p) { *q = 1; }\n")
    with pytest.raises(SourceError, match=r'k.cu: nvcc: .*identifier "q" is undefined'):
        compile_object(nvcc, "k.cu", options=NvccOptions(SM_90), output=tmp_path / "k.o", top=str(tmp_path))
    assert not (tmp_path / "k.o").exists()
    with pytest.raises(SourceError, match="there is no such file"):
        compile_object(nvcc, "no.cu", options=NvccOptions(SM_90), output=tmp_path / "k.o", top=str(tmp_path))


def test_a_missing_host_compiler_is_named(nvcc: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.cu").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissingError, match="nvcc needs a host compiler, and found none"):
        compile_object(nvcc, "k.cu", options=NvccOptions(SM_90), output=tmp_path / "k.o", top=str(tmp_path))

"""CUDA C++ through the real clang: what comes out, what is said, and that nothing tells where it happened."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.errors import GpuError, SourceError, ToolKilledError, ToolMissingError, ToolSilentError, UnsupportedArchError
from scons_gpu.source.clang import Compiled, command, compile_cuda
from scons_gpu.source.depfile import read_depfile
from scons_gpu.source.diagnostics import warnings_of
from scons_gpu.source.options import ClangOptions
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.tools import Tool, Toolchain, discover

FULL = """\
#include <cassert>
#include <cstdio>
#include "scale.h"
template <class T> __global__ void fold(T *out, const T *in, int n) {
  __shared__ T tile[32];
  extern __shared__ float more[];
  int i = threadIdx.x;
  tile[i % 32] = in[i];
  __syncthreads();
  assert(n > 0);
  if (i < n) out[i] = sinf(tile[31 - i % 32]) * SCALE + more[0];
  if (i == 0) printf("%d\\n", n);
}
void host(float *p) { fold<float><<<1, 32>>>(p, p, 3); }
"""
PLAIN = "__global__ void k(float *p, float x) { *p = x / p[1]; }\n"
# CUDA's headers take a second; most of what is tested here does not need them.
BARE = ("-nocudainc", "-Wno-unused-command-line-argument", "-D__global__=__attribute__((global))", "-D__device__=__attribute__((device))")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The wheels of this environment, whatever else the machine has."""
    empty = tmp_path_factory.mktemp("root")
    return discover(environ={}, prefix=sys.prefix, root=str(empty), facts=empty / "facts")


def compiled(
    here: Toolchain, top: Path, source: str = "k.cu", arch: str = "sm_80", options: ClangOptions | None = None
) -> tuple[str, Compiled]:
    """The IR and what else came out; without options, CUDA's headers are left out."""
    assert here.clang is not None
    output = top / "out" / "k.ll"
    wanted = ClangOptions(flags=BARE) if options is None else options
    result = compile_cuda(here.clang, source, target=parse(arch)[0], options=wanted, headers=here.headers, output=output, top=str(top))
    return output.read_text(), result


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def stub(path: Path, script: str) -> Tool:
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return Tool(name="clang", path=str(path), version="22.1.8", identity="00", origin="test")


def failing(clang: Tool, top: Path, *, headers: str = "/cuda", arch: str = "sm_80") -> GpuError:
    tree(top, {"k.cu": PLAIN})
    output = top / "k.ll"
    with pytest.raises(GpuError) as caught:
        compile_cuda(clang, "k.cu", target=parse(arch)[0], options=ClangOptions(), headers=headers, output=output, top=str(top))
    assert not output.exists()
    assert [path.name for path in top.iterdir() if path.name.startswith(".tmp")] == []
    return caught.value


def test_a_whole_kernel_unoptimised_and_ready_to_be_optimised(here: Toolchain, tmp_path: Path) -> None:
    ir, result = compiled(here, tree(tmp_path, {"k.cu": FULL, "scale.h": "#define SCALE 2.0f\n"}), arch="sm_90a", options=ClangOptions())
    assert 'target triple = "nvptx64-nvidia-cuda"' in ir
    assert re.search(r"define .*ptx_kernel void @_Z4foldIfEvPT_PKS0_i\(", ir)
    assert '"target-cpu"="sm_90a"' in ir
    assert "optnone" not in ir
    assert "alloca" in ir  # not optimised yet
    assert "@vprintf" in ir
    assert "@__assertfail" in ir
    assert "declare" in ir[ir.index("@__nv_sinf(float") - 80 :]  # libdevice is not linked in
    assert 'c"k.cu\\00"' in ir  # assert's __FILE__
    assert re.search(r"@more = external .*addrspace\(3\) global \[0 x float\]", ir)
    assert result.output == ""
    assert result.cpu > 0


def test_r1_dependencies_come_from_the_compiler(here: Toolchain, tmp_path: Path) -> None:
    files = {
        "src/k.cu": '#include "a b.h"\n#include "dir#1/$x.h"\n#include <deep.h>\n' + PLAIN,
        "src/a b.h": "",
        "src/dir#1/$x.h": '#include "../../back.h"\n',
        "back.h": "",
        "inc/deep.h": "#include_next <deep.h>\n",
        "inc2/deep.h": "",
        "forced.h": "#define FORCED\n",
        "unused.h": "",
    }
    elsewhere = tree(tmp_path / "elsewhere", {"far.h": ""})
    top = tree(tmp_path / "top", files)
    cpppath = ("inc", str(top / "inc2"), str(elsewhere))
    source = tree(top, {"src/k.cu": "#include <far.h>\n" + files["src/k.cu"]}) / "src/k.cu"
    _, result = compiled(here, top, str(source), options=ClangOptions(cpppath=cpppath, flags=("-include", "forced.h")))
    own = {path for path in result.dependencies if not Path(path).is_absolute()}
    assert own == {"src/a b.h", "src/dir#1/$x.h", "back.h", "inc/deep.h", "inc2/deep.h", "forced.h"}
    assert str(elsewhere / "far.h") in result.dependencies
    assert f"{here.headers}/include/cuda_runtime.h" in result.dependencies
    assert any(path.endswith("/cmath") for path in result.dependencies)  # system headers too
    assert all((top / path).exists() for path in result.dependencies)
    assert len(set(result.dependencies)) == len(result.dependencies)


@pytest.mark.parametrize("options", [ClangOptions(), ClangOptions(debug=True)], ids=["plain", "debug"])
def test_t10_the_same_tree_in_another_place_gives_the_same_bytes(
    here: Toolchain, tmp_path: Path, options: ClangOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder, an absolute source and include folder, headers and clang elsewhere, other variables."""
    files = {"src/k.cu": "#include <where.h>\n__device__ const char *f() { return __FILE__ __DATE__; }\n" + PLAIN, "inc/where.h": ""}
    files["inc/where.h"] = (
        "#include <cassert>\n__device__ inline const char *w(int n) { assert(n); return __FILE__; }\n__device__ const char *u() { return w(1); }\n"
    )
    one = tree(tmp_path / "one", files)
    two = tree(tmp_path / "two with a longer name" / "below", files)
    first, _ = compiled(here, one, "src/k.cu", options=replace(options, cpppath=("inc",)))
    assert here.clang is not None
    shutil.copytree(here.headers, two / "store" / "cuda", symlinks=True)
    environment = two / "env"
    (environment / "bin").mkdir(parents=True)
    shutil.copy2(here.clang.path, environment / "bin")
    (environment / "lib").symlink_to(Path(here.clang.path).parent.parent / "lib")
    other = replace(here, headers=str(two / "store" / "cuda"), clang=replace(here.clang, path=str(environment / "bin" / "clang-22")))
    for name, value in {
        "CPATH": "/nowhere",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "de_DE.UTF-8",
        "HOME": str(two),
        "SOURCE_DATE_EPOCH": "99",
    }.items():
        monkeypatch.setenv(name, value)
    second, _ = compiled(other, two, str(two / "src" / "k.cu"), options=replace(options, cpppath=(str(two / "inc"),)))
    assert first == second
    assert str(tmp_path) not in first
    assert "src/k.cuJan  1 1970" in first
    assert 'c"inc/where.h\\00"' in first


def test_r8_a_source_outside_the_tree_does_not_tell_its_folder(here: Toolchain, tmp_path: Path) -> None:
    tree(tmp_path, {"far/k.cu": "__device__ const char *f() { return __FILE__; }\n", "top/x": ""})
    ir, _ = compiled(here, tmp_path / "top", str(tmp_path / "far" / "k.cu"))
    assert str(tmp_path) not in ir
    assert 'c"k.cu\\00"' in ir


def test_defines_flags_and_their_order(here: Toolchain, tmp_path: Path) -> None:
    code = "#if A != 1 || B != 3\n#error no\n#endif\nstatic_assert(__cplusplus > 202000L);\n" + PLAIN
    top = tree(tmp_path, {"k.cu": code})
    compiled(here, top, options=ClangOptions(defines=("A", "B=2"), flags=(*BARE, "-UB", "-DB=3", "-std=c++20")))
    with pytest.raises(SourceError, match="error: no"):
        compiled(here, top, options=ClangOptions(defines=("A", "B=2"), flags=BARE))


def test_fast_math_and_ftz(here: Toolchain, tmp_path: Path) -> None:
    code = "__global__ void k(float *p) { *p = sinf(*p) / p[1]; }\n"
    top = tree(tmp_path, {"k.cu": code})
    plain, _ = compiled(here, top, options=ClangOptions())
    ftz, _ = compiled(here, top, options=ClangOptions(ftz=True))
    fast, _ = compiled(here, top, options=ClangOptions(fast_math=True))
    flush = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
    assert (flush in plain, flush in ftz, flush in fast) == (False, True, True)
    assert (" fast " in plain, " fast " in ftz, " fast " in fast) == (False, False, True)
    assert "@__nv_sinf(" in plain
    assert "@__nv_sinf(" in ftz
    assert "@__nv_fast_sinf(" in fast


def test_line_and_debug_information(here: Toolchain, tmp_path: Path) -> None:
    top = tree(tmp_path, {"k.cu": PLAIN})
    wanted = {"plain": ClangOptions(), "line": ClangOptions(lineinfo=True), "debug": ClangOptions(debug=True)}
    texts = {name: compiled(here, top, options=replace(options, flags=BARE))[0] for name, options in wanted.items()}
    kinds = {name: re.findall(r"emissionKind: (\w+)", text) for name, text in texts.items()}
    assert kinds == {"plain": [], "line": ["DebugDirectivesOnly"], "debug": ["FullDebug"]}
    assert "optnone" not in texts["debug"]


@pytest.mark.parametrize("arch", ["sm_75", "compute_90", "sm_100a", "sm_100f", "sm_88", "sm_110", "sm_121f"])
def test_architectures(here: Toolchain, tmp_path: Path, arch: str) -> None:
    """Also those that came after CUDA 12.9's headers, and families, which clang 22 has no name for."""
    target = parse(arch)[0]
    code = f"#if __CUDA_ARCH__ && __CUDA_ARCH__ != {target.number}0\n#error arch\n#endif\n"
    code += f"#if defined(__CUDA_ARCH__) && defined(__CUDA_ARCH_FAMILY_SPECIFIC__) != {int(target.suffix != '')}\n#error family\n#endif\n"
    ir, _ = compiled(here, tree(tmp_path, {"k.cu": code + PLAIN}), arch=arch)
    assert f'"target-cpu"="sm_{target.number}' in ir


def test_warnings_are_handed_out(here: Toolchain, tmp_path: Path) -> None:
    _, result = compiled(here, tree(tmp_path, {"k.cu": "#warning look at this\n" + PLAIN}))
    assert result.output.startswith("k.cu:1:2: warning: look at this")
    assert "generated" not in result.output
    assert warnings_of("1 warning and 2 errors generated when compiling for sm_80.\n2 warnings generated.\nx\n") == "x"


# Errors.


def test_what_nvcc_and_gpp_only_warn_of_is_no_error(here: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *p) { register float x = p[1]; *p = x; }\n")
    _, result = compiled(here, tmp_path, options=ClangOptions(flags=(*BARE, "-std=c++17")))
    assert "warning: ISO C++17 does not allow 'register' storage class specifier" in result.output


def test_a_source_that_does_not_compile(here: Toolchain, tmp_path: Path) -> None:
    top = tree(tmp_path, {"src/k.cu": "__global__ void k() {\n  undeclared = 1;\n}\n"})
    with pytest.raises(SourceError) as caught:
        compiled(here, top, "src/k.cu")
    text = str(caught.value)
    assert text.startswith("src/k.cu (sm_80): clang cannot compile it\n    src/k.cu:2:3: error: use of undeclared identifier 'undeclared'")
    assert not (top / "out").exists()


def test_an_old_output_stays_when_it_fails(here: Toolchain, tmp_path: Path) -> None:
    top = tree(tmp_path, {"k.cu": "syntax error", "out/k.ll": "old"})
    with pytest.raises(SourceError):
        compiled(here, top)
    assert (top / "out/k.ll").read_text() == "old"
    assert [path.name for path in (top / "out").iterdir()] == ["k.ll"]


def test_a4_an_intrinsic_that_the_architecture_lacks(here: Toolchain, tmp_path: Path) -> None:
    code = "__global__ void k(int *p) { *p = __nvvm_redux_sync_add(*p, -1); }\n"
    top = tree(tmp_path, {"k.cu": code})
    compiled(here, top, arch="sm_80")
    with pytest.raises(SourceError) as caught:
        compiled(here, top, arch="sm_75")
    assert "'__nvvm_redux_sync_add' needs target feature" in caught.value.output
    assert caught.value.hint == "sm_75 has no __nvvm_redux_sync_add: it needs sm_80 or newer"
    assert caught.value.arch == "sm_75"


@pytest.mark.parametrize(
    ("call", "arch", "needed"), [("__reduce_add_sync(~0u, 1)", "sm_75", "sm_80"), ("__cluster_barrier_arrive()", "sm_80", "sm_90")]
)
def test_a4_a_function_that_the_headers_keep_from_the_architecture(
    here: Toolchain, tmp_path: Path, call: str, arch: str, needed: str
) -> None:
    top = tree(tmp_path, {"k.cu": f"__global__ void k() {{ {call}; }}\n"})
    compiled(here, top, arch=needed, options=ClangOptions())
    with pytest.raises(SourceError) as caught:
        compiled(here, top, arch=arch, options=ClangOptions())
    assert caught.value.hint == f"{arch} has no {call.partition('(')[0]}: it needs {needed} or newer"


def test_missing_headers_each_with_its_hint(here: Toolchain, tmp_path: Path) -> None:
    top = tree(tmp_path, {"k.cu": '#include "mine.h"\n', "r.cu": "#include <curand_kernel.h>\n"})
    with pytest.raises(SourceError, match=r"if mine\.h lies in another folder, add that to CPPPATH"):
        compiled(here, top)
    with pytest.raises(SourceError, match="pip install nvidia-curand-cu12"):
        compiled(here, top, "r.cu")


def test_no_cpp_standard_library(here: Toolchain, tmp_path: Path) -> None:
    """As on a machine without g++: clang is pointed at a place without one."""
    top = tree(tmp_path, {"k.cu": PLAIN, "empty/x": ""})
    with pytest.raises(ToolMissingError) as caught:
        compiled(here, top, options=ClangOptions(flags=("-nostdinc++",)))
    assert "clang finds no C++ standard library: <" in str(caught.value)
    assert "apt install g++" in caught.value.hint


def test_no_cuda_headers_no_source_no_clang(here: Toolchain, tmp_path: Path) -> None:
    top = tree(tmp_path, {"k.cu": PLAIN})
    with pytest.raises(ToolMissingError, match="clang needs CUDA's headers"):
        compiled(replace(here, headers=""), top)
    with pytest.raises(SourceError, match=r"gone\.cu: there is no such file"):
        compiled(here, top, "gone.cu")
    assert here.clang is not None
    with pytest.raises(ToolMissingError, match="cannot start /no/clang"):
        compiled(replace(here, clang=replace(here.clang, path="/no/clang")), top)


def test_a3_an_architecture_that_clang_does_not_know(here: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchError, match="clang does not know sm_107"):
        compiled(here, tree(tmp_path, {"k.cu": PLAIN}), arch="sm_107")


def test_l10_ends_of_clang_are_told_apart(tmp_path: Path) -> None:
    killed = failing(stub(tmp_path / "a", "echo partial > /dev/null; kill -9 $$\n"), tmp_path)
    assert isinstance(killed, ToolKilledError)
    assert "clang was killed by SIGKILL" in str(killed)
    assert killed.arch == "sm_80"
    crashed = failing(stub(tmp_path / "b", "echo 'PLEASE submit a bug report to ...' >&2; exit 139\n"), tmp_path)
    assert isinstance(crashed, ToolKilledError)
    silent = failing(stub(tmp_path / "c", "exit 0\n"), tmp_path)
    assert isinstance(silent, ToolSilentError)
    mute = failing(stub(tmp_path / "d", "exit 3\n"), tmp_path)
    assert isinstance(mute, SourceError)
    assert "clang ended with status 3 and said nothing" in str(mute)
    full = failing(stub(tmp_path / "e", "echo 'error: unable to open output file: No space left on device' >&2; exit 1\n"), tmp_path)
    assert "disk space" in str(full)
    # An output is of no worth if clang failed after writing it.
    late = 'while [ "$1" != -o ]; do shift; done; echo x > "$2"; echo "k.cu:1:1: error: late" >&2; exit 1\n'
    assert isinstance(failing(stub(tmp_path / "f", late), tmp_path), SourceError)


# The command line.


def test_the_command_line(tmp_path: Path) -> None:
    clang = Tool(name="clang", path="/env/bin/clang-22", version="22.1.8", identity="", origin="")
    options = ClangOptions(cpppath=("inc", f"{tmp_path}/gen", "/far"), defines=("A=1",), flags=("-Wall",))
    argv = command(
        clang,
        f"{tmp_path}/src/k.cu",
        target=parse("sm_90a")[0],
        options=options,
        headers="/cuda",
        output="o",
        depfile="d",
        top=str(tmp_path),
    )
    assert argv[0] == "/env/bin/clang-22"
    assert argv[-1] == "src/k.cu"
    assert "-O0" not in argv
    assert [flag for flag in argv if flag.startswith("-I")] == ["-Iinc", "-Igen", "-I/far"]
    assert sorted(flag for flag in argv if flag.startswith("-ffile-prefix-map=")) == sorted(
        [f"-ffile-prefix-map={tmp_path}/=", "-ffile-prefix-map=/cuda/=cuda/", "-ffile-prefix-map=/env/=clang/"]
    )
    assert argv.index("-DA=1") < argv.index("-Wall")  # the user's flags win
    distribution = replace(clang, path="/usr/bin/clang-22")
    plain = command(
        distribution, "k.cu", target=parse("80")[0], options=options, headers="/cuda", output="o", depfile="d", top=str(tmp_path)
    )
    assert not [flag for flag in plain if flag.endswith("=clang/")]


# What -MD writes.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x: a.cu b.h\n", ("a.cu", "b.h")),
        ("x: a.cu \\\n  b.h \\\n  c.h\n", ("a.cu", "b.h", "c.h")),
        ("x: a.cu \\\r\n  b.h\r\n", ("a.cu", "b.h")),
        ("x: my\\ file.h c\\#.h d$$e.h\n", ("my file.h", "c#.h", "d$e.h")),
        ("x: back\\slash.h\n", ("back\\slash.h",)),
        ("x: two\\\\\\ spaces.h\n", ("two\\ spaces.h",)),
        ("x: a.h\\\\ b.h\n", ("a.h\\", "b.h")),
        ("x: a.h a.h ./a.h\n", ("a.h",)),
        ("x: dir/../a.h\n", ("a.h",)),
        ("x: /usr/include/b.h /top/c.h\n", ("/usr/include/b.h", "c.h")),
        ("x: c:d.h\n", ("c:d.h",)),
        ("x:\n", ()),
        ("", ()),
    ],
)
def test_r1_rules_as_clang_writes_them(text: str, expected: tuple[str, ...]) -> None:
    assert read_depfile(text, top="/top") == expected


def as_clang_writes_it(name: str) -> str:
    """PrintFilename in clang's DependencyFile.cpp."""
    out = ""
    for at, char in enumerate(name):
        if char in " #":
            slashes = len(name[:at]) - len(name[:at].rstrip("\\"))
            out += "\\" * slashes + "\\"
        out += "$$" if char == "$" else char
    return out


@given(st.lists(st.text(alphabet="ab. #$\\:é", min_size=1, max_size=8), min_size=1, max_size=4))
def test_r1_any_name_comes_through(names: list[str]) -> None:
    paths = [f"/top/n{name}/x" for name in names]
    rule = "x: " + " \\\n  ".join(as_clang_writes_it(path) for path in paths) + "\n"
    assert read_depfile(rule, top="/top") == tuple(dict.fromkeys(os.path.relpath(path, "/top") for path in paths))


def test_r1_a_path_through_a_linked_folder(tmp_path: Path) -> None:
    """`link/..` is not where the link stands."""
    tree(tmp_path, {"real/deep/x": "", "real/a.h": ""})
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert read_depfile("x: link/../a.h\n", top=str(tmp_path)) == ("real/a.h",)

"""What assembles and links: every provider that needs no GPU builds the same program; L1 to L7 and L11 of deferral."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import IMAGE, LL_HEAD, Project, ll

from scons_gpu.link import elf
from scons_gpu.toolchain.tools import discover

if TYPE_CHECKING:
    from toolkits import Toolkit

    from scons_gpu.toolchain.tools import Toolchain

STATE = "@counter = addrspace(1) externally_initialized global i32 0\n"
COUNT = """
define ptx_kernel void @count(i32 %by) {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %by seq_cst
  ret void
}
define ptx_kernel void @twice(i32 %by) {
  %more = shl i32 %by, 1
  %old = atomicrmw add ptr addrspace(1) @counter, i32 %more seq_cst
  ret void
}
"""
PROGRAM = (
    IMAGE
    + """\
then = env.GpuModule("then", ["then.ll"])
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], submodules=[then]))
"""
)
LINKING = ("ptxas", "nvptxcompiler+nvlink", "ptxas+nvjitlink", "nvptxcompiler+nvjitlink", "nvjitlink")


@pytest.fixture
def net(project: Project) -> Project:
    project.write("net.ll", ll("one=1.0", "two=2.0", head=STATE) + COUNT)
    project.write("then.ll", ll("one=1.0", "three=3.0"))
    project.write("SConstruct", PROGRAM)
    return project


def symbols(project: Project, module: str = "net") -> tuple[list[str], list[str]]:
    read = elf.read(project.bytes(f"build/net/{module}/sm_90.cubin"), path=module)
    assert not read.relocatable
    kernels = sorted(symbol.name for symbol in read.symbols if symbol.kind == "kernel" and symbol.defined)
    return kernels, [symbol.name for symbol in read.variables]


def registers(project: Project) -> dict[str, int]:
    kernels = project.manifest()["modules"]["net"]["kernels"]
    return {name: kernel["archs"]["sm_90"]["registers"] for name, kernel in kernels.items()}


@pytest.mark.parametrize("provider", LINKING)
def test_every_provider_builds_the_same_program(net: Project, provider: str) -> None:
    net.write("SConstruct", f'env["GPU_PROVIDER"] = "{provider}"\n' + PROGRAM)
    net.build("-j2")
    assert symbols(net) == (["count", "one", "twice", "two"], ["counter"])
    assert symbols(net, "then")[0] == ["one", "three"]
    counted = net.stats()
    deferred = 5 if provider == "nvjitlink" else 0
    assert (counted["references"], counted["shared"], counted["compiled"], counted["deferred"]) == (6, 1, 5 - deferred, deferred)
    net.idle()
    assert all(count and count <= 24 for count in registers(net).values())
    assert net.manifest()["modules"]["net"]["options"]["provider"] == provider
    assert set(net.manifest()["tools"]) & {"ptxas", "nvptxcompiler", "nvlink", "nvjitlink"} == set(parts(provider))
    made = net.files("build/**/*")
    net.edit("net.ll", "fadd float %old, 2.0", "fadd float %old, 5.0")
    net.build()
    assert net.done()["lower"] == 1
    net.edit("net.ll", "fadd float %old, 5.0", "fadd float %old, 2.0")
    net.build()
    assert net.done()["lower"] == 0
    assert {name: data for name, data in net.files("build/**/*").items() if name.endswith((".cubin", ".json", ".fatbin"))} == {
        name: data for name, data in made.items() if name.endswith((".cubin", ".json", ".fatbin"))
    }


def parts(provider: str) -> list[str]:
    return ["ptxas", "nvlink"] if provider == "ptxas" else provider.split("+")


@pytest.mark.parametrize("provider", ["ptxas", "nvptxcompiler", "nvjitlink"])
def test_every_compiler_makes_a_bundle(net: Project, provider: str) -> None:
    net.build("-j2", "GPU_LINK=bundle", f"GPU_PROVIDER={provider}")
    assert all(count and count <= 24 for count in registers(net).values())
    net.idle("GPU_LINK=bundle", f"GPU_PROVIDER={provider}")


def test_going_from_one_provider_to_another_and_back_compiles_once_each(net: Project) -> None:
    net.build("GPU_PROVIDER=ptxas")
    first = net.bytes("build/net/net/sm_90.cubin")
    net.build("GPU_PROVIDER=nvptxcompiler+nvlink")
    assert net.done()["lower"] == 0, "PTX is the same for all"
    assert net.stats()["compiled"] == 5
    net.build("GPU_PROVIDER=ptxas")
    assert net.stats()["compiled"] == 0
    assert net.bytes("build/net/net/sm_90.cubin") == first


@pytest.mark.parametrize("provider", ["nvptxcompiler+nvlink", "nvjitlink"])
def test_order_and_folder_change_no_byte(tmp_path: Path, provider: str) -> None:
    made = []
    for name, jobs in (("one", "-j1"), ("another folder", "-j4")):
        project = Project(tmp_path / name)
        project.write("net.ll", ll("one=1.0", "two=2.0", head=STATE) + COUNT)
        project.write("then.ll", ll("one=1.0", "three=3.0"))
        project.write("SConstruct", PROGRAM)
        project.build(jobs, f"GPU_PROVIDER={provider}")
        made.append({name: data for name, data in project.files("build/**/*").items() if name.endswith((".cubin", ".fatbin", "net.json"))})
    assert made[0] == made[1]


# deferral


@pytest.mark.parametrize("provider", ["nvjitlink", "ptxas", "nvptxcompiler+nvlink"])
def test_l1_ptx_is_handed_to_the_link(net: Project, provider: str) -> None:
    arguments = (f"GPU_PROVIDER={provider}", "GPU_DEFER=always")
    net.build("-j2", *arguments)
    assert symbols(net) == (["count", "one", "twice", "two"], ["counter"])
    assert net.done()["assemble"] == 0, "the relocatable operation is never called"
    assert (net.done()["defer"], net.done()["lower"]) == (6, 6)
    counted = net.stats()
    assert (counted["needed"], counted["deferred"], counted["compiled"], counted["reused"]) == (5, 5, 0, 0)
    kernels = net.manifest()["modules"]["net"]["kernels"]
    assert all(kernel["archs"]["sm_90"]["object"] is None for kernel in kernels.values())
    assert all(count and count <= 24 for count in registers(net).values())
    assert all(kernel["archs"]["sm_90"]["spill_bytes"] == 0 for kernel in kernels.values())
    net.idle(*arguments)
    net.edit("net.ll", "fadd float %old, 2.0", "fadd float %old, 5.0")
    net.build(*arguments)
    assert net.done()["lower"] == 1
    assert net.done()["link"] == 1


@pytest.mark.parametrize("provider", ["ptxas", "nvptxcompiler+nvlink"])
def test_l1_what_is_assembled_in_the_link_is_what_would_have_been_before_it(net: Project, provider: str) -> None:
    net.build(f"GPU_PROVIDER={provider}")
    images = [net.bytes(f"build/net/{name}/sm_90.cubin") for name in ("net", "then")]
    net.build(f"GPU_PROVIDER={provider}", "GPU_DEFER=always")
    assert [net.bytes(f"build/net/{name}/sm_90.cubin") for name in ("net", "then")] == images


def test_l3_deferred_files_keep_their_ptx(net: Project) -> None:
    net.build("GPU_DEFER=always")
    ptx = {data for name, data in net.files(".gpu-store/ptx/*/*.ptx").items()}
    deferred = net.files(".gpu-store/deferred/*/*.dptx")
    assert {data.split(b"\n", 1)[1] for data in deferred.values()} == ptx
    header = json.loads(next(iter(deferred.values())).split(b"\n", 1)[0])
    assert (header["format"], header["arch"]) == ("scons-gpu/dptx/1", "sm_90")
    for name in deferred:
        net.path(name).write_bytes(b"\x7fELF not what it was")
    net.edit("net.ll", "fadd float %old, 2.0", "fadd float %old, 5.0")
    warned = net.build("GPU_DEFER=always")
    assert warned.output.count("it is made again") == len(deferred) - 2, "of the image that is linked again"
    assert symbols(net) == (["count", "one", "twice", "two"], ["counter"])


@pytest.mark.parametrize("provider", ["nvjitlink", "ptxas", "nvptxcompiler+nvlink"])
def test_l5_what_is_wrong_with_the_ptx_is_found_at_the_link_and_names_the_kernel(project: Project, provider: str) -> None:
    bad = 'define ptx_kernel void @bad() {\n  call void asm sideeffect "bogus.u32 nonsense;", ""()\n  ret void\n}\n'
    project.write("good.ll", ll("one=1.0"))
    project.write("sub/bad.ll", LL_HEAD + bad)
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["good.ll", "sub/bad.ll"]))\n')
    result = project.fail(f"GPU_PROVIDER={provider}", "GPU_DEFER=always")
    (line,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: kernel bad of sub/bad.ll (module net, sm_90): ")
    assert "bogus" in result.output
    assert "part-0" not in result.output, "no file of the link's own"
    assert not project.exists("build/net/net/sm_90.cubin")


def test_l2_what_cannot_link_is_refused_when_it_is_read(net: Project) -> None:
    for arguments in (["GPU_PROVIDER=nvptxcompiler"], ["GPU_PROVIDER=nvptxcompiler", "GPU_DEFER=always"]):
        result = net.fail(*arguments)
        assert "GPU_PROVIDER=nvptxcompiler does not fit: this build needs to assemble relocatable objects and link" in result.output
        assert "name what does, as in nvptxcompiler+nvlink" in result.output
        assert net.done() == {}


def test_the_driver_that_is_not_there_says_where_it_was_looked_for(net: Project, tmp_path: Path) -> None:
    if discover(environ={}, prefix="/nowhere", facts=tmp_path).library("driver"):
        pytest.skip("this machine has a driver")
    result = net.fail("GPU_PROVIDER=driver")
    assert "GPU_PROVIDER=driver does not fit" in result.output
    assert "libcuda.so.1" in result.output


@pytest.mark.parametrize("value", ["nvcc", "nvlink", "nvptxcompiler+", "nvjitlink+nvjitlink", "auto+nvlink"])
def test_a_provider_that_does_not_exist_is_told_with_those_that_do(net: Project, value: str) -> None:
    assert f"GPU_PROVIDER={value} is not known" in net.fail(f"GPU_PROVIDER={value}").output


def test_l7_none_ends_with_ptx_in_the_fatbin_and_says_so(net: Project) -> None:
    net.build("GPU_PROVIDER=ptxas")
    said = net.build("GPU_PROVIDER=none")
    assert "none: taken: nothing assembles, modules end with PTX" in said.stderr
    assert not net.exists("build/net/net/sm_90.cubin"), "nobody may load it now"
    text = net.read("build/net/net/sm_90.ptx")
    assert text.count(".entry") == 4
    assert net.done()["assemble"] == 0
    kernel = net.manifest()["modules"]["net"]["kernels"]["one"]["archs"]["sm_90"]
    assert (kernel["object"], kernel["registers"]) == (None, None)
    assert set(net.manifest()["tools"]) == {"llvm", "libdevice", "fatbinary"}
    net.idle("GPU_PROVIDER=none")


def test_l7_without_any_of_nvidias_tools_the_fatbin_holds_the_ptx(net: Project, toolkit: Toolkit) -> None:
    for name in ("ptxas", "nvlink"):
        (toolkit.root / "bin" / name).unlink()
    arguments = (f"GPU_CUDA_PATH={toolkit.root}", "GPU_PROVIDER=none")
    net.build(*arguments)
    assert toolkit.counts() == {"fatbinary": 2}
    (toolkit.root / "bin/fatbinary").unlink()
    (toolkit.root / "lib").mkdir()
    (toolkit.root / "lib/libnvvm.so.4").write_text("not a library: only so that the folder is taken for a toolkit")
    net.build(*arguments)
    fatbin = net.bytes("build/net/net.fatbin")
    assert fatbin.startswith(b"\x50\xed\x55\xba")
    assert fatbin.count(b".entry") == 4
    net.idle(*arguments)


BIG = """
@tile = internal addrspace(3) global [50000 x i8] undef
define ptx_kernel void @big(ptr addrspace(1) %data) {
  %index = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %place = getelementptr [50000 x i8], ptr addrspace(3) @tile, i32 0, i32 %index
  store volatile i8 1, ptr addrspace(3) %place
  ret void
}
"""


def test_s7_what_no_gpu_takes_is_refused_also_where_nothing_assembles(project: Project) -> None:
    """The driver would refuse the whole module when it is loaded."""
    project.write("good.ll", ll("one=1.0"))
    project.write("sub/big.ll", LL_HEAD + BIG)
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["good.ll", "sub/big.ll"]))\n')
    for arch, *arguments in (["sm_90", "GPU_PROVIDER=none"], ["sm_90", "GPU_PROVIDER=none", "GPU_LINK=bundle"], ["compute_90"]):
        result = project.fail(f"GPU_ARCHS={arch}", *arguments)
        said = f"error: kernel big of sub/big.ll (module net, {arch}): its 50000 bytes of __shared__ variables are more than the 49152"
        assert said in result.output
        assert " tile" in result.output
        assert not project.exists("build/net/net.fatbin")
    plan = project.path("build/net/net/compute_90.plan.json")
    by_hand = project.command("link", str(plan), "-o", "again.ptx")
    assert (by_hand.returncode, project.exists("again.ptx")) == (1, False)
    assert "its 50000 bytes of __shared__ variables" in by_hand.output


def test_l6_when_an_assembler_appears_the_next_build_makes_objects(net: Project, toolkit: Toolkit, tmp_path: Path) -> None:
    if discover(environ={}, prefix="/nowhere", facts=tmp_path / "facts").library("driver"):
        pytest.skip("this machine has a driver, which links")
    hidden = {name: (toolkit.root / "bin" / name).rename(toolkit.root / name) for name in ("ptxas", "nvlink")}
    argument = f"GPU_CUDA_PATH={toolkit.root}"
    said = net.build(argument)
    assert "none: taken: nothing that assembles was found, modules end with PTX" in said.stderr
    assert said.stderr.count("\n") == 1, said.stderr
    assert net.exists("build/net/net/sm_90.ptx")
    for name, path in hidden.items():
        path.rename(toolkit.root / "bin" / name)
    net.build(argument)
    assert symbols(net) == (["count", "one", "twice", "two"], ["counter"])
    assert not net.exists("build/net/net/sm_90.ptx")
    assert net.done()["lower"] == 0
    assert toolkit.counts()["ptxas"] == 6


# the driver alone, over its stub

STUBBED = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "scons_gpu.assemble.driver_library":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            from driver_stub import DriverStub
            from scons_gpu.assemble import nvjitlink_library
            execute(module)
            module.bindings = lambda: DriverStub(nvjitlink_library.load({library!r}))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""Sitecustomize of every Python of a build: cuda.bindings finds a driver, in SCons and in workers."""
TUNED = """\
values = [{}, {"GPU_FTZ": 1}]
env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"], candidates={"count": values}))
"""


@pytest.fixture
def with_driver(project: Project, toolchain: Toolchain) -> Project:
    nvjitlink = toolchain.library("nvjitlink")
    assert nvjitlink is not None
    project.write("stub/sitecustomize.py", STUBBED.replace("{library!r}", repr(nvjitlink.path)))
    project.write("stub/libcuda.so.580.0", "not a library: only so that one is found")
    project.path("stub/libcuda.so.1").symlink_to("libcuda.so.580.0")
    project.environ["PYTHONPATH"] += f":{project.path('stub')}:{Path(__file__).parent}"
    project.environ["LD_LIBRARY_PATH"] = str(project.path("stub"))
    return project


def test_m13_the_driver_alone_measures_candidates_that_use_state(with_driver: Project) -> None:
    """It makes no objects that lack something, and a candidate lacks its module's state."""
    with_driver.write("net.ll", ll("one=1.0", head=STATE) + COUNT)
    with_driver.write("SConstruct", TUNED)
    printed = with_driver.build("-j2", "GPU_PROVIDER=driver", "GPU_ASSEMBLECOMSTR=").stdout
    assert symbols(with_driver) == (["count", "one", "twice"], ["counter"])
    assert with_driver.manifest()["modules"]["net"]["kernels"]["count"]["archs"]["sm_90"]["chosen"]["by"] == "resources"
    choice = json.loads(with_driver.read("build/net/net/sm_90.choice.json").splitlines()[0])
    results = choice["problems"]["count"]
    assert [bool(each["registers"] and each["instructions"] and not each["failure"]) for each in results] == [True, True]
    with_driver.idle("GPU_PROVIDER=driver")
    line = next(line for line in printed.splitlines() if line.startswith("scons-gpu") and " assemble " in line)
    *words, made = shlex.split(line)[1:]
    by_hand = with_driver.command(*words, "again.cubin")
    assert by_hand.returncode == 0, by_hand.output
    assert with_driver.bytes("again.cubin") == Path(made).read_bytes()


# what holds for every provider


@pytest.mark.parametrize("provider", ["nvptxcompiler+nvlink", "nvjitlink"])
def test_t3_warnings_of_a_reused_unit_are_shown_again(net: Project, provider: str) -> None:
    arguments = (f"GPU_PROVIDER={provider}", "GPU_MAXRREGCOUNT=16")
    first = net.build(*arguments)
    assert "register count of 16" in first.stderr
    net.edit("net.ll", "fadd float %old, 2.0", "fadd float %old, 5.0")
    again = net.build(*arguments)
    shown = "net  sm_90:" if provider == "nvjitlink" else "one  sm_90:"  # what the link assembles, it says of the module
    assert again.stderr.count(shown) == 1


@pytest.mark.parametrize("provider", ["nvptxcompiler+nvlink", "nvjitlink"])
def test_a4_what_an_architecture_lacks_is_told_with_the_kernel(project: Project, provider: str) -> None:
    asm = 'define ptx_kernel void @late() {\n  call void asm sideeffect "griddepcontrol.wait;", ""()\n  ret void\n}\n'
    project.write("k.ll", LL_HEAD + asm)
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["k.ll"], GPU_ARCHS=["sm_80"]))\n')
    result = project.fail(f"GPU_PROVIDER={provider}")
    assert "error: kernel late of net/k.ll (sm_80): " in result.output
    assert "griddepcontrol" in result.output
    assert "sm_90" in result.output

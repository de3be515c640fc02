"""GPU_DUMP: what units become on their way, as files that nothing is made of."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from project import LL_HEAD, Project, ll

from scons_gpu.link import elf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODULES = """
image = env.GpuModule("image", ["net.ll"], GPU_LINK="image")
apart = env.GpuModule("apart", ["net.ll"], GPU_LINK="bundle")
whole = env.GpuModule("whole", ["net.ll"], GPU_LINK="whole")
merged = env.GpuModule("merged", ["net.ll"], GPU_LINK="merge")
text = env.GpuModule("text", ["net.ll"], GPU_ARCHS="compute_90")
env.GpuProgram("build/net", env.GpuModule("net", [], submodules=[image, apart, whole, merged, text]))
"""
SHAPES = {
    "image": ("sm_90", ["cubin", "ll", "opt.ll", "ptx", "sass"]),
    "apart": ("sm_90", ["cubin", "ll", "opt.ll", "ptx", "sass"]),
    "whole": ("sm_90", ["ll", "opt.ll", "ptx"]),
    "merged": ("sm_90", ["cubin", "ll", "opt.ll", "ptx", "sass"]),
    "text": ("compute_90", ["ll", "opt.ll", "ptx"]),
}
"""Module → architecture, and what each of its units is written as."""
STATE = "@counter = addrspace(1) externally_initialized global i32 0\n"
STACK = """
define ptx_kernel void @odd(ptr addrspace(1) %x) {
  %slot = alloca i32
  store i32 9, ptr %slot
  %value = load i32, ptr %slot
  store i32 %value, ptr addrspace(1) %x
  ret void
}
"""
"""A kernel that optimising makes another one of."""


def net(project: Project) -> Project:
    project.write("SConstruct", MODULES)
    project.write("net.ll", ll("one=1.0", head=STATE) + STACK)
    return project


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Built, with all that can be written in `seen`. Who changes anything works on a copy."""
    project = net(Project(tmp_path_factory.mktemp("dumped") / "project"))
    project.build("-j2", "GPU_DUMP=seen")
    return project


@pytest.fixture
def copy(dumped: Project, tmp_path: Path) -> Project:
    shutil.copytree(dumped.root, tmp_path / "project")
    return Project(tmp_path / "project")


def names(kernels: Sequence[str], module: str) -> list[str]:
    arch, suffixes = SHAPES[module]
    return sorted(f"{kernel}.{arch}.{suffix}" for kernel in kernels for suffix in suffixes)


def written(project: Project, folder: str) -> list[str]:
    """The files of kernels, without those of state."""
    found = (name.removeprefix(f"{folder}/") for name in project.files(f"{folder}/*"))
    return sorted(name for name in found if not name.startswith("state"))


def test_each_unit_of_each_link_mode_is_written(dumped: Project) -> None:
    project = dumped
    for module, (arch, _) in SHAPES.items():
        assert written(project, f"seen/build/net/{module}") == names(["odd", "one"], module)
        base = f"seen/build/net/{module}/odd.{arch}"
        assert "alloca" in project.read(f"{base}.ll")
        assert "define ptx_kernel void @odd(" in project.read(f"{base}.opt.ll")
        assert "alloca" not in project.read(f"{base}.opt.ll")
        assert ".entry odd(" in project.read(f"{base}.ptx")
    for module in ("image", "apart", "merged"):
        read = elf.read(project.bytes(f"seen/build/net/{module}/odd.sm_90.cubin"))
        assert ([kernel.symbol for kernel in read.kernels], read.relocatable) == (["odd"], module == "image")
        assert ".text.odd" in project.read(f"seen/build/net/{module}/odd.sm_90.sass")
    # The image too: where it is linked, and where it is assembled in one piece.
    for module in ("image", "whole", "merged"):
        assert project.bytes(f"seen/build/net/{module}.sm_90.cubin") == project.bytes(f"build/net/{module}/sm_90.cubin")
        assert all(f".text.{kernel}" in project.read(f"seen/build/net/{module}.sm_90.sass") for kernel in ("odd", "one"))
    assert project.read("seen/build/net/text.compute_90.ptx") == project.read("build/net/text/compute_90.ptx")


def test_a_build_with_nothing_to_do_writes_the_same_and_changes_nothing(copy: Project) -> None:
    project = copy
    made = {name: data for name, data in project.files("build/**/*").items() if not name.endswith(".d")}
    project.idle()  # no signature knows of it
    project.build("-j3", "GPU_DUMP=second")
    assert set(project.done()) == {"dump"}
    assert [project.stats()[name] for name in ("compiled", "reused", "linked", "failed")] == [0, 0, 0, 0]
    first, second = project.files("seen/**/*"), project.files("second/**/*")
    assert {name.partition("/")[2]: data for name, data in first.items()} == {name.partition("/")[2]: data for name, data in second.items()}
    assert len(first) > 40
    assert {name: data for name, data in project.files("build/**/*").items() if not name.endswith(".d")} == made
    project.idle()


def test_the_dump_of_one_image_is_that_of_its_units(project: Project) -> None:
    net(project).build("GPU_DUMP=seen", "build/net/whole.fatbin")
    assert {name.split("/")[3].partition(".")[0] for name in project.files("seen/**/*")} == {"whole"}


def test_an_older_dump_is_replaced(copy: Project) -> None:
    project = copy
    project.write("net.ll", ll("one=7.0", head=STATE) + STACK)
    project.edit(
        "SConstruct", 'env.GpuModule("apart", ["net.ll"], GPU_LINK="bundle")', 'env.GpuModule("apart", ["net.ll"], GPU_LINK="whole")'
    )
    project.write("seen/mine", "a file of the user's\n")
    project.build("GPU_DUMP=seen")
    assert "0f40E00000" in project.read("seen/build/net/image/one.sm_90.ptx")
    assert written(project, "seen/build/net/apart") == names(["odd", "one"], "whole")
    assert project.read("seen/mine") == "a file of the user's\n"
    assert not list(project.root.glob("seen/**/.*"))


def test_a_store_that_is_gone_is_filled_again(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    project.write("net.ll", ll("one=1.0"))
    project.build()
    for kind in ("slice", "ptx", "object"):
        for path in project.root.glob(f".gpu-store/{kind}/*/*"):
            path.unlink()
    project.build("GPU_DUMP=seen")
    assert project.done() == {"lower": 1, "assemble": 1, "dump": 2}
    assert len(project.files("seen/build/net/net/*")) == 5
    # An object alone does for a build; its PTX is made again to be shown.
    for path in project.root.glob(".gpu-store/ptx/*/*"):
        path.unlink()
    project.build("GPU_DUMP=again")
    assert project.done() == {"dump": 2}
    assert project.read("again/build/net/net/one.sm_90.ptx") == project.read("seen/build/net/net/one.sm_90.ptx")


@pytest.mark.parametrize("option", ["-n", "-q", "-c"])
def test_who_only_looks_writes_nothing_and_cleaning_takes_nothing(copy: Project, option: str) -> None:
    project = copy
    shutil.rmtree(project.path("seen"))
    project.write("seen/build/net/image/one.sm_90.ptx", "as it was\n")
    assert project.run(option, "GPU_DUMP=seen").returncode == 0
    assert project.files("seen/**/*") == {"seen/build/net/image/one.sm_90.ptx": b"as it was\n"}


def test_with_k_what_could_be_made_is_written(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    bad = 'define ptx_kernel void @bad(ptr addrspace(1) %x) {\n  call void asm sideeffect "bogus;", ""()\n  ret void\n}\n'
    project.write("net.ll", ll("one=1.0") + bad)
    project.fail("-k", "-j2", "GPU_DUMP=seen")
    assert written(project, "seen/build/net/net") == names(["one"], "image")
    # What no assembler takes can still be read where the units need none.
    project.fail("-k", "GPU_DUMP=seen", "GPU_LINK=whole")
    assert written(project, "seen/build/net/net") == names(["bad", "one"], "whole")


def test_of_candidates_the_chosen_one_is_written(project: Project) -> None:
    project.write(
        "SConstruct",
        'net = env.GpuModule("net", ["net.ll"], candidates={"odd": [{"GPU_OPT": 0}, {"GPU_OPT": 3}]})\nenv.GpuProgram("build/net", net)\n',
    )
    project.write("net.ll", ll("one=1.0", head=STATE) + STACK)
    project.build("GPU_DUMP=seen")
    (odd,) = [name for name in written(project, "seen/build/net/net") if name.startswith("odd") and name.endswith(".opt.ll")]
    chosen = project.manifest()["modules"]["net"]["kernels"]["odd"]["archs"]["sm_90"]["chosen"]["candidate"]
    assert odd.startswith(f"odd_{chosen.replace('=', '_')}-")
    first = project.files("seen/**/*")
    project.build("GPU_DUMP=again")
    assert [data for _, data in sorted(project.files("again/**/*").items())] == [data for _, data in sorted(first.items())]
    assert set(project.done()) == {"dump"}


def test_a_folder_that_cannot_be_written_is_named(project: Project) -> None:
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    project.write("net.ll", LL_HEAD + STACK)
    project.write("taken", "a file\n")
    project.write("seen/build", "a file too\n")
    project.path("loop").symlink_to("loop")
    project.build()
    for name, file in (("taken", "taken"), ("taken/below", "taken"), ("loop", "loop")):
        refused = project.fail(f"GPU_DUMP={name}").stderr
        assert refused == f"error: GPU_DUMP={name}: {project.path(file)} is no folder\n  name a folder; one that is not there yet is made\n"
    assert "the files would lie among those that the build makes" in project.fail("GPU_DUMP=.").stderr
    project.idle()  # what was refused took nothing away
    project.path("build/net/net/sm_90.cubin").unlink()
    assert f"GPU_DUMP: File {project.path('seen/build')} found where directory expected" in project.fail("GPU_DUMP=seen").stderr
    result = project.fail("GPU_DUMP=1")
    assert "error: GPU_DUMP=1 names no folder\n  as in GPU_DUMP=dump" in result.stderr
    project.build()


def test_t1_slices_that_the_store_lost_are_written_all_the_same(project: Project) -> None:
    """Where nothing is lowered for the files, because libNVVM shows no optimised IR."""
    project.write("SConstruct", 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n')
    project.write("net.ll", ll("one=1.0"))
    project.build("GPU_ARCHS=sm_100", "GPU_LOWER=nvvm")
    shutil.rmtree(project.path(".gpu-store/slice"))
    project.build("GPU_ARCHS=sm_100", "GPU_LOWER=nvvm", "GPU_DUMP=seen")
    assert "define ptx_kernel void @one(" in project.read("seen/build/net/net/one.sm_100.ll")
    assert project.compiled() == []

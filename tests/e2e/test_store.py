"""T1 to T3: a store that is damaged, deleted, read-only, full, shared; and what tools said of a unit that is reused."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import LL_HEAD, Project, ll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NET = 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'
KERNELS = ("one=1.0", "two=2.0", "three=3.0")


@pytest.fixture
def net(project: Project) -> Project:
    project.write("SConstruct", NET)
    project.write("net.ll", ll(*KERNELS))
    return project


# T1


def entries(project: Project, kind: str) -> list[Path]:
    """The entries of a store without their records."""
    return [path for path in sorted(project.root.glob(f".gpu-store/{kind}/*/*")) if not path.name.endswith((".json", ".lock"))]


def truncated(first: Path, _: Path) -> None:
    os.truncate(first, first.stat().st_size // 2)


def emptied(first: Path, _: Path) -> None:
    os.truncate(first, 0)


def exchanged(first: Path, second: Path) -> None:
    """Two valid entries under each other's name; if they are of one size, nothing else of them changes."""
    times = [path.stat() for path in (first, second)]
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    for path, status in zip((first, second), times, strict=True):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def foreign(first: Path, _: Path) -> None:
    first.write_bytes(b"something else altogether")


def one_bit(first: Path, _: Path) -> None:
    status, data = first.stat(), bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))


def unreadable(first: Path, _: Path) -> None:
    """Also for root: a folder in its place."""
    first.unlink()
    first.mkdir()


def no_record(first: Path, _: Path) -> None:
    first.with_name(first.name + ".json").write_text("{}")


DAMAGES = (truncated, emptied, exchanged, foreign, one_bit, unreadable)


def damaged(project: Project, kind: str, damages: Sequence[Callable[[Path, Path], None]]) -> int:
    """Damages entries of a kind, each in another way. Gives how many are damaged."""
    found = iter(entries(project, kind))
    for damage in damages:
        damage(next(found), next(found) if damage is exchanged else Path())
    return len(damages) + 1


def test_t1_damaged_objects_are_made_again_with_a_warning(net: Project) -> None:
    net.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(10))))
    net.build()
    made = net.files("build/**/*")
    count = damaged(net, "object", [*DAMAGES, no_record])
    assert net.run("-q").returncode == 0  # images are current, so nobody looks
    net.image("net").unlink()
    result = net.build()
    assert (net.done()["lower"], net.done()["assemble"]) == (0, count)
    assert result.stderr.count("it is made again") == count, result.stderr
    assert net.files("build/**/*") == made
    assert net.run("-q").returncode == 0


def test_t1_damaged_ptx_and_slices_are_made_again(net: Project) -> None:
    net.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(8))))
    net.build()
    made = net.files("build/**/*")
    kept = {path.name: path.read_bytes() for path in entries(net, "slice")}
    for kind in ("slice", "ptx"):
        damaged(net, kind, DAMAGES)
    shutil.rmtree(net.path(".gpu-store/object"))
    net.image("net").unlink()
    result = net.build()
    assert (net.done()["lower"], net.done()["assemble"]) == (len(DAMAGES) + 1, 8)
    assert result.stderr.count("it is made again") > len(DAMAGES)
    assert net.files("build/**/*") == made
    assert {path.name: path.read_bytes() for path in entries(net, "slice")} == kept
    assert net.run("-q").returncode == 0


def test_t1_a_store_that_was_deleted_while_images_are_current_is_nothing_to_do(net: Project) -> None:
    net.build()
    made = net.files("build/**/*")
    shutil.rmtree(net.path(".gpu-store"))
    assert net.run("-q").returncode == 0
    net.build()
    assert net.done() == {}
    assert net.files("build/**/*") == made

    shutil.rmtree(net.path(".gpu-store"))
    net.edit("net.ll", "2.0", "2.5")
    net.build()
    assert net.compiled() == ["one", "three", "two"]
    net.edit("net.ll", "2.5", "2.0")
    net.build()
    assert net.compiled() == ["two"], "its slice is there again, its PTX never was in this store"
    assert net.files("build/**/*") == made
    assert net.run("-q").returncode == 0


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A tmpfs of its own at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_t1_a_read_only_store_is_read_and_new_entries_go_to_the_builds_own(net: Project, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with mounted(shared):
        store = f"GPU_STORE={shared}/store"
        net.build(store)
        made = net.files("build/**/*")
        subprocess.run(["mount", "-o", "remount,ro", str(shared)], check=True)
        before = sorted(shared.rglob("*"))
        shutil.rmtree(net.path("build"))
        result = net.build(store)
        assert result.stderr.count(f"store {shared}/store is read-only") == 1
        assert net.done("build/net/.gpu-store")["lower"] == 0
        own = "build/net/.gpu-store/"
        assert {name: data for name, data in net.files("build/**/*").items() if not name.startswith(own)} == made

        net.edit("net.ll", "2.0", "2.5")
        net.build(store)
        assert net.compiled("build/net/.gpu-store") == ["two"]
        assert net.run("-q", store).returncode == 0
        assert sorted(shared.rglob("*")) == before


def test_t1_a_list_of_stores_is_read_in_order_and_the_first_is_written(tmp_path: Path) -> None:
    first, second = Project(tmp_path / "first"), Project(tmp_path / "second")
    first.write("SConstruct", NET)
    first.write("net.ll", ll(*KERNELS))
    first.build()
    theirs = first.files(".gpu-store/**/*")
    second.write("SConstruct", f'env["GPU_STORE"] = ["mine", {str(first.path(".gpu-store"))!r}]\n' + NET)
    second.write("net.ll", ll("one=1.0", "two=2.0", "four=4.0"))
    second.build()
    assert second.compiled("mine") == ["four"]
    assert first.files(".gpu-store/**/*") == theirs


# T2


def test_t2_builds_in_one_store_at_once_are_all_right(tmp_path: Path) -> None:
    calm = Project(tmp_path / "calm")
    projects = [calm, *(Project(tmp_path / f"at_once{number}") for number in range(2))]
    for project in projects:
        project.write("SConstruct", 'import os\nenv["GPU_STORE"] = os.environ["STORE"]\n' + NET)
        project.write("net.ll", ll(*(f"k{number}={number}.0" for number in range(8))))
        project.environ["STORE"] = str(tmp_path / "store")
    calm.environ["STORE"] = str(tmp_path / "apart")
    calm.build()
    running = [project.start("-j2") for project in projects[1:]]
    for process in running:
        output, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, ""), output
    for project in projects[1:]:
        assert project.files("build/**/*") == calm.files("build/**/*")
        project.environ["STORE"] = str(tmp_path / "store")
        assert project.run("-q").returncode == 0
    result = calm.command("--store", str(tmp_path / "store"), "gc")
    assert result.returncode == 0, result.output


# T3

STUBBORN = """
define ptx_kernel void @stubborn(ptr addrspace(1) %data, i32 %count) {
  br label %loop
loop:
  %i = phi i32 [ 0, %0 ], [ %next, %loop ]
  %old = load volatile float, ptr addrspace(1) %data, align 4
  %new = fadd float %old, 1.0
  store volatile float %new, ptr addrspace(1) %data, align 4
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %count
  br i1 %more, label %loop, label %done, !llvm.loop !0
done:
  ret void
}
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.enable", i1 true}
"""


@pytest.mark.parametrize("arch", ["sm_90", "compute_90"])
def test_t3_warnings_of_a_reused_unit_are_shown_again(project: Project, arch: str) -> None:
    project.write("SConstruct", 'then = env.GpuModule("then", ["net.ll"])\nenv.GpuProgram("build/net", then)\n')
    project.write("net.ll", ll("calm=1.0") + STUBBORN)
    said = f"stubborn  {arch}:\n"
    first = project.build(f"GPU_ARCHS={arch}").stderr
    assert first.count(said) == 1
    assert "loop not vectorized" in first
    assert project.build(f"GPU_ARCHS={arch}").stderr == "", "nothing was linked"

    project.edit("net.ll", "calm", "quiet")
    again = project.build(f"GPU_ARCHS={arch}").stderr
    assert project.compiled() == ["quiet"]
    assert again == first


def test_t3_so_are_the_assemblers_and_of_the_module_that_takes_it(project: Project) -> None:
    project.write("SConstruct", NET)
    crowded = "".join(f"  %v{number} = load volatile float, ptr addrspace(1) %data\n" for number in range(64))
    sums = "".join(f"  %s{number} = fadd float %{'v0' if number == 1 else f's{number - 1}'}, %v{64 - number}\n" for number in range(1, 64))
    kernel = f"define ptx_kernel void @crowded(ptr addrspace(1) %data) {{\n{crowded}{sums}  store float %s63, ptr addrspace(1) %data\n  ret void\n}}\n"
    project.write("net.ll", LL_HEAD + kernel)
    options = ("GPU_MAXRREGCOUNT=16", "GPU_PTXASFLAGS=--warn-on-spills")
    first = project.build(*options).stderr
    assert "spill" in first.lower(), first
    project.image("net").unlink()
    assert project.build(*options).stderr == first
    assert project.compiled() == []


# a full disk (R5, "Bad input")


@pytest.mark.parametrize("where", ["build", ".gpu-store"])
def test_r5_a_disk_that_fills_up_leaves_nothing_half_written(net: Project, where: str) -> None:
    kernels = [f"k{number}={number}.0" for number in range(24)]
    net.write("net.ll", ll(*kernels))
    with mounted(net.path(where), "-o", "size=32k"):
        result = net.fail("-k", "-j2")
        assert "error: " in result.stderr
        assert "cannot write " in result.stderr
        assert "no space left on device" in result.stderr
        assert not net.exists("build/net/net.fatbin")
        assert not net.exists("build/net.json")
        assert list(net.path(where).rglob(".tmp-*")) == []
        subprocess.run(["mount", "-o", "remount,size=64m", str(net.path(where))], check=True)
        net.build()
        assert len(net.kernels("net")) == 24
        assert net.run("-q").returncode == 0

"""Twenty sources in the shapes that real CUDA projects have: built in every mode in one run of SCons, and held against the undivided build.

docs/real-projects.md tells where each was met. Kernels that may be "different" are listed with the reason; all others may not.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from project import Project

from scons_gpu.inspect.compare import Report, compare
from scons_gpu.inspect.reference import Reference, Tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.toolchain.tools import Toolchain

SHAPES = Path(__file__).parent / "real_shapes"
LINKS = ("image", "bundle")
FURTHER = {
    "merge": {"GPU_LINK": "merge"},
    "whole": {"GPU_LINK": "whole"},
    "pair": {"GPU_LINK": "image", "GPU_PROVIDER": "nvptxcompiler+nvjitlink"},
    "deferred": {"GPU_PROVIDER": "nvjitlink", "GPU_DEFER": "always"},
    "none": {"GPU_PROVIDER": "none"},
}
"""Modes besides, each with what is set for its modules."""

SCONSTRUCT = f"""
further = {FURTHER!r}
"""
SCONSTRUCT += """
from pathlib import Path
groups = {path.name: sorted(map(str, [*path.glob("*.cu"), *path.glob("*.ll")])) for path in sorted(Path("shapes").iterdir())}
images = [env.GpuModule(name, sources, GPU_LINK="image") for name, sources in groups.items()]
# The front end runs once: all other modules take the IR that it wrote for the images'.
written = {name: [f"image/{name}/{Path(source).name}.sm_90.ll" for source in sources] for name, sources in groups.items()}
bundles = [env.GpuModule(name, sources, GPU_LINK="bundle") for name, sources in written.items()]
env.GpuProgram("image", env.GpuModule("shapes", [], submodules=images))
env.GpuProgram("bundle", env.GpuModule("shapes", [], submodules=bundles))
for mode, overrides in further.items():
    built = [env.GpuModule(name, sources, **overrides) for name, sources in written.items()]
    env.GpuProgram(mode, env.GpuModule("shapes", [], submodules=built))
"""

KERNELS = {"flow": 21, "language": 16, "math": 16, "memory": 20}

JOINED = {
    "language": [("indirect-call", ["through_a_choice", "through_a_table", "through_a_virtual"])],
    "memory": [("state", ["advance", "count", "report"]), ("state", ["columns", "rows"])],
}
"""In bundles. In images nothing is joined."""

POINTERS = "a call through a pointer is a real one: it takes the registers and the stack of the ABI, known only to the linker"
SHARED = "where shared variables lie is settled at the link, and registers follow from it"
LOCAL = "ptxas orders work on a local array in another way when it compiles for a linker"
DIFFERENT = {
    "through_a_table": POINTERS,
    "through_a_choice": POINTERS,
    "through_a_virtual": POINTERS,
    "normalise": SHARED,
    "weigh": SHARED,
    "transpose": SHARED,
    "select_smallest": LOCAL,
    "price": LOCAL,
    "waves": LOCAL,
    "doubles": LOCAL,
}
"""In images. In bundles no kernel is."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("shapes"))
    shutil.copytree(SHAPES, project.path("shapes"))
    project.write("SConstruct", SCONSTRUCT)
    built = project.run("-j2", timeout=1500)
    assert built.returncode == 0, built.output
    return project


@pytest.fixture(scope="module")
def reports(shapes: Project, toolchain: Toolchain) -> dict[str, Report]:
    known: dict[object, Reference] = {}
    return {link: compare(shapes.path(f"{link}.json"), tools=Tools.of(toolchain), references=known) for link in (*LINKS, "whole")}


def units(project: Project, link: str, group: str) -> Iterator[tuple[str, list[str]]]:
    """Why its kernels are joined, and their short names, of each unit."""
    for part in project.plan(group, stem=link)["parts"]:
        if part["role"] == "unit":
            yield part["joined"], sorted(kernel["readable"].partition("(")[0] for kernel in part["kernels"])


@pytest.mark.parametrize("group", sorted(KERNELS))
def test_every_kernel_is_a_unit_and_joins_have_their_reason(shapes: Project, group: str) -> None:
    for link in LINKS:
        found = list(units(shapes, link, group))
        assert sum(len(kernels) for _, kernels in found) == KERNELS[group]
        assert sorted(unit for unit in found if unit[0]) == (JOINED.get(group, []) if link == "bundle" else [])
        assert all(len(kernels) == 1 for joined, kernels in found if not joined)


def test_in_a_bundle_every_kernel_has_the_undivided_code(reports: dict[str, Report]) -> None:
    counts = reports["bundle"].counts()
    assert counts["identical"] + counts["constant placement"] == sum(KERNELS.values())


def test_in_an_image_what_differs_is_known_and_due_to_relocatable_assembly(reports: dict[str, Report]) -> None:
    found = {one.readable.partition("(")[0]: one.verdict.cause for one in reports["image"].different}
    assert found.keys() <= DIFFERENT.keys()
    assert [name for name, cause in found.items() if cause.startswith("not explained")] == []


def test_private_state_that_is_only_written_is_the_class_of_its_own(reports: dict[str, Report]) -> None:
    found = [one.readable for one in reports["image"].kernels if one.verdict.kind == "private state made visible"]
    assert found == ["remember(float*)"]


def test_images_and_bundles_share_what_they_can(shapes: Project) -> None:
    """A unit that names no state, no table and no pointer has one slice, and is lowered once for both."""
    lowered = [record for record in shapes.records() if record.get("stage") == "lower" and record.get("role") == "unit"]
    made = {name: sum(len(list(units(shapes, name, group))) for group in KERNELS) for name in LINKS}
    assert made == {"image": 73, "bundle": 68}
    assert len([record for record in lowered if record["result"] == "built"]) < 73 + 20


def entries(project: Project, mode: str, group: str) -> list[str]:
    """The kernels that the mode's image, or the PTX in place of one, really holds."""
    if mode != "none":
        return project.kernels(group, stem=mode)
    return sorted(re.findall(r"^\s*\.(?:visible|weak) \.entry (\w+)", project.read(f"{mode}/{group}/sm_90.ptx"), re.MULTILINE))


@pytest.mark.parametrize("group", sorted(KERNELS))
@pytest.mark.parametrize("mode", FURTHER)
def test_every_mode_holds_every_kernel(shapes: Project, mode: str, group: str) -> None:
    found = entries(shapes, mode, group)
    assert len(found) == KERNELS[group]
    assert found == entries(shapes, "image", group)


def test_whole_modules_have_the_undivided_code(reports: dict[str, Report]) -> None:
    counts = reports["whole"].counts()
    assert counts["identical"] + counts["constant placement"] == sum(KERNELS.values()) - 1
    assert counts["private state made visible"] == 1


def figures(project: Project, mode: str) -> dict[str, tuple[int, int, int]]:
    """Registers, stack and static shared memory of each kernel, as the manifest tells them."""
    modules = project.manifest(mode)["modules"]
    return {
        kernel["readable"].partition("(")[0]: tuple(kernel["archs"]["sm_90"][name] for name in ("registers", "stack_bytes", "shared_bytes"))
        for group in KERNELS
        for kernel in modules[group]["kernels"].values()
    }


@pytest.mark.parametrize("mode", ["pair", "deferred"])
def test_kernels_take_what_they_take_in_the_image_of_ptxas(shapes: Project, mode: str) -> None:
    assert figures(shapes, mode) == figures(shapes, "image")


def test_further_modes_lower_no_unit_again(shapes: Project) -> None:
    """Whatever assembles, a unit of an image has one PTX."""
    for group in KERNELS:
        digests = {mode: [part["digest"] for part in shapes.plan(group, stem=mode)["parts"]] for mode in ("image", *FURTHER)}
        assert all(found == digests["image"] for found in digests.values())


def test_without_an_assembler_the_driver_gets_the_module_in_one_piece(shapes: Project) -> None:
    assert all(build["object"] is None and build["registers"] is None for build in _builds(shapes, "none"))
    assert not list(shapes.path("none").rglob("*.cubin"))


def _builds(project: Project, mode: str) -> list[dict[str, Any]]:
    modules = project.manifest(mode)["modules"]
    return [kernel["archs"]["sm_90"] for group in KERNELS for kernel in modules[group]["kernels"].values()]

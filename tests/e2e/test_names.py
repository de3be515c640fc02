"""What the files of a build are called, which others rely on."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from project import CUDA, Project, ll

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_called_by_source_architecture_and_options(project: Project) -> None:
    project.write(
        "SConstruct",
        """
own = env.GpuSource("three.ll", CPPPATH=[Dir("include")], CPPDEFINES={"A": 1})
env.GpuProgram("build/net", env.GpuModule("net", ["one.ll", "two/one.ll", "three.ll", own], GPU_ARCHS=["sm_90", "compute_90"]))
""",
    )
    project.write("one.ll", ll("one"))
    project.write("two/one.ll", ll("two=2.0"))
    project.write("three.ll", ll("three=3.0"))
    project.build("-j2")

    first, second = (hashlib.sha256(path.encode()).hexdigest()[:6] for path in ("one.ll", "two/one.ll"))
    (variant,) = re.findall(r"^three\.ll\.sm_90\.([0-9a-f]{6})\.ll$", "\n".join(_names(project.path("build/net/net"), ".ll")), re.MULTILINE)
    stems = [
        f"{source}.{arch}{own}"
        for source, own in ((f"one.ll.{first}", ""), (f"one.ll.{second}", ""), ("three.ll", ""), ("three.ll", f".{variant}"))
        for arch in ("sm_90", "compute_90")
    ]
    assert _names(project.path("build/net/net"), ".ll") == sorted(f"{stem}.ll" for stem in stems)
    assert _names(project.path("build/net/net"), ".index.json") == sorted(f"{stem}.index.json" for stem in stems)
    for arch, image in (("sm_90", "sm_90.cubin"), ("compute_90", "compute_90.ptx")):
        assert project.exists(f"build/net/net/{arch}.plan.json")
        assert project.exists(f"build/net/net/{image}")
    assert project.exists("build/net/net.fatbin")
    assert project.exists("build/net.json")
    project.idle("-j2")  # names that differ from run to run would build again


def test_a_slice_that_the_store_lost_comes_from_the_right_variant(project: Project) -> None:
    """One file may be in a module twice, with other options, and its units are then those of two splits."""
    project.write(
        "SConstruct",
        CUDA
        + 'two = env.GpuSource("k.cu", CPPDEFINES={"NAME": "two"})\nenv.GpuProgram("build/net", env.GpuModule("net", ["k.cu", two]))\n',
    )
    project.write("k.cu", "#ifndef NAME\n#define NAME one\n#endif\n__global__ void NAME(int *x) { *x = 1; }\n")
    project.build("-j2")
    before = project.bytes("build/net/net/sm_90.cubin")
    for path in project.root.glob(".gpu-store/*/??/*"):
        path.unlink()
    project.path("build/net/net/sm_90.cubin").unlink()
    project.build("-j2")
    assert project.bytes("build/net/net/sm_90.cubin") == before


def _names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(suffix))

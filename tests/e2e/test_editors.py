"""clangd reads kernels/ as the compilation database of the tree's own SConstruct tells it to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from project import Project

TREE = Path(__file__).resolve().parents[2]
CLANGD = Path(sys.executable).with_name("clangd")


def errors(project: Project, file: str) -> list[str]:
    """What clangd has against one file; its own end is told too."""
    command = [str(CLANGD), f"--check={file}", "--check-locations=0", "--compile-commands-dir=."]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    assert "All checks completed" in done.stderr, done.stderr
    return re.findall(r"^E\[[\d:.]+\] (.*)", done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tree's own program, with its database."""
    project = Project(tmp_path_factory.mktemp("editors") / "tree")
    for name in ("kernels", "site_scons"):
        shutil.copytree(TREE / name, project.path(name))
    shutil.copy(TREE / "SConstruct", project.path("SConstruct"))
    project.build("compile_commands.json")
    return project


def test_clangd_reads_every_source_of_kernels(kernels: Project) -> None:
    listed = {entry["file"] for entry in json.loads(kernels.read("compile_commands.json"))}
    sources = sorted(str(path.relative_to(kernels.root)) for path in kernels.root.glob("kernels/**/*.cu"))
    unlisted = [name for name in sources if name not in listed]
    assert unlisted == ["kernels/fills/fills.cu", "kernels/reference/reference.cu"]  # a helper of candidates, and a module that is bypassed
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(sorted(listed), pool.map(lambda name: errors(kernels, name), sorted(listed)), strict=True))
    assert {name: said for name, said in found.items() if said} == {}


def test_clangd_tells_a_mistake_in_a_kernel(kernels: Project) -> None:
    text = kernels.read("kernels/app/scale.cu")
    kernels.write("kernels/app/scale.cu", text + "__global__ void wrong(float* p) { *p = nobody; }\n")
    assert "[undeclared_var_use] Line " in errors(kernels, "kernels/app/scale.cu")[0]

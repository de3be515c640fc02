"""L: linking. What a linker or an assembler does wrong is found, and said before anything is published."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from project import IMAGE, Project, ll

from scons_gpu.assemble.provider import AssembleOptions, LinkInput
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.link import elf
from scons_gpu.store import record as records
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

NET = IMAGE + 'env.GpuProgram("build/net", env.GpuModule("net", ["net.ll"]))\n'


def toolkit(project: Project, toolchain: Toolchain, **scripts: str) -> None:
    """A toolkit of links to the real one, with some tools behind a script: `REAL` in it is the tool itself."""
    assert toolchain.ptxas is not None
    folder = Path(toolchain.ptxas.path).parent
    project.path("toolkit/bin").mkdir(parents=True)
    for tool in folder.iterdir():
        path = project.path(f"toolkit/bin/{tool.name}")
        if tool.name in scripts:
            path.write_text("#!/bin/sh\n" + scripts[tool.name].replace("REAL", str(tool)), encoding="utf-8")
            path.chmod(0o755)
        else:
            path.symlink_to(tool)
    project.path("toolkit/nvvm").symlink_to(folder.parent / "nvvm")
    project.write("SConstruct", 'env["GPU_CUDA_PATH"] = "#toolkit"\n' + NET)
    project.write("net.ll", ll("one=1.0", "two=2.0", head="@state = addrspace(1) externally_initialized global i32 0\n"))


def error(project: Project) -> str:
    result = project.fail()
    (line,) = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert not project.exists("build/net/net/sm_90.cubin")
    assert not project.exists("build/net.json")
    assert not list(project.root.glob("build/**/.*"))
    return line


@pytest.mark.parametrize(("dropped", "said"), [("two", "lacks kernel two"), ("state", "lacks variable state")])
def test_l8_a_linker_that_drops_an_input_in_silence_is_found(project: Project, toolchain: Toolchain, dropped: str, said: str) -> None:
    # The one input whose bytes hold the name is left out of the options file.
    toolkit(
        project,
        toolchain,
        nvlink="""\
case "$*" in *--options-file*) ;; *) exec REAL "$@" ;; esac
for argument in "$@"; do case "$argument" in *.opt*|*/options*) file="$argument" ;; esac; done
file="${file#--options-file=}"; file="${file#--options-file}"
previous=; for argument in "$@"; do [ "$previous" = --options-file ] && file="$argument"; previous="$argument"; done
PYTHON - "$file" <<'END'
import re, sys
path = sys.argv[1]
words = open(path).read().split("\\n")
def drop(word):
    name = word.strip().strip('"')
    try:
        return b"\\0DROPPED\\0" in open(name, "rb").read()
    except OSError:
        return False
open(path, "w").write("\\n".join(word for word in words if not drop(word)))
END
exec REAL "$@"
""".replace("DROPPED", dropped).replace("PYTHON", sys.executable),
    )
    assert re.search(rf"net/?\S* .*the linked image {said}", error(project))


def objects(project: Project) -> dict[str, Path]:
    """Kernel → its object in the store."""
    return {
        "+".join(kernel.symbol for kernel in elf.read(path.read_bytes()).kernels) or "state": path
        for path in project.root.glob(".gpu-store/object/*/*.cubin")
    }


def test_l8_wrong_objects_in_the_store_are_made_again(project: Project, toolchain: Toolchain) -> None:
    project.write("SConstruct", NET)
    project.write("net.ll", ll("one=1.0", "two=2.0", "three=3.0", "four=4.0"))
    project.build("-j2")
    image = project.image("net").read_bytes()
    found = objects(project)
    one, two, three, four = (found[name] for name in ("one", "two", "three", "four"))
    assert toolchain.ptxas is not None
    provider = PtxasProvider(ptxas=toolchain.ptxas, nvlink=toolchain.nvlink, facts=project.path("facts"))
    # Two exchanged, one cut short, one assembled as a whole program: each under the name and record of the right one.
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    three.write_bytes(three.read_bytes()[:-100])
    text = next(
        path.read_text(encoding="utf-8")
        for path in project.root.glob(".gpu-store/ptx/*/*.ptx")
        if "entry four" in path.read_text(encoding="utf-8")
    )
    whole = provider.compile(text, target=parse("sm_90")[0], options=AssembleOptions()).data
    store = Store([project.path(".gpu-store")])
    key = records.from_text(four.with_name(four.name + ".json").read_bytes(), name=four.name).key
    four.unlink()
    four.with_name(four.name + ".json").unlink()
    store.save(four, whole, records.make(whole, key=key))
    shutil.rmtree(project.path("build"))

    # The store finds what is not what its record says; the link, what has a right record and is of the wrong kind.
    result = project.fail("-j2")
    assert re.search(r"error: kernel four of net/net\.ll \(sm_90\): its object is a whole program, not relocatable", result.output), (
        result.output
    )
    assert len(re.findall(r"store: .*object/.*; it is made again", result.output)) == 3
    assert project.done()["assemble"] == 3
    assert not project.exists("build/net/net/sm_90.cubin")
    four.unlink()
    project.build("-j2")
    assert project.image("net").read_bytes() == image
    project.idle()


def test_l9_an_assembler_newer_than_the_linker_is_refused_before_any_unit(project: Project, toolchain: Toolchain) -> None:
    toolkit(project, toolchain, nvlink='case "$*" in *--version*) REAL "$@" | sed "s/13\\.[0-9]/13.0/g" ;; *) exec REAL "$@" ;; esac\n')
    said = error(project)
    assert "ptxas" in said
    assert "nvlink 13.0" in said
    assert project.compiled() == []
    assert not list(project.root.glob(".gpu-store/ptx/*/*"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "$*" in *--version*) echo "made in a garage" ;; *) exec REAL "$@" ;; esac\n', ""),
        ('case "$*" in *--version*) REAL "$@" | sed "s/13\\.[0-9]/9.1/g" ;; *) exec REAL "$@" ;; esac\n', r"ptxas 9\.1"),
    ],
    ids=["unreadable", "too-old"],
)
def test_l12_versions_are_said_once(project: Project, toolchain: Toolchain, script: str, said: str) -> None:
    toolkit(project, toolchain, ptxas=script)
    if said:
        assert re.search(said, error(project))
        assert project.compiled() == []
        return
    result = project.build()
    assert len(re.findall(r"scons-gpu: .*ptxas.*version", result.stderr)) == 1, result.output
    assert project.kernels("net") == ["one", "two"]
    # Behind the same version another assembler might be the next time.
    project.build()
    assert project.done() == {"assemble": 3, "link": 1}


def test_l13_thousands_of_objects_in_one_link(tmp_path: Path, toolchain: Toolchain) -> None:
    """One object, 3,000 times under another kernel's name: on a command line it would take 2.4 MB."""
    assert toolchain.ptxas is not None
    provider = PtxasProvider(ptxas=toolchain.ptxas, nvlink=toolchain.nvlink, facts=tmp_path / "facts")
    (target,) = parse("sm_90")
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k00000()\n{\n\tret;\n}\n"
    made = provider.compile_relocatable(text, target=target, options=AssembleOptions()).data
    folder = tmp_path / ("a" * 200) / ("b" * 200) / ("c" * 200)
    folder.mkdir(parents=True)
    inputs = []
    for number in range(3000):
        path = folder / f"{number:05}.cubin"
        path.write_bytes(made.replace(b"k00000", b"k%05d" % number))
        inputs.append(LinkInput(path=path, label=path.name))
    assert sum(len(str(each.path)) for each in inputs) > 2 << 20 or len(str(folder)) > 600
    linked = provider.link(inputs, target=target, options=AssembleOptions())
    assert len(elf.read(linked.data).kernels) == 3000


def test_r1_a_plan_that_is_asked_for_before_it_is_made_anew_is_read_anew(project: Project) -> None:
    """A SConstruct may ask whether a fatbin is there; whether it is rightly absent, the plan of the build before says."""
    project.write("SConstruct", 'made = env.GpuProgram("build/net", env.GpuModule("net", ["a.ll"]))\nmade[1].exists()\n')
    project.write("a.ll", ll("one=1.0"))
    project.build()
    project.path("build/net/net.fatbin").unlink()
    project.write("a.ll", ll("one=1.0", "two=2.0"))
    project.build()
    assert project.kernels("net") == ["one", "two"]

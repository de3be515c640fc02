"""What the doctor tells, of real tools and of a machine that has none."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scons_gpu.inspect import doctor
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.bindings import bindings
from scons_gpu.toolchain.tools import Look, Tool, Toolchain, discover


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The wheels of this environment, whatever else the machine has."""
    empty = tmp_path_factory.mktemp("root")
    return discover(environ={}, prefix=sys.prefix, root=str(empty), facts=empty / "facts")


def test_t4_all_tools_with_versions_and_places(here: Toolchain) -> None:
    report = doctor.report(here, parse("sm_90 compute_70"), capabilities={"link": True}, choice=["ptxas: taken"])
    assert json.loads(json.dumps(report)) == report
    assert sorted(report["tools"]) == sorted(doctor.TOOLS)
    for name, tool in report["tools"].items():
        assert sorted(tool) == ["identity", "origin", "path", "version"], name
        assert Path(tool["path"]).is_relative_to(sys.prefix)
    assert Path(report["headers"]["source"]).is_relative_to(sys.prefix)
    assert Path(report["llvm"]["path"]).is_relative_to(sys.prefix)
    assert report["llvm"]["version"] == here.llvm.split()[0]
    assert report["targets"] == [{"name": "sm_90", "ptx": "9.0"}, {"name": "compute_70", "ptx": "9.0"}]
    assert (report["capabilities"], report["choice"]) == ({"link": True}, ["ptxas: taken"])
    assert (report["warnings"], report["problems"]) == ([], [])
    assert "sm_107" in report["architectures"]["ptxas"]
    assert "sm_107" not in report["architectures"]["both"]
    assert "sm_70" not in report["architectures"]["both"]


def test_the_tables(here: Toolchain) -> None:
    report = doctor.report(here)
    rows = doctor.rows(report)
    assert [row[0] for row in rows] == [*doctor.TOOLS, *doctor.LIBRARIES, "cuda-python", "headers", "llvm"]
    assert here.ptxas is not None
    assert rows[0] == ("ptxas", here.ptxas.version, "Python wheel", here.ptxas.path, here.ptxas.identity[:12])
    assert ("ptxas", "taken", "Python wheel", str(Path(here.ptxas.path).parent)) in doctor.looks(report)


def test_nothing_at_all() -> None:
    looked = (Look(what="ptxas", where="/usr/local/cuda/bin", origin="/usr/local/cuda", result="not there"),)
    report = doctor.report(Toolchain(looked=looked), parse("sm_90"))
    names = (*doctor.TOOLS, *doctor.LIBRARIES, "cuda-python", "headers", "llvm")
    assert doctor.rows(report) == [(name, "not found", "", "", "") for name in names]
    assert report["problems"][:3] == ["ptxas was not found", "nvlink was not found", "fatbinary was not found"]
    assert "llvmlite was not found" in report["problems"][3]
    assert report["targets"] == [{"name": "sm_90", "ptx": None}]
    assert doctor.looks(report) == [("ptxas", "not there", "/usr/local/cuda", "/usr/local/cuda/bin")]


def test_what_libraries_are_called_through_is_told() -> None:
    report = doctor.report(Toolchain(), bindings=bindings("nvjitlink"))
    ((_, version, origin, path, _),) = [row for row in doctor.rows(report) if row[0] == "cuda-python"]
    assert (origin, Path(path).parts[-2:]) == ("Python wheel", ("cuda", "bindings"))
    assert version[0].isdigit()


def test_problems_and_warnings_are_told_not_raised() -> None:
    ptxas = Tool(name="ptxas", path="/a/ptxas", version="12.4.1", identity="ab", origin="PATH")
    nvlink = replace(ptxas, name="nvlink", path="/a/nvlink")
    tools = Toolchain(ptxas=ptxas, nvlink=nvlink, fatbinary=replace(ptxas, name="fatbinary"), llvm="22.1.0 ab")
    report = doctor.report(tools, parse("sm_90"))
    assert report["problems"] == []
    assert len(report["warnings"]) == 1
    assert "NVIDIA bug 4826023" in report["warnings"][0]
    assert "does not know sm_121" in doctor.report(tools, parse("sm_121"))["problems"][0]
    mixed = doctor.report(replace(tools, nvlink=replace(nvlink, version="12.3.0")), parse("sm_80"))
    assert "the assembler is newer than the linker" in mixed["problems"][0]
    nameless = doctor.report(replace(tools, ptxas=replace(ptxas, version="")))
    assert doctor.rows(nameless)[0][1] == "unknown"
    assert "cannot be read" in nameless["warnings"][0]
    clang = replace(ptxas, name="clang", version="22.1.8")
    assert "CUDA's headers were not found" in doctor.report(replace(tools, clang=clang))["problems"][0]


def test_what_lowers_is_told_with_its_reason() -> None:
    lowering = [{"arch": f"sm_{number}", "by": by, "ptx": ptx, "why": why} for number, by, ptx, why in LOWERINGS]
    report = doctor.report(Toolchain(llvm="22.1.0 ab"), parse("sm_100 sm_90"), lowering=lowering)
    assert doctor.lowerings(report) == ["llvm for sm_80, sm_90: it reads another IR", "nvvm for sm_100: it reads our IR"]
    assert report["targets"] == [
        {"name": "sm_100", "ptx": "9.5", "lowered_by": "nvvm"},
        {"name": "sm_90", "ptx": "9.0", "lowered_by": "llvm"},
    ]


LOWERINGS = (
    (80, "llvm", "9.0", "it reads another IR"),
    (90, "llvm", "9.0", "it reads another IR"),
    (100, "nvvm", "9.5", "it reads our IR"),
)

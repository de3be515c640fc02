"""What tools can build together: each table row against the tools at hand, each gate on both sides."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolMissingError, UnsupportedArchError
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.arch import GENERAL, KNOWN, Target, parse
from scons_gpu.toolchain.gates import refused, version_tuple, warned
from scons_gpu.toolchain.tables import ARCHS, CUDA_OF_DRIVER, LLVM_PTX, PTX_OF_CUDA, VERSION_RULES
from scons_gpu.toolchain.tools import Look, Tool, Toolchain, discover

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.toolchain.tables import Arch

LLVM = "22.1.0 0123"


def tool(name: str, version: str) -> Tool:
    return Tool(name=name, path=f"/cuda/bin/{name}", version=version, identity="00", origin="test")


def pair(ptxas: str, nvlink: str | None = None) -> Toolchain:
    return Toolchain(ptxas=tool("ptxas", ptxas), nvlink=tool("nvlink", nvlink or ptxas), llvm=LLVM)


def check(tools: Toolchain, targets: Sequence[Target]) -> tuple[str, ...]:
    return versions.check(targets, llvm=tools.llvm, assembler=tools.ptxas, linker=tools.nvlink)


def target(name: str) -> Target:
    return parse(name)[0]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The wheels of this environment, whatever else the machine has."""
    empty = tmp_path_factory.mktemp("root")
    return discover(environ={}, prefix=sys.prefix, root=str(empty), facts=empty / "facts")


# The tables, against the tools.


def test_contract_the_assembler_knows_what_the_table_says(here: Toolchain) -> None:
    assert here.ptxas is not None
    said = subprocess.run([here.ptxas.path, "--help"], capture_output=True, text=True, check=True).stdout
    allowed = said[said.index("--gpu-name") :]
    allowed = allowed[: allowed.index("Default value")]
    assert set(re.findall(r"'sm_(\w+)'", allowed)) == set(versions.known_to(here.ptxas))


def test_contract_the_assembler_reads_the_ptx_that_the_table_says_and_no_newer(here: Toolchain, tmp_path: Path) -> None:
    assert here.ptxas is not None
    newest = PTX_OF_CUDA[version_tuple(here.ptxas.version)[:2]]  # type: ignore[index]

    def assembles(ptx: int, arch: str) -> bool:
        source = tmp_path / "k.ptx"
        source.write_text(f".version {ptx // 10}.{ptx % 10}\n.target {arch}\n.address_size 64\n.visible .entry k() {{ ret; }}\n")
        done = subprocess.run([here.ptxas.path, "-arch", arch, source, "-o", tmp_path / "k.cubin"], capture_output=True, check=False)
        return done.returncode == 0

    assert assembles(newest, "sm_90")
    assert not assembles(newest + 1, "sm_90")
    for name, least in (("sm_90a", 80), ("sm_100f", 88), ("sm_121", 88), ("sm_88", 90), ("sm_107", 94)):
        arch = next(arch for arch in ARCHS if arch.number == target(name).number)
        assert arch.least_ptx(target(name).suffix) == least
        assert assembles(least, name)
        assert not assembles({80: 78, 90: 88}.get(least, least - 1), name)


_PROBE = r"""
import json, os, re, sys, tempfile
from llvmlite import binding
binding.initialize_all_targets(); binding.initialize_all_asmprinters()
nvptx = binding.Target.from_triple("nvptx64-nvidia-cuda")
said = tempfile.TemporaryFile(); os.dup2(said.fileno(), 2)
def emit(cpu, features):
    said.seek(0); said.truncate()
    module = binding.parse_assembly('target triple = "nvptx64-nvidia-cuda"\ndefine ptx_kernel void @k() { ret void }', binding.create_context())
    text = nvptx.create_target_machine(cpu=cpu, features=features).emit_assembly(module)
    said.seek(0)
    return None if b"not a recognized" in said.read() else re.search(r"\.version (\S+)", text)[1].replace(".", "")
print(json.dumps({
    "version": binding.llvm_version_info[0],
    "archs": {name: emit("sm_" + name, "") for name in sys.argv[1].split()},
    "ptx": [n for n in range(70, 100) if emit("sm_50", f"+ptx{n}") == str(n)],
}))
"""


def test_contract_llvm_knows_what_the_table_says() -> None:
    done = subprocess.run([sys.executable, "-c", _PROBE, " ".join(KNOWN)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert max(found["ptx"]) == LLVM_PTX[found["version"]]
    known = {name for name, ptx in found["archs"].items() if ptx is not None}
    assert known == set(versions.known_to_llvm(f"{found['version']}.0"))
    # What LLVM writes for an architecture of its own accord is the least that names it.
    least = {f"{arch.number}{suffix}": arch.least_ptx(suffix) for arch in ARCHS for suffix in ("", "a", "f")}
    assert {name: int(ptx) for name, ptx in found["archs"].items() if ptx is not None} == {name: least[name] for name in known}


def test_tables_are_in_order() -> None:
    assert list(PTX_OF_CUDA) == sorted(PTX_OF_CUDA)
    assert list(PTX_OF_CUDA.values()) == sorted(PTX_OF_CUDA.values())
    assert [arch.number for arch in ARCHS] == sorted({arch.number for arch in ARCHS})


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: f"sm_{arch.number}")
def test_each_architecture_on_both_sides_of_its_first_and_last_release(arch: Arch) -> None:
    for suffix in ("", "a", "f"):
        least = arch.least_ptx(suffix)
        if least is None or least < min(PTX_OF_CUDA.values()):
            continue
        name = f"{arch.number}{suffix}"
        with_it = next(release for release, ptx in PTX_OF_CUDA.items() if ptx >= least)
        before = max((release for release, ptx in PTX_OF_CUDA.items() if ptx < least), default=None)
        assert name in versions.known_to(tool("ptxas", f"{with_it[0]}.{with_it[1]}.1"))
        assert before is None or name not in versions.known_to(tool("ptxas", f"{before[0]}.{before[1]}.99"))
    if arch.dropped:
        assert str(arch.number) in versions.known_to(tool("ptxas", "12.9.86"))
        assert str(arch.number) not in versions.known_to(tool("ptxas", "13.0.0"))


# The PTX version.


@pytest.mark.parametrize(
    ("name", "llvm", "ptxas", "expected"),
    [
        ("sm_90", "22.1.0", "13.5.37", 90),  # LLVM is the limit
        ("sm_90", "22.1.0", "13.0.88", 90),
        ("sm_90", "22.1.0", "12.9.86", 88),  # the assembler is
        ("sm_90", "22.1.0", "12.4.1", 84),
        ("sm_90", "22.1.0", "11.8.89", 78),
        ("sm_90", "21.1.0", "13.5.37", 88),
        ("sm_90", "23.0.0", "13.5.37", 90),  # newer than the table: as its newest
        ("sm_90", "22.1.0", "14.0.0", 90),
        ("sm_90", "22.1.0", "", 78),  # no version: as the oldest
        ("sm_88", "22.1.0", "", 90),  # but never below what the architecture needs
        ("sm_90", "22.1.0", None, 90),  # no assembler
        ("compute_70", "22.1.0", "13.5.37", 90),  # PTX of an architecture that the assembler has dropped is not assembled
    ],
)
def test_the_lowest_of_what_all_allow(name: str, llvm: str, ptxas: str | None, expected: int) -> None:
    assembler = None if ptxas is None else tool("ptxas", ptxas)
    assert versions.ptx_version(target(name), llvm=llvm, assembler=assembler) == expected


@pytest.mark.parametrize(
    ("name", "llvm", "ptxas", "says"),
    [
        ("sm_107", "22.1.0 ab", "13.5.37", "LLVM 22.1.0 does not know sm_107"),
        ("sm_107", "22.1.0", "13.3.0", "LLVM 22.1.0 and ptxas 13.3.0 do not know sm_107"),
        ("sm_70", "22.1.0", "13.5.37", "ptxas 13.5.37 does not know sm_70"),
        ("sm_101", "22.1.0", "13.0.0", "ptxas 13.0.0 does not know sm_101"),
        ("sm_90a", "22.1.0", "11.8.89", "ptxas 11.8.89 does not know sm_90a"),
        ("sm_120", "22.1.0", "12.7.1", "ptxas 12.7.1 does not know sm_120"),
        ("sm_110", "21.1.0", "13.5.37", "LLVM 21.1.0 does not know sm_110"),
        ("compute_107", "22.1.0", "13.5.37", "LLVM 22.1.0 does not know compute_107"),
    ],
)
def test_a3_an_unknown_architecture_lists_what_is_known(name: str, llvm: str, ptxas: str, says: str) -> None:
    with pytest.raises(UnsupportedArchError) as caught:
        versions.ptx_version(target(name), llvm=llvm, assembler=tool("ptxas", ptxas))
    assert says in str(caught.value)
    assert "sm_80" in caught.value.hint
    assert f"{name}," not in caught.value.hint.replace("compute", "sm")
    with pytest.raises(UnsupportedArchError):
        check(replace(pair(ptxas), llvm=llvm), [target("sm_80"), target(name)])


def test_without_llvm() -> None:
    with pytest.raises(ToolMissingError, match="llvmlite"):
        versions.ptx_version(target("sm_90"), llvm="", assembler=None)


def test_all_of_its_own_accord_is_what_this_environment_can_build(here: Toolchain) -> None:
    assert versions.supported(here) == GENERAL
    assert check(here, parse("all, all-major")) == ()


def test_all_means_what_the_tools_share() -> None:
    both = versions.supported(pair("12.8.1"))
    assert both[0] == 50
    assert both[-1] == 120
    assert 103 not in both
    assert versions.supported(pair("13.5.37")) == (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
    assert [each.name for each in parse("all-major", general=versions.supported(pair("13.5.37")))][-2:] == ["sm_120", "compute_120"]


# Gates.


def test_l9_an_assembler_newer_than_the_linker() -> None:
    with pytest.raises(ToolMissingError) as caught:
        check(pair("13.5.37", "13.4.0"), [target("sm_90")])
    assert "the assembler is newer than the linker: ptxas 13.5.37 (/cuda/bin/ptxas), nvlink 13.4.0" in str(caught.value)
    for ptxas, nvlink in (("13.4.99", "13.4.0"), ("13.4.0", "13.5.37"), ("12.9.0", "13.0.0")):
        assert check(pair(ptxas, nvlink), [target("sm_90")]) == ()


@pytest.mark.parametrize(
    ("name", "version", "verdict"),
    [
        ("ptxas", "11.7.99", "refuse"),
        ("ptxas", "11.8.0", ""),
        ("ptxas", "12.3.102", "warn"),
        ("ptxas", "12.3.103", "refuse"),
        ("ptxas", "12.3.104", "warn"),
        ("ptxas", "11.8.89", ""),
        ("ptxas", "11.99.0", ""),
        ("ptxas", "12.0.0", "warn"),
        ("ptxas", "12.6.84", "warn"),
        ("ptxas", "12.6.85", ""),
        ("ptxas", "13.5.37", ""),
        ("nvlink", "11.7.99", "refuse"),
        ("nvlink", "11.8.0", ""),
        ("clang", "19.1.7", "refuse"),
        ("clang", "20.1.0", ""),
        ("clang", "22.1.8", ""),
        ("clang", "23.0.0", "warn"),
        ("cuda-headers", "10.2", "refuse"),
        ("cuda-headers", "11.0", ""),
        ("cuda-headers", "12.9", ""),
        ("cuda-headers", "13.0", "warn"),
    ],
)
def test_l12_each_gate_on_both_sides(name: str, version: str, verdict: str) -> None:
    assert bool(refused(name, version)) == (verdict == "refuse")
    assert bool(warned(name, version, [90])) == (verdict == "warn" or (name, version) == ("ptxas", "12.3.103"))


def test_l12_every_row_is_tested_above() -> None:
    rows = test_l12_each_gate_on_both_sides.pytestmark[0].args[1]  # type: ignore[attr-defined]
    for rule in VERSION_RULES:
        inside = [rule.first <= version_tuple(version) < rule.end for name, version, _ in rows if name == rule.tool]
        assert True in inside
        assert False in inside


def test_l12_a_warned_range_is_for_its_architectures_only() -> None:
    assert check(pair("12.4.1"), [target("sm_80"), target("sm_89")]) == ()
    (warning,) = check(pair("12.4.1"), [target("sm_80"), target("sm_90")])
    assert warning.startswith("ptxas 12.4.1 (/cuda/bin/ptxas): it miscompiles")


def test_l12_below_the_minimum_and_excluded() -> None:
    with pytest.raises(ToolMissingError, match=r"ptxas 11.7.99 \(/cuda/bin/ptxas\) cannot be used: the oldest that can be used is 11.8"):
        check(pair("11.7.99"), [target("sm_80")])
    with pytest.raises(ToolMissingError, match=r"12.3.103 .* miscompiles"):
        check(pair("12.3.103"), [target("sm_80")])
    with pytest.raises(ToolMissingError, match=r"nvlink 11\.7\.0"):
        check(pair("11.8.0", "11.7.0"), [target("sm_80")])


def test_l12_a_version_that_cannot_be_read_is_said_and_believed() -> None:
    warnings = check(pair("", "13.5.37"), [target("sm_90")])
    assert warnings == ("the version of ptxas (/cuda/bin/ptxas) cannot be read; what it makes is not reused by another build",)


@pytest.mark.parametrize(("text", "expected"), [("13.5.37", (13, 5, 37)), ("22", (22,)), ("", ()), ("V13", ()), ("12.9-rc", (12, 9))])
def test_versions_are_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert version_tuple(text) == expected


def test_a_missing_tool_tells_where_it_was_looked_for() -> None:
    looked = (
        Look(what="ptxas", where="/a/bin", origin="CUDA_HOME", result="not there"),
        Look(what="clang", where="/other", origin="x", result="y"),
    )
    with pytest.raises(ToolMissingError) as caught:
        versions.require(Toolchain(looked=looked), "ptxas")
    text = str(caught.value)
    assert text.startswith("ptxas was not found")
    assert "/a/bin (CUDA_HOME: not there)" in text
    assert "/other" not in text
    assert "scons-gpu[toolkit]" in text


def test_what_cuda_sources_need() -> None:
    clang = tool("clang", "22.1.8")
    with pytest.raises(ToolMissingError, match="clang was not found"):
        versions.check_clang(Toolchain())
    with pytest.raises(ToolMissingError, match="headers were not found"):
        versions.check_clang(Toolchain(clang=clang))
    with pytest.raises(ToolMissingError, match=r"headers of CUDA 10.2 .* cannot be used"):
        versions.check_clang(Toolchain(clang=clang, headers="/c", headers_version="10.2"))
    assert versions.check_clang(Toolchain(clang=clang, headers="/c", headers_version="12.9")) == ()
    assert len(versions.check_clang(Toolchain(clang=tool("clang", "23.0.0"), headers="/c", headers_version="13.0"))) == 2


@pytest.mark.parametrize(("branch", "release"), CUDA_OF_DRIVER.items())
def test_a_driver_is_of_the_release_that_its_branch_was_made_for(branch: int, release: tuple[int, int]) -> None:
    reads, older = PTX_OF_CUDA[release], [number for number in CUDA_OF_DRIVER if number < branch]
    assert versions.newest_ptx(tool("driver", f"{branch}.10.01")) == reads
    assert versions.newest_ptx(tool("driver", f"{branch}")) == reads
    before = PTX_OF_CUDA[CUDA_OF_DRIVER[max(older)]] if older else 0
    assert versions.newest_ptx(tool("driver", f"{branch - 1}.99")) == (before or PTX_OF_CUDA[11, 8])


def test_l9_a_driver_older_than_the_assembler_does_not_link_for_it() -> None:
    ptxas, driver = tool("ptxas", "13.0.48"), tool("driver", "575.57.08")
    with pytest.raises(ToolMissingError, match=r"the assembler is newer than the linker: ptxas 13\.0\.48 .*driver 575\.57\.08"):
        versions.check_pair(ptxas, driver)
    versions.check_pair(ptxas, tool("driver", "580.65.06"))
    versions.check_pair(ptxas, tool("driver", ""))
    later = max(CUDA_OF_DRIVER) + 20
    versions.check_pair(tool("ptxas", "13.5.37"), tool("driver", f"{later}.10"))
    with pytest.raises(ToolMissingError):
        versions.check_pair(tool("ptxas", "13.5.37"), tool("driver", f"{max(CUDA_OF_DRIVER)}.10"))


def test_nvidias_assembler_is_gated_alike_under_its_three_names() -> None:
    for name in ("ptxas", "nvptxcompiler", "nvjitlink"):
        with pytest.raises(ToolMissingError, match=f"{name} 11.7.99 .* cannot be used: the oldest that can be used is 11.8"):
            versions.check([target("sm_80")], llvm=LLVM, assembler=tool(name, "11.7.99"), linker=None)
        assert len(versions.check([target("sm_90")], llvm=LLVM, assembler=tool(name, "12.4.1"), linker=None)) == 1

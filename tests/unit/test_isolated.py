from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.making import Making, make
from scons_gpu.assemble.provider import AssembleOptions, LinkInput
from scons_gpu.errors import MissingSymbolError, PtxSyntaxError, ToolKilledError, ToolStoppedError
from scons_gpu.link import elf
from scons_gpu.toolchain.arch import parse
from scons_gpu.workers.isolated import Isolated, isolated
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scons_gpu.toolchain.tools import Toolchain

SM_90 = parse("sm_90")[0]
OPTIONS = AssembleOptions()
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
ONE, TWO = (f"{HEAD}.visible .entry {name}(.param .u64 p) {{ ret; }}\n" for name in ("one", "two"))
CALLER = HEAD + ".extern .func gone();\n.visible .entry caller() { call gone, (); ret; }\n"


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def children() -> set[int]:
    """Processes that this one started."""
    return {int(pid) for pid in subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, check=False).stdout.split()}


def making(toolchain: Toolchain, name: str, facts: Path, *, always: bool = False) -> Making:
    found = choose(toolchain, wanted=name, needs=["relocatable", "link"], facts=facts, always_defer=always).making
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["nvptxcompiler+nvlink", "nvjitlink", "ptxas+nvjitlink"])
def test_a_worker_makes_what_the_library_makes(pool: Pool, toolchain: Toolchain, tmp_path: Path, name: str) -> None:
    made = making(toolchain, name, tmp_path / "facts")
    away, here = isolated(made, pool.run), make(made)
    assert isinstance(away, Isolated)
    assert (away.name, away.identity, away.link_identity, away.capabilities) == (
        here.name,
        here.identity,
        here.link_identity,
        here.capabilities,
    )
    for ours, theirs in ((away.compile, here.compile), (away.compile_relocatable, here.compile_relocatable)):
        done, same = (each(ONE, target=SM_90, options=OPTIONS) for each in (ours, theirs))
        assert (done.data, done.output, done.resources) == (same.data, same.output, same.resources)
    inputs = []
    for text in (ONE, TWO):
        path = tmp_path / f"{len(inputs)}.cubin"
        path.write_bytes(away.compile_relocatable(text, target=SM_90, options=OPTIONS).data)
        inputs.append(LinkInput(path=path, label=path.name))
    linked = away.link(inputs, target=SM_90, options=OPTIONS)
    assert linked.data == here.link(inputs, target=SM_90, options=OPTIONS).data
    assert {symbol.name for symbol in elf.read(linked.data, path="image").symbols if symbol.kind == "kernel"} == {"one", "two"}


def test_what_starts_programs_needs_no_worker(pool: Pool, toolchain: Toolchain, tmp_path: Path) -> None:
    assert not isinstance(isolated(making(toolchain, "ptxas", tmp_path), pool.run), Isolated)


def test_what_the_library_says_is_raised_here(pool: Pool, toolchain: Toolchain, tmp_path: Path) -> None:
    provider = isolated(making(toolchain, "nvptxcompiler+nvlink", tmp_path / "facts"), pool.run)
    with pytest.raises(PtxSyntaxError) as caught:
        provider.compile(ONE.replace("ret;", "rett;"), target=SM_90, options=OPTIONS)
    assert caught.value.kernel == "one"


def test_a_worker_whose_link_failed_is_let_go(pool: Pool, toolchain: Toolchain, tmp_path: Path) -> None:
    provider = isolated(replace(making(toolchain, "nvjitlink", tmp_path / "facts"), deferred=False), pool.run)
    path = tmp_path / "caller.cubin"
    path.write_bytes(provider.compile_relocatable(CALLER, target=SM_90, options=OPTIONS).data)
    assert pool.started == 1
    for count in (1, 2):
        with pytest.raises(MissingSymbolError, match="gone"):
            provider.link([LinkInput(path=path, label="caller")], target=SM_90, options=OPTIONS)
        assert pool.started == count, "a library that failed is not asked again"


def test_r5_a_worker_that_is_killed_says_what_it_ran(pool: Pool, toolchain: Toolchain, tmp_path: Path) -> None:
    provider = isolated(making(toolchain, "nvptxcompiler+nvlink", tmp_path / "facts"), pool.run)
    provider.compile(ONE, target=SM_90, options=OPTIONS)
    lines = "".join(f"add.f32 %f1, %f1, %f{2 + number % 30};\nsin.approx.f32 %f{2 + number % 30}, %f1;\n" for number in range(60_000))
    slow = f"{HEAD}.visible .entry slow(.param .u64 p) {{ .reg .f32 %f<40>; .reg .b64 %r<2>; ld.param.u64 %r1, [p];\n{lines}st.global.f32 [%r1], %f1; ret; }}\n"
    with pytest.raises(ToolKilledError, match="nvptxcompiler\\+nvlink worker took more CPU time"):
        provider.compile(slow, target=SM_90, options=AssembleOptions(seconds=1))
    pids = children()
    provider.compile(ONE, target=SM_90, options=OPTIONS)
    worker = (children() - pids).pop()
    threading.Thread(target=lambda: (time.sleep(0.5), os.kill(worker, signal.SIGKILL))).start()
    with pytest.raises(ToolStoppedError, match=r"nvptxcompiler\+nvlink worker was killed by SIGKILL"):
        provider.compile(slow, target=SM_90, options=OPTIONS)
    assert provider.compile(ONE, target=SM_90, options=OPTIONS).data

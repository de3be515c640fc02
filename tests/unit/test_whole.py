from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble.provider import Assembled, AssembleOptions
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import (
    DamagedError,
    GpuError,
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    RefusedError,
    SpillError,
    ToolKilledError,
)
from scons_gpu.inspect.cubin import Cubin
from scons_gpu.link import elf
from scons_gpu.link.whole import Whole, assemble_whole
from scons_gpu.plan.model import Part, Plan, PlannedKernel, PlannedState
from scons_gpu.store import record as records
from scons_gpu.store.record import Entry, Resources
from scons_gpu.toolchain.arch import parse
from scons_gpu.toolchain.tools import Tool

if TYPE_CHECKING:
    from scons_gpu.toolchain.arch import Target

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"
REGISTERS = "\t.reg .b32 %r<9>;\n\t.reg .b64 %rd<9>;\n\tld.param.u64 %rd1, [p];\n"


def kernel(name: str, body: str = "", before: str = "", directives: str = "") -> str:
    return f"{before}.visible .entry {name}(.param .u64 p)\n{directives}{{\n{REGISTERS}{body}\tret;\n}}\n"


def spilling(name: str) -> str:
    loads = "\n".join(f"ld.volatile.global.b32 %s{n}, [%rd1+{4 * n}];" for n in range(80))
    stores = "\n".join(f"st.volatile.global.b32 [%rd1+{4 * n}], %s{n * 37 % 80};" for n in range(80))
    return kernel(name, f"\t.reg .b32 %s<80>;\n{loads}\n{stores}\n")


class Shop:
    """Parts with their PTX, as a store holds them."""

    def __init__(self, folder: Path) -> None:
        ptxas = Tool(name="ptxas", path=str(BIN / "ptxas"), version="13.5.37", identity="0", origin="test")
        self.provider = PtxasProvider(ptxas=ptxas, nvlink=None, facts=folder / "facts")
        self.parts: list[Part] = []
        self.entries: dict[str, Entry | None] = {}
        self.state: list[PlannedState] = []

    def part(self, name: str, text: str, *, role: str = "unit", **fields: object) -> Part:
        digest = f"{len(self.parts):032x}"
        kernels = (PlannedKernel(symbol=name, readable=name, source=f"{name}.cu"),) if role == "unit" else ()
        made = Part(digest=digest, key=(), slice="", role=role, source=f"{name}.cu", bytes=0, kernels=kernels, **fields)  # type: ignore[arg-type]
        data = (HEAD + text).encode()
        self.parts.append(made)
        self.entries[digest] = Entry(path=Path(f"{digest}.ptx"), data=data, record=records.make(data, key=()))
        return made

    def variable(self, name: str) -> None:
        self.state.append(PlannedState(symbol=name, bytes=4, space="global", source=f"{name}.cu"))
        self.part(name, f".visible .global .align 4 .u32 {name};\n", role="state", defines=(name,))

    @property
    def plan(self) -> Plan:
        return Plan(module="net", arch="sm_90", link="whole", parts=tuple(self.parts), state=tuple(self.state))

    def make(self, provider: object = None, **options: object) -> Whole:
        given = AssembleOptions(**options)  # type: ignore[arg-type]
        made = assemble_whole(self.plan, self.entries, provider=provider or self.provider, options=given)  # type: ignore[arg-type]
        assert made is not None
        return made


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_g1_units_and_state_become_one_program(shop: Shop) -> None:
    for name in "ab":
        shop.part(name, kernel(name, "\tld.global.u32 %r1, [counter];\n\tst.global.u32 [%rd1], %r1;\n", ".extern .global .u32 counter;\n"))
    shop.variable("counter")
    shop.variable("unused")
    made = shop.make()
    read = elf.read(made.data)
    assert not read.relocatable
    assert sorted(symbol.name for symbol in read.symbols if symbol.defined) == ["a", "b", "counter", "unused"]
    assert made == shop.make()
    # The report of the one assembly goes to the parts whose kernels it is of.
    assert {digest: [each.kernel for each in resources] for digest, resources in made.resources.items()} == {
        part.digest: [part.kernels[0].symbol] for part in shop.parts[:2]
    }


def test_state_lies_where_it_lies_undivided(shop: Shop) -> None:
    """At the start of its bank, whatever the first unit brings: ptxas adds an offset that is not 0 by an instruction of its own."""
    looks = "\tmov.u32 %r1, %tid.x;\n\tmul.wide.u32 %rd2, %r1, 4;\n\tmov.u64 %rd3, {0};\n\tadd.s64 %rd4, %rd3, %rd2;\n"
    looks += "\tld.const.u32 %r2, [%rd4];\n\tst.global.u32 [%rd1], %r2;\n"
    table = f".visible .const .align 4 .u32 table[8] = {{{', '.join('12345678')}}};\n"
    filter_ = ".visible .const .align 4 .u32 filter[8];\n"
    alone = shop.provider.compile(HEAD + filter_ + kernel("b", looks.format("filter")), target=parse("sm_90")[0], options=AssembleOptions())
    shop.part("a", kernel("a", looks.format("table"), ".extern .const .align 4 .u32 table[8];\n"))
    shop.part("b", kernel("b", looks.format("filter"), ".extern .const .align 4 .u32 filter[8];\n"))
    shop.part("table", table, role="table", defines=("table",))
    shop.part("filter", filter_, role="state", defines=("filter",))
    shop.state.append(PlannedState(symbol="filter", bytes=32, space="const", source="filter.cu"))
    whole, undivided = Cubin(shop.make().data, label="whole"), Cubin(alone.data, label="undivided")
    assert whole.text("b") == undivided.text("b")
    assert whole.text("a") != whole.text("b"), "the table lies behind it"


def test_m4_a_module_without_kernels_makes_no_image(shop: Shop) -> None:
    assert assemble_whole(shop.plan, shop.entries, provider=shop.provider, options=AssembleOptions()) is None


def test_g2_variables_without_a_kernel_make_an_image(shop: Shop) -> None:
    shop.variable("counter")
    whole = assemble_whole(shop.plan, shop.entries, provider=shop.provider, options=AssembleOptions())
    assert whole
    assert [symbol.name for symbol in elf.read(whole.data).variables] == ["counter"]


def test_ptx_that_is_not_there_is_named(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.entries[shop.part("b", kernel("b")).digest] = None
    with pytest.raises(DamagedError, match=r"kernel b of net/b\.cu \(sm_90\): the PTX of b is missing or damaged"):
        shop.make()


def test_a_part_with_options_of_its_own_is_refused(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.part("b", kernel("b"), assemble={"maxrregcount": 32})
    with pytest.raises(RefusedError, match=r"kernel b of net/b\.cu \(sm_90\): it has assembling options of its own"):
        shop.make()


def test_what_the_plan_refuses_is_refused(shop: Shop) -> None:
    error = MissingSymbolError("uses gone, which nobody defines", kernel="a", source="a.cu")
    shop.part("a", kernel("a"), refused=json.dumps(error.to_json()))
    with pytest.raises(MissingSymbolError, match=r"kernel a of net/a\.cu \(sm_90\): uses gone, which nobody defines"):
        shop.make()


def test_l5_a_wrong_line_is_told_with_kernel_and_source(shop: Shop) -> None:
    """Also one of a function, and one of each of two kernels."""
    shop.part("a", kernel("a"))
    shop.part("b", kernel("b", "\tcall helper;\n", ".func helper()\n{\n\tbogus.u32 1;\n\tret;\n}\n"))
    shop.part("c", kernel("c", "\tbogus.u32 2;\n"))
    with pytest.raises(PtxSyntaxError) as caught:
        shop.make()
    assert str(caught.value).startswith("kernel b of net/b.cu (sm_90): ptxas does not accept the PTX\n")
    told = re.findall(r"PTX line \d+ (\(.*?\));", caught.value.output)
    assert set(told) == {"(kernel b of b.cu)", "(kernel c of c.cu)"}


def test_s8_a_symbol_that_nobody_defines_is_told_with_who_uses_it(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.part("b", kernel("b", "\tcall gone;\n", ".extern .func gone();\n"))
    with pytest.raises(MissingSymbolError, match=r"kernel b of net/b\.cu \(sm_90\): nobody defines gone"):
        shop.make()


def test_l10_spills_fail_or_are_told_with_kernel_and_source(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.part("heavy", spilling("heavy"))
    assert shop.make(maxrregcount=24).output == ""
    (used,) = shop.make(maxrregcount=24).resources[shop.parts[1].digest]
    told = f"{used.spill_stores} bytes stored, {used.spill_loads} bytes loaded"
    said = shop.make(maxrregcount=24, warn_on_spill=True).output
    assert said == f"registers of kernel heavy of heavy.cu spill to local memory: {told}\n"
    with pytest.raises(SpillError) as caught:
        shop.make(maxrregcount=24, fail_on_spill=True)
    assert str(caught.value).startswith(f"kernel heavy of net/heavy.cu (sm_90): registers spill to local memory ({told})\n")


def test_g7_what_fills_the_constant_memory_is_told_with_its_source(shop: Shop) -> None:
    for name in ("one", "two"):
        shop.part(name, f".visible .const .align 4 .b8 {name}[40000];\n", role="state", defines=(name,))
    shop.part("a", kernel("a"))
    with pytest.raises(RefusedError, match=r"module net \(sm_90\): its 80000 bytes of constants do not fit into the 65536 of a") as caught:
        shop.make()
    assert sorted(caught.value.output.splitlines())[:2] == ["   40000 bytes  one of one.cu", "   40000 bytes  two of two.cu"]


class Fake:
    """An assembler that does what it is told."""

    def __init__(self, real: PtxasProvider, *, drop: str = "", error: GpuError | None = None) -> None:
        self.real, self.drop, self.error = real, drop, error

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        if self.error:
            raise self.error
        made = self.real.compile(re.sub(self.drop, "", ptx, flags=re.DOTALL) if self.drop else ptx, target=target, options=options)
        return replace(made, resources=(*made.resources, Resources("nobody", *[None] * 6)))


@pytest.mark.parametrize(
    ("drop", "lacks"),
    [(r"\.visible \.entry b\(.*?\n}\n", r"net/b\.cu .*kernel b"), (r"[^\n]*\bcounter;", r"net/counter\.cu .*variable counter")],
)
def test_l8_what_an_assembler_drops_is_found(shop: Shop, drop: str, lacks: str) -> None:
    shop.part("a", kernel("a"))
    shop.part("b", kernel("b"))
    shop.variable("counter")
    found, what = lacks.split(" .*")
    with pytest.raises(LinkError, match=rf"{found} \(sm_90\): the assembled image lacks {what}\n  *the assembler dropped or doubled it"):
        shop.make(Fake(shop.provider, drop=drop))
    assert set(shop.make(Fake(shop.provider)).resources) == {part.digest for part in shop.parts[:2]}


def test_l10_an_assembler_that_died_names_the_module(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    with pytest.raises(ToolKilledError, match=r"module net \(sm_90\): ptxas was killed"):
        shop.make(Fake(shop.provider, error=ToolKilledError("ptxas was killed")))


def test_s6_debug_information_that_is_left_out_is_told(shop: Shop) -> None:
    section = ".section .debug_info {\n.b8 1\n}\n"
    for name in "ab":
        shop.part(name, kernel(name) + section)
    told = shop.make().output
    assert told == (
        "debug information does not merge into one PTX module, line tables do; left out: that of a of a.cu and 1 more; GPU_LINK=image keeps it"
    )

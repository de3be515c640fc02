from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble import dptx
from scons_gpu.assemble.provider import AssembleOptions, Linked, LinkInput
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import DamagedError, LinkError, MissingSymbolError, RefusedError
from scons_gpu.link import elf
from scons_gpu.link.contents import contents
from scons_gpu.link.image import Image, check_image, link_image
from scons_gpu.plan.model import Part, Plan, PlannedKernel, PlannedState
from scons_gpu.store import record as records
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import Target
from scons_gpu.toolchain.tools import Tool

if TYPE_CHECKING:
    from scons_gpu.store.record import Entry

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
SM_90 = Target("sm_90", real=True)
HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"


def tool(name: str) -> Tool:
    return Tool(name=name, path=str(BIN / name), version="13.5.37", identity="0", origin="test")


def kernel(name: str, *uses: str, space: str = "global") -> str:
    body = "".join(f"\tld.{space}.u32 %r1, [{use}];\n\tst.global.u32 [%rd1], %r1;\n" for use in uses)
    return (
        f".visible .entry {name}(.param .u64 p)\n{{\n\t.reg .b32 %r<3>;\n\t.reg .b64 %rd<3>;\n\tld.param.u64 %rd1, [p];\n{body}\tret;\n}}\n"
    )


class Shop:
    """Makes objects as a build does, in a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = Store([folder / "store"])
        self.provider = PtxasProvider(ptxas=tool("ptxas"), nvlink=tool("nvlink"), facts=folder / "facts")
        self.parts: dict[str, Part] = {}
        self.objects: dict[str, Path] = {}
        self.state: list[PlannedState] = []

    def part(self, name: str, text: str, *, role: str = "unit", whole: bool = False, **fields: object) -> Part:
        digest = f"{len(self.parts):032x}"
        kernels = (PlannedKernel(symbol=name, readable=f"{name}(float*)", source=f"{name}.cu"),) if role == "unit" else ()
        part = Part(digest=digest, key=(), slice="", role=role, source=f"{name}.cu", bytes=0, kernels=kernels, **fields)
        operation = self.provider.compile if whole else self.provider.compile_relocatable
        data = operation(HEAD + text, target=SM_90, options=AssembleOptions()).data
        key = (("digest", digest),)
        path = self.store.claim("object", digest, key, suffix=".rel.cubin")
        self.store.save(path, data, records.make(data, key=key))
        self.parts[name], self.objects[digest] = part, path
        return part

    def variable(self, name: str, *declarations: str, role: str = "state") -> Part:
        text = "".join(f".visible {declaration};\n" for declaration in declarations)
        names = [declaration.split("[")[0].split(" =")[0].split()[-1] for declaration in declarations]
        if role == "state":
            self.state += [PlannedState(symbol=each, bytes=4, space="global", source=f"{name}.cu") for each in names]
        return self.part(name, text, role=role, defines=tuple(names))

    def plan(self) -> Plan:
        return Plan(module="net", arch="sm_90", link="image", parts=tuple(self.parts.values()), state=tuple(self.state))

    def link(self, **changed: object) -> Image | None:
        given = {"provider": self.provider, "options": AssembleOptions(), **changed}
        return link_image(self.plan(), self.entries(), **given)

    def entries(self) -> dict[str, Entry | None]:
        return {digest: self.store.load(path) for digest, path in self.objects.items()}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def names(data: bytes) -> list[str]:
    return sorted(symbol.name for symbol in elf.read(data).symbols if symbol.defined)


def test_g1_units_and_state_become_one_image(shop: Shop) -> None:
    shop.part("a", ".extern .global .align 4 .u32 counter;\n" + kernel("a", "counter"))
    shop.part("b", ".extern .global .align 4 .u32 counter;\n" + kernel("b", "counter"))
    shop.variable("s", ".global .align 4 .u32 counter", ".global .align 4 .u32 host_only")
    image = shop.link()
    assert image
    assert names(image.data) == ["a", "b", "counter", "host_only"]
    assert image.used == tuple(shop.objects)
    assert image == dataclasses.replace(shop.link(), seconds=image.seconds)


def test_m4_a_module_without_kernels_makes_no_image(shop: Shop) -> None:
    assert shop.link() is None
    shop.variable("t", ".global .align 4 .u32 table", role="table")
    assert shop.link() is None


def test_g2_variables_without_a_kernel_make_an_image(shop: Shop) -> None:
    shop.variable("s", ".global .align 4 .u32 counter")
    image = shop.link()
    assert image
    assert names(image.data) == ["counter"]


def test_g3_tables_are_taken_only_if_an_object_asks_for_them(shop: Shop) -> None:
    table = ".const .align 4 .b8 {}[40000]"
    shop.part("a", ".extern .global .align 8 .u64 first[1];\n" + kernel("a", "first"))
    shop.part("b", kernel("b"))
    shop.variable("folded_a", table.format("folded_a"), role="table")
    shop.variable("folded_b", table.format("folded_b"), role="table")
    shop.variable("second", ".global .align 4 .u32 second = 7", role="table")
    shop.part(
        "first",
        ".extern .global .align 4 .u32 second;\n.visible .global .align 8 .u64 first[1] = {second};\n",
        role="table",
        defines=("first",),
    )
    image = shop.link()
    assert image
    assert names(image.data) == ["a", "b", "first", "second"]
    assert image.used == tuple(shop.parts[name].digest for name in ("a", "b", "second", "first"))


def test_g3_a_table_nobody_asks_for_needs_no_object(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    del shop.objects[shop.variable("t", ".global .align 4 .u32 t", role="table").digest]
    assert shop.link()


def test_l8_a_missing_and_a_damaged_object_are_named(shop: Shop) -> None:
    digest = shop.part("a", kernel("a")).digest
    path = shop.objects[digest]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedError) as caught:
        shop.link()
    assert str(caught.value).startswith("kernel a(float*) of net/a.cu (sm_90): its object is missing or damaged\n")
    path.unlink()
    with pytest.raises(DamagedError, match="its object is missing or damaged"):
        shop.link()
    del shop.objects[digest]
    with pytest.raises(DamagedError, match="its object is missing or damaged"):
        shop.link()


def test_l8_two_valid_objects_exchanged_are_found(shop: Shop) -> None:
    first, second = (shop.objects[shop.part(name, kernel(name)).digest] for name in "ab")
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    with pytest.raises(DamagedError, match=r"kernel a\(float\*\) of net/a\.cu \(sm_90\): its object is missing or damaged"):
        shop.link()


def test_l8_objects_exchanged_with_their_records_are_found(shop: Shop) -> None:
    first, second = (shop.part(name, kernel(name)).digest for name in "ab")
    shop.objects[first], shop.objects[second] = shop.objects[second], shop.objects[first]
    with pytest.raises(LinkError, match=r"kernel a\(float\*\) of net/a\.cu \(sm_90\): its object is that of something else: it lacks a"):
        shop.link()


@pytest.mark.parametrize(("role", "subject"), [("state", "the object of its variables"), ("table", "the object of table counter")])
def test_l8_an_object_that_lacks_a_variable_is_found_before_the_link(shop: Shop, role: str, subject: str) -> None:
    shop.part("a", ".extern .global .align 4 .u32 counter;\n" + kernel("a", "counter"))
    shop.part("s", ".visible .global .align 4 .u32 other;\n", role=role, defines=("counter",))
    with pytest.raises(LinkError, match=rf"net/s\.cu \(sm_90\): {subject} is that of something else: it lacks counter"):
        shop.link(provider=None)


def test_l4_deferred_ptx_of_another_architecture_is_refused(shop: Shop) -> None:
    for arch, wrong in (("sm_90", ""), ("sm_80", "its object is deferred PTX for sm_80")):
        data = dptx.write(HEAD + kernel("a"), arch=arch, spelled=(), options=AssembleOptions())
        found = contents(data, target=SM_90, name="its object")
        assert (found.wrong, found.kernels) == (wrong, {"a"})
    digest = shop.part("a", kernel("a")).digest
    path = shop.objects[digest].with_suffix(".dptx")
    shop.store.save(path, data, records.make(data, key=(("digest", digest),)))
    shop.objects[digest] = path
    with pytest.raises(LinkError, match=r"kernel a\(float\*\) of net/a\.cu \(sm_90\): its object is deferred PTX for sm_80"):
        shop.link(provider=None)


def test_l8_a_whole_object_is_refused(shop: Shop) -> None:
    shop.part("a", kernel("a"), whole=True)
    with pytest.raises(LinkError, match=r"kernel a\(float\*\) of net/a\.cu \(sm_90\): its object is a whole program, not relocatable"):
        shop.link()


def test_l8_a_kernel_more_is_found(shop: Shop) -> None:
    shop.part("a", kernel("a") + kernel("sneaked_in"))
    with pytest.raises(LinkError, match="its object is that of something else: it holds sneaked_in"):
        shop.link()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_l4_an_object_of_another_architecture_is_refused(shop: Shop, arch: str) -> None:
    shop.part("a", kernel("a"))
    plan = dataclasses.replace(shop.plan(), arch=arch)
    with pytest.raises(LinkError, match=rf"kernel a\(float\*\) of net/a\.cu \({arch}\): its object is made for sm_90$"):
        link_image(plan, shop.entries(), provider=shop.provider, options=AssembleOptions())


class Dropping:
    """A linker that leaves out its last input, or adds one, and says nothing."""

    def __init__(self, provider: PtxasProvider, extra: LinkInput | None = None) -> None:
        self.provider, self.extra = provider, extra

    def link(self, inputs: list[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        given = [*inputs, self.extra] if self.extra else inputs[:-1]
        return self.provider.link(given, target=target, options=options)


def test_l5_a_linker_is_told_what_each_input_is(shop: Shop) -> None:
    """It names them where something is wrong with one."""

    class Asked:
        def link(self, inputs: list[LinkInput], **_: object) -> Linked:
            told = [f"{each.label} | {each.kernel} | {each.source}" for each in inputs]
            raise LinkError("\n".join(told))

    shop.part("a", ".extern .global .align 4 .u32 lut;\n" + kernel("a", "lut"))
    shop.variable("s", ".global .align 4 .u32 counter")
    shop.variable("lut", ".global .align 4 .u32 lut = 7", role="table")
    with pytest.raises(LinkError) as caught:
        shop.link(provider=Asked())
    assert caught.value.what.splitlines() == [
        "kernel a(float*) of net/a.cu | a(float*) | a.cu",
        "its variables of net/s.cu |  | s.cu",
        "table lut of net/lut.cu |  | lut.cu",
    ]


def test_l8_a_linker_that_drops_a_kernel_is_found(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.part("b", kernel("b"))
    with pytest.raises(LinkError, match=r"net/b\.cu \(sm_90\): the linked image lacks kernel b\(float\*\)"):
        shop.link(provider=Dropping(shop.provider))


def test_g6_a_linker_that_drops_state_is_found(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.variable("s", ".global .align 4 .u32 counter")
    with pytest.raises(LinkError, match=r"net/s\.cu \(sm_90\): the linked image lacks variable counter"):
        shop.link(provider=Dropping(shop.provider))


def test_g6_private_state_twice_is_found(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other")
    shop.part("a", ".global .align 4 .u32 memo;\n" + kernel("a", "memo"))
    shop.state.append(PlannedState(symbol="memo", bytes=4, space="global", source="a.cu"))
    digest = other.part("b", ".global .align 4 .u32 memo;\n.visible .func f() { st.global.u32 [memo], 1; ret; }\n", role="state").digest
    with pytest.raises(LinkError, match=r"net/a\.cu \(sm_90\): the linked image holds 2 times variable memo"):
        shop.link(provider=Dropping(shop.provider, LinkInput(path=other.objects[digest], label="b")))


def test_l8_a_linker_that_adds_a_kernel_is_found(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other")
    shop.part("a", kernel("a"))
    digest = other.part("b", kernel("b")).digest
    with pytest.raises(LinkError, match="the linked image holds kernel b, which is none of the module's"):
        shop.link(provider=Dropping(shop.provider, LinkInput(path=other.objects[digest], label="b")))


def test_l8_an_image_that_does_not_read_is_named(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    with pytest.raises(DamagedError, match="image of net"):
        check_image(shop.plan(), b"\x7fELF")


def test_s8_an_undefined_function_is_named_with_its_kernel(shop: Shop) -> None:
    shop.part("a", kernel("a"))
    shop.part("b", ".extern .func lost();\n.visible .entry b()\n{\n\tcall lost;\n\tret;\n}\n")
    with pytest.raises(MissingSymbolError) as caught:
        shop.link()
    assert str(caught.value).startswith("kernel b(float*) of net/b.cu (sm_90): nobody defines lost")


def test_g7_full_constant_memory_lists_the_largest(shop: Shop) -> None:
    for name, size in (("small", 4), ("large", 40000), ("larger", 50000)):
        shop.part(f"k_{name}", f".extern .const .align 4 .b8 {name}[{size}];\n" + kernel(f"k_{name}", name, space="const"))
        shop.variable(f"s_{name}", f".const .align 4 .b8 {name}[{size}]", role="table")
    with pytest.raises(RefusedError) as caught:
        shop.link()
    lines = [line.split() for line in str(caught.value).splitlines() if " of s_" in line]
    assert lines == [
        ["50000", "bytes", "larger", "of", "s_larger.cu"],
        ["40000", "bytes", "large", "of", "s_large.cu"],
        ["4", "bytes", "small", "of", "s_small.cu"],
    ]
    assert str(caught.value).startswith("module net (sm_90): its constants do not fit into the 64 KiB of an image\n")


@pytest.mark.parametrize(("size", "refused"), [(24 * 1024, False), (24 * 1024 + 4, True)])
def test_s7_shared_memory_of_a_kernel_is_summed_before_the_link(shop: Shop, size: int, *, refused: bool) -> None:
    arrays = f".shared .align 4 .b8 one[{24 * 1024}];\n.shared .align 4 .b8 two[{size}];\n.extern .shared .align 4 .b8 dynamic[];\n"
    shop.part("k", arrays + kernel("k", "one", "two", "dynamic", space="shared"))
    if not refused:
        assert shop.link()
        return
    with pytest.raises(RefusedError) as caught:
        shop.link(provider=None)
    assert [line.split() for line in caught.value.output.splitlines()] == [["24580", "bytes", "two"], ["24576", "bytes", "one"]]
    assert str(caught.value).startswith("kernel k(float*) of net/k.cu (sm_90): its 49156 bytes of __shared__ variables")


def test_textures_and_surfaces_are_variables_of_the_image(shop: Shop) -> None:
    shop.part("k", kernel("k"))
    shop.variable("s", ".global .texref picture", ".global .surfref board")
    image = shop.link()
    assert image
    assert names(image.data) == ["board", "k", "picture"]


def test_private_state_is_found_under_the_name_that_ptx_can_spell(shop: Shop) -> None:
    shop.part("a", ".extern .global .align 4 .u32 memo_$_0123456789abcdef;\n" + kernel("a", "memo_$_0123456789abcdef"))
    shop.part("s", ".visible .global .align 4 .u32 memo_$_0123456789abcdef;\n", role="state", defines=("memo.0123456789abcdef",))
    shop.state.append(PlannedState(symbol="memo.0123456789abcdef", bytes=4, space="global", source="s.cu"))
    assert shop.link()


def test_a_kernel_is_found_under_the_name_that_ptx_can_spell(shop: Shop) -> None:
    part = shop.part("k_$_1", kernel("k_$_1"))
    shop.parts["k_$_1"] = dataclasses.replace(part, kernels=(dataclasses.replace(part.kernels[0], symbol="k.1"),))
    assert shop.link()


def test_a_part_that_the_plan_refused_says_why(shop: Shop) -> None:
    refusal = json.dumps(MissingSymbolError("a calls lost, which nobody defines", kernel="a(float*)", source="a.cu").to_json())
    part = shop.part("a", kernel("a"))
    shop.parts["a"] = dataclasses.replace(part, refused=refusal)
    with pytest.raises(MissingSymbolError, match=r"kernel a\(float\*\) of net/a\.cu \(sm_90\): a calls lost, which nobody defines"):
        shop.link()

"""What every provider that runs without a GPU does alike: those of the toolkit, those made of others, and the driver over a stub."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver
from driver_stub import DriverStub

from scons_gpu.assemble import cubin, dptx, nvjitlink_library
from scons_gpu.assemble.defer import defer
from scons_gpu.assemble.driver import DriverProvider
from scons_gpu.assemble.key import object_key
from scons_gpu.assemble.nvjitlink import NvJitLinkProvider
from scons_gpu.assemble.nvlink import NvlinkProvider
from scons_gpu.assemble.pair import PairProvider
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import (
    DamagedError,
    GpuError,
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    SpillError,
    ToolError,
    ToolMissingError,
    UnsupportedArchError,
    UsageError,
)
from scons_gpu.link import elf
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scons_gpu.assemble.provider import Provider

HOME = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
SM_80, SM_90, SM_90A = parse(["sm_80", "sm_90", "sm_90a"])
UNKNOWN = Target(name="sm_33", real=True)
PLAIN = AssembleOptions()

HEAD = ".version 7.8\n.target sm_75\n.address_size 64\n"
WANTS = ".extern .func (.param .b32 r) ext(.param .b32 a);\n"
CALL = "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), ext, (a); ld.param.b32 %r1, [b]; }"


def kernel(name: str, body: str = "", *, regs: str = "", head: str = HEAD) -> str:
    return (
        f"{head}.visible .entry {name}(.param .u64 p)\n{{\n.reg .b64 %rd<4>; .reg .b32 %r<4>;{regs}\nld.param.u64 %rd1, [p];\n"
        f"mov.u32 %r1, %tid.x;\n{body}\nst.global.b32 [%rd1], %r1;\nret;\n}}\n"
    )


CALLER = kernel("caller", CALL, head=HEAD + WANTS)
CALLEE = (
    HEAD + ".visible .func (.param .b32 r) ext(.param .b32 a)\n{ .reg .b32 %r<4>; ld.param.b32 %r1, [a]; st.param.b32 [r], %r1; ret; }\n"
)
SPILLS = kernel(
    "_Z5heavyPf",
    "\n".join(f"ld.volatile.global.b32 %s{n}, [%rd1+{4 * n}];" for n in range(80))
    + "\n".join(f"st.volatile.global.b32 [%rd1+{4 * n}], %s{n * 37 % 80};" for n in range(80)),
    regs=" .reg .b32 %s<80>;",
)
BROKEN = kernel("fine") + kernel("broken", "frobnicate;", head="")
NARROW = AssembleOptions(maxrregcount=32)


def tool(name: str) -> Tool:
    path = HOME / "lib" / "libnvJitLink.so.13" if name == "nvjitlink" else HOME / "bin" / name
    return Tool(name=name, path=str(path), version="13.5.37", identity=name * 10, origin="wheel")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("facts")


@pytest.fixture(scope="module")
def stub() -> DriverStub:
    return DriverStub(nvjitlink_library.load(tool("nvjitlink").path))


@pytest.fixture(scope="module")
def every(facts: Path, stub: DriverStub) -> dict[str, Provider]:
    ptxas = PtxasProvider(ptxas=tool("ptxas"), nvlink=tool("nvlink"), facts=facts)
    nvjitlink = NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=facts)
    by_driver = DriverProvider(driver=replace(tool("driver"), version="13.0"), api=stub)
    return {
        "ptxas": ptxas,
        "nvjitlink": nvjitlink,
        "deferred on nvjitlink": defer(nvjitlink, always=True),
        "deferred on ptxas": defer(ptxas, always=True),
        "ptxas+nvjitlink": PairProvider(ptxas, nvjitlink, compiled_by=tool("ptxas"), linked_by=tool("nvjitlink")),
        "nvjitlink+nvlink": PairProvider(
            nvjitlink, NvlinkProvider(nvlink=tool("nvlink")), compiled_by=tool("nvjitlink"), linked_by=tool("nvlink")
        ),
        "deferred on driver": defer(by_driver),
    }


NAMES = ("ptxas", "nvjitlink", "deferred on nvjitlink", "deferred on ptxas", "ptxas+nvjitlink", "nvjitlink+nvlink", "deferred on driver")
TAKE_PTX = ("nvjitlink", "deferred on nvjitlink", "deferred on ptxas", "ptxas+nvjitlink", "deferred on driver")
MAKE_OBJECTS = ("ptxas", "nvjitlink", "ptxas+nvjitlink", "nvjitlink+nvlink")


@pytest.fixture(params=NAMES)
def provider(request: pytest.FixtureRequest, every: dict[str, Provider]) -> Provider:
    return every[request.param]


@pytest.fixture(params=TAKE_PTX)
def taking(request: pytest.FixtureRequest, every: dict[str, Provider]) -> Provider:
    return every[request.param]


@dataclass
class Parts:
    """Inputs of links, each with its kernel and source."""

    folder: Path
    objects: Provider
    made: int = 0

    def save(self, data: bytes, name: str, suffix: str = ".cubin") -> LinkInput:
        self.made += 1
        path = self.folder / f"{self.made}{suffix}"
        path.write_bytes(data)
        return LinkInput(path=path, label=f"kernel {name} of net/{name}.cu", kernel=name, source=f"{name}.cu")

    def object(self, ptx: str, name: str = "k", *, target: Target = SM_90) -> LinkInput:
        return self.save(self.objects.compile_relocatable(ptx, target=target, options=PLAIN).data, name)

    def deferred(
        self, provider: Provider, ptx: str, name: str = "k", *, target: Target = SM_90, options: AssembleOptions = PLAIN
    ) -> LinkInput:
        spelled = tuple(
            word for word in provider.spelling(target=target, options=options, relocatable=True) if word not in {"deferred", dptx.FORMAT}
        )
        return self.save(dptx.write(ptx, arch=target.name, spelled=spelled, options=options), name, ".dptx")


@pytest.fixture
def parts(tmp_path: Path, every: dict[str, Provider]) -> Parts:
    return Parts(folder=tmp_path, objects=every["ptxas"])


def symbols(image: bytes) -> list[str]:
    return [each.symbol for each in elf.read(image).kernels]


# What each can do


def test_l11_a_hundred_calls_at_once_give_equal_bytes(provider: Provider) -> None:
    """The first of the tests, because a library that failed once is not called in this process again."""
    operations = [provider.compile, provider.compile_relocatable]

    def call(number: int) -> tuple[int, bytes]:
        return number % 2, operations[number % 2](kernel("a"), target=SM_90, options=PLAIN).data

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(call, range(100)))) == 2


def test_capabilities_are_what_was_found(every: dict[str, Provider]) -> None:
    found = {name: provider.capabilities for name, provider in every.items()}
    assert found == {
        "ptxas": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=False),
        "nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "deferred on nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "deferred on ptxas": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "ptxas+nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "nvjitlink+nvlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=False),
        "deferred on driver": Capabilities(compile=True, relocatable=True, link=True, clones_functions=False, link_ptx=True),
    }


def test_a_pair_has_the_identity_of_each_half(every: dict[str, Provider]) -> None:
    pair = every["ptxas+nvjitlink"]
    assert (pair.name, pair.identity, pair.link_identity) == ("ptxas+nvjitlink", "ptxas" * 10, "nvjitlink" * 10)
    assert pair.spelling(target=SM_90, options=PLAIN, relocatable=True) == every["ptxas"].spelling(
        target=SM_90, options=PLAIN, relocatable=True
    )


def test_deferred_ptx_is_no_object_of_its_provider(every: dict[str, Provider]) -> None:
    """L6: an assembler that appears later finds no object under its keys."""
    for inner, outer in (("ptxas", "deferred on ptxas"), ("nvjitlink", "deferred on nvjitlink")):
        keys = [
            object_key(digest="d", kind=kind, provider=every[name], options=PLAIN, target=SM_90)
            for name in (inner, outer)
            for kind in ("rel", "whole")
        ]
        assert keys[0] != keys[2]
        assert keys[1] == keys[3], "whole objects it makes as ever"
    assert every["deferred on ptxas"].link_identity == f"{'ptxas' * 10} {'nvlink' * 10}", "both shape the image"
    assert every["deferred on nvjitlink"].link_identity == "nvjitlink" * 10


# Assembling


def test_a_whole_object(provider: Provider) -> None:
    made = provider.compile(kernel("a"), target=SM_90, options=PLAIN)
    head = cubin.head(made.data)
    assert isinstance(head, cubin.Head)
    assert not head.relocatable
    assert symbols(made.data) == ["a"]
    assert made.output == ""
    (resources,) = made.resources
    assert resources.kernel == "a"
    assert resources.registers
    assert (resources.spill_stores, resources.spill_loads, resources.shared_bytes) == (0, 0, 0)


@pytest.mark.parametrize("name", MAKE_OBJECTS)
def test_a_relocatable_object(every: dict[str, Provider], name: str) -> None:
    head = cubin.head(every[name].compile_relocatable(CALLER, target=SM_90, options=PLAIN).data)
    assert isinstance(head, cubin.Head)
    assert (head.relocatable, head.number) == (True, 90)


def test_contract_nvjitlink_makes_ptxas_code_and_a_clone_keeps_the_registers(every: dict[str, Provider]) -> None:
    text = kernel("calls", CALL.replace("ext", "dev"), head=CALLEE.replace(".visible .func", ".func").replace("ext", "dev"))
    made = [
        every[name].compile_relocatable(text, target=SM_90, options=options)
        for name in ("ptxas", "nvjitlink")
        for options in (PLAIN, AssembleOptions(flags=("-enable-func-clone-sc", "false")))
    ]
    code = [{each.name: data.data[each.offset : each.offset + each.size] for each in sections(data.data)} for data in made]
    assert code[0][".text.calls"] == code[2][".text.calls"]
    assert code[1][".text.calls"] == code[3][".text.calls"]
    assert [each.resources[0].registers for each in made] == [8, 24, 8, 24]


def text_of(made: Assembled | Linked) -> list[bytes]:
    return [made.data[each.offset : each.offset + each.size] for each in sections(made.data) if each.name.startswith(".text.")]


def sections(data: bytes) -> Sequence[Any]:
    head = elf.cubin.head(data)
    assert not isinstance(head, str)
    return elf._sections(data, head.sections)


def test_options_reach_the_tool(provider: Provider) -> None:
    plain = provider.compile(SPILLS, target=SM_90, options=PLAIN)
    narrow = provider.compile(SPILLS, target=SM_90, options=NARROW)
    assert plain.resources[0].registers
    assert plain.resources[0].registers > 32
    assert narrow.resources[0].registers == 32
    code = [text_of(provider.compile(SPILLS, target=SM_90, options=AssembleOptions(opt=level))) for level in (0, 3)]
    assert code[0] != code[1]
    assert not any(each.name == ".nv_debug_info_reg_sass" for each in sections(plain.data))
    debugged = provider.compile(SPILLS, target=SM_90, options=AssembleOptions(debug=True, opt=0))
    assert any(each.name == ".nv_debug_info_reg_sass" for each in sections(debugged.data))
    assert b"-lineinfo" in provider.compile(SPILLS, target=SM_90, options=AssembleOptions(lineinfo=True)).data


def test_options_are_in_the_key(provider: Provider) -> None:
    changes = [
        PLAIN,
        AssembleOptions(opt=1),
        AssembleOptions(lineinfo=True),
        AssembleOptions(debug=True),
        NARROW,
        AssembleOptions(flags=("-dlcm=ca",)),
    ]
    for kind in ("rel", "whole"):
        assert len({object_key(digest="d", kind=kind, provider=provider, options=options, target=SM_90) for options in changes}) == len(
            changes
        )
        assert object_key(digest="d", kind=kind, provider=provider, options=PLAIN, target=SM_90A) != object_key(
            digest="d", kind=kind, provider=provider, options=PLAIN, target=SM_90
        )


def test_a_flag_that_nobody_knows_fails_with_the_tools_words(provider: Provider) -> None:
    options = AssembleOptions(flags=("-bogus",))
    if provider.name == "driver":
        with pytest.raises(UsageError, match="GPU_PTXASFLAGS=-bogus: the CUDA driver takes no options of ptxas"):
            provider.compile(kernel("a"), target=SM_90, options=options)
        return
    with pytest.raises(ToolError) as caught:
        provider.compile(kernel("a"), target=SM_90, options=options)
    assert "ptxas fatal   : Unknown option 'bogus'" in caught.value.output


def test_spilling_with_and_without_a_limit(provider: Provider) -> None:
    free = provider.compile(SPILLS, target=SM_90, options=AssembleOptions(fail_on_spill=True))
    assert free.resources[0].spill_stores == 0
    spilling = provider.compile(SPILLS, target=SM_90, options=NARROW).resources[0]
    assert spilling.spill_stores
    with pytest.raises(SpillError, match=rf"registers spill to local memory \({spilling.spill_stores} bytes stored") as caught:
        provider.compile(SPILLS, target=SM_90, options=replace(NARROW, fail_on_spill=True))
    assert caught.value.kernel == "heavy(float*)"


def test_verbosity(provider: Provider) -> None:
    loud = provider.compile(kernel("a"), target=SM_90, options=AssembleOptions(verbose=True))
    assert "Compiling entry function 'a' for 'sm_90'" in loud.output
    assert loud.data == provider.compile(kernel("a"), target=SM_90, options=PLAIN).data


def test_l10_syntax_names_kernel_and_line(provider: Provider) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        provider.compile(BROKEN, target=SM_90, options=PLAIN)
    assert caught.value.kernel == "broken"
    assert "PTX line 18; error   : Not a name of any known instruction: 'frobnicate'" in caught.value.output


def test_text_that_is_no_ptx(provider: Provider) -> None:
    for text in ("hello", ""):
        with pytest.raises(GpuError) as caught:
            provider.compile(text, target=SM_90, options=PLAIN)
        assert isinstance(caught.value, ToolError | LinkError)


def test_l10_an_architecture_that_nobody_knows_in_three_operations(provider: Provider, parts: Parts) -> None:
    part = parts.deferred(provider, kernel("a"), target=UNKNOWN) if provider.capabilities.link_ptx else parts.object(kernel("a"))
    with pytest.raises(UnsupportedArchError, match="sm_33"):
        provider.compile(kernel("a"), target=UNKNOWN, options=PLAIN)
    if provider.name != "driver" and not hasattr(provider, "hand_on"):
        with pytest.raises(UnsupportedArchError, match="sm_33"):
            provider.compile_relocatable(kernel("a"), target=UNKNOWN, options=PLAIN)
    with pytest.raises((UnsupportedArchError, LinkError), match="sm_33"):
        provider.link([part], target=UNKNOWN, options=PLAIN)


def test_a_newer_ptx_than_the_tool_reads(provider: Provider) -> None:
    with pytest.raises(UnsupportedArchError, match=r"reads PTX up to \d+\.\d+, and this is PTX 99\.9"):
        provider.compile(kernel("a").replace("7.8", "99.9"), target=SM_90, options=PLAIN)


def test_l10_an_undefined_symbol_named_by_compile_and_by_link(provider: Provider, parts: Parts) -> None:
    with pytest.raises(MissingSymbolError, match="nobody defines ext"):
        provider.compile(CALLER, target=SM_90, options=PLAIN)
    given = [parts.object(kernel("a"), "a"), parts.object(CALLER, "caller")]
    with pytest.raises(MissingSymbolError, match="nobody defines ext") as caught:
        provider.link(given, target=SM_90, options=PLAIN)
    assert "kernel caller of net/caller.cu" in caught.value.output


# Linking


@pytest.mark.parametrize("first", ["ptx", "object"])
@pytest.mark.parametrize("second", ["ptx", "object"])
def test_two_dependent_parts(taking: Provider, parts: Parts, first: str, second: str) -> None:
    make: dict[str, Callable[[str, str], LinkInput]] = {
        "ptx": lambda ptx, name: parts.deferred(taking, ptx, name),
        "object": parts.object,
    }
    given = [make[first](CALLER, "caller"), make[second](CALLEE, "ext")]
    linked = taking.link(given, target=SM_90, options=PLAIN)
    assert symbols(linked.data) == ["caller"]
    assert [each.kernel for each in linked.resources] == (["caller"] if first == "ptx" else []), "of what it assembled"
    assert linked.output == ""
    assert taking.link(given, target=SM_90, options=PLAIN).data == linked.data
    assert taking.link(given[::-1], target=SM_90, options=PLAIN).data != linked.data, "the order is the caller's"


@pytest.mark.parametrize("name", NAMES)
def test_objects_of_each_link_in_each(every: dict[str, Provider], parts: Parts, name: str) -> None:
    provider = every[name]
    own = Parts(folder=parts.folder, objects=provider if name in MAKE_OBJECTS else every["nvjitlink"], made=100)
    given = [parts.object(CALLER, "caller"), own.object(CALLEE, "ext"), own.object(kernel("k"), "k")]
    assert symbols(provider.link(given, target=SM_90, options=PLAIN).data) == ["caller", "k"]


TILE = """\
.shared .align 4 .b8 own[{bytes}];
mov.u32 %r2, own; st.shared.u32 [%r2], %r1; mov.u32 %r3, tile; st.shared.u32 [%r3+4], %r1; bar.sync 0; ld.shared.u32 %r1, [%r3+8];"""


@pytest.mark.parametrize("name", [*MAKE_OBJECTS, "deferred on nvjitlink"])
def test_units_may_call_their_dynamic_shared_memory_alike(every: dict[str, Provider], parts: Parts, name: str) -> None:
    """A relocatable link by nvJitLink makes a definition of it, and two of one name do not go together: it gets a name of its own there."""
    provider, head = every[name], HEAD + ".extern .shared .align 4 .b8 tile[];\n"
    texts = {kind: kernel(kind, TILE.format(bytes=size), head=head) for kind, size in {"a": 12, "b": 400}.items()}
    own = Parts(folder=parts.folder, objects=provider if name in MAKE_OBJECTS else every["nvjitlink"], made=100)
    given = [own.object(texts["a"], "a"), own.object(texts["b"], "b")]
    if name not in MAKE_OBJECTS:
        given[1] = parts.deferred(provider, texts["b"], "b")
    linked = provider.link(given, target=SM_90, options=PLAIN)
    expected = every["ptxas"].link([parts.object(text, kind) for kind, text in texts.items()], target=SM_90, options=PLAIN)
    assert text_of(linked) == text_of(expected)
    assert len(set(text_of(linked))) == 2, "the arrays' places differ"
    assert [each.shared_bytes for each in elf.read(linked.data).kernels] == [each.shared_bytes for each in elf.read(expected.data).kernels]


@pytest.mark.parametrize("name", ["ptxas", "nvjitlink+nvlink"])
def test_a_linker_of_objects_refuses_ptx(every: dict[str, Provider], parts: Parts, name: str) -> None:
    with pytest.raises(LinkError, match=r"kernel k of net/k\.cu: deferred PTX, which nvlink cannot assemble"):
        every[name].link([parts.deferred(every["ptxas"], kernel("k"))], target=SM_90, options=PLAIN)


def test_l5_bad_ptx_in_a_link_names_kernel_and_source(taking: Provider, parts: Parts) -> None:
    good = parts.deferred(taking, kernel("a"), "a")
    with pytest.raises(PtxSyntaxError) as caught:
        taking.link([good, parts.deferred(taking, BROKEN, "b")], target=SM_90, options=PLAIN)
    assert (caught.value.kernel, caught.value.source) == ("broken", "b.cu")
    assert "PTX line 18; error   : Not a name" in caught.value.output
    assert "part-0" not in str(caught.value)
    assert str(parts.folder) not in str(caught.value)
    alone = LinkInput(path=parts.deferred(taking, BROKEN).path, label="state of net/s.cu")
    with pytest.raises(PtxSyntaxError, match=r"state of net/s\.cu: .* does not accept the PTX"):
        taking.link([alone], target=SM_90, options=PLAIN)


def test_l5_what_a_deferred_part_lacks_names_its_kernel(taking: Provider, parts: Parts) -> None:
    with pytest.raises(MissingSymbolError, match="nobody defines ext") as caught:
        taking.link([parts.object(kernel("a"), "a"), parts.deferred(taking, CALLER, "caller")], target=SM_90, options=PLAIN)
    assert "kernel caller of net/caller.cu" in str(caught.value)


def test_spilling_in_a_link(taking: Provider, parts: Parts) -> None:
    given = [parts.deferred(taking, SPILLS, "heavy", options=NARROW), parts.deferred(taking, kernel("a"), "a", options=NARROW)]
    linked = taking.link(given, target=SM_90, options=NARROW)
    found = {each.kernel: each for each in linked.resources}
    assert found["_Z5heavyPf"].spill_stores
    assert found["a"].spill_stores == 0
    with pytest.raises(SpillError) as caught:
        taking.link(given, target=SM_90, options=replace(NARROW, fail_on_spill=True))
    assert (caught.value.kernel, caught.value.source) == ("heavy(float*)", "heavy.cu")


def test_a_name_defined_twice_is_an_error_that_names_both(provider: Provider, parts: Parts) -> None:
    """nvJitLink prints this, says that it succeeded, and gives an image."""
    given = [parts.object(kernel("k"), "one"), parts.object(kernel("k"), "other")]
    with pytest.raises(LinkError, match="k is defined twice") as caught:
        provider.link(given, target=SM_90, options=PLAIN)
    assert "'kernel other of net/other.cu', first defined in 'kernel one of net/one.cu'" in caught.value.output


def test_l8_a_whole_object_is_refused(provider: Provider, parts: Parts, every: dict[str, Provider]) -> None:
    whole = parts.save(every["ptxas"].compile(kernel("b"), target=SM_90, options=PLAIN).data, "b")
    with pytest.raises(LinkError, match=r"kernel b of net/b\.cu: not a relocatable object \(assembled without -c\); \w"):
        provider.link([parts.object(kernel("a"), "a"), whole], target=SM_90, options=PLAIN)


def test_l8_damaged_and_missing_objects_are_refused(provider: Provider, parts: Parts) -> None:
    for keep, said in ((0, "empty"), (300, "cut short at 300 bytes"), (40, "no ELF header")):
        part = parts.object(kernel("a"), "a")
        part.path.write_bytes(part.path.read_bytes()[:keep])
        with pytest.raises(LinkError, match=rf"kernel a of net/a\.cu: .*{said}"):
            provider.link([part], target=SM_90, options=PLAIN)
    with pytest.raises(LinkError, match="cannot be read"):
        provider.link([LinkInput(parts.folder / "gone", "gone")], target=SM_90, options=PLAIN)
    with pytest.raises(LinkError, match="nothing to link"):
        provider.link([], target=SM_90, options=PLAIN)


def test_l4_architectures_do_not_mix_and_both_are_named(provider: Provider, parts: Parts) -> None:
    for target in (SM_80, SM_90A):
        given = [parts.object(kernel("a"), "a"), parts.object(kernel("b"), "b", target=target)]
        with pytest.raises(
            LinkError, match=rf"kernel b of net/b\.cu: assembled for {target}, and this image is for sm_90, as is kernel a of"
        ):
            provider.link(given, target=SM_90, options=PLAIN)


def test_contract_an_object_of_nvjitlink_tells_no_suffix(every: dict[str, Provider], parts: Parts) -> None:
    own = Parts(folder=parts.folder, objects=every["nvjitlink"])
    with pytest.raises(LinkError, match=r"assembled for sm_80 \(a suffix is not told\), and this image is for sm_90"):
        every["nvjitlink"].link([own.object(kernel("a"), target=SM_80)], target=SM_90, options=PLAIN)
    assert symbols(every["nvjitlink"].link([own.object(kernel("a"))], target=SM_90A, options=PLAIN).data) == ["a"]


def test_l4_options_do_not_mix_and_both_are_named(taking: Provider, parts: Parts) -> None:
    given = [parts.deferred(taking, kernel("a"), "a"), parts.deferred(taking, kernel("b"), "b", options=NARROW)]
    with pytest.raises(
        LinkError, match=r"kernel b of net/b\.cu: to be assembled with \S+=32, and kernel a of net/a\.cu with nothing of that"
    ):
        taking.link(given, target=SM_90, options=PLAIN)
    given = [parts.deferred(taking, kernel("a"), "a"), parts.deferred(taking, kernel("b"), "b", target=SM_90A)]
    with pytest.raises(LinkError, match=r"kernel b of net/b\.cu: assembled for sm_90a, and this image is for sm_90, as is kernel a of"):
        taking.link(given, target=SM_90, options=PLAIN)


def test_l3_damaged_deferred_ptx_is_named(taking: Provider, parts: Parts) -> None:
    part = parts.deferred(taking, kernel("a"), "a")
    whole = part.path.read_bytes()
    for data, kind, said in (
        (whole[:-1], DamagedError, "bytes of PTX where its header says"),
        (b"", DamagedError, "is empty"),
        (parts.object(kernel("b")).path.read_bytes(), LinkError, "an object, not deferred PTX"),
        (whole.replace(b"dptx/1", b"dptx/9"), LinkError, "in the format scons-gpu/dptx/9"),
        (b"x" + whole, DamagedError, "has no header that reads"),
    ):
        part.path.write_bytes(data)
        with pytest.raises(kind, match=rf"kernel a of net/a\.cu: .*{said}"):
            taking.link([part], target=SM_90, options=PLAIN)


def test_t10_an_image_depends_on_no_path(taking: Provider, parts: Parts, tmp_path: Path) -> None:
    options = AssembleOptions(debug=True, opt=0)
    given = [parts.deferred(taking, CALLER, "caller", options=options), parts.deferred(taking, CALLEE, "ext", options=options)]
    first = taking.link(given, target=SM_90, options=options).data
    (tmp_path / "elsewhere").mkdir()
    moved = [
        LinkInput(path=each.path.rename(tmp_path / "elsewhere" / f"moved{number}.dptx"), label=str(number))
        for number, each in enumerate(given)
    ]
    assert taking.link(moved, target=SM_90, options=options).data == first


# Deferral


@dataclass
class Recording:
    """A provider that only notes what it is asked."""

    capabilities: Capabilities
    name: str = "recording"
    identity: str = "i"
    link_identity: str = "l"
    calls: list[Any] = field(default_factory=list)

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        return (f"-arch={target.name}", f"-maxrregcount={options.maxrregcount}", "-c" if relocatable else "")

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        raise NotImplementedError

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:  # noqa: ARG002
        self.calls.append(ptx)
        return Assembled(data=f"object of {ptx}".encode(), output="a warning\n", resources=(), seconds=1.0, cpu=0.5, peak_kib=10)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:  # noqa: ARG002
        self.calls.append(([(each.label, each.path.read_bytes()) for each in inputs], options))
        return Linked(data=b"image", output="linked\n", seconds=1.0, cpu=0.5, peak_kib=5)


def can(*, relocatable: bool = False, link: bool = True, link_ptx: bool = True) -> Recording:
    return Recording(Capabilities(compile=True, relocatable=relocatable, link=link, clones_functions=False, link_ptx=link_ptx))


@pytest.mark.parametrize("always", [False, True])
def test_l2_what_cannot_be_deferred_is_refused_when_configured(*, always: bool) -> None:
    with pytest.raises(UsageError, match="recording cannot link, so PTX that is deferred would never be assembled"):
        defer(can(link=False, relocatable=True), always=always)
    with pytest.raises(UsageError, match="recording links objects alone"):
        defer(can(link_ptx=False), always=always)
    with pytest.raises(UsageError, match="nvlink links objects alone"):
        defer(NvlinkProvider(nvlink=tool("nvlink")), always=always)
    if always:
        assert defer(can(relocatable=True), always=always).capabilities.relocatable
    else:
        with pytest.raises(UsageError, match="recording makes relocatable objects, so nothing is to be deferred") as caught:
            defer(can(relocatable=True))
        assert "GPU_DEFER=always" in caught.value.hint


def test_l1_a_link_gets_ptx_and_objects_in_order_and_nothing_is_assembled(parts: Parts) -> None:
    inner = can()
    outer = defer(inner)
    assert outer.capabilities == replace(inner.capabilities, relocatable=True)
    texts = [kernel("a"), HEAD, kernel("b")]
    made = [outer.compile_relocatable(text, target=SM_90, options=NARROW) for text in texts]
    assert [dptx.read(each.data, label="").ptx for each in made] == texts
    given = [parts.save(each.data, name, ".dptx") for each, name in zip(made, "aeb", strict=True)]
    given.insert(2, parts.object(kernel("o"), "o"))
    assert outer.link(given, target=SM_90, options=AssembleOptions(fail_on_spill=True)).data == b"image"
    ((seen, options),) = inner.calls
    assert [label for label, _ in seen] == ["kernel a of net/a.cu", "kernel o of net/o.cu", "kernel b of net/b.cu"], (
        "the empty one is dropped"
    )
    assert [data for _, data in seen] == [made[0].data, given[2].path.read_bytes(), made[2].data]
    assert options == replace(NARROW, fail_on_spill=True), "code as it was asked for when it was deferred"


def test_l1_where_the_link_takes_no_ptx_each_part_is_assembled_in_it(parts: Parts) -> None:
    inner = can(relocatable=True, link_ptx=False)
    outer = defer(inner, always=True)
    texts = [kernel("a"), HEAD, kernel("b")]
    given = [
        parts.save(outer.compile_relocatable(text, target=SM_90, options=PLAIN).data, name, ".dptx")
        for text, name in zip(texts, "aeb", strict=True)
    ]
    given.insert(2, parts.object(kernel("o"), "o"))
    assert inner.calls == []
    linked = outer.link(given, target=SM_90, options=PLAIN)
    *assembled, (seen, _) = inner.calls
    assert assembled == [texts[0], texts[2]]
    assert seen == [
        ("kernel a of net/a.cu", f"object of {texts[0]}".encode()),
        ("kernel o of net/o.cu", given[2].path.read_bytes()),
        ("kernel b of net/b.cu", f"object of {texts[2]}".encode()),
    ]
    assert (linked.seconds, linked.cpu, linked.peak_kib) == (3.0, 1.5, 10)
    assert linked.output == "kernel a of net/a.cu:\na warning\nkernel b of net/b.cu:\na warning\nlinked\n"


def test_l3_a_link_of_nothing_but_empty_parts(parts: Parts) -> None:
    outer = defer(can())
    part = parts.save(outer.compile_relocatable(HEAD, target=SM_90, options=PLAIN).data, "e", ".dptx")
    with pytest.raises(LinkError, match="nothing to link"):
        outer.link([part], target=SM_90, options=PLAIN)


def test_deferred_code_is_what_parallel_assembly_makes(every: dict[str, Provider], parts: Parts) -> None:
    ptxas, outer = every["ptxas"], every["deferred on ptxas"]
    given = [parts.object(CALLER, "caller"), parts.object(CALLEE, "ext")]
    deferred = [parts.deferred(outer, CALLER, "caller"), parts.deferred(outer, CALLEE, "ext")]
    assert outer.link(deferred, target=SM_90, options=PLAIN).data == ptxas.link(given, target=SM_90, options=PLAIN).data


# Pairs


def test_l9_a_linker_older_than_the_compiler_is_refused(every: dict[str, Provider]) -> None:
    older = replace(tool("nvjitlink"), version="13.4.92")
    with pytest.raises(ToolMissingError, match=r"the assembler is newer than the linker: ptxas 13\.5\.37 \(.*\), nvjitlink 13\.4\.92 \("):
        PairProvider(every["ptxas"], every["nvjitlink"], compiled_by=tool("ptxas"), linked_by=older)
    for version in ("13.5.2", "13.6.1", "14.0", ""):
        fits = replace(older, version=version)
        PairProvider(every["ptxas"], every["nvjitlink"], compiled_by=tool("ptxas"), linked_by=fits)
    with pytest.raises(UsageError, match=r"GPU_PROVIDER=ptxas\+ptxas: a pair has two different halves"):
        PairProvider(every["ptxas"], every["ptxas"], compiled_by=tool("ptxas"), linked_by=tool("ptxas"))


def test_a_pair_can_what_its_halves_can(every: dict[str, Provider]) -> None:
    def pair(first: Provider, second: Provider) -> Capabilities:
        return PairProvider(first, second, compiled_by=tool("ptxas"), linked_by=tool("nvlink")).capabilities

    nvlink = NvlinkProvider(nvlink=tool("nvlink"))
    assert nvlink.capabilities == Capabilities(compile=False, relocatable=False, link=True, clones_functions=False)
    assert pair(every["ptxas"], nvlink) == every["ptxas"].capabilities
    assert pair(nvlink, every["nvjitlink"]) == Capabilities(
        compile=False, relocatable=False, link=True, clones_functions=False, link_ptx=True
    )
    for call in (nvlink.compile, nvlink.compile_relocatable):
        with pytest.raises(ToolMissingError, match="nvlink makes no objects"):
            call(kernel("a"), target=SM_90, options=PLAIN)


# nvJitLink


def test_one_spelling_of_nvjitlink(every: dict[str, Provider]) -> None:
    options = AssembleOptions(opt=1, lineinfo=True, debug=True, maxrregcount=40, flags=("-dlcm=ca",))
    spelled = (
        "-arch=sm_90a -Xptxas=-v -Xptxas=-O1 -lineinfo -g -maxrregcount=40 -Xptxas=-enable-func-clone-sc -Xptxas=true -r -Xptxas=-dlcm=ca"
    )
    assert " ".join(every["nvjitlink"].spelling(target=SM_90A, options=options, relocatable=True)) == spelled


def test_contract_nvjitlink_itself_drops_a_whole_object_in_silence(
    every: dict[str, Provider], parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scons_gpu.assemble.inputs._wrong", lambda *_, **__: "")
    whole = parts.save(every["ptxas"].compile(kernel("b"), target=SM_90, options=PLAIN).data, "b")
    linked = every["nvjitlink"].link([parts.object(kernel("a"), "a"), whole], target=SM_90, options=PLAIN)
    assert (symbols(linked.data), linked.output) == (["a"], "")


def test_a_library_is_tried_once(facts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = nvjitlink_library.probe
    monkeypatch.setattr(nvjitlink_library, "probe", lambda path: tried.append(path) or real(path))
    for _ in range(2):
        assert NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=tmp_path).capabilities.relocatable
    assert tried == [tool("nvjitlink").path]
    NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=facts)
    monkeypatch.setattr(nvjitlink_library, "bindings_file", lambda: "")
    for _ in range(2):
        assert NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=tmp_path / "other").capabilities.link
    assert len(tried) == 3, "what may change unseen is not kept"


FORGETS = """
from scons_gpu.assemble.nvjitlink_library import load
import sys
library, options, (undefined, unread) = load(sys.argv[1]), ["-arch=sm_90"], [[("x.ptx", text.encode())] for text in sys.argv[2:]]
codes = [library._here(options, inputs).code for inputs in (undefined, unread, undefined)]
print(*(code == 0 for code in codes), library.link(options, unread).code == 0, library.link(options, undefined).code == 0)
"""


def test_contract_nvjitlink_that_failed_links_what_is_undefined() -> None:
    """So it is not asked again in its process."""
    newer = kernel("a").replace("7.8", "99.9")
    done = subprocess.run(
        [sys.executable, "-c", FORGETS, tool("nvjitlink").path, CALLER, newer], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "False", "False"]


def test_a_call_in_a_process_of_its_own_gives_the_same(parts: Parts) -> None:
    library = nvjitlink_library.load(tool("nvjitlink").path)
    given = [("part-000000.ptx", CALLER.encode()), ("part-000001.cubin", parts.object(CALLEE).path.read_bytes())]
    for options in (["-arch=sm_90", "-Xptxas=-v"], ["-arch=sm_33"]):
        apart = nvjitlink_library._apart(tool("nvjitlink").path, options, given)
        here = library.link(options, given)
        info = re.compile(r"[\d.]+ ms")
        assert replace(apart, seconds=0, cpu=0, info=info.sub("", apart.info)) == replace(
            here, seconds=0, cpu=0, info=info.sub("", here.info)
        )
    with pytest.raises(ToolError, match="the process in which nvJitLink was to run failed") as caught:
        nvjitlink_library._apart("/nowhere.so", [], [])
    assert "cannot open shared object file" in caught.value.output


def test_a_library_that_does_not_load_can_do_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "libnvJitLink.so.13"
    broken.write_bytes(b"no library")
    provider = NvJitLinkProvider(nvjitlink=replace(tool("nvjitlink"), path=str(broken)), facts=tmp_path / "facts")
    assert provider.capabilities == Capabilities(compile=False, relocatable=False, link=False, clones_functions=False)
    with pytest.raises(ToolMissingError, match=r"nvJitLink \(.*\) cannot be used") as caught:
        provider.compile(kernel("a"), target=SM_90, options=PLAIN)
    assert "invalid ELF header" in caught.value.output or "file too short" in caught.value.output


def test_a_second_library_in_one_process_is_refused(every: dict[str, Provider], tmp_path: Path) -> None:
    every["nvjitlink"].compile(kernel("a"), target=SM_90, options=PLAIN)
    other = tmp_path / "libnvJitLink.so.13"
    other.write_bytes(Path(tool("nvjitlink").path).read_bytes())
    with pytest.raises(ToolError, match="another nvJitLink was loaded into this process before"):
        nvjitlink_library.load(str(other))
    assert nvjitlink_library.probe(str(other)) == {"link": "yes", "relocatable": "yes", "clones": "yes", "words": ""}, "alone, it is taken"


def test_what_others_print_meanwhile_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    import os  # noqa: PLC0415

    with nvjitlink_library._overheard() as heard:
        os.write(2, b"a warning of somebody\n@E@error   : its own\nerror   : its other\nno line end")
        assert capfd.readouterr().err == ""
    assert heard == ["error   : its own\n", "error   : its other\n"]
    assert capfd.readouterr().err == "a warning of somebody\nno line end"


# The driver


def test_without_a_driver_it_says_so(stub: DriverStub) -> None:
    def nowhere(_: int) -> tuple[Any]:
        msg = "Failed to dlopen libcuda.so.1"
        raise RuntimeError(msg)

    class Nowhere(DriverStub):
        cuInit = staticmethod(nowhere)  # noqa: N815 - the driver's name

    cases = [
        (Nowhere(stub.library), "there is no CUDA driver on this machine: libcuda.so.1 was not found"),
        (replace(stub, devices=0), "there is a CUDA driver on this machine, and no device"),
        (replace(stub, init=driver.CUresult.CUDA_ERROR_NO_DEVICE), "cuInit of the CUDA driver says CUDA_ERROR_NO_DEVICE"),
    ]
    for api, said in cases:
        provider = DriverProvider(driver=tool("driver"), api=api)
        assert provider.capabilities == Capabilities(compile=False, relocatable=False, link=False, clones_functions=False)
        assert provider.lacking == said
        with pytest.raises(ToolMissingError, match=said):
            provider.compile(kernel("a"), target=SM_90, options=PLAIN)
        with pytest.raises(UsageError, match="driver cannot link"):
            defer(provider)


def test_making_one_asks_the_driver_nothing(stub: DriverStub) -> None:
    api = replace(stub, calls=[])
    provider = DriverProvider(driver=tool("driver"), api=api)
    assert api.calls == []
    assert provider.arch == "sm_90"
    assert api.calls == ["cuInit"]


def test_the_driver_links_for_its_gpu_alone(stub: DriverStub) -> None:
    provider = DriverProvider(driver=tool("driver"), api=replace(stub, major=8, minor=6))
    with pytest.raises(UnsupportedArchError, match="links for the GPU of this machine, sm_86, and not for sm_90"):
        provider.compile(kernel("a"), target=SM_90, options=PLAIN)
    with pytest.raises(ToolMissingError, match="makes no relocatable objects"):
        provider.compile_relocatable(kernel("a"), target=SM_90, options=PLAIN)


def test_the_driver_is_left_as_it_was(stub: DriverStub) -> None:
    for text in (kernel("a"), "no PTX"):
        api = replace(stub, calls=[])
        provider = DriverProvider(driver=tool("driver"), api=api)
        if text == "no PTX":
            with pytest.raises(PtxSyntaxError):
                provider.compile(text, target=SM_90, options=PLAIN)
        else:
            provider.compile(text, target=SM_90, options=PLAIN)
        assert api.calls == ["cuInit", "retain", "push", "create", "destroy", "pop", "release"]


def test_options_reach_the_driver(stub: DriverStub) -> None:
    api = replace(stub, calls=[])
    options = AssembleOptions(opt=0, lineinfo=True, debug=True, maxrregcount=40)
    provider = DriverProvider(driver=tool("driver"), api=api)
    provider.compile(kernel("a"), target=SM_90, options=options)
    given = {name: value for name, value in api.options.items() if "LOG_BUFFER" not in name}
    assert given == {"LOG_VERBOSE": 1, "MAX_REGISTERS": 40, "OPTIMIZATION_LEVEL": 0, "GENERATE_DEBUG_INFO": 1, "GENERATE_LINE_INFO": 1}
    assert provider.spelling(target=SM_90, options=options, relocatable=False) == (
        "CU_JIT_TARGET=sm_90",
        "CU_JIT_MAX_REGISTERS=40",
        "CU_JIT_OPTIMIZATION_LEVEL=0",
        "CU_JIT_GENERATE_DEBUG_INFO=1",
        "CU_JIT_GENERATE_LINE_INFO=1",
    )

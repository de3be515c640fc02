"""What every provider that runs without a GPU does alike: those of the toolkit, those made of others, and the driver over a stub."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scons_gpu.assemble import cubin
from scons_gpu.assemble.defer import DeferringProvider
from scons_gpu.assemble.key import object_key
from scons_gpu.assemble.provider import AssembleOptions, Capabilities, LinkInput
from scons_gpu.errors import (
    DamagedError,
    GpuError,
    LinkError,
    MissingSymbolError,
    PtxSyntaxError,
    SpillError,
    ToolError,
    UnsupportedArchError,
    UsageError,
)
from scons_gpu.link import elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scons_gpu.assemble.provider import Provider

from provider_parts import (
    BROKEN,
    CALLEE,
    CALLER,
    HEAD,
    MAKE_OBJECTS,
    NAMES,
    NARROW,
    PLAIN,
    SM_80,
    SM_90,
    SM_90A,
    SPILLS,
    TAKE_PTX,
    UNKNOWN,
    Parts,
    kernel,
    sections,
    symbols,
    text_of,
)


@pytest.fixture(params=NAMES)
def provider(request: pytest.FixtureRequest, every: dict[str, Provider]) -> Provider:
    return every[request.param]


@pytest.fixture(params=TAKE_PTX)
def taking(request: pytest.FixtureRequest, every: dict[str, Provider]) -> Provider:
    return every[request.param]


@pytest.mark.parametrize("name", ["ptxas", "nvjitlink", "nvptxcompiler+nvlink", "deferred on ptxas", "deferred on driver"])
def test_l11_a_hundred_calls_at_once_give_equal_bytes(every: dict[str, Provider], name: str) -> None:
    """One of each that compiles: the other half of a pair has no part in it."""
    provider = every[name]
    operations = [provider.compile, provider.compile_relocatable]

    def call(number: int) -> tuple[int, bytes]:
        return number % 2, operations[number % 2](kernel("a"), target=SM_90, options=PLAIN).data

    calls = 10 if provider.name == "driver" else 100  # the stub's work is done by nvJitLink, whose hundred calls are here already
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(call, range(calls)))) == 2


def test_capabilities_are_what_was_found(every: dict[str, Provider]) -> None:
    found = {name: provider.capabilities for name, provider in every.items()}
    assert found == {
        "ptxas": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=False),
        "nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "deferred on nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "deferred on ptxas": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "ptxas+nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
        "nvjitlink+nvlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=False),
        "nvptxcompiler+nvlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=False),
        "nvptxcompiler+nvjitlink": Capabilities(compile=True, relocatable=True, link=True, clones_functions=True, link_ptx=True),
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


@pytest.mark.spoils
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


@pytest.mark.spoils
def test_l10_syntax_names_kernel_and_line(provider: Provider) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        provider.compile(BROKEN, target=SM_90, options=PLAIN)
    assert caught.value.kernel == "broken"
    assert "PTX line 18; error   : Not a name of any known instruction: 'frobnicate'" in caught.value.output


@pytest.mark.spoils
def test_text_that_is_no_ptx(provider: Provider) -> None:
    for text in ("hello", ""):
        with pytest.raises(GpuError) as caught:
            provider.compile(text, target=SM_90, options=PLAIN)
        assert isinstance(caught.value, ToolError | LinkError)


@pytest.mark.spoils
def test_l10_an_architecture_that_nobody_knows_in_three_operations(provider: Provider, parts: Parts) -> None:
    part = parts.deferred(provider, kernel("a"), target=UNKNOWN) if provider.capabilities.link_ptx else parts.object(kernel("a"))
    with pytest.raises(UnsupportedArchError, match="sm_33"):
        provider.compile(kernel("a"), target=UNKNOWN, options=PLAIN)
    if provider.name != "driver" and not isinstance(provider, DeferringProvider):
        with pytest.raises(UnsupportedArchError, match="sm_33"):
            provider.compile_relocatable(kernel("a"), target=UNKNOWN, options=PLAIN)
    with pytest.raises((UnsupportedArchError, LinkError), match="sm_33"):
        provider.link([part], target=UNKNOWN, options=PLAIN)


@pytest.mark.spoils
def test_a_newer_ptx_than_the_tool_reads(provider: Provider) -> None:
    with pytest.raises(UnsupportedArchError, match=r"reads PTX up to \d+\.\d+, and this is PTX 99\.9"):
        provider.compile(kernel("a").replace("7.8", "99.9"), target=SM_90, options=PLAIN)


@pytest.mark.spoils
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


@pytest.mark.spoils
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


@pytest.mark.spoils
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


@pytest.mark.spoils
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

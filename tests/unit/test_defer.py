from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from scons_gpu.assemble import dptx
from scons_gpu.assemble.defer import defer
from scons_gpu.assemble.nvlink import NvlinkProvider
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import (
    LinkError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target

from provider_parts import CALLEE, CALLER, HEAD, NARROW, PLAIN, SM_90, Parts, kernel, tool


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

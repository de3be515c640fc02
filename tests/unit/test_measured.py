from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from provider_parts import HEAD, PLAIN, SM_90, kernel

from scons_gpu.errors import LinkError
from scons_gpu.link import elf
from scons_gpu.link.measured import complete

if TYPE_CHECKING:
    from scons_gpu.assemble.provider import Provider

LACKS = """\
.extern .global .align 4 .u32 counter;
.extern .const .align 4 .b8 table[64]; // .extern .const .b8 no[];
.extern .shared .align 16 .b8 tile[];
.extern .global .align 4 .b8 open[];
.extern .global .align 4 .u32 counter;
.visible .global .align 4 .u32 own = 7;
.extern .global .align 4 .u32 own;
"""
USES = """\
ld.const.u32 %r2, [table+8]; atom.global.add.u32 %r1, [counter], %r2; st.global.u32 [open], %r1;
ld.global.u32 %r2, [own]; ld.shared.u32 %r3, [tile]; add.u32 %r1, %r2, %r3;"""


def test_m13_what_others_define_gets_a_place(every: dict[str, Provider]) -> None:
    """All that may be written elsewhere keeps its loads and stores, so that the code is that of an object for a link."""
    text = complete(kernel("k", USES, head=HEAD + LACKS))
    variables = [line for line in text.splitlines() if line.startswith((".extern", ".visible .global", ".visible .const"))]
    assert variables == [
        ".visible .global .align 4 .u32 counter;",
        ".visible .const .align 4 .b8 table[64]; // .extern .const .b8 no[];",
        ".extern .shared .align 16 .b8 tile[];",
        ".visible .global .align 4 .b8 open[1];",
        ".visible .global .align 4 .u32 own = 7;",
    ]
    for name in ("ptxas", "nvjitlink", "deferred on driver"):
        made = every[name].compile(text, target=SM_90, options=PLAIN)
        assert [each.symbol for each in elf.read(made.data).kernels] == ["k"], name
        assert made.resources[0].registers, name
    whole = every["ptxas"].compile(text, target=SM_90, options=PLAIN).resources[0].registers
    linked = every["ptxas"].compile_relocatable(kernel("k", USES, head=HEAD + LACKS), target=SM_90, options=PLAIN).resources[0].registers
    assert whole == linked


def test_what_lacks_nothing_stays_as_it_is() -> None:
    assert complete(kernel("k")) == kernel("k")
    with pytest.raises(LinkError, match="candidate: line 1 of its PTX does not end"):
        complete("no PTX")

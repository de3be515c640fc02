"""Kernels that share memory of the module, taken out of an earlier object: the file is that of one assembly, or it is not done at all."""

from __future__ import annotations

import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from scons_gpu.link import graft, stubs
from scons_gpu.link.merge import Input, merge_objects, understood
from scons_gpu.source.ptx_reader import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from scons_gpu.source.ptx_reader import Module

BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
DECLARED = {
    "vprintf": ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);",
    "__assertfail": ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;",
    "malloc": ".extern .func (.param .b64 r) malloc(.param .b64 a);",
    "free": ".extern .func free(.param .b64 a);",
}
CALLS = {
    "vprintf": """{ .param .b64 a; .param .b64 b; .param .b32 r; mov.u64 %q1, words; st.param.b64 [a], %q1; st.param.b64 [b], 0;
  call.uni (r), vprintf, (a, b); ld.param.b32 %w1, [r]; st.global.u32 [%q3+8], %w1; }""",
    "__assertfail": """{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; mov.u64 %q1, words;
  st.param.b64 [a], %q1; st.param.b64 [b], %q1; st.param.b32 [c], 7; st.param.b64 [d], %q1; st.param.b64 [e], 1;
  call.uni __assertfail, (a, b, c, d, e); }""",
    "malloc": """{ .param .b64 a; .param .b64 r; st.param.b64 [a], 24; call.uni (r), malloc, (a); ld.param.b64 %q2, [r];
  st.global.u64 [%q3], %q2; }""",
    "free": "{ .param .b64 a; ld.global.u64 %q2, [%q3]; st.param.b64 [a], %q2; call.uni free, (a); }",
    "counter": "atom.global.add.u32 %w3, [counter], 1; st.global.u32 [%q3+12], %w3;",
    "address": "mov.u64 %q4, other; st.global.u64 [%q3+16], %q4;",
    "table": "and.b32 %w4, %w2, 1; mul.wide.u32 %q4, %w4, 4; mov.u64 %q5, table; add.s64 %q5, %q5, %q4; ld.const.u32 %w3, [%q5]; "
    "st.global.u32 [%q3+24], %w3;",
    "divides": "ld.global.f32 %f1, [%q3+32]; ld.global.f32 %f2, [%q3+36]; div.rn.f32 %f3, %f1, %f2; st.global.f32 [%q3+32], %f3;",
    "shares": ".shared .align 8 .b8 held[68]; st.shared.u32 [held], %w2; bar.sync 0; ld.shared.u32 %w4, [held+4]; st.global.u32 [%q3+40], %w4;",
    "launched": "st.shared.u32 [given+8], %w2; bar.sync 1, 64; ld.shared.u32 %w4, [given+4]; st.global.u32 [%q3+44], %w4;",
    "recurses": "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %w2; call.uni (r), again, (a); ld.param.b32 %w3, [r]; st.global.u32 [%q3+48], %w3; }",
}
VARIABLES = """
.global .align 1 .b8 words[4] = {104, 105, 10};
.visible .global .align 4 .u32 counter;
.visible .global .align 8 .u64 other = 5;
.const .align 4 .b8 table[16] = {1, 2, 3};
.extern .shared .align 16 .b8 given[];
.func (.param .b32 r) again(.param .b32 a)
{
 .reg .b32 %w<4>; .reg .pred %c<2>;
 ld.param.b32 %w1, [a]; setp.lt.u32 %c1, %w1, 2; @%c1 bra done; sub.s32 %w2, %w1, 1;
 { .param .b32 b; .param .b32 c; st.param.b32 [b], %w2; call.uni (c), again, (b); ld.param.b32 %w3, [c]; }
 add.s32 %w1, %w3, %w1;
done: st.param.b32 [r], %w1; ret;
}
"""


@cache
def made(text: str, arch: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "x.ptx").write_text(text)
        subprocess.run([BIN / "ptxas", "-arch", arch, path / "x.ptx", "-o", path / "x.cubin"], check=True, capture_output=True)
        return (path / "x.cubin").read_bytes()


def kernel(name: str, does: list[str], add: int = 1) -> str:
    """A kernel that does these things, each perhaps."""
    body = "".join(f" setp.eq.u32 %c1, %w2, {number}; @%c1 bra L{number}; {CALLS[what]} L{number}:\n" for number, what in enumerate(does))
    return (
        f".visible .entry {name}(.param .u64 p)\n{{\n .reg .b64 %q<6>; .reg .b32 %w<6>; .reg .f32 %f<4>; .reg .pred %c<2>;\n"
        f" ld.param.u64 %q3, [p]; cvta.to.global.u64 %q3, %q3; ld.global.u32 %w2, [%q3+4];\n{body} add.s32 %w2, %w2, {add};\n"
        " st.global.u32 [%q3+400], %w2; ret;\n}\n"
    )


def file(arch: str, kernels: dict[str, str], order: tuple[str, ...] = tuple(DECLARED)) -> str:
    head = f".version 8.7\n.target {arch}\n.address_size 64\n"
    return head + "\n".join(DECLARED[name] for name in order) + VARIABLES + "".join(kernels.values())


def parsed(text: str) -> Module:
    module = read(text, label="t")
    assert module is not None
    return module


def grafted(
    arch: str, then: dict[str, str], now: dict[str, str], order: tuple[str, ...] = tuple(DECLARED), before: Sequence[Input] = ()
) -> bytes | None:
    """The file of `now`, with the code of `then` in what is the same, behind other objects; None where memory lies elsewhere."""
    donor = understood(made(file(arch, then, order), arch), label="then")
    same = {name: stubs.mentions_undefined_shared(file(arch, {name: body})) for name, body in now.items() if then.get(name) == body}
    found = graft.traces(donor, same)
    assert found is not None
    text = file(arch, now, order)
    stubbed = stubs.stubbed(text, parsed(text), found)
    assert stubbed is not None
    assert stubbed.count("\n") == text.count("\n"), "places in it are those of the text that a user knows"
    assert all("[%q3+400]" not in each.text for each in parsed(stubbed).statements if each.names and each.names[0] in same)
    whole = understood(made(stubbed, arch), label="now")
    if not graft.fits(whole, donor):
        return None
    made_of = Input("", b"", grafted=graft.graft(whole, donor, same))
    del whole, donor
    return merge_objects([*before, made_of])


def random_kernel(shuffled: Random, name: str) -> str:
    return kernel(name, shuffled.sample(sorted(CALLS), shuffled.randint(0, 4)), add=shuffled.randint(1, 99))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_file_with_kernels_of_an_earlier_one_is_that_of_one_assembly(arch: str) -> None:
    """Kernels that print, assert, allocate, count, read tables, divide, share and recurse; edited, added, removed and in another order."""
    shuffled = random.Random(arch)  # noqa: S311 - equal in each run
    done = 0
    for round_ in range(12):
        order = tuple(shuffled.sample(tuple(DECLARED), len(DECLARED)))
        then = {f"k{number}": random_kernel(shuffled, f"k{number}") for number in range(shuffled.randint(3, 6))}
        now, edited = dict(then), shuffled.choice(sorted(then))
        now[edited] = then[edited].replace("add.s32 %w2, %w2,", "mul.lo.s32 %w2, %w2,")
        if round_ % 4 == 1:
            now["added"] = kernel("added", ["counter"])
            now = dict(shuffled.sample(sorted(now.items()), len(now)))
        if round_ % 4 == 2:
            del now[next(name for name in now if name != edited)]
        if round_ % 4 == 3:
            now[edited] = random_kernel(shuffled, edited)
        if (data := grafted(arch, then, now, order)) is not None:
            assert data == made(file(arch, now, order), arch), (round_, then, now)
            done += 1
    assert done >= 3


def test_objects_that_are_read_behind_a_graft_keep_their_references() -> None:
    """What the graft left behind is told from what was read later, though nothing else holds it."""
    arch, order = "sm_90", tuple(DECLARED)
    then = {f"k{number}": kernel(f"k{number}", ["vprintf", "counter", "divides"], add=number) for number in range(6)}
    now = {**then, "k3": kernel("k3", ["vprintf", "counter"], add=77)}
    head = f".version 8.7\n.target {arch}\n.address_size 64\n"
    others = {f"a{number}": kernel(f"a{number}", ["divides"], add=number) for number in range(60)}
    before = [Input(name, made(head + ".extern .shared .align 16 .b8 given[];\n" + text, arch)) for name, text in others.items()]
    assert grafted(arch, then, now, order, before) == made(file(arch, {**others, **now}), arch)


def test_where_addresses_lie_elsewhere_nothing_is_taken() -> None:
    """A kernel that calls another function of the device: every kernel's code has other offsets, or may have."""
    then = {"one": kernel("one", []), "two": kernel("two", ["vprintf"])}
    assert grafted("sm_90", then, {**then, "one": kernel("one", ["vprintf"])}) is not None, "the same slots"
    assert grafted("sm_90", then, {**then, "one": kernel("one", ["malloc"])}) is None
    assert grafted("sm_90", then, {**then, "last": kernel("last", ["free"])}) is None


def test_the_frame_is_all_but_functions() -> None:
    text = file("sm_90", {"one": kernel("one", ["vprintf"])})
    frame = stubs.frame(parsed(text))
    assert stubs.frame(parsed(file("sm_90", {"two": kernel("two", [])}))) == frame
    for old, new in (
        ("[16] = {1, 2, 3}", "[16] = {1, 2, 4}"),
        (".u32 counter", ".u64 counter"),
        (".align 16", ".align 32"),
        ("8.7", "8.8"),
    ):
        assert stubs.frame(parsed(text.replace(old, new))) != frame


def test_what_a_stub_cannot_do_is_not_stubbed() -> None:
    text = file("sm_90", {"one": kernel("one", ["vprintf"])})
    assert stubs.stubbed(text, parsed(text), {"one": stubs.Traces(frozenset({"unheard"}), shared=False)}) is None
    wide = text.replace("malloc(.param .b64 a)", "malloc(.param .align 16 .b8 a[16])")
    assert stubs.stubbed(wide, parsed(wide), {"one": stubs.Traces(frozenset({"malloc"}), shared=False)}) is None


def test_an_object_that_shows_other_traces_is_no_donor() -> None:
    """Shared memory that the text of no kernel asks for: who uses it is not known."""
    text = file("sm_120", {"one": kernel("one", ["launched"])})
    donor = understood(made(text, "sm_120"), label="then")
    assert graft.traces(donor, {"one": True}) == {"one": stubs.Traces(frozenset(), shared=True)}
    assert graft.traces(donor, {"one": False}) is None

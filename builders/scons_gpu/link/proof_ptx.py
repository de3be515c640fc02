"""The PTX that a toolkit is tried with before its objects are merged: a unit for each thing that changes a file's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.toolchain.arch import Target

__all__ = ["BOUND", "CLUSTER", "DECLARED", "SINGLE", "STATE", "TOGETHER", "unit"]

BOUND = "dynamic"
"""The unit that declares an undefined shared array."""

SINGLE: dict[str, str] = {
    "plain": """
.visible .entry plain(.param .u64 p)
{
 .reg .b64 %r<2>; .reg .b32 %w<2>;
 ld.param.u64 %r1, [p]; mov.u32 %w1, %tid.x; st.global.u32 [%r1], %w1; ret;
}""",
    "bounds": """
.visible .entry bounds(.param .u64 p, .param .u32 n) .maxntid 128, 1, 1 .minnctapersm 2
{
 .reg .b64 %r<3>; .reg .b32 %w<4>; .reg .pred %c<2>;
 ld.param.u64 %r1, [p]; ld.param.u32 %w1, [n]; mov.u32 %w2, %tid.x; setp.ge.u32 %c1, %w2, %w1; @%c1 bra done;
 mul.wide.u32 %r2, %w2, 4; add.s64 %r1, %r1, %r2; atom.global.add.u32 %w3, [%r1], 1;
done: ret;
}""",
    "required": """
.visible .entry required(.param .u64 p) .reqntid 64, 1, 1
{
 .reg .b64 %r<2>; .reg .b32 %w<3>;
 ld.param.u64 %r1, [p]; ld.global.u32 %w1, [%r1]; shfl.sync.bfly.b32 %w2, %w1, 1, 31, -1; st.global.u32 [%r1], %w2; ret;
}""",
    "division": """
.visible .entry division(.param .u64 p)
{
 .reg .b64 %r<5>; .reg .f32 %f<4>;
 ld.param.u64 %r1, [p]; ld.global.f32 %f1, [%r1]; ld.global.f32 %f2, [%r1+4]; div.rn.f32 %f3, %f1, %f2; st.global.f32 [%r1], %f3;
 ld.global.u64 %r2, [%r1+8]; ld.global.u64 %r3, [%r1+16]; div.s64 %r4, %r2, %r3; st.global.u64 [%r1+8], %r4; ret;
}""",
    "root": """
.visible .entry root(.param .u64 p)
{
 .reg .b64 %r<2>; .reg .f64 %d<4>;
 ld.param.u64 %r1, [p]; ld.global.f64 %d1, [%r1]; sqrt.rn.f64 %d2, %d1; rcp.rn.f64 %d3, %d2; st.global.f64 [%r1], %d3; ret;
}""",
    "shared": """
.visible .entry shared(.param .u64 p)
{
 .reg .b64 %r<2>; .reg .b32 %w<4>;
 .shared .align 8 .b8 kept[260];
 ld.param.u64 %r1, [p]; mov.u32 %w1, %tid.x; shl.b32 %w1, %w1, 2; mov.u32 %w2, kept; add.s32 %w1, %w1, %w2;
 ld.global.u32 %w3, [%r1];
 st.shared.u32 [%w1], %w3; bar.sync 0; ld.shared.u32 %w3, [%w2+8]; st.global.u32 [%r1], %w3; ret;
}""",
    "dynamic": """
.extern .shared .align 16 .b8 given[];
.visible .entry dynamic(.param .u64 p)
{
 .reg .b64 %r<2>; .reg .b32 %w<4>;
 ld.param.u64 %r1, [p]; mov.u32 %w1, given; ld.global.u32 %w3, [%r1]; st.shared.u32 [%w1+4], %w3; bar.sync 1, 64;
 ld.shared.u32 %w3, [%w1+8];
 st.global.u32 [%r1], %w3; ret;
}""",
    "stack": """
.visible .entry stack(.param .u64 p)
{
 .reg .b64 %r<6>; .reg .b32 %w<4>;
 .local .align 8 .b8 room[128];
 ld.param.u64 %r1, [p]; mov.u64 %r2, room; ld.global.u32 %w1, [%r1]; and.b32 %w1, %w1, 31; mul.wide.u32 %r3, %w1, 4; add.s64 %r4, %r2, %r3;
 mov.u32 %w2, %tid.x; st.local.u32 [%r2], %w2; st.local.u32 [%r2+64], %w2; st.local.u32 [%r4], %w1; ld.global.u32 %w3, [%r1+4];
 and.b32 %w3, %w3, 31; mul.wide.u32 %r3, %w3, 4; add.s64 %r5, %r2, %r3; ld.local.u32 %w2, [%r5]; st.global.u32 [%r1], %w2; ret;
}""",
    "called": """
.func (.param .b32 out) twice(.param .b32 in);
.visible .entry called(.param .u64 p)
{
 .reg .b64 %r<2>; .reg .b32 %w<3>;
 ld.param.u64 %r1, [p]; ld.global.u32 %w1, [%r1];
 { .param .b32 a; .param .b32 b; st.param.b32 [a], %w1; call.uni (b), twice, (a); ld.param.b32 %w2, [b]; }
 st.global.u32 [%r1], %w2; ret;
}
.func (.param .b32 out) twice(.param .b32 in)
{
 .reg .b32 %w<4>; .reg .pred %c<2>;
 ld.param.b32 %w1, [in]; setp.lt.u32 %c1, %w1, 2; @%c1 bra done; sub.s32 %w2, %w1, 1;
 { .param .b32 a; .param .b32 b; st.param.b32 [a], %w2; call.uni (b), twice, (a); ld.param.b32 %w3, [b]; }
 add.s32 %w1, %w3, %w1;
done: st.param.b32 [out], %w1; ret;
}""",
}
"""Kernel → its unit. Each is a program of its own that shares nothing."""

TOGETHER: dict[str, str] = {
    "counts": """
.extern .global .align 4 .u32 counter;
.extern .const .align 4 .b8 table[32];
.visible .entry counts(.param .u64 p)
{
 .reg .b64 %r<5>; .reg .b32 %w<4>;
 ld.param.u64 %r1, [p]; mov.u64 %r2, counter; atom.global.add.u32 %w1, [%r2], 1; and.b32 %w1, %w1, 7; mul.wide.u32 %r3, %w1, 4;
 mov.u64 %r4, table; add.s64 %r4, %r4, %r3; ld.const.u32 %w2, [%r4]; st.global.u32 [%r1], %w2; ret;
}""",
    "prints": """
.extern .func (.param .b32 out) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 words[4] = {104, 105, 10};
.visible .entry prints()
{
 .reg .b64 %r<3>; .reg .b32 %w<2>;
 mov.u64 %r1, words; cvta.global.u64 %r1, %r1; mov.u64 %r2, 0;
 { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %r1; st.param.b64 [b], %r2;
 call.uni (c), vprintf, (a, b); ld.param.b32 %w1, [c]; }
 ret;
}""",
    "asserts": """
.extern .func __assertfail(.param .b64 text, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);
.global .align 1 .b8 claim[3] = {112, 0, 0};
.visible .entry asserts(.param .u64 p)
{
 .reg .b64 %r<3>; .reg .b32 %w<3>; .reg .f32 %f<4>; .reg .pred %c<2>;
 .shared .align 4 .b8 held[64];
 ld.param.u64 %r1, [p]; ld.global.u32 %w1, [%r1]; st.shared.u32 [held], %w1; bar.sync 0; ld.shared.u32 %w2, [held+4];
 setp.eq.u32 %c1, %w2, 0; @%c1 bra past;
 mov.u64 %r2, claim; cvta.global.u64 %r2, %r2;
 { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %r2; st.param.b64 [b], %r2;
 st.param.b32 [c], 7; st.param.b64 [d], %r2; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
past: ld.global.f32 %f1, [%r1+8]; ld.global.f32 %f2, [%r1+12]; div.rn.f32 %f3, %f1, %f2; st.global.f32 [%r1], %f3; ret;
}""",
}
"""Kernel → its unit, of those that share memory of the module."""

STATE = """
.visible .global .align 4 .u32 counter;
.visible .const .align 4 .b8 table[32] = {1, 2, 3, 4, 5, 6, 7, 8};"""
"""That memory."""

DECLARED = (".extern .global .align 4 .u32 counter;", ".extern .const .align 4 .b8 table[32];")
"""What units say of it that do not define it."""

CLUSTER: dict[str, str] = {
    "cluster": """
.visible .entry cluster(.param .u64 p) .reqnctapercluster 2, 1, 1
{
 .reg .b64 %r<2>; .reg .b32 %w<2>;
 ld.param.u64 %r1, [p]; mov.u32 %w1, %cluster_ctaid.x; barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%r1], %w1; ret;
}"""
}
"""The same, of what only sm_90 and newer have."""


def unit(body: str, target: Target, version: str) -> str:
    """A unit's PTX."""
    return f".version {version}\n.target {target.name}\n.address_size 64\n{body}\n"

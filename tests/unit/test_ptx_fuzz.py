"""Mutated PTX: the split answers with an index or a clean error, whatever it is given.

`python tests/unit/test_ptx_fuzz.py SECONDS [FILE...]` runs longer.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_reader_fuzz import mutate

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.split.ptx import split_ptx
from scons_gpu.toolchain.arch import parse

SEED_TEXT = """.version 8.0
.target sm_80, debug
.address_size 64
.pragma "nounroll";
.file 1 "a { b.cu", 3, 4
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.func (.param .b32 r) one(.param .b32 x);
.visible .func (.param .b32 r) nick(.param .b32 x);
.const .align 8 .u64 table[2] = {one, generic(count)};
.visible .global .attribute(.managed) .align 4 .b8 count[] = {1, 2, (3 + 4)};
.global .u32 v<3>, w = 4;
.extern .shared .align 16 .b8 dyn[];
.global .align 1 .b8 $str$1[3] = {104, 105};
.alias nick, one;
.func (.param .b32 r) one(.param .b32 x)
{
  .reg .b32 %r<9>; .shared .u32 own[4];
  ld.param.b32 %r1, [x]; /* } */
$L__BB0_1:
  .loc 1 3 4, function_name $L__info0, inlined_at 1 2 3
  @%r1 bra $L__BB0_1;
  st.param.b32 [r], %r1; ret; // {
}
.weak .entry k(.param .u64 k_param_0, .param .align 8 .b8 k_param_1[16]) .maxntid 32, 2 .minnctapersm 1
{
  .reg .b64 %rd<9>; .reg .b32 %r<9>, count;
  mov.u64 %rd1, $str$1; cvta.global.u64 %rd2, %rd1;
  { .param .b64 a; st.param.b64 [a], %rd2; .param .b32 q; call (q), vprintf, (a, a); }
  { fs: .calltargets one, nick; .param .b32 a; .param .b32 q; call (q), %rd1, (a), fs; }
  ld.global.u32 %r1, [v2+4]; mov.u32 count, %r1; st.shared.u32 [dyn], count;
  ret;
}
.section .debug_str { $L__info0: .b8 65 }
"""


def attempt(text: str) -> str:
    """What became of one text: `index`, or the class of a clean error."""
    try:
        for form, lines in (("apart", True), ("closed", False)):
            split_ptx(text, source="m.ptx", target=parse("sm_90")[0], form=form, put=lambda slice_text: str(len(slice_text)), lines=lines)
    except (SourceError, RefusedError) as error:
        return type(error).__name__
    return "index"


def fuzz(seconds: float, *, seed: int, base: str) -> dict[str, int]:
    """Outcome → how many mutants came to it."""
    end, counts = time.monotonic() + seconds, dict[str, int]()
    while time.monotonic() < end:
        outcome = attempt(mutate(base, random.Random(seed)))  # noqa: S311 - repeatable on purpose
        counts[outcome] = counts.get(outcome, 0) + 1
        seed += 1
    return counts


@pytest.mark.parametrize("seed", [0, 1_000_000])
def test_s13_mutated_ptx_gives_only_clean_errors(seed: int) -> None:
    assert attempt(SEED_TEXT) == "index"
    counts = fuzz(3, seed=seed, base=SEED_TEXT)
    assert counts["index"] > 10
    assert counts["SourceError"] > 10


if __name__ == "__main__":
    for number, text in enumerate([Path(path).read_text() for path in sys.argv[2:]] or [SEED_TEXT]):
        sys.stdout.write(f"{fuzz(float(sys.argv[1]), seed=number * 10_000_000, base=text)}\n")

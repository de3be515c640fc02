"""Mutated real IR: the split answers with an index or a clean error, whatever it is given.

LLVM itself may end its process on text like this (it is built with assertions), so mutants run in a process of their own, which says what it tries.
`python tests/unit/test_reader_fuzz.py SECONDS` runs longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.split import split
from scons_gpu.split.parse import LAYOUT, TRIPLE, Printed
from scons_gpu.split.reader import read
from scons_gpu.toolchain.arch import parse

SEED_TEXT = """
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
%struct.p = type { i32, [2 x float] }
%0 = type <{ i8, ptr }>
$t = comdat any
@s = internal addrspace(3) global [4 x %struct.p] undef, align 8
@c = private unnamed_addr constant [5 x i8] c"a\\22;}\\00", align 1
@ops = internal addrspace(1) constant [2 x ptr] [ptr @f, ptr @"g h"], align 8
@st = linkonce_odr addrspace(1) externally_initialized global %0 zeroinitializer, comdat($t), align 4
@llvm.used = appending global [1 x ptr] [ptr @f], section "llvm.metadata"
@al = alias void (ptr), ptr @f
module asm ".global .u32 raw;"
define internal void @f(ptr byval(%struct.p) align 4 %struct.p) #0 {
  %1 = getelementptr inbounds %struct.p, ptr %struct.p, i32 0, i32 1
  %v = load float, ptr %1, align 4, !tbaa !3
  call void asm sideeffect "bar; // @f !1 #2", "~{memory}"(), !srcloc !6
  ret void
}
define linkonce_odr void @"g h"(ptr %x) comdat($t) !dbg !8 {
  call void @al(ptr %x), !dbg !10
  switch i32 3, label %a [
    i32 1, label %a
  ]
a:
  ret void
}
define ptx_kernel void @k(ptr %x, i32 %i) #1 {
  %p = getelementptr [2 x ptr], ptr addrspace(1) @ops, i32 0, i32 %i
  %h = load ptr, ptr addrspace(1) %p
  call void %h(ptr @c)
  store i32 1, ptr addrspace(3) @s
  store i8 1, ptr addrspace(1) @st
  %e = call i32 @vprintf(ptr @c, ptr null) #2
  ret void
}
declare i32 @vprintf(ptr, ptr)
attributes #0 = { nounwind "a"="b # !" }
attributes #1 = { "nvvm.maxntid"="64,2" }
attributes #2 = { nounwind }
!llvm.module.flags = !{!0, !1}
!llvm.dbg.cu = !{!2}
!0 = !{i32 2, !"Debug Info Version", i32 3}
!1 = !{i32 4, !"nvvm-reflect-ftz", i32 0}
!2 = distinct !DICompileUnit(language: DW_LANG_C99, file: !7, emissionKind: FullDebug, enums: !5)
!3 = !{!4, !4, i64 0}
!4 = !{!"int"}
!5 = !{}
!6 = !{i64 7}
!7 = !DIFile(filename: "a.c", directory: "/")
!8 = distinct !DISubprogram(name: "g", scope: !7, file: !7, line: 1, type: !9, spFlags: DISPFlagDefinition, unit: !2)
!9 = !DISubroutineType(types: !5)
!10 = !DILocation(line: 3, column: 2, scope: !8)
"""
PIECES = [
    '"',
    "}",
    "{\n",
    "\n}\n",
    "@",
    "%",
    "!",
    "#",
    "!0",
    "#9",
    "@k",
    "%0",
    ";",
    ", align 4",
    " comdat",
    "[",
    "]",
    "\\",
    "\0",
    "\u00e9",
    "define ",
    "ptx_kernel ",
]


def mutate(text: str, chance: random.Random) -> str:
    """One to four edits, by character, by line or by token."""
    for _ in range(chance.randint(1, 4)):
        if not text:
            break
        lines = text.split("\n")
        first, second = sorted(chance.randrange(len(text)) for _ in range(2))
        kind = chance.randrange(7)
        if kind == 0:
            text = text[:first] + chance.choice(PIECES) + text[first:]
        elif kind == 1:
            text = text[:first] + text[min(second, first + 9) :]
        elif kind == 2:
            del lines[chance.randrange(len(lines))]
            text = "\n".join(lines)
        elif kind == 3:
            lines.insert(chance.randrange(len(lines)), chance.choice(lines))
            text = "\n".join(lines)
        elif kind == 4:
            text = text[:first]
        elif kind == 5:
            old, new = chance.choice(PIECES), chance.choice(PIECES)
            text = text.replace(old, new, 1)
        else:
            text = text[:first] + text[second:first:-1] + text[second:] if second - first < 30 else text
    return text or "\n"


def attempt(text: str, *, direct: bool) -> str:
    """What became of one text: `index`, or the class of a clean error. `direct` skips LLVM: the reader alone, on what LLVM did not print."""
    try:
        if direct:
            read(Printed(text=text, layout=LAYOUT, triple=TRIPLE, sizes=()), source="m.ll")
        else:
            for form in ("apart", "closed"):
                split(text, source="m.ll", target=parse("sm_90")[0], form=form, put=lambda slice_text: str(len(slice_text)))
    except (SourceError, RefusedError) as error:
        return type(error).__name__
    return "index"


def child(seed: int, seconds: float, base: str) -> None:
    """Tries mutants until the time is up; each number is printed first, so that a death can be told and repeated."""
    end = time.monotonic() + seconds
    counts: dict[str, int] = {}
    while time.monotonic() < end:
        sys.stdout.write(f"try {seed}\n")
        sys.stdout.flush()
        text = mutate(base, random.Random(seed))  # noqa: S311 - repeatable on purpose
        for direct in (True, False):
            outcome = attempt(text, direct=direct)
            counts[outcome] = counts.get(outcome, 0) + 1
        seed += 1
    sys.stdout.write(f"done {counts}\n")


def fuzz(seconds: float, *, seed: int, base: str) -> tuple[int, list[str]]:
    """(mutants tried, what went wrong). A signal inside LLVM is LLVM's; a traceback is ours."""
    end, wrong, tried = time.monotonic() + seconds, [], 0
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, str(Path(__file__).resolve()), "child", str(seed), str(left)]
        done = subprocess.run(command, input=base, capture_output=True, text=True, env=environ, check=False)
        last = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("try")]
        tried += len(last)
        if done.returncode > 0:
            wrong.append(f"mutant {last[-1] if last else seed}: {done.stderr[-2000:]}")
        seed = (last[-1] if last else seed) + 1
    return tried, wrong


@pytest.mark.parametrize("seed", [0, 1_000_000])
def test_s13_mutated_ir_gives_only_clean_errors(seed: int) -> None:
    tried, wrong = fuzz(4, seed=seed, base=SEED_TEXT)
    assert not wrong, wrong[0]
    assert tried > 20


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]), float(sys.argv[3]), sys.stdin.read())
    else:
        bases = [Path(path).read_text() for path in sys.argv[2:]] or [SEED_TEXT]
        for number, base_text in enumerate(bases):
            mutants, failures = fuzz(float(sys.argv[1]) / len(bases), seed=number * 10_000_000, base=base_text)
            sys.stdout.write("\n".join([f"{mutants} mutants, {len(failures)} failures", *failures, ""]))

"""A unit's slice becomes PTX through LLVM's NVPTX, by one written-down recipe.

The recipe, which `scons-gpu compare` repeats in code of its own for the undivided module:

1. parse in a context of its own; an absent data layout or triple is the target machine's; link what joins it of other sources, which
   becomes internal; verify
2. debug information that nobody asked for is dropped: the module flag "Debug Info Version" set to 0 makes LLVM's reader strip it. Where
   only lines are asked for, compile units become `emissionKind: DebugDirectivesOnly`: `.loc` and `.file` without debug sections
3. with `flush` (ftz or fast_math): module flag `!{i32 4, !"nvvm-reflect-ftz", i32 1}`, and every function that is defined, libdevice's
   too, gets "denormal-fp-math-f32"="preserve-sign,preserve-sign" unless it says something itself
4. the functions `__nv_*` that are declared are linked in from libdevice with all they need, and become internal. In their code
   `__nvvm_reflect("__CUDA_PREC_SQRT")` is 1 unless fast_math; LLVM itself would say 0. The other questions are left to LLVM's pass
5. target machine: triple nvptx64-nvidia-cuda, cpu as LLVM calls it (`sm_90a`), features `+ptx<NN>`, opt = the level,
   reloc "default", code model "default"
6. new pass manager, per-module default pipeline at the level (0: LLVM's O0 pipeline), tuning as clang sets it: loop vectorisation, SLP
   vectorisation, loop unrolling and interleaving on from level 2 and off below; the inliner's threshold is left to the level
7. emit assembly, as printed, but for the numbers of call sequences, which LLVM counts through all that the process ever lowered, and for
   what the unit only sees, which level 0 prints as a definition (`lower.declared`)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from scons_gpu.errors import LLVM_ERRORS, ToolError, llvm_words
from scons_gpu.lower.declared import declared, seen
from scons_gpu.lower.linked import TRIPLE, linked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.lower.joining import Group
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["STRIPPED", "Ptx", "initialise", "lower"]

STRIPPED = "warning: ignoring debug info with an invalid version (0) in <string>"
"""What LLVM says where debug information is dropped by step 2."""
_CALL = re.compile(r"(^\t[{}] // callseq |^\tprototype_(?=\d+ : )|, prototype_(?=\d+;$))(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Ptx:
    """What lowering gives."""

    text: str
    output: str = ""
    """What LLVM said on its own. It writes to the process' standard error, so only a worker can tell."""


def lower(  # noqa: PLR0913 - one keyword per input
    text: str,
    *,
    target: Target,
    options: LowerOptions,
    libdevice: str = "",
    renames: Mapping[str, str] | None = None,
    joins: Sequence[Group] = (),
    searched: str = "",
    cache: str = "",
    as_ir: bool = False,
) -> Ptx:
    """PTX of one slice. LLVM may end the process instead of returning: run this in a worker.

    `libdevice` is the path of the bitcode file, "" if none was found; `searched` says then where it was looked for. `renames` maps
    symbols of the slice to their names in the image; one that does not occur is passed over. `joins`: what is linked into it, source
    by source. `cache`: see `libdevice.load`. `as_ir` ends before the last step, and gives the optimised IR as the text.
    Raises SourceError for text that does not read or verify, MissingSymbolError for what libdevice lacks, LinkError for what does not join.
    """
    machine = _machine(target.cpu, options.ptx, options.opt)
    with linked(
        text,
        layout=str(machine.target_data),
        options=options,
        flush=options.flush,
        precise_sqrt=not options.fast_math,
        libdevice=libdevice,
        renames=renames,
        joins=joins,
        searched=searched,
        cache=cache,
    ) as module:
        names = seen(module)
        _optimise(module, machine, options.opt)
        return Ptx(str(module) if as_ir else declared(_emit(module, machine), names))


@lru_cache(maxsize=1)
def initialise() -> None:
    """Makes LLVM's targets known, once a process."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


@lru_cache(maxsize=32)
def _machine(cpu: str, ptx: int, opt: int) -> Any:  # noqa: ANN401 - llvmlite has no types
    initialise()
    target = binding.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=cpu, features=f"+ptx{ptx}", opt=opt, reloc="default", codemodel="default")


def _optimise(module: Any, machine: Any, level: int) -> None:  # noqa: ANN401 - llvmlite has no types
    with binding.create_pipeline_tuning_options(speed_level=level) as tuning:
        tuning.loop_vectorization = tuning.slp_vectorization = level > 1
        tuning.loop_unrolling = tuning.loop_interleaving = level > 1
        with binding.create_pass_builder(machine, tuning) as builder, builder.getModulePassManager() as passes:
            passes.run(module, builder)


def _emit(module: Any, machine: Any) -> str:  # noqa: ANN401 - llvmlite has no types
    try:
        return _numbered(machine.emit_assembly(module))
    except LLVM_ERRORS as error:
        msg = "LLVM does not lower this unit"
        raise ToolError(msg, output=llvm_words(error)) from None


def _numbered(text: str) -> str:
    """Call sequences, and the prototypes that are labelled by them, numbered from 0 in the order in which they stand."""
    numbers: dict[str, int] = {}
    return _CALL.sub(lambda match: f"{match[1]}{numbers.setdefault(match[2], len(numbers))}", text)

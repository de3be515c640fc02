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
7. emit assembly, as printed, but for the numbers of call sequences: LLVM counts those through all that the process ever lowered
"""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from scons_gpu.errors import LLVM_ERRORS, GpuError, MissingSymbolError, SourceError, ToolError, llvm_words
from scons_gpu.lower import libdevice as device
from scons_gpu.lower.joining import Group, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["STRIPPED", "TRIPLE", "Ptx", "initialise", "lower"]

TRIPLE = "nvptx64-nvidia-cuda"
STRIPPED = "warning: ignoring debug info with an invalid version (0) in <string>"
"""What LLVM says where debug information is dropped by step 2."""
_DEBUG_VERSION = re.compile(r'(!\{\s*i32\s+\d+,\s*!"Debug Info Version",\s*i32\s+)\d+(\s*\})')
_EMISSION = re.compile(r"^(!\d+ = distinct !DICompileUnit\(.*\bemissionKind: )(?:FullDebug|LineTablesOnly)\b", re.MULTILINE)
_REFLECT_FTZ = re.compile(r'(!\{\s*i32\s+\d+,\s*!"nvvm-reflect-ftz",\s*i32\s+)\d+(\s*\})')
_FLUSH_FLAG = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 1}\n'
_FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
_SPOKEN = '"denormal-fp-math-f32"'
_CALL = re.compile(r"(^\t[{}] // callseq |^\tprototype_(?=\d+ : )|, prototype_(?=\d+;$))(\d+)", re.MULTILINE)
_IDENTIFIER = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+", re.ASCII)
_QUOTED = re.compile(r'"[^"]*"')


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
) -> Ptx:
    """PTX of one slice. LLVM may end the process instead of returning: run this in a worker.

    `libdevice` is the path of the bitcode file, "" if none was found; `searched` says then where it was looked for. `renames` maps
    symbols of the slice to their names in the image; one that does not occur is passed over. `joins`: what is linked into it, source
    by source. `cache`: see `libdevice.load`.
    Raises SourceError for text that does not read or verify, MissingSymbolError for what libdevice lacks, LinkError for what does not join.
    """
    with ExitStack() as open_:
        machine = _machine(target.cpu, options.ptx, options.opt)
        context = open_.enter_context(binding.create_context())

        def read(text: str, renames: Mapping[str, str]) -> Any:  # noqa: ANN401 - llvmlite has no types
            module = open_.enter_context(_parse(_prepared(text, options), context))
            module.triple = module.triple or TRIPLE
            module.data_layout = module.data_layout or str(machine.target_data)
            _rename(module, renames)
            return module

        module = read(text, renames or {})
        join(module, joins, read=read)
        _verify(module)
        texts = (text, *(each for group in joins for each in group.texts))
        if options.flush and not any(_REFLECT_FTZ.search(each) for each in texts):
            with _parse(_head(machine) + _FLUSH_FLAG, context) as flag:
                module.link_in(flag)
        if any(f"@{device.PREFIX}" in each for each in texts):
            _link_libdevice(module, context, _head(machine), options, device.load(libdevice, cache) if libdevice else None, searched)
        _optimise(module, machine, options.opt)
        return Ptx(_emit(module, machine))


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


def _head(machine: Any) -> str:  # noqa: ANN401 - llvmlite has no types
    return f'target datalayout = "{machine.target_data}"\ntarget triple = "{TRIPLE}"\n'


def _parse(text: str, context: Any) -> Any:  # noqa: ANN401 - llvmlite has no types
    try:
        return binding.parse_assembly(text, context)
    except LLVM_ERRORS as error:
        msg = "the slice is not IR that LLVM reads"
        raise SourceError(msg, output=llvm_words(error)) from None


def _verify(module: Any) -> None:  # noqa: ANN401 - llvmlite has no types
    try:
        module.verify()
    except LLVM_ERRORS as error:
        msg = "the slice does not verify"
        raise SourceError(msg, output=llvm_words(error)) from None


def _prepared(text: str, options: LowerOptions) -> str:
    if not options.keep_debug:
        text = _DEBUG_VERSION.sub(r"\g<1>0\g<2>", text)
    elif not options.debug:
        text = _EMISSION.sub(r"\g<1>DebugDirectivesOnly", text)
    if options.flush:
        text = flushing(_REFLECT_FTZ.sub(r"\g<1>1\g<2>", text))
    return text


def flushing(text: str) -> str:
    """Canonical text whose functions all flush single precision denormals; llvmlite cannot add a string attribute."""
    return "\n".join(_flushing(line) for line in text.split("\n"))


def _flushing(line: str) -> str:
    if line.startswith("attributes #") and _SPOKEN not in line:
        return line.replace("{", "{ " + _FLUSH, 1)
    if line.startswith("define ") and line.endswith("{"):
        at = _after_parameters(line)
        tail = _QUOTED.sub("", line[at:])
        if not re.search(r" #\d", tail):
            return f"{line[:at]} {_FLUSH}{line[at:]}"
    return line


def _after_parameters(line: str) -> int:
    """Where function attributes may stand in a printed `define` line: behind the parameters and what is said of the address."""
    depth = 0
    start = re.search(r'@(?:"[^"]*"|[\w.$-]+)\(', line)
    for token in re.finditer(r'"[^"]*"|[()]', line[start.end() - 1 :] if start else ""):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and start:
            end = start.end() - 1 + token.end()
            spoken = re.match(r"(?: (?:local_)?unnamed_addr)?(?: addrspace\(\d+\))?", line[end:])
            return end + (spoken.end() if spoken else 0)
    msg = f"a function's first line does not read: {line[:200]}"
    raise SourceError(msg)


def _rename(module: Any, renames: Mapping[str, str]) -> None:  # noqa: ANN401 - llvmlite has no types
    """By way of names that nobody has, so that two symbols may change places."""
    found = [(symbol, new) for old, new in renames.items() if (symbol := _symbol(module, old)) is not None]
    for number, (symbol, _) in enumerate(found):
        symbol.name = f"scons-gpu.renamed.{number}"
    for symbol, new in found:
        if not _IDENTIFIER.fullmatch(new):
            msg = f"{new} is no name in PTX"
            raise GpuError(msg, hint="this is a bug in the plan")
        symbol.name = new
        if symbol.name != new:
            msg = f"{new} is taken: the slice has a symbol of that name already"
            raise GpuError(msg, hint="this is a bug in the plan")


def _symbol(module: Any, name: str) -> Any | None:  # noqa: ANN401 - llvmlite has no types
    with suppress(NameError):
        return module.get_global_variable(name)
    with suppress(NameError):
        return module.get_function(name)
    return None


def _link_libdevice(  # noqa: PLR0913, PLR0917 - what libdevice is linked into, and with
    module: Any,  # noqa: ANN401 - llvmlite has no types
    context: Any,  # noqa: ANN401 - llvmlite has no types
    head: str,
    options: LowerOptions,
    library: device.Libdevice | None,
    searched: str,
) -> None:
    functions = [function for function in module.functions if function.name.startswith(device.PREFIX)]
    needed = [function.name for function in functions if function.is_declaration]
    if not needed:
        return
    if library is None:
        msg = f"calls {', '.join(sorted(needed))}, and no libdevice was found"
        raise MissingSymbolError(msg, hint=searched or "install the extra scons-gpu[toolkit], or set GPU_CUDA_PATH")
    unknown = sorted(name for name in needed if name not in library.members)
    if unknown:
        msg = f"calls {', '.join(unknown)}, which libdevice does not have"
        raise MissingSymbolError(msg)
    defined = {function.name for function in functions if not function.is_declaration and function.linkage.name != "internal"}
    text = library.module(needed, defined=defined, precise_sqrt=not options.fast_math, head=head)
    with _parse(flushing(text) if options.flush else text, context) as definitions:  # closed before its context, also after an error
        _check_types(module, definitions, needed)
        module.link_in(definitions)
    for name in _defined(text):
        if name not in defined:
            module.get_function(name).linkage = "internal"


def _check_types(module: Any, definitions: Any, names: Iterable[str]) -> None:  # noqa: ANN401 - llvmlite has no types
    """LLVM links a call of another type in silence, and then takes the kernel for one that never gets there."""
    for name in names:
        called, defined = (str(side.get_function(name).global_value_type) for side in (module, definitions))
        if called != defined:
            msg = f"declares {name} as {called}; in libdevice it is {defined}"
            raise SourceError(msg)


def _defined(text: str) -> Iterator[str]:
    return (match[1] for match in re.finditer(r"^define [^@]*@(__nv_[\w.$-]+)\(", text, re.MULTILINE))


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

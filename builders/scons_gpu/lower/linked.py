"""A slice as LLVM's module, ready to be optimised: parsed, renamed, verified, and with what it calls of libdevice linked in."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from scons_gpu.errors import LLVM_ERRORS, GpuError, MissingSymbolError, SourceError, llvm_words
from scons_gpu.lower import libdevice as device
from scons_gpu.lower.flush import flagged, flushing
from scons_gpu.lower.joining import join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scons_gpu.lower.joining import Group
    from scons_gpu.lower.options import LowerOptions

__all__ = ["TRIPLE", "linked", "parse"]

TRIPLE = "nvptx64-nvidia-cuda"
_DEBUG_VERSION = re.compile(r'(!\{\s*i32\s+\d+,\s*!"Debug Info Version",\s*i32\s+)\d+(\s*\})')
_EMISSION = re.compile(r"^(!\d+ = distinct !DICompileUnit\(.*\bemissionKind: )(?:FullDebug|LineTablesOnly)\b", re.MULTILINE)
_FLUSH_FLAG = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 1}\n'
_IDENTIFIER = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+", re.ASCII)


@contextmanager
def linked(  # noqa: PLR0913 - one keyword per input
    text: str,
    *,
    layout: str,
    impose: bool = False,
    more: str = "",
    options: LowerOptions,
    flush: bool,
    precise_sqrt: bool,
    libdevice: str = "",
    renames: Mapping[str, str] | None = None,
    joins: Sequence[Group] = (),
    searched: str = "",
    cache: str = "",
) -> Iterator[Any]:
    """The module; it ends with the context. `layout` is the data layout of a slice that has none, and with `impose` of every slice.

    `more` is IR that is linked in: flags and metadata.
    `flush` writes into it that single precision denormals are flushed, `precise_sqrt` that libdevice takes the rounded root.
    `libdevice`, `renames`, `joins`, `searched`, `cache` and what is raised: see `llvm.lower`.
    """
    head = f'target datalayout = "{layout}"\ntarget triple = "{TRIPLE}"\n'
    with ExitStack() as open_:
        context = open_.enter_context(binding.create_context())
        flags = []

        def read(text: str, renames: Mapping[str, str]) -> Any:  # noqa: ANN401 - llvmlite has no types
            text, flag = flagged(flushing(_with_debug(text, options))) if flush else (_with_debug(text, options), False)
            flags.append(flag)
            module = open_.enter_context(parse(text, context))
            module.triple = module.triple or TRIPLE
            module.data_layout = layout if impose else module.data_layout or layout
            _rename(module, renames)
            return module

        module = read(text, renames or {})
        join(module, joins, read=read)
        _verify(module)
        more += _FLUSH_FLAG if flush and not any(flags) else ""
        if more:
            with parse(head + more, context) as added:
                module.link_in(added)
        if any(f"@{device.PREFIX}" in each for each in (text, *(joined for group in joins for joined in group.texts))):
            library = device.load(libdevice, cache) if libdevice else None
            _link_libdevice(module, context, head, library, searched, flush=flush, precise_sqrt=precise_sqrt)
        yield module


def parse(text: str, context: Any) -> Any:  # noqa: ANN401 - llvmlite has no types
    """LLVM's module of a text. Raises SourceError with LLVM's words."""
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


def _with_debug(text: str, options: LowerOptions) -> str:
    """The text with as much debug information as the options want of it."""
    if not options.keep_debug:
        return _DEBUG_VERSION.sub(r"\g<1>0\g<2>", text)
    return text if options.debug else _EMISSION.sub(r"\g<1>DebugDirectivesOnly", text)


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


def _link_libdevice(  # noqa: PLR0913 - what libdevice is linked into, and with
    module: Any,  # noqa: ANN401 - llvmlite has no types
    context: Any,  # noqa: ANN401 - llvmlite has no types
    head: str,
    library: device.Libdevice | None,
    searched: str,
    *,
    flush: bool,
    precise_sqrt: bool,
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
    text = library.module(needed, defined=defined, precise_sqrt=precise_sqrt, head=head)
    with parse(flushing(text) if flush else text, context) as definitions:  # closed before its context, also after an error
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

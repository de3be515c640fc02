"""A unit's slice becomes PTX through libNVVM, NVIDIA's own optimiser, where the IR that it reads is the one that our LLVM writes.

The recipe, which `scons-gpu compare` repeats in code of its own for the undivided module:

1. as for LLVM (`lower.llvm`, steps 1, 2 and 4), but for the data layout, which is libNVVM's, and for `__nvvm_reflect`, which is left to it
2. `!nvvmir.version` is added as the library tells it, and the module is handed over as bitcode
3. options: -arch=compute_<cpu>, -opt, -ftz, -prec-div and -prec-sqrt (0 with fast_math), -fma=1; -g or -generate-line-info. libNVVM takes
   flushing from its option alone: where the IR asks for it, the option says so
4. a variable that the unit only sees (`available_externally`) is printed as a weak definition, and becomes a declaration
   (`lower.declared`)

Call sequences need no new numbers as LLVM's do: libNVVM counts them for each program.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, UsageError
from scons_gpu.lower.declared import declared, seen
from scons_gpu.lower.flush import wanted
from scons_gpu.lower.libnvvm import LAYOUT, load
from scons_gpu.lower.linked import linked
from scons_gpu.lower.llvm import Ptx
from scons_gpu.lower.options import INSTEAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.lower.joining import Group
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["arguments", "lower"]

_VERSION = re.compile(r"^\.version .*$", re.MULTILINE)
_OWN_VERSION = re.compile(r"^!nvvmir\.version = .*\n?", re.MULTILINE)  # of whatever made the IR, long ago


def lower(  # noqa: PLR0913 - one keyword per input
    text: str,
    *,
    target: Target,
    options: LowerOptions,
    library: str,
    libdevice: str = "",
    renames: Mapping[str, str] | None = None,
    joins: Sequence[Group] = (),
    searched: str = "",
    cache: str = "",
) -> Ptx:
    """PTX of one slice, by the libNVVM at `library`. It may end the process instead of returning: run this in a worker.

    The others: see `llvm.lower`. Raises besides ToolMissingError where the library cannot be loaded, ToolError with its log for what it
    refuses, UsageError for a PTX version that is not its own.
    """
    nvvm = load(library)
    joins = tuple(replace(group, texts=tuple(_OWN_VERSION.sub("", each) for each in group.texts)) for group in joins)
    texts = (text, *(each for group in joins for each in group.texts))
    flags = arguments(target, options, flush=_flush(texts, options))
    with linked(
        _OWN_VERSION.sub("", text),
        layout=LAYOUT,
        impose=True,
        more=nvvm.version_node,
        options=options,
        flush=False,
        precise_sqrt=False,
        libdevice=libdevice,
        renames=renames,
        joins=joins,
        searched=searched,
        cache=cache,
    ) as module:
        names = seen(module)
        data = module.as_bitcode()
    made = nvvm.compile(data, name="unit", options=flags)
    _check_version(made.text, options)
    return Ptx(text=declared(made.text, names), output=made.log)


def arguments(target: Target, options: LowerOptions, *, flush: bool) -> tuple[str, ...]:
    """How libNVVM is told what to do, each option always spelled out."""
    precise = int(not options.fast_math)
    flags = [f"-arch={target.cpu.replace('sm_', 'compute_')}", f"-opt={options.opt}", f"-ftz={int(flush)}"]
    flags += [f"-prec-div={precise}", f"-prec-sqrt={precise}", "-fma=1"]
    return (*flags, *(["-g"] if options.debug else ["-generate-line-info"] if options.lineinfo else []))


def _check_version(text: str, options: LowerOptions) -> None:
    """The digest says which PTX version this is, and libNVVM writes that of its release whatever was asked for."""
    asked, written = f".version {options.ptx // 10}.{options.ptx % 10}", _VERSION.search(text)
    if written is None or written[0] != asked:
        msg = f"libNVVM writes {written[0] if written else 'no version'}, and {asked} was asked for"
        raise UsageError(msg, hint=f"leave the PTX version to the choice of what lowers; {INSTEAD}")


def _flush(texts: Sequence[str], options: LowerOptions) -> bool:
    """What the options or the unit's own functions ask for: libNVVM looks at its option alone."""
    found = {wanted(text) for text in texts if "\ndefine " in f"\n{text}"}
    asked = options.flush or (found.pop() if len(found) == 1 else None if found else False)
    if asked is None:
        msg = "some of its functions flush denormals and others do not, and libNVVM does one of the two for a whole unit"
        raise SourceError(msg, hint=f"{INSTEAD}; or set GPU_FTZ alike for the sources that it is made of")
    return asked

"""A unit's slice becomes PTX through libNVVM, NVIDIA's own optimiser, where its dialect of IR is the one that our LLVM writes.

The recipe, which `scons-gpu compare` repeats in code of its own for the undivided module:

1. as for LLVM (`lower.llvm`, steps 1, 2 and 4): parse, rename, verify, drop or thin out debug information, link what is needed of
   libdevice. The data layout is libNVVM's; what libdevice asks of `__nvvm_reflect` is left to libNVVM
2. `!nvvmir.version` is added, as the library tells it; the module goes to libNVVM as bitcode
3. options: -arch=compute_<cpu>, -opt, -ftz, -prec-div and -prec-sqrt (0 with fast_math), -fma=1, -g or -generate-line-info
4. a variable that the unit only sees (`available_externally`) comes back as a weak definition: it becomes a declaration, or goes where
   nothing names it any more
5. the numbers of call sequences as for LLVM
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from scons_gpu.errors import SourceError, ToolError, ToolMissingError
from scons_gpu.lower.flush import wanted
from scons_gpu.lower.linked import linked
from scons_gpu.lower.llvm import Ptx, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.toolchain.arch import Target

__all__ = ["LAYOUT", "load", "lower"]

LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64"
    "-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
"""NVVM IR specification, "Data Layout"; libNVVM ends the process over an empty one and refuses any other."""


def lower(
    text,*,target,options,library,libdevice="",renames=None,searched="",cache=""
) -> Ptx:
    nvvm = load(library)
    asked = wanted(text)
    with linked(text, layout=LAYOUT, impose=True, options=options, flush=False, precise_sqrt=False, libdevice=libdevice, renames=renames, searched=searched, cache=cache) as module:
        seen = [v.name for v in module.global_variables if v.linkage.name == "available_externally"]
        data = _versioned(module, nvvm)
    made, log = _compile(nvvm, data, arguments(target, options, flush=bool(options.flush or asked)))
    return Ptx(numbered(declared(made, seen)), log)

def _versioned(module, nvvm):
    major, minor, dbg, dbgm = nvvm.ir_version()
    text=str(module)
    n=max((int(x) for x in re.findall(r"^!(\d+) = ",text,re.M)),default=-1)+1
    return (text+f"\n!nvvmir.version = !{{!{n}}}\n!{n} = !{{i32 {major}, i32 {minor}, i32 {dbg}, i32 {dbgm}}}\n").encode()

@lru_cache(maxsize=2)
def load(library: str):
    ctypes.CDLL(library)
    from cuda.bindings import nvvm
    return nvvm

def arguments(target, options, *, flush):
    return [f"-arch=compute_{target.cpu.removeprefix('sm_')}", f"-opt={options.opt}", f"-ftz={int(flush)}", f"-prec-div={int(not options.fast_math)}", f"-prec-sqrt={int(not options.fast_math)}", "-fma=1"]

def _compile(nvvm, data, opts):
    program = nvvm.create_program()
    try:
        nvvm.add_module_to_program(program, data, len(data), "unit")
        try:
            nvvm.compile_program(program, len(opts), opts)
        except Exception as e:
            log = bytearray(nvvm.get_program_log_size(program)); nvvm.get_program_log(program, log)
            raise ToolError("libNVVM", output=log.decode(errors="replace")) from None
        out = bytearray(nvvm.get_compiled_result_size(program)); nvvm.get_compiled_result(program, out)
        log = bytearray(nvvm.get_program_log_size(program)); nvvm.get_program_log(program, log)
        return out.rstrip(b"\0").decode(), log.rstrip(b"\0").decode(errors="replace").strip()
    finally:
        nvvm.destroy_program(program)

def declared(t, seen):
    return t

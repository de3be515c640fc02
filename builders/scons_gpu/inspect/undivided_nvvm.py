"""The undivided module as PTX through libNVVM: the referee's own way to it, apart from that of the build."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import SourceError

if TYPE_CHECKING:
    from scons_gpu.inspect.undivided import Request

__all__ = ["by_nvvm"]

_LAYOUT = re.compile(r'^target datalayout = ".*"$', re.MULTILINE)
# NVVM IR specification, "Data Layout".
_ITS_LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64"
    "-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
_NODE = re.compile(r"^!(\d+) = ", re.MULTILINE)
_OWN_VERSION = re.compile(r"^!nvvmir\.version = .*\n", re.MULTILINE)
_KERNEL = re.compile(r"^define [^@]*\bptx_kernel\b.*\{$", re.MULTILINE)
_GROUP = re.compile(r"^attributes (#\d+) = .*$", re.MULTILINE)
_FLUSHES = re.compile(r'"denormal-fp-math(?:-f32)?"="(?:preserve-sign|positive-zero)')


def by_nvvm(text: str, request: Request) -> str:
    """PTX of the module's printed IR. Raises SourceError with libNVVM's log."""
    nvvm = _library(request.nvvm)
    text = _OWN_VERSION.sub("", _LAYOUT.sub(f'target datalayout = "{_ITS_LAYOUT}"', text))
    node = 1 + max(map(int, _NODE.findall(text)), default=-1)
    version = ", ".join(f"i32 {part}" for part in nvvm.ir_version())
    data = f"{text}\n!nvvmir.version = !{{!{node}}}\n!{node} = !{{{version}}}\n".encode()
    flush = request.ftz or request.fast_math or _asks_to_flush(text)
    exact = 0 if request.fast_math else 1
    arch = request.cpu.removeprefix("sm_")
    options = [f"-arch=compute_{arch}", f"-opt={request.opt}", f"-ftz={int(flush)}", f"-prec-div={exact}", f"-prec-sqrt={exact}", "-fma=1"]
    options += ["-g"] if request.debug else ["-generate-line-info"] if request.keep_debug else []
    program = nvvm.create_program()
    try:
        nvvm.add_module_to_program(program, data, len(data), "module")
        nvvm.compile_program(program, len(options), options)
        made = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, made)
    except nvvm.nvvmError as error:
        log = bytearray(nvvm.get_program_log_size(program))
        nvvm.get_program_log(program, log)
        words = log.rstrip(b"\0").decode(errors="replace")
        msg = f"libNVVM does not lower the undivided module: {error}\n{words}"
        raise SourceError(msg) from None
    return made.rstrip(b"\0").decode()


def _library(path: str) -> Any:  # noqa: ANN401 - the bindings have no types
    ctypes.CDLL(path)
    from cuda.bindings import nvvm  # noqa: PLC0415 - takes what is loaded
    from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415 - comes with it

    taken = load_nvidia_dynamic_lib("nvvm").abs_path or ""
    if not taken or not Path(taken).samefile(path):
        msg = f"libNVVM {path} was wanted, and cuda.bindings took {taken or 'another'}"
        raise SourceError(msg)
    return nvvm


def _asks_to_flush(text: str) -> bool:
    """Whether the kernels ask for it themselves; libNVVM knows one answer for all of them, so they must agree."""
    groups = {match[1] for match in _GROUP.finditer(text) if _FLUSHES.search(match[0])}
    answers = {bool(_FLUSHES.search(line) or groups & set(re.findall(r"#\d+", line))) for line in _KERNEL.findall(text)}
    if len(answers) > 1:
        msg = "some kernels of the undivided module flush denormals and others do not, and libNVVM does one of the two"
        raise SourceError(msg)
    return answers == {True}

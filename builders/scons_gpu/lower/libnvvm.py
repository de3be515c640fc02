"""libNVVM as it was found: the library at a path, what it reads, IR in and PTX out.

It is 70 MB and may crash, so it is loaded into workers, and into a process of its own for the question what it reads (`main`).
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, ToolError, ToolMissingError
from scons_gpu.lower.options import INSTEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LAYOUT", "Compiled", "Library", "load"]

LAYOUT = (
    "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64"
    "-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
)
"""The data layout of 64-bit targets (NVVM IR specification, "Data Layout"). It refuses another, and crashes where there is none."""
_PROBE = f"""target datalayout = "{LAYOUT}"
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @probe(ptr addrspace(1) %p) #0 {{
  store i32 1, ptr addrspace(1) %p, align 4
  ret void
}}
attributes #0 = {{ memory(argmem: write) "nvvm.maxntid"="32" }}
"""
"""In today's spelling throughout, so that a dialect that only calls itself new is found out."""
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
# Clang says `noinline` of every kernel.
_EXPECTED = re.compile(r"^warning: \S+: Function \S+ is a kernel, so overriding noinline attribute\b.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """What it made of a module, and what it said over that."""

    text: str
    log: str = ""


@dataclass(frozen=True)
class Library:
    """One libNVVM, loaded."""

    path: str
    api: Any
    """`cuda.bindings.nvvm`."""

    @property
    def version_node(self) -> str:
        """IR that says which version of NVVM IR a module is: the library wants its own."""
        return "!nvvmir.version = !{!0}\n!0 = !{" + ", ".join(f"i32 {number}" for number in self.api.ir_version()) + "}\n"

    def dialect(self, name: str) -> int:
        """The major version of the LLVM whose IR it reads for `compute_<name>`; 0 for an architecture that it does not know."""
        try:
            return int(self.api.llvm_version(f"compute_{name}"))
        except self.api.nvvmError:
            return 0

    def compile(self, data: bytes, *, name: str, options: Sequence[str]) -> Compiled:
        """PTX of one module, text or bitcode. Raises ToolError with its log."""
        program = self.api.create_program()
        try:
            self.api.add_module_to_program(program, data, len(data), name)
            self.api.compile_program(program, len(options), list(options))
            text = bytearray(self.api.get_compiled_result_size(program))
            self.api.get_compiled_result(program, text)
            return Compiled(text=text.rstrip(b"\0").decode(), log=self._log(program))
        except self.api.nvvmError as error:
            msg = f"libNVVM does not lower this unit: {error}"
            raise ToolError(msg, output=self._log(program), hint=INSTEAD) from None
        finally:
            self.api.destroy_program(program)

    def _log(self, program: int) -> str:
        log = bytearray(self.api.get_program_log_size(program))
        self.api.get_program_log(program, log)
        return _EXPECTED.sub("", log.rstrip(b"\0").decode(errors="replace")).strip()


@lru_cache(maxsize=1)
def load(path: str) -> Library:
    """The library at `path`. Raises ToolMissingError where it cannot be loaded, or another one was taken in its place."""
    try:
        ctypes.CDLL(path)  # the bindings take what is loaded already, and would look for one of their own otherwise
        from cuda.bindings import nvvm  # noqa: PLC0415 - only where libNVVM is used
        from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415 - comes with the bindings

        taken = load_nvidia_dynamic_lib("nvvm").abs_path or ""
        nvvm.ir_version()
    except (ImportError, OSError, RuntimeError) as error:
        msg = f"libNVVM ({path}) cannot be used: {error}"
        raise ToolMissingError(
            msg, hint="pip install 'scons-gpu[toolkit]' brings it and cuda.bindings; GPU_LOWER=llvm does without"
        ) from None
    if not (taken and Path(taken).exists() and Path(taken).samefile(path)):
        msg = f"libNVVM: {path} was found, and cuda.bindings took {taken or 'another'}"
        raise ToolMissingError(msg, hint="GPU_LOWER=llvm does without")
    return Library(path=path, api=nvvm)


def facts(library: Library, names: Sequence[str]) -> dict[str, str]:
    """What it reads, as "100=22 90=7"; the PTX version that it writes, 95 for 9.5; what is wrong with it, if something is."""
    dialects = {name: dialect for name in names if (dialect := library.dialect(name))}
    found = {"dialects": " ".join(f"{name}={dialect}" for name, dialect in dialects.items()), "ptx": "", "trouble": ""}
    newest = max(dialects, key=lambda name: dialects[name], default="")
    try:
        text = (_PROBE + library.version_node).encode()
        made = library.compile(text, name="probe", options=[f"-arch=compute_{newest}"]).text
    except ToolError as error:
        return {**found, "trouble": str(error)}
    version = _VERSION.search(made)
    return {**found, "ptx": "".join(version.groups()) if version else ""}


def main() -> None:
    """Prints as JSON what the library of the first argument says of the architectures `sm_<name>` of the others."""
    path, *names = sys.argv[1:]
    try:
        found = facts(load(path), names)
    except (GpuError, AttributeError, RuntimeError) as error:  # a library, or bindings, older than the question
        found = {"trouble": str(error).splitlines()[0], "dialects": "", "ptx": ""}
    sys.stdout.write(json.dumps(found))

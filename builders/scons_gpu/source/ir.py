"""LLVM IR that a user wrote or another tool made, as text or bitcode: read, verified, and printed as today's LLVM prints it.

llvmlite is loaded when something is read, so this runs in workers and commands, never where a build is described.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import LLVM_ERRORS, SourceError, llvm_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scons_gpu.toolchain.arch import Target

__all__ = ["TRIPLE", "read_ir"]

TRIPLE = "nvptx64-nvidia-cuda"
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
# What earlier LLVMs wrote for the same target: without the 256-bit integers of 21 and the tensor memory of 22, whose absence changes
# nothing for IR that could not use them. The layout before 18 is not here: it aligned 128-bit integers to 8 bytes.
_EARLIER_LAYOUTS = frozenset(
    {
        "e-i64:64-i128:128-v16:16-v32:32-n16:32:64",
        "e-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64",
        "e-p6:32:32-i64:64-i128:128-v16:16-v32:32-n16:32:64",
    }
)
_PARSE_ERROR = re.compile(r"<string>:(\d+):(\d+): error: (.*)\n?", re.DOTALL)
_PRODUCER = re.compile(r"Producer: 'LLVM\s*(\d[\w.]*)' Reader: 'LLVM\s*(\d[\w.]*)'")
_MADE_BY = re.compile(r'!"[^"]*clang version (\d+)\.')


@dataclass
class _Said:
    """What LLVM wrote to the process' error stream meanwhile."""

    text: str = ""


def read_ir(path: Path, *, target: Target) -> tuple[str, str]:
    """The module's text, and what LLVM said about it. The data layout is filled in where it is missing.

    Raises SourceError, its source as `file:line:column` where LLVM knows that, for what does not parse or verify, and for IR of
    another target. Damaged bitcode may make LLVM abort the process: the worker's end is then reported by whoever started it.
    """
    from llvmlite import binding  # noqa: PLC0415 - loads LLVM

    data = _read(path)
    said = _Said()
    # Closed here, module first: left to the garbage collector (an error's traceback holds both) they may go in the other order, and
    # LLVM crashes when a module outlives its context.
    with _captured(said), binding.create_context() as context:
        bitcode = data.startswith(_BITCODE)
        text = "" if bitcode else _decoded(data, path)
        try:
            module = binding.parse_bitcode(data, context) if bitcode else binding.parse_assembly(text, context)
        except LLVM_ERRORS as error:
            raise _unreadable(llvm_words(error), path=path, text=text, reader=binding.llvm_version_info[0]) from None
        with module:
            if _is_empty(module):
                module.triple = module.triple or TRIPLE
            _check_target(module.triple, path)
            module.data_layout = _layout(module.data_layout, path=path, target=target)
            try:
                module.verify()
            except LLVM_ERRORS as error:
                raise _unverified(llvm_words(error), path=path, text=text) from None
            printed = str(module)
    return printed, said.text.replace("<string>", str(path))


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"cannot be read: {error.strerror or error}"
        raise SourceError(msg, source=str(path)) from error
    if path.suffix == ".bc" and not data.startswith(_BITCODE):
        msg = "this is no LLVM bitcode"
        raise SourceError(msg, source=str(path), hint="LLVM IR as text has the suffix .ll")
    return data


def _decoded(data: bytes, path: Path) -> str:
    """LLVM stops at a zero byte without a word, so what follows would be lost."""
    try:
        text = data.decode()
        at = text.find("\0")
        trouble = "a zero byte" if at >= 0 else ""
    except UnicodeDecodeError as error:
        at, trouble = error.start, "a byte that is not UTF-8"
        text = data.decode("latin-1")
    if trouble:
        line = text.count("\n", 0, at) + 1
        msg = f"{trouble}: this is no LLVM IR as text"
        raise SourceError(msg, source=f"{path}:{line}", hint="LLVM bitcode has the suffix .bc and begins with BC")
    return text


def _unreadable(words: str, *, path: Path, text: str, reader: int) -> SourceError:
    found = _PARSE_ERROR.search(words)
    if found:
        what, _, rest = found[3].partition("\n")
        made_by = _MADE_BY.search(text)
        newer = made_by is not None and int(made_by[1]) > reader
        hint = f"it was written by LLVM {made_by[1]}; what reads it here is LLVM {reader}" if made_by and newer else ""
        return SourceError(what, source=f"{path}:{found[1]}:{found[2]}", output=rest, hint=hint)
    what = words.partition("\n")[2].strip() or words
    producer = _PRODUCER.search(words)
    hint = "the file is truncated or damaged" if producer is None else ""
    if producer is not None and producer[1] != producer[2]:
        hint = f"it was written by LLVM {producer[1]}; what reads it here is LLVM {producer[2]}"
    return SourceError(f"LLVM cannot read this bitcode: {what}", source=str(path), hint=hint)


def _is_empty(module: Any) -> bool:  # noqa: ANN401 - llvmlite has no types
    """Whether there is nothing in it, as in an empty file: legal, and for no target in particular."""
    return not any(True for each in (module.functions, module.global_variables, module.struct_types) for _ in each)


def _check_target(triple: str, path: Path) -> None:
    if triple == TRIPLE:
        return
    msg = f'the target triple is "{triple}"' if triple else "there is no target triple"
    hint = f'expected: target triple = "{TRIPLE}"'
    raise SourceError(msg, source=str(path), hint=hint)


def _layout(layout: str, *, path: Path, target: Target) -> str:
    own = _target_layout(target)
    if not layout or layout == own or layout in _EARLIER_LAYOUTS:
        return own
    msg = f'the data layout is "{layout}"'
    hint = f'expected none, or: target datalayout = "{own}"'
    raise SourceError(msg, source=str(path), hint=hint)


def _target_layout(target: Target) -> str:
    from llvmlite import binding  # noqa: PLC0415 - loads LLVM

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return str(binding.Target.from_triple(TRIPLE).create_target_machine(cpu=target.cpu).target_data)


def _unverified(words: str, *, path: Path, text: str) -> SourceError:
    """The verifier prints the instruction it means, but no line: that is where the text holds the same instruction, if only once."""
    what, *shown = [line for line in words.splitlines() if line.strip()]
    wanted = {_squeezed(line) for line in shown}
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if _squeezed(line) in wanted]
    where = f"{path}:{lines[0]}" if len(lines) == 1 else str(path)
    return SourceError(f"LLVM's verifier refuses it: {what}", source=where, output="\n".join(shown))


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", "", line.partition(";")[0])


@contextmanager
def _captured(said: _Said) -> Iterator[None]:
    """LLVM writes some warnings straight to file descriptor 2."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.text = file.read().decode(errors="replace").strip()

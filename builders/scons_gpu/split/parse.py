"""LLVM's part of the split: text in, LLVM's own printed text and the sizes of its variables out."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scons_gpu.errors import LLVM_ERRORS, SourceError, llvm_words

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LAYOUT", "LOCAL", "SLOT", "TRIPLE", "Known", "Printed", "parse", "pattern", "type_names"]

Known = Literal["", "verified", "printed"]
"""What is known of a text before it is read."""

LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""What LLVM 22's nvptx64 target says of itself (a test asks it)."""

TRIPLE = "nvptx64-nvidia-cuda"

LOCAL, SLOT = "__local.", "__slot."
"""What a local value's name, or number, starts with while a type of the module bears the same name. The reader takes it off again."""

_TYPE_LINE = re.compile(r'^(%(?:"[^"]*"|[-\w$.]+)) = type ', re.MULTILINE)


@dataclass(frozen=True)
class Printed:
    """One verified module as LLVM prints it; in its text a `%name` is a type's or a local value's, never both."""

    text: str
    layout: str
    triple: str
    sizes: tuple[tuple[int, int], ...]
    """(bytes, ABI alignment) of each global variable's type, in the order of the text."""
    renamed: bool = False
    """Whether local values bear the prefixes that the reader has to take off."""


def parse(text: str, *, source: str, known: Known = "") -> Printed:
    """Parses, verifies and prints `text`. Raises SourceError with LLVM's words and line, for another target's IR too.

    `known` spares what was done already: `verified` for a compiler's output, `printed` for what this very LLVM verified and printed.
    """
    import llvmlite.binding as llvm  # noqa: PLC0415 - LLVM is loaded in workers and commands only

    if "\0" in text:
        msg = f"line {text.count(chr(10), 0, text.index(chr(0))) + 1}: a NUL byte in IR text"
        raise SourceError(msg, source=source)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
    except LLVM_ERRORS as error:
        raise _refusal(llvm_words(error), source=source) from None
    with module:  # closed before its context whatever happens: the other order crashes, and a traceback keeps both alive
        try:
            if not known:
                module.verify()
        except LLVM_ERRORS as error:
            raise _refusal(llvm_words(error), source=source) from None
        layout, triple = _target(module, source=source)
        printed = text if known == "printed" else str(module)
        renamed = _separate(module, printed)
        if renamed:
            if LOCAL in printed or SLOT in printed:
                msg = f"it uses {LOCAL} or {SLOT}, which the reader needs for itself where a type and a value share a name"
                raise SourceError(msg, source=source, hint="rename the type")
            printed = str(module)
        data = llvm.create_target_data(layout)
        sizes = tuple(_size(data, variable) for variable in module.global_variables)
    del module, data
    _give_back()
    return Printed(text=printed, layout=layout, triple=triple, sizes=sizes, renamed=renamed)


def _give_back() -> None:
    """Returns what LLVM freed to the system, where the C library can: else the pieces of the text come on top of LLVM's peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _refusal(said: str, *, source: str) -> SourceError:
    """LLVM's message, `<string>:3:13: error: what` and the line with a caret below it, in our form."""
    found = re.search(r"<string>:(\d+):\d+: error: ([^\n]*)\n?(.*)", said, re.DOTALL)
    if found:
        return SourceError(f"line {found[1]}: {found[2]}", source=source, output=found[3])
    lines = [line for line in said.splitlines() if line.strip()]
    return SourceError("the IR does not verify", source=source, output="\n".join(lines))


def _target(module: Any, *, source: str) -> tuple[str, str]:  # noqa: ANN401 - llvmlite is untyped
    triple, layout = module.triple or TRIPLE, module.data_layout or LAYOUT
    if not triple.startswith("nvptx64"):
        msg = f"the IR is for {triple}, not for {TRIPLE}"
        raise SourceError(msg, source=source, hint="compile it for the device")
    if layout != LAYOUT:
        msg = f"the IR's data layout is {layout}, the target's is {LAYOUT}"
        raise SourceError(msg, source=source, hint="leave the layout out, or compile with LLVM 22's front end")
    return layout, triple


def _size(data: Any, variable: Any) -> tuple[int, int]:  # noqa: ANN401 - llvmlite is untyped
    kind = variable.global_value_type
    if kind.is_struct and kind.is_opaque_struct:
        return 0, 1
    return data.get_abi_size(kind), data.get_abi_alignment(kind)


def type_names(text: str) -> list[str]:
    """The named types of a printed module, `%` included: they all stand before the first function."""
    end = text.find("\ndefine ")
    return _TYPE_LINE.findall(text, 0, len(text) if end < 0 else end)


def pattern(types: Iterable[str]) -> str:
    """A regular expression that takes every name of `types` whole, and few others: those that begin alike, up to the first dot."""
    starts = {name[1 : name.find(".") + 1 or None] for name in types if '"' not in name}
    branches = [rf"(?:{'|'.join(re.escape(start) for start in sorted(starts))})[-\w$.]*"] if starts else []
    if any('"' in name for name in types):
        branches.append('"[^"]*"')
    return f"%(?:{'|'.join(branches)})"


def _separate(module: Any, printed: str) -> bool:  # noqa: ANN401 - llvmlite is untyped
    """Renames local values whose name is also a type's. Rare: clang's types are called `struct.x`, its values are not."""
    types = type_names(printed)
    if not types:
        return False
    numbered = any(name[1:].isdigit() for name in types)
    if not numbered and not _clashes(printed, types):
        return False
    taken = {name[1:].strip('"') for name in types}
    for function in module.functions:
        if function.is_declaration:
            continue
        slot = 0
        for value in _locals(function):
            name = _name(value)
            if name:
                if _escaped(name) in taken:
                    value.name = LOCAL + name
                continue
            if numbered:
                value.name = f"{SLOT}{slot}"
            slot += 1
    return True


def _name(value: Any) -> str:  # noqa: ANN401 - llvmlite is untyped
    try:
        return str(value.name)
    except UnicodeDecodeError:  # LLVM takes any bytes; such a name equals no type's of ours
        return "?"


def _escaped(name: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\{byte:02X}" for c in name for byte in c.encode()[:1])


def _locals(function: Any) -> Iterable[Any]:  # noqa: ANN401 - llvmlite is untyped
    """What LLVM numbers in a function, in its order: arguments, blocks, instructions that give a value."""
    yield from function.arguments
    for block in function.blocks:
        yield block
        for instruction in block.instructions:
            if str(instruction.type) != "void":
                yield instruction


def _clashes(printed: str, types: list[str]) -> bool:
    known, name = set(types), pattern(types)
    found = re.findall(rf"\n  ({name}) = ", printed)
    found += ["%" + label for label in re.findall(rf"\n({name[1:]}):", printed)]
    for header in re.findall(r"\ndefine [^\n]*", printed):
        found += re.findall(rf" ({name})[,)]", header)
    return not known.isdisjoint(found)

"""NVIDIA's libdevice, function by function: what a unit calls of it is linked into the unit, and nothing else.

Linking the whole file into every unit and deleting the rest again costs more than a small unit itself. So a worker parses and prints
the file once, cuts the text into its definitions, and gives each unit a module of the closure that it needs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import LLVM_ERRORS, GpuError, ToolError, llvm_words
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

__all__ = ["Libdevice", "load", "read"]

PREFIX = "__nv_"
_NAME = re.compile(r"@([\w.$-]+)")
_SOURCE_LOCATION = re.compile(r", !srcloc !\d+")
_REFLECT = re.compile(r"= call i32 @__nvvm_reflect\(ptr @([\w.$]+)\).*")
_NODE = re.compile(r"!(\d+)")


@dataclass(frozen=True)
class Libdevice:
    """The file's printed text, cut at its definitions."""

    types: tuple[str, ...]
    members: dict[str, str]
    """Symbol → its definition or declaration, in the file's order."""
    attributes: tuple[str, ...]
    nodes: dict[str, str]
    """Number → metadata node."""

    def module(self, names: Iterable[str], *, defined: Collection[str], precise_sqrt: bool, head: str) -> str:
        """IR that defines `names` and what they need; those in `defined` are only declared. `head`: data layout and triple."""
        wanted = self._closure(names, defined)
        members = [_declaration(text) if name in defined else text for name, text in self.members.items() if name in wanted]
        if precise_sqrt:
            members = [self._with_precise_sqrt(text) for text in members]
        return "\n".join([head, *self.types, *members, *self.attributes, *self._nodes(members), ""])

    def _closure(self, names: Iterable[str], defined: Collection[str]) -> set[str]:
        wanted: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in self.members and name not in wanted:
                wanted.add(name)
                waiting += [] if name in defined else _NAME.findall(self.members[name])
        return wanted

    def _with_precise_sqrt(self, text: str) -> str:
        """LLVM answers `__nvvm_reflect("__CUDA_PREC_SQRT")` with 0, an approximate root. CUDA's default is the rounded one."""

        def answer(call: re.Match[str]) -> str:
            return "= add i32 1, 0" if '"__CUDA_PREC_SQRT' in self.members[call[1]] else call[0]

        return _REFLECT.sub(answer, text)

    def _nodes(self, members: Iterable[str]) -> Iterator[str]:
        """The metadata that the members reach: loop hints."""
        seen: set[str] = set()
        waiting = [number for text in members for number in _NODE.findall(text)]
        while waiting:
            number = waiting.pop()
            if number in self.nodes and number not in seen:
                seen.add(number)
                waiting += _NODE.findall(self.nodes[number].partition("=")[2])
        return (text for number, text in self.nodes.items() if number in seen)


def _declaration(text: str) -> str:
    """`define float @f(float %x) #0 {` as a declaration; anything else stays."""
    first = text.partition("\n")[0]
    return first.replace("define ", "declare ", 1).removesuffix(" {") if first.startswith("define ") else text


def read(text: str) -> Libdevice:
    """Cuts what LLVM printed: a definition starts in the first column there, and a function ends with a line `}`."""
    lines: dict[str, list[str]] = {"%": [], "a": [], "!": []}
    members: dict[str, str] = {}
    for piece in text.split("\n}\n"):
        between, define, body = piece.rpartition("\ndefine ")
        for line in (between if define else piece).split("\n"):
            if line[:1] in lines:
                lines[line[0]].append(line)
            elif line.startswith(("@", "declare ")):
                members[_name(line)] = line
        if define:
            members[_name(body)] = f"define {body}\n}}"
    nodes = {line[1:].partition(" ")[0]: line for line in lines["!"] if line[1:2].isdigit()}
    return Libdevice(tuple(lines["%"]), members, tuple(lines["a"]), nodes)


def _name(text: str) -> str:
    found = _NAME.search(text)
    return found[1] if found else ""


@lru_cache(maxsize=2)
def load(path: str, cache: str = "") -> Libdevice:
    """Reads the bitcode file at `path`. Its printed text is kept in the folder `cache`, where one is given: 0.25 s a worker less."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        msg = f"libdevice cannot be read: {error}"
        raise ToolError(msg) from None
    return read(_cached(data, Path(cache)) if cache else _printed(data, path))


def _cached(data: bytes, folder: Path) -> str:
    """The file opens with the hash of what follows: a damaged one is made anew."""
    from llvmlite.binding import llvm_version_info  # noqa: PLC0415 - only workers import LLVM

    version = ".".join(map(str, llvm_version_info))
    path = folder / f"libdevice-{hashlib.sha256(data).hexdigest()[:16]}-{version}.ll"
    try:
        seal, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        seal, text = "", ""
    if seal == _seal(text):
        return text
    text = _printed(data, str(path))
    try:
        write_atomic(path, f"{_seal(text)}\n{text}")
    except GpuError:  # a read-only or full store costs time, nothing else
        return text
    return text


def _seal(text: str) -> str:
    return f"; sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def _printed(data: bytes, path: str) -> str:
    from llvmlite import binding  # noqa: PLC0415 - only workers import LLVM

    with binding.create_context() as context:
        try:
            with binding.parse_bitcode(data, context) as module:
                return _SOURCE_LOCATION.sub("", str(module))
        except LLVM_ERRORS as error:
            msg = f"{path}: LLVM does not read this libdevice"
            raise ToolError(msg, output=llvm_words(error)) from None

"""What one input of a link defines and leaves to others, be it an object or deferred PTX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin, dptx
from scons_gpu.errors import LinkError
from scons_gpu.link import elf
from scons_gpu.source import ptx_reader

if TYPE_CHECKING:
    from scons_gpu.toolchain.arch import Target

__all__ = ["Contents", "contents"]

_ENTRY = re.compile(r"(?:\.\w+\s+)*\.entry\b")


@dataclass(frozen=True)
class Contents:
    """Names and sizes."""

    kernels: frozenset[str]
    variables: frozenset[str]
    undefined: frozenset[str]
    """Functions and variables that others are to define."""
    shared: tuple[tuple[int, str], ...] = ()
    """(bytes, name) of what an object defines of shared memory; of PTX the assembler knows."""
    constants: tuple[tuple[int, str], ...] = ()
    """(bytes, name) of what an object defines of constant memory."""
    wrong: str = ""
    """What keeps it out of this link: made for another architecture, or no relocatable object."""


def contents(data: bytes, *, target: Target, name: str) -> Contents:
    """Of an object or of deferred PTX; `name` is what messages call it. Raises DamagedError or LinkError for what is neither."""
    return _of_ptx(data, target, name) if dptx.is_deferred(data) else _of_object(data, target, name)


def _of_ptx(data: bytes, target: Target, name: str) -> Contents:
    deferred = dptx.read(data, label=name)
    module = ptx_reader.read(deferred.ptx, label=name)
    statements = module.statements if module else ()
    entries = [each for each in statements if each.kind == "function" and _ENTRY.match(each.text)]
    variables = [each for each in statements if each.kind == "variable"]
    asked = [each for each in statements if each.linkage == "extern" and each.kind in {"variable", "prototype"}]
    return Contents(
        kernels=frozenset(symbol for each in entries for symbol in each.names),
        variables=frozenset(symbol for each in variables if each.linkage != "extern" and each.space != "shared" for symbol in each.names),
        undefined=frozenset(symbol for each in asked for symbol in each.names),
        wrong="" if deferred.arch == target.name else f"{name} is deferred PTX for {deferred.arch}",
    )


def _of_object(data: bytes, target: Target, name: str) -> Contents:
    read = elf.read(data, path=name, resources=False)
    return Contents(
        kernels=frozenset(symbol.name for symbol in read.symbols if symbol.kind == "kernel" and symbol.defined),
        variables=frozenset(symbol.name for symbol in read.variables),
        undefined=frozenset(read.undefined),
        shared=tuple((symbol.bytes, symbol.name) for symbol in read.symbols if symbol.space == "shared" and symbol.defined),
        constants=tuple((symbol.bytes, symbol.name) for symbol in read.variables if symbol.space == "constant"),
        wrong=_wrong(data, read, target, name),
    )


def _wrong(data: bytes, read: elf.Cubin, target: Target, name: str) -> str:
    head = cubin.head(data)
    if isinstance(head, str):
        msg = f"{name}: {head}"
        raise LinkError(msg)
    if not (head.arch == target.name or (not head.arch and head.number == target.number)):
        return f"{name} is made for {head.arch or f'sm_{head.number}'}"
    return "" if read.relocatable else f"{name} is a whole program, not relocatable: the linker would drop it in silence"

"""Kernels without code, in the places of those whose code is at hand: what they leave in a file for others stays as it is.

A kernel shows outside its own code in few ways. The functions of the device's runtime that it calls get slots of bank 4, in the order in
which the assembler writes kernels, and shared memory that it uses makes a symbol of the file. A stub does the same and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from scons_gpu.source.ptx_reader import plain, read, uncommented

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scons_gpu.source.ptx_reader import Module

__all__ = ["Traces", "frame", "mentions_undefined_shared", "stubbed"]

_PROTOTYPE = re.compile(r"\.func\s*(?:\(\s*(?P<result>[^)]*)\))?\s*[\w$]+\s*\((?P<parameters>[^)]*)\)")
_PARAMETER = re.compile(r"\s*\.param\s+\.(?P<type>[busf](?:8|16|32|64))\s+[\w$%]+\s*")


@dataclass(frozen=True)
class Traces:
    """What a kernel leaves in its file besides what is its own."""

    calls: frozenset[str]
    """Functions that nobody in the file defines."""
    shared: bool
    """Whether it uses shared memory."""


def frame(module: Module) -> str:
    """A hash over what PTX has besides functions: where two texts are equal in it, the memory of the module lies alike."""
    kept = [plain(each.text) for each in module.statements if each.kind not in {"function", "prototype"}]
    return xxhash.xxh3_128_hexdigest(repr((module.header, kept)).encode())


def mentions_undefined_shared(text: str) -> bool:
    """Whether a unit's PTX uses an array of shared memory whose size the launch gives."""
    module = read(text, label="a unit") if ".shared" in text else None
    arrays = [each for each in (module.statements if module else ()) if each.linkage == "extern" and each.space == "shared"]
    return any(len(re.findall(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text)) > 1 for each in arrays for name in each.names)


def stubbed(text: str, module: Module, stubs: Mapping[str, Traces]) -> str | None:
    """PTX, which reads as `module`, with a stub for each kernel of `stubs`, and every line where it was.

    None where one of them calls what a stub cannot.
    """
    for statement in module.statements:
        if statement.kind == "function" and statement.names[0] in stubs:
            calls = _calls(module, stubs[statement.names[0]].calls)
            if calls is None:
                return None
            whole = uncommented(statement.text)
            head = whole[: whole.index("{")]
            body = _body(calls, shared=stubs[statement.names[0]].shared)
            lines = "\n" * (whole.count("\n") - head.count("\n"))
            text = text.replace(statement.text, f"{head}{{ {body}ret; {lines}}}", 1)
    return text


def _body(calls: Iterable[str], *, shared: bool) -> str:
    room = ".shared .align 4 .b8 __kept[4]; st.volatile.shared.u32 [__kept], 1; " if shared else ""
    start = ".reg .b32 %__w<2>; .reg .pred %__p; mov.u32 %__w1, %tid.x; "
    # Behind a call that does not return nothing would be left, so each may not be made.
    guarded = [
        f"setp.ne.u32 %__p, %__w1, {number}; @%__p bra $__past{number}; {call} $__past{number}: " for number, call in enumerate(calls)
    ]
    return room + start + "".join(guarded)


def _calls(module: Module, names: Iterable[str]) -> list[str] | None:
    declared = {each.names[0]: plain(each.text) for each in module.statements if each.kind == "prototype"}
    calls = [_call(name, declared.get(name, "")) for name in sorted(names)]
    return None if None in calls else [call for call in calls if call]


def _call(name: str, prototype: str) -> str | None:
    found = _PROTOTYPE.search(prototype)
    if found is None:
        return None
    kinds = [_PARAMETER.fullmatch(each) for each in found["parameters"].split(",") if each.strip()]
    result = _PARAMETER.fullmatch(found["result"]) if found["result"] else None
    if None in kinds or (found["result"] and result is None):
        return None
    types = [kind["type"] for kind in kinds if kind]
    given = "".join(
        f".param .{kind} __a{number}; st.param.{kind} [__a{number}], {_ZERO.get(kind, 0)}; " for number, kind in enumerate(types)
    )
    arguments = ", ".join(f"__a{number}" for number in range(len(types)))
    back = f".param .{result['type']} __r; " if result else ""
    return f"{{ {back}{given}call.uni {'(__r), ' if result else ''}{name}, ({arguments}); }}"


_ZERO = {"f32": "0f00000000", "f64": "0d0000000000000000"}

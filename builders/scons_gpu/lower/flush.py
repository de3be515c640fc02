"""Flushing of single precision denormals, as the text of IR asks for it: llvmlite can neither add nor read a string attribute."""

from __future__ import annotations

import re

from scons_gpu.errors import SourceError

__all__ = ["flagged", "flushing", "wanted"]

_REFLECT_FTZ = re.compile(r'(!\{\s*i32\s+\d+,\s*!"nvvm-reflect-ftz",\s*i32\s+)\d+(\s*\})')
_FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'
_SPOKEN = '"denormal-fp-math-f32"'
_ASKS = re.compile(r'"denormal-fp-math(?:-f32)?"="(?:preserve-sign|positive-zero)')
_GROUP = re.compile(r"^attributes #(\d+) = \{(.*)\}$", re.MULTILINE)
_DEFINE = re.compile(r"^define .*\{$", re.MULTILINE)
_QUOTED = re.compile(r'"[^"]*"')
_REFERENCE = re.compile(r" #(\d+)\b")


def flagged(text: str) -> tuple[str, bool]:
    """The text with its module flag "nvvm-reflect-ftz" set to 1, and whether it has that flag at all."""
    changed, count = _REFLECT_FTZ.subn(r"\g<1>1\g<2>", text)
    return changed, bool(count)


def flushing(text: str) -> str:
    """Canonical text whose functions all flush single precision denormals, unless they say something themselves."""
    return "\n".join(_flushing(line) for line in text.split("\n"))


def wanted(text: str) -> bool | None:
    """Whether the functions that are defined ask for flushing: all of them, none of them, or (None) some of them."""
    asking = {group for group, attributes in _GROUP.findall(text) if _ASKS.search(attributes)}
    answers = {_asks(line, asking) for line in _DEFINE.findall(text)}
    return None if len(answers) > 1 else True in answers


def _asks(line: str, asking: set[str]) -> bool:
    if _ASKS.search(line):
        return True
    return not asking.isdisjoint(_REFERENCE.findall(_QUOTED.sub("", line)))


def _flushing(line: str) -> str:
    if line.startswith("attributes #") and _SPOKEN not in line:
        return line.replace("{", "{ " + _FLUSH, 1)
    if line.startswith("define ") and line.endswith("{"):
        at = _after_parameters(line)
        tail = _QUOTED.sub("", line[at:])
        if not re.search(r" #\d", tail):
            return f"{line[:at]} {_FLUSH}{line[at:]}"
    return line


def _after_parameters(line: str) -> int:
    """Where function attributes may stand in a printed `define` line: behind the parameters and what is said of the address."""
    depth = 0
    start = re.search(r'@(?:"[^"]*"|[\w.$-]+)\(', line)
    for token in re.finditer(r'"[^"]*"|[()]', line[start.end() - 1 :] if start else ""):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and start:
            end = start.end() - 1 + token.end()
            spoken = re.match(r"(?: (?:local_)?unnamed_addr)?(?: addrspace\(\d+\))?", line[end:])
            return end + (spoken.end() if spoken else 0)
    msg = f"a function's first line does not read: {line[:200]}"
    raise SourceError(msg)

"""Reads what a compiler wrote with `-MD`: the files that it read, as a make rule."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["read_depfile"]

# Clang doubles the backslashes before a space or a hash that it escapes, and leaves all others as they are (DependencyFile.cpp).
_TOKEN = re.compile(r"(?P<slashes>\\+)(?P<escaped>[ #])|\\\n(?P<joined>)|\$(?P<dollar>\$)|(?P<end>\s)|(?P<text>.)", re.DOTALL)


def read_depfile(text: str, *, top: str) -> tuple[str, ...]:
    """The prerequisites, each once, in the compiler's order: relative to `top` where they lie below it, else absolute."""
    _, _, rule = text.replace("\r\n", "\n").partition(":")
    return tuple(dict.fromkeys(_settled(name, Path(top).absolute()) for name in _words(rule)))


def _words(rule: str) -> list[str]:
    words: list[str] = []
    word = ""
    for match in _TOKEN.finditer(rule):
        text, ends = _meaning(match)
        word += text
        if ends and word:
            words.append(word)
            word = ""
    return [*words, word] if word else words


def _meaning(match: re.Match[str]) -> tuple[str, bool]:
    """What one token adds to the word, and whether it ends it."""
    if match["slashes"]:
        half, odd = divmod(len(match["slashes"]), 2)
        return "\\" * half + (match["escaped"] if odd else ""), not odd
    if match["joined"] is not None or match["end"]:
        return "", True
    return match["dollar"] or match["text"], False


def _settled(name: str, top: Path) -> str:
    """`a/../b` is `b` unless `a` is a link to elsewhere; then the real path is taken."""
    path = top / name
    plain = Path(os.path.normpath(path))
    if not plain.exists() and path.exists():
        plain = path.resolve()
    return str(plain.relative_to(top)) if plain.is_relative_to(top) else str(plain)

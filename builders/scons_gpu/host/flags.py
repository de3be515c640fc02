"""Which flags of the project's C++ compiler concern both halves of a `.cu`.

Clang reads the whole source twice, once for each half, so what decides how it reads goes to both. What shapes host code alone (`-O2`,
`-g`, `-Wall`, `-march=native`) stays with the host's half: then an edit of it compiles no kernel again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["position_independent", "reading"]

_ALONE = ("-funsigned-char", "-fsigned-char", "-fshort-enums", "-fno-exceptions", "-fno-rtti", "-pthread", "-nostdinc", "-nostdinc++")
_BEGIN = ("-std=", "--sysroot=", "--gcc-toolchain=", "--gcc-install-dir=")
_WITH_VALUE = ("-isystem", "-iquote", "-idirafter", "-include", "-imacros", "-D", "-U", "-I")
"""In one word or in two."""
_PIC = ("-fPIC", "-fpic")


def reading(flags: Sequence[str]) -> tuple[str, ...]:
    """Those of `flags` that decide how a source is read, in their order."""
    found: list[str] = []
    words = iter(flags)
    for word in words:
        if word in _WITH_VALUE:
            found += [word, next(words, "")]
        elif word in _ALONE or word.startswith((*_BEGIN, *_WITH_VALUE)):
            found.append(word)
    return tuple(found)


def position_independent(flags: Sequence[str]) -> bool:
    """Whether code for a shared library is asked for already."""
    return any(flag in _PIC for flag in flags)

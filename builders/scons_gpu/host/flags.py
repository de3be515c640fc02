"""Which flags of the project's C++ compiler concern both halves of a `.cu`.

Clang reads the whole source twice, once for each half, so what decides how it reads goes to both. What shapes host code alone (`-O2`,
`-g`, `-Wall`, `-march=native`) stays with the host's half: then an edit of it compiles no kernel again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target

__all__ = ["arch_list", "position_independent", "reading"]

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


def arch_list(archs: Sequence[Target]) -> tuple[str, str]:
    """`__CUDA_ARCH_LIST__` as nvcc has it: all that the file is compiled for, in both halves and for each architecture.

    Clang tells each compilation its own architecture. CUB and Thrust put the list into the names of their kernels, so the halves would
    not know one another's.
    """
    numbers = sorted({target.number for target in archs})
    return "-U__CUDA_ARCH_LIST__", f"-D__CUDA_ARCH_LIST__={','.join(f'{number}0' for number in numbers)}"


def position_independent(flags: Sequence[str]) -> bool:
    """Whether code for a shared library is asked for already."""
    return any(flag in _PIC for flag in flags)

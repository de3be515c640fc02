"""A kernel's parameters as C++ of the host has them, read from its readable name; None where that does not tell."""

from __future__ import annotations

import re

from scons_gpu.tune.naming import names_of

__all__ = ["parameters"]

_SCALARS = frozenset(
    {
        "bool",
        "char",
        "signed char",
        "unsigned char",
        "short",
        "unsigned short",
        "int",
        "unsigned int",
        "long",
        "unsigned long",
        "long long",
        "unsigned long long",
        "float",
        "double",
    }
)
"""As LLVM's demangler spells those that have one size and one alignment on the device and on a host that CUDA supports."""
_POINTER = re.compile(r"(?P<to>[^*&]*?)\s*(?P<stars>\*[* ]*)(?P<const>const)?")


def parameters(readable: str, *, symbol: str) -> tuple[str, ...] | str:
    """The types, as C++ spells them; or which one cannot be told. A pointer to what the host need not know is `void*`.

    Only a mangled name has parameters: those of `extern "C"` and of IR by hand are not known.
    """
    name = names_of(symbol, readable)[2]
    if not symbol.startswith("_Z") or name == readable or not readable.endswith(")"):
        return "its name does not tell its parameters"
    found = []
    for word in _split(readable[len(name) + 1 : -1]):
        spelled = _spelled(word)
        if spelled is None:
            return f"the type of a parameter is {word}"
        found.append(spelled)
    return tuple(found)


def _spelled(word: str) -> str | None:
    if word in _SCALARS:
        return word
    pointer = _POINTER.fullmatch(word)
    if pointer is None or "(" in word or "[" in word:
        return None
    if pointer["stars"].strip() != "*":
        return "void*"  # to a pointer
    constant = pointer["to"].endswith(" const")
    to = pointer["to"].removesuffix(" const")
    return f"{'const ' if constant else ''}{to if to in _SCALARS else 'void'}*"


def _split(text: str) -> list[str]:
    """At the commas that stand in no brackets."""
    words, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "<([{") - (char in ">)]}")
        if char == "," and not depth:
            words.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*words, last] if last and last != "void" else words

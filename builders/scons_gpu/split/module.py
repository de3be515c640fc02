"""What a printed module holds, read once: functions, variables, metadata and the rest, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.split.pieces import Piece, Tokeniser

__all__ = ["PTX_NAME", "CompileUnit", "Declaration", "Function", "Module", "Variable"]

PTX_NAME = re.compile(r"@(\"?)(?:[A-Za-z][\w$]*|[_$%][\w$]+)\1", re.ASCII)
"""What PTX can spell. Names of what stays inside a unit are mended by LLVM; on any other it aborts, or ptxas does not read it."""

LOCAL_LINKAGE = ("private", "internal")
WEAK_LINKAGE = ("linkonce", "linkonce_odr", "weak", "weak_odr", "common")


@dataclass(frozen=True)
class Function:
    """A function with a body."""

    symbol: str
    """As LLVM prints it, with the `@` and, where it needs them, the quotes. So are all symbols in this room."""
    kernel: bool
    linkage: str
    piece: Piece
    """The definition as a unit holds it: kernels visible, all others internal, no comdat."""
    prototype: str
    """Its declaration, for a unit that names the function and leaves it to another."""
    attributes: str = ""
    """Its attribute group, `#3`."""

    @property
    def weak(self) -> bool:
        """Whether other sources may bring the same."""
        return self.linkage in WEAK_LINKAGE

    @property
    def local(self) -> bool:
        """Whether nobody outside this source can name it."""
        return self.linkage in LOCAL_LINKAGE


@dataclass(frozen=True)
class Declaration:
    """A function without a body."""

    symbol: str
    weak: bool
    """`extern_weak`: it may stay undefined."""
    piece: Piece


@dataclass(frozen=True)
class Variable:
    """A global variable, in parts: how it is written depends on who writes it."""

    symbol: str
    linkage: str
    """Empty for a plain external definition; `external` or `extern_weak` for a declaration."""
    unnamed: str
    """`unnamed_addr `, `local_unnamed_addr ` (its address means nothing within this module) or empty."""
    space: int
    initialised_outside: bool
    constant: bool
    type: str
    initialiser: str
    """Empty for a declaration."""
    section: str
    align: str
    """`, align 4` or empty."""
    attachments: str
    bytes: int
    natural: int
    """The alignment of its type, in bytes."""
    names: tuple[str, ...]
    """The globals its initialiser names."""

    @property
    def declared(self) -> bool:
        """Whether it is only declared here."""
        return not self.initialiser

    @property
    def weak(self) -> bool:
        """Whether other sources may bring the same."""
        return self.linkage in WEAK_LINKAGE

    @property
    def local(self) -> bool:
        """Whether nobody outside this source can name it."""
        return self.linkage in LOCAL_LINKAGE

    @property
    def alignment(self) -> int:
        """In bytes, as written or else the type's own."""
        return int(self.align[8:]) if self.align else self.natural


@dataclass(frozen=True)
class CompileUnit:
    """A DICompileUnit without its lists, and those lists: a unit's keeps only what the unit names."""

    piece: Piece
    lists: tuple[tuple[str, str], ...]
    """(field, node), `("globals", "!7")`."""


@dataclass
class Module:
    """All of one source's IR. Dictionaries are in the order of the text."""

    layout: str
    triple: str
    tokeniser: Tokeniser
    types: dict[str, str] = field(default_factory=dict)
    """Canonical name → definition, with the types it holds before it."""
    functions: dict[str, Function] = field(default_factory=dict)
    declarations: dict[str, Declaration] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    """`#3` → `{ nounwind }`."""
    metadata: dict[str, Piece] = field(default_factory=dict)
    compile_units: dict[str, CompileUnit] = field(default_factory=dict)
    named_metadata: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: dict[str, Piece] = field(default_factory=dict)
    """Aliases of something other than a plain symbol; those of one are read as that symbol."""
    alias_exports: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Visible alias → (aliasee, whether it is weak)."""
    assembly: tuple[str, ...] = ()
    """The text of each `module asm` line, as printed between its quotes."""
    used: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`@llvm.used` and `@llvm.compiler.used` → their entries, each as printed."""

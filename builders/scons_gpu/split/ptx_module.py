"""What a PTX module holds, read once: functions, variables, aliases and the head, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.split import ptx_text
from scons_gpu.split.ptx_scopes import unhidden

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.source.ptx_reader import Module, Statement
    from scons_gpu.split.pieces import Piece
    from scons_gpu.split.ptx_text import Declarator

__all__ = ["Function", "PtxModule", "Variable", "read"]

_ENTRY = re.compile(r"\.entry\b")
_OWN = re.compile(r"(?:^|[;{}\n])\s*(\.(shared|global|const)\b[^;]*;)")
_NAME_BEHIND = r"(?<![\w$%.]){}(?![\w$%.])"


@dataclass(frozen=True)
class Function:
    """A function with a body, or one that this source only declares."""

    name: str
    entry: bool
    linkage: str
    """As the source has it: `visible`, `weak`, `extern` or nothing."""
    head: str
    """Canonical, without linkage."""
    body: str = ""
    """Canonical, between the braces."""
    piece: Piece | None = None
    """Head and body; None where there is no body."""
    prototype: Piece | None = None
    """The head alone."""
    shared: tuple[Declarator, ...] = ()
    """Shared variables that the body declares."""

    @property
    def defined(self) -> bool:
        """Whether the source says what it does."""
        return self.piece is not None


@dataclass(frozen=True)
class Variable:
    """A variable of the module."""

    declarator: Declarator
    linkage: str
    piece: Piece
    """Its definition, or declaration, without linkage."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.declarator.name

    @property
    def space(self) -> str:
        """`global`, `const`, `shared` or `tex`."""
        return self.declarator.space

    @property
    def declared(self) -> bool:
        """Whether another source is to define it."""
        return self.linkage == "extern"

    @property
    def local(self) -> bool:
        """Whether nothing is said of who may see it."""
        return not self.linkage


@dataclass(frozen=True)
class PtxModule:
    """All of it, in the order of the text."""

    version: str
    target: tuple[str, ...]
    pragmas: tuple[str, ...] = ()
    functions: Mapping[str, Function] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name → the function that it stands for, and its linkage."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Number → quoted path."""
    debug: bool = False
    """Whether there was debug information that is left out."""


def read(module: Module, *, source: str, lines: bool) -> PtxModule:
    """The module as units are made of it. Raises SourceError where a name is defined twice, RefusedError for what no unit could hold.

    `lines` keeps line information.
    """
    reader = _Reader(module, source=source, lines=lines)
    target = tuple(option for option in module.header.target if option != "debug")
    return PtxModule(
        version=module.header.version,
        target=target,
        pragmas=tuple(" ".join(each.text.split()) for each in module.statements if each.kind == "pragma"),
        functions=reader.functions,
        variables=reader.variables,
        aliases=reader.aliases,
        files={number: path.partition(",")[0].rstrip() for number, path in module.files} if lines else {},
        debug=any(each.kind == "section" and each.names for each in module.statements),
    )


class _Reader:
    """Takes a module's statements apart. Two passes: text is cut at symbols, so all of these must be known."""

    def __init__(self, module: Module, *, source: str, lines: bool) -> None:
        self._source = source
        self._lines = lines
        self._linkages = {each.names[0]: each.linkage for each in module.statements if each.kind == "prototype"}
        self.aliases = self._aliases(module)
        self._targets = {name: target for name, (target, _) in self.aliases.items()}
        statements = [each for each in module.statements if each.kind in ("function", "prototype", "variable")]
        declared = {id(each): self._declarators(each) for each in statements if each.kind == "variable"}
        functions = {each.names[0] for each in statements if each.kind != "variable"}
        self._symbols = functions | self.aliases.keys() | {one.name for each in declared.values() for one in each}
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        for statement in statements:
            if statement.kind == "variable":
                for one in declared[id(statement)]:
                    self._add_variable(one, statement.linkage)
            elif statement.names[0] not in self.aliases:
                self._add_function(statement)

    def _aliases(self, module: Module) -> dict[str, tuple[str, str]]:
        found = {each.names[0]: each.names[1] for each in module.statements if each.kind == "alias"}
        defined = {each.names[0] for each in module.statements if each.kind == "function"}
        result = {}
        for name, first in found.items():
            target, seen = first, {name}
            while target in found and target not in seen:
                seen.add(target)
                target = found[target]
            if target not in defined:
                msg = f"alias {name} stands for {target}, which is no function with a body"
                raise SourceError(msg, source=self._source)
            result[name] = (target, self._linkages.get(name, ""))
        return result

    def _declarators(self, statement: Statement) -> list[Declarator]:
        found = ptx_text.declarators(statement.text)
        if not found:
            msg = f"this declaration does not read: {' '.join(statement.text.split())[:80]}"
            raise SourceError(msg, source=self._source)
        return found

    def _add_variable(self, declarator: Declarator, linkage: str) -> None:
        old = self.variables.get(declarator.name)
        if declarator.name in self.functions or (old and not old.declared and linkage != "extern"):
            self._twice(declarator.name)
        if old is None or linkage != "extern":
            self.variables[declarator.name] = Variable(declarator, linkage, self._cut(declarator.text))

    def _add_function(self, statement: Statement) -> None:
        name = statement.names[0]
        old = self.functions.get(name)
        defines = statement.kind == "function"
        if name in self.variables or (defines and old is not None and old.defined):
            self._twice(name)
        if old is None or defines:
            self.functions[name] = self._function(name, statement) if defines else self._prototype(name, statement)

    def _twice(self, name: str) -> None:
        msg = f"{name} is defined twice"
        raise SourceError(msg, source=self._source)

    def _function(self, name: str, statement: Statement) -> Function:
        start, _, rest = statement.text.partition("{")
        kept = ptx_text.body(rest.rpartition("}")[0], lines=self._lines, symbols=self._symbols)
        head, body = unhidden(name, ptx_text.head(start), kept, self._symbols)
        entry = bool(_ENTRY.match(head))
        self._refuse_hidden_state(name, body, entry=entry)
        own = [text for text, space in _OWN.findall(body) if space == "shared"] if ".shared" in body else []
        return Function(
            name=name,
            entry=entry,
            linkage=statement.linkage or self._linkages.get(name, ""),
            head=head,
            body=body,
            piece=self._cut(f"{head}\n{{\n{body}\n}}", owner=name),
            prototype=self._cut(f"{head};", owner=name),
            shared=tuple(one for text in own for one in ptx_text.declarators(text)),
        )

    def _prototype(self, name: str, statement: Statement) -> Function:
        head, _ = unhidden(name, ptx_text.head(statement.text.rstrip().removesuffix(";")), "", self._symbols)
        return Function(
            name=name,
            entry=bool(_ENTRY.match(head)),
            linkage=statement.linkage,
            head=head,
            prototype=self._cut(f"{head};", owner=name),
        )

    def _refuse_hidden_state(self, name: str, body: str, *, entry: bool) -> None:
        """A variable in a function's body is one, however many units hold the function: it would be several."""
        if entry or not (".global" in body or ".const" in body):
            return
        for text, space in _OWN.findall(body):
            if space == "global" or (space == "const" and "=" not in text):
                named = ", ".join(one.name for one in ptx_text.declarators(text)) or " ".join(text.split())[:60]
                msg = f"function {name} declares {named} in its body, memory that lives on"
                raise RefusedError(msg, source=self._source, hint="declare it before the function")

    def _cut(self, text: str, *, owner: str = "") -> Piece:
        return ptx_text.cut(text, self._symbols, aliases=self._targets, owner=owner)

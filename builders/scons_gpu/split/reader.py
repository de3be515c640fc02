"""LLVM's printed text becomes a Module, in one linear pass over its top-level lines.

Why text, and why this is safe. Cloning a module per kernel is quadratic, and a slice has to be text anyhow. LLVM prints one global,
declaration, type, attribute group or metadata node a line, a function from `define` to a line that is `}`, and escapes quotes and line
breaks wherever a user's words occur: so lines and strings can be trusted, and what is inside strings is never looked into.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.split import digest
from scons_gpu.split.module import PTX_NAME, CompileUnit, Declaration, Function, Module, Variable
from scons_gpu.split.parse import LOCAL, SLOT, type_names
from scons_gpu.split.pieces import NAME, Tokeniser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scons_gpu.split.parse import Printed

__all__ = ["read"]

_LINKAGES = "private|internal|available_externally|linkonce_odr|linkonce|weak_odr|weak|common|appending|extern_weak|external"
_HOW_SEEN = "dso_local|dso_preemptable|default|hidden|protected|dllimport|dllexport"
_HEAD = re.compile(rf"(?:define|declare) ((?:!\w+ !\d+ )*)(?:({_LINKAGES}) )?((?:(?:{_HOW_SEEN}) )*)")
_KERNEL_LINKAGE = {"linkonce": "weak ", "weak": "weak ", "linkonce_odr": "weak_odr ", "weak_odr": "weak_odr "}
"""A kernel that only this unit holds must not vanish as `linkonce` may; one of another linkage is simply visible."""
_COMDAT = re.compile(rf'"[^"]*"|( comdat(?:\(\${NAME}\))?)(?=[ ,]|$)')
_GLOBAL = re.compile(rf"(@{NAME}) = ((?:(?!global |constant |alias |ifunc )\S+ )*)(global|constant|alias|ifunc) ")
_SCALAR = re.compile(rf"ptr addrspace\(\d+\)|%{NAME}|[a-z]\w*")
_BRACKETS = re.compile(r'"[^"]*"|([\[{<(])|([\]}>)])')
_TAIL = re.compile(
    rf', (?:(?P<section>section "[^"]*")|partition "[^"]*"|comdat(?:\(\${NAME}\))?|(?P<align>align \d+)|code_model "[^"]*"'
    r"|(?:no_)?sanitize_\w+|(?P<attached>![-\w$.\\]+ !\d+))"
)
_GROUP = re.compile(r" #\d+$")
_ADDRSPACE = re.compile(r"addrspace\((\d+)\)")
_METADATA = re.compile(r"(!\d+) = (.*)")
_NAMED = re.compile(r"!([-\w$.\\]+) = !\{(.*)\}")
_CU_LIST = re.compile(r'"[^"]*"|(, (?:enums|retainedTypes|globals|imports|macros): !\d+)')
_RESTORED = re.compile(rf'(%"?|^"?)({re.escape(LOCAL)}|{re.escape(SLOT)})([-\w$.]*)', re.MULTILINE)
_ENTRY = re.compile(rf"\{{\n{re.escape(SLOT)}\d+:[^\n]*\n")


def read(printed: Printed, *, source: str) -> Module:
    """Reads a whole module. Raises SourceError for text LLVM would not print, RefusedError for IR that cannot become units."""
    return _Reader(printed, source).module


def _hash(text: str) -> str:
    return digest.content(text.encode())[:16]


def _restored(found: re.Match[str]) -> str:
    """A local value's own name again; one that starts with a digit, and is no number, had quotes before it got a prefix."""
    before, prefix, name = found.groups()
    bare = not before.endswith('"')
    return f'{before}"{name}"' if bare and prefix == LOCAL and name[:1].isdigit() else f"{before}{name}"


class _Tail(NamedTuple):
    section: str
    align: str
    attachments: str


class _Reader:
    """One pass. Aliases and types are gathered first: they decide how everything else is read."""

    def __init__(self, printed: Printed, source: str) -> None:
        self._text = printed.text
        self._sizes = iter(printed.sizes)
        self._source = source
        self._renamed = printed.renamed
        self._aliases: dict[str, str] = {}
        self._complex: dict[str, str] = {}
        self._refused: list[str] = []
        types = self._named_types()
        self._read_aliases()
        self.module = Module(layout=printed.layout, triple=printed.triple, tokeniser=Tokeniser(types, self._aliases))
        self.module.types = dict(self._definitions)
        self._tokeniser = self.module.tokeniser
        for offset, item in self._items():
            self._read(offset, item)
        for symbol, text in self._complex.items():
            self.module.aliases[symbol] = self._tokeniser.piece(text)
        self._refuse()

    def _items(self) -> Iterator[tuple[int, str]]:
        text, position, length = self._text, 0, len(self._text)
        while position < length:
            if text.startswith("define ", position):
                end = text.find("\n}\n", position)
                end = end + 2 if end >= 0 else length
                if not text.endswith("\n}", position, end):
                    raise self._unreadable(position, "a function without its end")
            else:
                end = text.find("\n", position)
                end = end if end >= 0 else length
            if end > position:
                yield position, text[position:end]
            position = end + 1

    def _read(self, offset: int, item: str) -> None:
        start = item[0]
        if start == "d":
            (self._define if item.startswith("define ") else self._declare)(offset, item)
        elif start == "@":
            self._global(offset, item)
        elif start == "!":
            self._metadata(offset, item)
        elif start == "a" and (found := re.match(r"attributes (#\d+) = (\{.*\})", item)):
            self.module.attributes[found[1]] = found[2]
        elif start == "m" and (found := re.match(r'module asm "([^"]*)"', item)):
            self.module.assembly += (found[1],)
        elif start not in ";%$ts^u":  # comments, types (read before), comdats, target and source lines, summaries, use lists
            raise self._unreadable(offset, item[:60])

    def _unreadable(self, offset: int, what: str) -> SourceError:
        line = self._text.count("\n", 0, offset) + 1
        msg = f"line {line} of LLVM's own text does not read: {what!r}"
        return SourceError(msg, source=self._source, hint="this is a bug in scons-gpu's reader")

    def _named_types(self) -> dict[str, str]:
        """Printed name → canonical name: a hash of the definition, all types in it so named; an opaque type keeps its name."""
        names = type_names(self._text)
        bodies = {}
        position = 0
        for name in names:
            start = self._text.index(f"{name} = type ", position) + len(name) + 8
            position = self._text.find("\n", start)
            bodies[name] = self._text[start : position if position >= 0 else len(self._text)]
        self._definitions: dict[str, str] = {}
        canonical: dict[str, str] = {}
        inner = re.compile(rf"%{NAME}")

        def name_of(name: str, *, inside: tuple[str, ...] = ()) -> str:
            if name not in canonical:
                if name not in bodies or name in inside:
                    msg = f"type {name} is not defined, or holds itself"
                    raise SourceError(msg, source=self._source)
                if bodies[name] == "opaque":
                    canonical[name] = name if not name[1:].isdigit() else f"%opaque.{name[1:]}"
                    self._definitions[canonical[name]] = "opaque"
                else:
                    body = inner.sub(lambda found: name_of(found[0], inside=(*inside, name)), bodies[name])
                    canonical[name] = f"%t.{_hash(body)}"
                    self._definitions[canonical[name]] = body
            return canonical[name]

        for name in names:
            name_of(name)
        return canonical

    def _read_aliases(self) -> None:
        """An alias of a plain symbol is read as that symbol: what LLVM does once everything but kernels is internal."""
        if "\n@" not in self._text or (" alias " not in self._text and " ifunc " not in self._text):
            return
        self._visible_aliases: dict[str, bool] = {}
        for line in re.findall(r"^@[^\n]*", self._text, re.MULTILINE):
            found = _GLOBAL.match(line)
            if not found or found[3] not in ("alias", "ifunc"):
                continue
            if found[3] == "ifunc":
                self._refused.append(f"ifunc {found[1]}")
                continue
            self._alias(line, found)
        for symbol in self._aliases:
            self._aliases[symbol] = self._resolve(symbol)

    def _alias(self, line: str, found: re.Match[str]) -> None:
        symbol = found[1]
        rest = line[self._type_end(line, found.end()) + 2 :]  # behind `TYPE, `
        plain = re.fullmatch(rf"ptr(?: addrspace\(\d+\))? (@{NAME})(?:, partition .*)?", rest)
        words = found[2].split()
        if plain:
            self._aliases[symbol] = plain[1]
        else:
            self._complex[symbol] = f"{symbol} = internal alias {line[found.end() :]}"
        if not set(words) & {"private", "internal"}:
            self._visible_aliases[symbol] = bool(set(words) & {"weak", "weak_odr", "linkonce", "linkonce_odr"})

    def _resolve(self, symbol: str) -> str:
        while symbol in self._aliases:
            symbol = self._aliases[symbol]
        return symbol

    def _define(self, offset: int, item: str) -> None:
        end = item.find(" {\n")
        head, body = item[:end], item[end:]
        found = _HEAD.match(head)
        if end < 0 or not found:
            raise self._unreadable(offset, item[:60])
        if " comdat" in head:
            head = _COMDAT.sub(lambda match: "" if match[1] else match[0], head)
        if self._renamed:
            body = _ENTRY.sub("{\n", body)
        linkage, rest = found[2] or "", head[found.end() :]
        kernel = rest.startswith("ptx_kernel ")
        piece = self._tokeniser.piece(f"define {_KERNEL_LINKAGE.get(linkage, '') if kernel else 'internal '}{rest}{body}")
        if self._renamed:  # types have their canonical names by now
            piece.literals = [_RESTORED.sub(_restored, literal) for literal in piece.literals]
        symbol = piece.refs[0] if piece.refs else ""
        if symbol[:1] != "@":
            raise self._unreadable(offset, item[:60])
        groups = re.findall(r" (#\d+)(?= |$)", head)
        self.module.functions[symbol] = Function(
            symbol=symbol,
            kernel=kernel,
            linkage=linkage,
            piece=piece,
            prototype=rest,
            attributes=groups[-1] if groups else "",
        )
        if kernel and not PTX_NAME.fullmatch(symbol):
            self._refused.append(f"kernel {symbol}, whose name PTX cannot spell")

    def _declare(self, offset: int, item: str) -> None:
        found = _HEAD.match(item)
        if not found:
            raise self._unreadable(offset, item[:60])
        weak = found[2] == "extern_weak"
        piece = self._tokeniser.piece(f"declare {'extern_weak ' if weak else ''}{item[found.end() :]}")
        if not piece.refs or piece.refs[0][0] != "@":
            raise self._unreadable(offset, item[:60])
        self.module.declarations[piece.refs[0]] = Declaration(symbol=piece.refs[0], weak=weak, piece=piece)

    def _global(self, offset: int, item: str) -> None:
        found = _GLOBAL.match(item)
        if not found:
            raise self._unreadable(offset, item[:60])
        if found[3] in ("alias", "ifunc"):
            return
        size, natural = next(self._sizes, (0, 1))
        symbol, words = found[1], found[2].split()
        behind, ending = self._tail(item)
        end = self._type_end(item, found.end())
        kind = item[found.end() : end]
        value = item[end:behind].strip()
        if symbol.startswith("@llvm."):
            self._special(symbol, value)
            return
        linkage = next((word for word in words if re.fullmatch(_LINKAGES, word)), "")
        if linkage == "available_externally" and (found[3] == "global" or "externally_initialized" in words):
            linkage, value = "external", ""  # somebody else's memory: the value tells what it holds at first, and is no definition
        space = _ADDRSPACE.search(found[2])
        self.module.variables[symbol] = Variable(
            symbol=symbol,
            linkage=linkage,
            unnamed=next((f"{word} " for word in words if word.endswith("unnamed_addr")), ""),
            space=int(space[1]) if space else 0,
            initialised_outside="externally_initialized" in words,
            constant=found[3] == "constant",
            type=kind,
            initialiser=value,
            section=ending.section,
            align=ending.align,
            attachments=ending.attachments,
            bytes=size,
            natural=natural,
            names=self._tokeniser.piece(value).names() if "@" in value else (),
        )

    @staticmethod
    def _tail(line: str) -> tuple[int, _Tail]:
        """Where a variable's trailing properties begin, and those that are kept. Read from the right: an initialiser may be megabytes."""
        end, section, align, attached = len(line), "", "", ""
        if line[-1].isdigit() and (group := _GROUP.search(line, max(0, end - 16))):  # names of sections on other targets
            end = group.start()
        while True:
            quote = line.rfind('"', 0, end - 1) if line.endswith('"', 0, end) else end
            start = line.rfind(", ", 0, quote)
            found = _TAIL.fullmatch(line, start, end) if start >= 0 else None
            if not found:
                return end, _Tail(section, align, attached)
            section = found[0] if found["section"] else section
            align = found[0] if found["align"] else align
            attached = found[0] + attached if found["attached"] else attached
            end = start

    def _special(self, symbol: str, value: str) -> None:
        names = self._tokeniser.piece(value).names()
        if symbol in ("@llvm.global_ctors", "@llvm.global_dtors"):
            if names:
                what = "constructor" if symbol == "@llvm.global_ctors" else "destructor"
                self._refused.extend(f"global {what} {name}" for name in names)
        elif symbol in ("@llvm.used", "@llvm.compiler.used"):
            entries = re.findall(rf"ptr (?:addrspacecast \(ptr addrspace\(\d+\) @{NAME} to ptr\)|@{NAME})", value)
            self.module.used[symbol] = tuple(entries)

    def _type_end(self, line: str, position: int) -> int:
        """Where the type that starts at `position` ends; a function's type, `void (i32)`, with its parameters."""
        scalar = _SCALAR.match(line, position)
        if scalar and line[scalar.end() : scalar.end() + 1] != "(":
            return self._type_end(line, scalar.end() + 1) if line.startswith(" (", scalar.end()) else scalar.end()
        depth = 0
        for found in _BRACKETS.finditer(line, position):
            depth += 1 if found[1] else -1 if found[2] else 0
            if not depth and (found[1] or found[2]):
                return self._type_end(line, found.end() + 1) if line.startswith(" (", found.end()) else found.end()
        return len(line)

    def _metadata(self, offset: int, item: str) -> None:
        found = _METADATA.match(item)
        if found is None:
            named = _NAMED.match(item)
            if named is None:
                raise self._unreadable(offset, item[:60])
            self.module.named_metadata[named[1]] = tuple(re.findall(r"!\d+", named[2]))
        elif found[2].startswith("distinct !DICompileUnit("):
            lists = [match[1] for match in _CU_LIST.finditer(found[2]) if match[1]]
            bare = _CU_LIST.sub(lambda match: "" if match[1] else match[0], found[2])
            fields = tuple((text[2:].partition(": ")[0], text.rpartition(" ")[2]) for text in lists)
            self.module.compile_units[found[1]] = CompileUnit(self._tokeniser.piece(bare), fields)
        else:
            self.module.metadata[found[1]] = self._tokeniser.piece(found[2])

    def _refuse(self) -> None:
        """All that is refused, in one error: nobody wants to meet them one by one."""
        functions = self.module.functions
        for symbol, target in self._aliases.items():
            if target in functions and functions[target].kernel:
                self._refused.append(f"alias {symbol} of kernel {target}")
        for symbol, piece in self.module.aliases.items():
            kernels = [name for name in piece.names() if name in functions and functions[name].kernel]
            self._refused.extend(f"alias {symbol} of kernel {name}" for name in kernels)
        for symbol, weak in getattr(self, "_visible_aliases", {}).items():
            if self._aliases.get(symbol) in functions:
                self.module.alias_exports[symbol] = (self._aliases[symbol], weak)
        if self._refused:
            msg = f"cannot become units: {', '.join(self._refused)}"
            raise RefusedError(msg, source=self._source, hint="no part of a GPU's tool chain handles these; write them without")

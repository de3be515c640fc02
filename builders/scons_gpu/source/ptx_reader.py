"""One PTX module read into its module-level statements; what stands inside function bodies is not looked at.

Grammar: NVIDIA's PTX ISA 9, chapters 4 (syntax), 5.4 (variables), 11 (directives).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scons_gpu.errors import LinkError

__all__ = [
    "LOC",
    "NAME",
    "SKIP",
    "Header",
    "Module",
    "Statement",
    "UnreadableError",
    "entries",
    "holds_any",
    "parse",
    "plain",
    "read",
    "target_named",
    "uncommented",
]

SKIP = r'//[^\n]*|/\*.*?\*/|"[^"\n]*"'
"""What a name inside does not count: comments and strings. A backslash means nothing to ptxas, so no string holds a quote."""
NAME = r"(?<![\w$.%])[A-Za-z_$][\w$]*"
"""A name that is neither a register, a directive or modifier, nor the tail of a number such as 0f3F800000."""

LOC = (
    r"\.loc(?P<gap>\s+)(?P<file>\d+)(?P<line>\s+\d+\s+\d+)"
    r"(?:(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?)?\s*,\s*inlined_at(?:\s+\d+){3})?"
)
"""One line's place in a source. What follows the numbers leads into debug sections.

Every branch of a pattern that goes over all text starts with a letter of its own: only then does `re` look for first letters, which is
five times as fast.
"""

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
# Each branch starts with a letter of its own: `re` then looks for first letters alone, which is much faster.
_MARK = re.compile(SKIP + r"|\{|\}|;", re.DOTALL)
_BRACE = re.compile(SKIP + r"|\{|\}", re.DOTALL)
_COMMENT = re.compile(r'(?P<comment>//[^\n]*|/\*.*?\*/)|"[^"\n]*"', re.DOTALL)
# The directives that no semicolon ends.
_LINE = re.compile(
    r"""
    \.version \s+ (?P<version>\d+\.\d+)
  | \.target \s+ (?P<target>\w+ (?:\s*,\s*\w+)*)
  | \.address_size \s+ (?P<size>\d+)
  | \.file \s+ (?P<index>\d+) \s+ (?P<file>"[^"\n]*" (?:\s*,\s*\d+\s*,\s*\d+)?)
  | (?P<loc>\.loc (?:\s+\d+){3} (?:\s*,\s*function_name\s+[\w$]+ (?:\s*\+\s*\d+)? \s*,\s*inlined_at (?:\s+\d+){3})?)
    """,
    re.VERBOSE,
)
_PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
_LINKAGE = r"(?:\.(?P<linkage>extern|visible|weak|common)\s+)?"
_FUNCTION = re.compile(
    rf"{_LINKAGE}\.(?P<what>func|entry)\b\s*(?:\.\w+\b\s*(?:(?:{_PARENTHESES}|\d+\b)\s*)?)*(?:{_PARENTHESES}\s*)?(?P<name>[A-Za-z_$][\w$]*)"
)
_VARIABLE = re.compile(rf"{_LINKAGE}\.(?P<space>global|const|shared|tex)\b")
_ALIAS = re.compile(r"\.alias\s+(?P<name>[\w$]+)\s*,\s*(?P<target>[\w$]+)\s*;")
_GROUPS = re.compile(rf"{{[^;]*}}|{_PARENTHESES}|\[[^]]*\]|=[^,{{;]*")
_DECLARATOR = re.compile(NAME)
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(SKIP + r"|\.entry(?:\s|//[^\n]*|/\*.*?\*/)+(?P<name>[\w$]+)", re.DOTALL)
_HOLDS = re.compile(SKIP + r"|(?P<what>\.(?:entry|func|global|const|shared|tex)\b)", re.DOTALL)


class UnreadableError(Exception):
    """Text that is no PTX: why not, and in which line (0: as a whole)."""

    def __init__(self, why: str, *, line: int = 0, shown: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.line = line
        self.shown = shown


@dataclass(frozen=True)
class Header:
    """What all parts of one module must agree on."""

    version: str
    target: tuple[str, ...]
    address_size: str


@dataclass(frozen=True)
class Statement:
    """One module-level statement, its text as it stands."""

    kind: str
    """`function` (with a body), `prototype`, `variable`, `alias`, `pragma`, `section` or `loc`."""
    text: str
    names: tuple[str, ...] = ()
    """What it declares; an alias and its target; a section's name, or nothing for an empty one."""
    linkage: str = ""
    """`extern`, `visible`, `weak`, `common`, or empty: known to this part alone. An `.entry` is never local."""
    space: str = ""


@dataclass(frozen=True)
class Module:
    """One part's PTX."""

    header: Header
    statements: tuple[Statement, ...]
    files: tuple[tuple[str, str], ...]
    """(index, quoted path and what follows it) of each `.file`."""


def target_named(text: str) -> str:
    """What PTX says that it is for, `sm_90a`; empty for a text that does not say, and so is no PTX."""
    found = _TARGET.search(text)
    return found[1] if found else ""


def entries(text: str) -> list[str]:
    """The names of the kernels that PTX has, also of PTX that does not read."""
    return [found["name"] for found in _ENTRY.finditer(text) if found["name"]]


def holds_any(text: str) -> bool:
    """Whether PTX has a function or a variable at all, also PTX that does not read."""
    return any(found["what"] for found in _HOLDS.finditer(text))


def plain(text: str) -> str:
    """`text` without comments and with every run of blanks as one: for comparing."""
    return " ".join(_COMMENT.sub(lambda match: " " if match["comment"] else match[0], text).split())


def uncommented(text: str) -> str:
    """`text` with a blank in place of each comment, and every line where it was."""
    return _COMMENT.sub(lambda match: " " + "\n" * match[0].count("\n") if match["comment"] else match[0], text)


def read(text: str, *, label: str) -> Module | None:
    """The module that `text` is; None where it holds nothing. Raises LinkError naming `label` and the line that does not read."""
    try:
        return parse(text)
    except UnreadableError as error:
        where = f"line {error.line} of its PTX {error.why}: {error.shown}" if error.line else error.why
        msg = f"{label}: {where}"
        raise LinkError(msg) from None


def parse(text: str) -> Module | None:
    """The same for text that nobody named yet. Raises UnreadableError."""
    fields: dict[str, str] = {}
    files: list[tuple[str, str]] = []
    statements: list[Statement] = []
    position = _skip(text, 0)
    if position == len(text):
        return None
    while position < len(text):
        line = _LINE.match(text, position)
        if line is None:
            statement, end = _statement(text, position)
            statements.append(statement)
        else:
            end = line.end()
            if line["file"]:
                files.append((line["index"], plain(line["file"])))
            elif line["loc"]:
                statements.append(Statement(kind="loc", text=line[0]))
            else:
                found = {name: value for name, value in line.groupdict().items() if value}
                if any(name in fields for name in found):
                    raise _fail(text, position, "is a second head: one file holds one module")
                fields.update(found)
        position = _skip(text, end)
    return Module(header=_header(fields), statements=tuple(statements), files=tuple(files))


def _header(fields: dict[str, str]) -> Header:
    missing = [name for name, field in ((".version", "version"), (".target", "target")) if field not in fields]
    if missing:
        msg = f"not PTX: no {' and no '.join(missing)}"
        raise UnreadableError(msg)
    target = tuple(option.strip() for option in fields["target"].split(","))
    return Header(version=fields["version"], target=(target[0], *sorted(target[1:])), address_size=fields.get("size", "64"))


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _fail(text: str, position: int, why: str) -> UnreadableError:
    shown = text[position : position + 60].split("\n", 1)[0].rstrip()
    return UnreadableError(why, line=text.count("\n", 0, position) + 1, shown=shown)


def _statement(text: str, start: int) -> tuple[Statement, int]:
    """The statement at `start`, and where it ends."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] == ";" and depth == 0:
            return _simple(text, start, mark.end())
        if mark[0] == "{":
            if depth == 0 and not _VARIABLE.match(text, start):
                end = _close(text, mark.start())
                return _braced(text, start, mark.start(), end), end
            depth += 1
        elif mark[0] == "}":
            depth -= 1
    raise _fail(text, start, "does not end")


def _close(text: str, start: int) -> int:
    """Behind the brace that closes the one at `start`."""
    depth = 0
    for mark in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0:
            return mark.end()
    raise _fail(text, start, "opens a brace that nothing closes")


def _braced(text: str, start: int, brace: int, end: int) -> Statement:
    if text.startswith(".section", start):
        name = plain(text[start + len(".section") : brace])
        return Statement(kind="section", text=text[start:end], names=(name,) if text[brace + 1 : end - 1].strip() else ())
    function = _FUNCTION.match(plain(text[start:brace]))
    if function is None:
        raise _fail(text, start, "does not read")
    return Statement(kind="function", text=text[start:end], names=(function["name"],), linkage=_linkage(function))


def _linkage(function: re.Match[str]) -> str:
    return function["linkage"] or ("visible" if function["what"] == "entry" else "")


def _simple(text: str, start: int, end: int) -> tuple[Statement, int]:
    whole = text[start:end]
    shape = plain(whole)
    if variable := _VARIABLE.match(shape):
        names = tuple(name[0] for name in map(_DECLARATOR.search, _GROUPS.sub(" ", shape).split(",")) if name)
        if len(names) > 1 and variable["linkage"]:
            raise _fail(text, start, "declares several names at once; write one declaration for each")
        if names:
            return Statement(kind="variable", text=whole, names=names, linkage=variable["linkage"] or "", space=variable["space"]), end
    elif function := _FUNCTION.match(shape):
        return Statement(kind="prototype", text=whole, names=(function["name"],), linkage=_linkage(function)), end
    elif alias := _ALIAS.match(shape):
        return Statement(kind="alias", text=whole, names=(alias["name"], alias["target"])), end
    elif shape.startswith(".pragma"):
        return Statement(kind="pragma", text=whole), end
    raise _fail(text, start, "does not read")

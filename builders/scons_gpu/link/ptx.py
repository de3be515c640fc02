"""Several parts' PTX becomes one PTX module: for `compute_XX`, for `whole` links, and where the driver finishes.

Text inside function bodies stays as it is, but for names that only one part knows and for the file numbers of `.loc`. Such a name gets a
suffix made from what it names, with all that this uses: adding another part changes nothing here, and what several parts have alike (a
function that two kernels call) stands once, as it does in a module that was never divided.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from scons_gpu.errors import LinkError, MissingSymbolError
from scons_gpu.source.ptx_reader import LOC, NAME, SKIP, Header, Module, Statement, plain, read
from scons_gpu.toolchain.versions import least_ptx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scons_gpu.toolchain.arch import Target

__all__ = ["MergedPtx", "PtxPart", "local_names", "merge", "merge_ptx", "shared_alignment"]

_PLAIN = re.compile(r"sm_\d+")
_TARGET = re.compile(r"^(?P<start>\s*\.target\s+)(?P<cpu>sm_\d+)(?![\w])", re.MULTILINE)
_VERSION = re.compile(r"^(?P<start>\s*\.version\s+)(?P<major>\d+)\.(?P<minor>\d+)", re.MULTILINE)
_WORD = re.compile(r"[\w$.%]")
_ARRAY = re.compile(r"\.extern\s+\.shared\s+(?P<modifiers>.*?)(?P<type>\.[a-z]+\d+)\s+[\w$]+\s*(?P<sizes>(?:\[\d*\]\s*)*);")
_ALIGN = re.compile(r"\.align\s+(\d+)")
_VECTOR = re.compile(r"\.v([248])\b")
# A parameter's own name says nothing: `(.param .b64 vprintf_param_0)` and `(.param .b64 fmt)` are one.
_PARAMETER = re.compile(r"(?<=\s)[A-Za-z_$%][\w$]*(?=\s*(?:\[\d+\]\s*)?[,)])")
_TIGHT = re.compile(r"\s*([(),;])\s*")
# LLVM numbers these through a whole module, so equal functions of two parts differ in them.
_LOCAL = re.compile(NAME)
_NUMBERED = re.compile(r"(\$L__[A-Za-z_]+|prototype_|__local_depot)\d+(?:_\d+)?")


@dataclass(frozen=True)
class PtxPart:
    """One unit's, state's or table's PTX."""

    label: str
    """How messages name it; never in the output."""
    text: str
    optional: bool = False
    """A table: it stays only where a part that stays uses a variable of it."""


@dataclass(frozen=True)
class MergedPtx:
    """The merged module, and which part each of its lines comes from."""

    text: str
    starts: tuple[tuple[int, str], ...]
    """(number of its first line, label), in the order in which the parts stand."""

    def label_at(self, line: int) -> str:
        """The label of the part that a line comes from, counted from 1; empty for a line of the head."""
        return next((label for start, label in reversed(self.starts) if start <= line), "")


@dataclass(frozen=True)
class _Read:
    label: str
    text: str
    optional: bool
    module: Module
    locals: dict[str, str]
    """Each name that only this part knows → its name in the merged module."""


@dataclass(frozen=True)
class _Definition:
    part: _Read
    statement: Statement


def merge_ptx(parts: Sequence[PtxPart], *, target: Target | None = None, warn: Callable[[str], None] | None = None) -> str:
    """The text of what `merge` gives, for `target` where one is named: sources that are PTX may have been written for an older GPU."""
    text = merge(parts, warn=warn).text
    return text if target is None else _retargeted(text, target)


def _retargeted(text: str, target: Target) -> str:
    """A plain `.target` becomes the wanted one, which is not older, and the PTX version one that knows it."""
    found = _TARGET.search(text)
    if found is None or found["cpu"] == target.cpu:
        return text
    least = least_ptx(target)
    text = _TARGET.sub(rf"\g<start>{target.cpu}", text, count=1)
    return _VERSION.sub(lambda match: match[0] if _number(match) >= least else f"{match['start']}{least // 10}.{least % 10}", text, count=1)


def _number(match: re.Match[str]) -> int:
    return 10 * int(match["major"]) + int(match["minor"])


def merge(parts: Sequence[PtxPart], *, warn: Callable[[str], None] | None = None, renamed: bool = False) -> MergedPtx:
    """One PTX module that defines what all `parts` define. `renamed`: names are those of a merge of several also where one is left.

    Debug sections (DWARF) do not merge: with `warn` they are left out, and it is told; without it they are refused. Line tables merge.
    Raises LinkError where parts disagree or two define one name, MissingSymbolError where a variable is defined by none.
    """
    found = [_read(part, module) for part in parts if (module := read(part.text, label=part.label)) is not None]
    if not found:
        msg = "no part holds any PTX"
        raise LinkError(msg)
    header = _agreed(found)
    definitions = _definitions(found)
    found = _asked_for(found, definitions)
    definitions = _definitions(found)  # again: an equal weak one may have stood in what went
    _check_defined(found, definitions)
    if len(found) == 1 and not renamed:
        return MergedPtx(found[0].text, ((1, found[0].label),))  # nothing to merge, so its debug information is whole
    if _drop_debug(found, warn):
        header = dataclasses.replace(header, target=tuple(option for option in header.target if option != "debug"))
    found = _ordered(found, definitions)
    merged = _Merged(definitions=_definitions(found), shared=_shared(found))  # of equal ones, that which now comes first
    lines, starts = _head(header), []
    for part in found:
        starts.append((len(lines) + 1, part.label))
        lines += [line for text in merged.part(part) for line in text.split("\n")]
    files = [f"\t.file\t{index} {name}" for name, index in merged.files.items()]
    return MergedPtx("\n".join([*lines, *files, ""]), tuple(starts))


def _read(part: PtxPart, module: Module) -> _Read:
    return _Read(label=part.label, text=part.text, optional=part.optional, module=module, locals=_locals(module))


def _locals(module: Module) -> dict[str, str]:
    """Names that only this module knows → the names that their content gives them."""
    texts: dict[str, str] = {}
    for statement in module.statements:
        if statement.kind in {"function", "prototype", "variable"} and not statement.linkage:
            for name in statement.names:
                texts[name] = f"{texts.get(name, '')}{_comparable(statement)}\n"
    uses = {name: {word for word in _LOCAL.findall(text) if word in texts} for name, text in texts.items()}
    files = repr(module.files) if module.files else ""  # what the numbers of `.loc` mean
    hashes = {name: xxhash.xxh3_64_hexdigest(f"{files}{text}".encode()) for name, text in texts.items()}
    reached = {name: repr([(each, hashes[each]) for each in sorted(_reached(name, uses))]) for name in texts}
    return {name: f"{name}__{xxhash.xxh3_64_hexdigest(f'{name} {reached[name]}'.encode())}" for name in texts}


def _reached(name: str, uses: Mapping[str, set[str]]) -> set[str]:
    found, waiting = {name}, [name]
    while waiting:
        more = uses[waiting.pop()] - found
        found |= more
        waiting += more
    return found


def _agreed(found: Sequence[_Read]) -> Header:
    """The header that suits all parts: newer PTX and later plain architectures take what was written for older ones."""
    first = found[0]
    for part in found[1:]:
        for name in ("target", "address_size"):
            one, other = getattr(first.module.header, name), getattr(part.module.header, name)
            if one != other and not (name == "target" and _both_plain(one, other)):
                one, other = (", ".join(value) if isinstance(value, tuple) else value for value in (one, other))
                msg = f"parts of one link differ in .{name}: {first.label} has {one}, {part.label} has {other}"
                raise LinkError(msg, hint="they were made with different options or architectures; build them again together")
    pragmas = {part.label: _pragmas(part) for part in found if any(statement.kind == "function" for statement in part.module.statements)}
    if len(set(pragmas.values())) > 1:
        one, other = (next(label for label, value in pragmas.items() if value == wanted) for wanted in sorted(set(pragmas.values()))[:2])
        msg = f"parts of one link differ in their module-wide .pragma: {one} and {other}"
        raise LinkError(msg)
    headers = [part.module.header for part in found]
    newest = max((header.version for header in headers), key=lambda version: [int(number) for number in version.split(".")])
    latest = max((header.target for header in headers), key=lambda target: int(re.sub(r"\D", "", target[0])))
    return dataclasses.replace(first.module.header, version=newest, target=latest)


def _both_plain(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two targets differ in nothing but how late a GPU they name, and what is written for one runs on the later."""
    return one[1:] == other[1:] and all(_PLAIN.fullmatch(target[0]) for target in (one, other))


def _pragmas(part: _Read) -> str:
    return " ".join(sorted(plain(statement.text) for statement in part.module.statements if statement.kind == "pragma"))


def _head(header: Header) -> list[str]:
    return [f".version {header.version}", f".target {', '.join(header.target)}", f".address_size {header.address_size}", ""]


def _definitions(found: Iterable[_Read]) -> dict[str, _Definition]:
    """Name in the merged module → who defines it. An alias defines its name; of equal weak or local definitions the first counts."""
    result: dict[str, _Definition] = {}
    for part in found:
        for statement in part.module.statements:
            defines = statement.names[:1] if statement.kind == "alias" else statement.names
            if statement.kind not in {"function", "variable", "alias"} or statement.linkage == "extern":
                continue
            for name in defines:
                ours = _Definition(part=part, statement=statement)
                theirs = result.setdefault(part.locals.get(name, name), ours)
                if theirs is not ours and theirs.part is not part and name not in part.locals:
                    _check_equal(name, theirs, ours)
    return result


def _check_equal(name: str, one: _Definition, other: _Definition) -> None:
    mergeable = {"weak", "common"}
    where = f"{one.part.label} and {other.part.label}"
    if one.statement.linkage not in mergeable or other.statement.linkage != one.statement.linkage:
        msg = f"{name} is defined by both {where}"
        raise LinkError(msg, hint="make one of them static, or put them into two modules")
    if _comparable(one.statement) != _comparable(other.statement):
        msg = f"{name} is defined differently by {where}"
        raise LinkError(msg, hint="give the two different names, or put them into two modules")


def _comparable(statement: Statement) -> str:
    return _NUMBERED.sub(r"\1", plain(statement.text))


def _asked_for(found: Sequence[_Read], definitions: Mapping[str, _Definition]) -> list[_Read]:
    """Without the optional parts that nothing uses, be it through another optional part."""
    wanted = [part for part in found if not part.optional]
    stay = {id(part) for part in wanted}
    while wanted:
        for other in _needed(wanted.pop(), definitions):
            if id(other) not in stay:
                stay.add(id(other))
                wanted.append(other)
    return [part for part in found if id(part) in stay]


def _check_defined(found: Iterable[_Read], definitions: Mapping[str, _Definition]) -> None:
    """Variables must be defined here: nobody else does, and the driver would say so only when it loads the module."""
    for part in found:
        for statement in part.module.statements:
            if statement.kind == "variable" and statement.linkage == "extern" and statement.space != "shared":
                missing = [name for name in statement.names if name not in definitions]
                if missing:
                    msg = f"{part.label} uses the variable {missing[0]}, which no part of the link defines"
                    raise MissingSymbolError(msg)


def _drop_debug(found: Iterable[_Read], warn: Callable[[str], None] | None) -> bool:
    """Whether debug sections are left out."""
    holders = [part.label for part in found if any(statement.kind == "section" and statement.names for statement in part.module.statements)]
    if not holders:
        return False
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    if warn is None:
        msg = f"debug information of several units does not merge into one PTX module: {holders[0]}{more}"
        raise LinkError(msg, hint="build for real architectures only (sm_XX), or with GPU_LINEINFO in place of GPU_DEBUG")
    warn(f"debug information does not merge into one PTX module, line tables do; left out: that of {holders[0]}{more}")
    return True


def _ordered(found: Sequence[_Read], definitions: Mapping[str, _Definition]) -> list[_Read]:
    """Parts so that a variable's definition comes before its uses: PTX has no forward declaration of one that follows."""
    result: list[_Read] = []
    state: dict[int, bool] = {}  # id of a part → whether it is placed; False while what it needs is being placed
    stack = list(reversed(found))
    while stack:
        part = stack[-1]
        if state.get(id(part)):
            stack.pop()
            continue
        needed = [other for other in _needed(part, definitions) if not state.get(id(other))]
        if not needed:
            state[id(part)] = True
            result.append(stack.pop())
            continue
        if id(part) in state:
            msg = f"{part.label} and {needed[0].label} each use a variable that the other defines"
            raise LinkError(msg, hint="put both variables into one source")
        state[id(part)] = False
        stack += reversed(needed)
    return result


def _needed(part: _Read, definitions: Mapping[str, _Definition]) -> Iterator[_Read]:
    for statement in part.module.statements:
        if statement.kind == "variable" and statement.linkage == "extern":
            for name in statement.names:
                if name in definitions and definitions[name].part is not part:
                    yield definitions[name].part


def _shared(found: Iterable[_Read]) -> dict[str, str]:
    """Each undefined shared array → its one declaration: the largest alignment and size that a part asks for."""
    sizes: dict[str, tuple[int, int]] = {}
    for part in found:
        for statement in part.module.statements:
            if statement.kind == "variable" and statement.linkage == "extern" and statement.space == "shared":
                align, length = _extent(statement)
                old = sizes.get(statement.names[0], (1, 0))
                sizes[statement.names[0]] = (max(align, old[0]), max(length, old[1]))
    return {name: f".extern .shared .align {align} .b8 {name}[{length or ''}];" for name, (align, length) in sizes.items()}


def local_names(text: str, *, label: str) -> dict[str, str]:
    """Names that only this PTX knows → what they are called where it is merged with others."""
    module = read(text, label=label)
    return _locals(module) if module else {}


def shared_alignment(text: str, *, label: str) -> int:
    """The largest alignment of the undefined shared arrays that PTX declares; 0 where it declares none."""
    module = read(text, label=label) if ".shared" in text else None
    statements = module.statements if module else ()
    arrays = [each for each in statements if each.kind == "variable" and each.linkage == "extern" and each.space == "shared"]
    return max((_extent(each)[0] for each in arrays), default=0)


def _extent(statement: Statement) -> tuple[int, int]:
    """Alignment and length in bytes of one `.extern .shared`; length 0 where it is open."""
    match = _ARRAY.match(plain(statement.text))
    if match is None:
        msg = f"this declaration does not read: {plain(statement.text)}"
        raise LinkError(msg)
    vector = _VECTOR.search(match["modifiers"])
    element = int(re.sub(r"\D", "", match["type"])) // 8 * (int(vector[1]) if vector else 1)
    length = element
    for size in re.findall(r"\[(\d*)\]", match["sizes"]):
        length *= int(size or 0)
    align = _ALIGN.search(match["modifiers"])
    return int(align[1]) if align else element, length


@dataclass
class _Merged:
    """What the output holds so far."""

    definitions: Mapping[str, _Definition]
    shared: Mapping[str, str]
    files: dict[str, int] = field(default_factory=dict)
    declared: dict[str, _Declared] = field(default_factory=dict)
    standing: set[str] = field(default_factory=set)
    """Labels of the parts that are in it."""

    def part(self, part: _Read) -> Iterator[str]:
        """The statements of `part` that stay, as they read in the merged module."""
        numbers = {index: self.files.setdefault(name, len(self.files) + 1) for index, name in part.module.files}
        rewrite = _Rewriter(part, numbers)
        for statement in part.module.statements:
            text = self._kept(part, statement)
            if text and self._is_new(part, statement, text) and not self._stands(part, statement):
                yield rewrite(text)
        self.standing.add(part.label)

    def _kept(self, part: _Read, statement: Statement) -> str:
        """What becomes of one statement; empty where it goes."""
        if statement.kind in {"section", "loc"}:
            return ""
        if statement.kind in {"pragma", "alias"}:
            return statement.text
        name = statement.names[0]
        definition = self.definitions.get(part.locals.get(name, name))
        if statement.linkage != "extern":
            return statement.text if statement.kind == "prototype" or definition is None or definition.part is part else ""
        if statement.space == "shared":
            return self.shared[name]
        if definition is None:
            return statement.text
        # A function may be called before its body stands; a variable's definition stands already.
        linkage = definition.statement.linkage or "visible"
        return statement.text.replace(".extern", f".{linkage}", 1) if statement.kind == "prototype" else ""

    def _stands(self, part: _Read, statement: Statement) -> bool:
        """Whether this is a prototype whose body stands already: ptxas takes an entry's for a second body."""
        if statement.kind != "prototype":
            return False
        definition = self.definitions.get(part.locals.get(statement.names[0], statement.names[0]))
        return definition is not None and definition.part.label in self.standing

    def _is_new(self, part: _Read, statement: Statement, text: str) -> bool:
        """Whether a declaration does not stand already; definitions always are new."""
        declares = statement.kind in {"prototype", "pragma", "alias"} or (statement.kind, statement.linkage) == ("variable", "extern")
        if not declares:
            return True
        name = statement.kind + part.locals.get(statement.names[0], statement.names[0]) if statement.names else text
        new = _Declared(label=part.label, shape=_TIGHT.sub(r"\1", _PARAMETER.sub("_", plain(text))))
        old = self.declared.setdefault(name, new)
        if old.shape != new.shape:
            msg = f"{statement.names[0]} is declared differently by {old.label} and {new.label}"
            raise LinkError(msg, hint="the two sources disagree on its parameters; give both one header")
        return old is new


@dataclass(frozen=True)
class _Declared:
    label: str
    shape: str


class _Rewriter:
    """Gives a part's text its names and file numbers in the merged module."""

    def __init__(self, part: _Read, numbers: Mapping[str, int]) -> None:
        self._names = part.locals
        self._numbers = numbers
        self._label = part.label
        self._pattern = re.compile("|".join([SKIP, LOC, *(re.escape(name) + r"(?![\w$])" for name in part.locals)]), re.DOTALL)

    def __call__(self, text: str) -> str:
        """`text` rewritten. The inlined-at tails of `.loc` go, since they point into debug sections."""
        if not self._names and ".loc" not in text:
            return text
        return self._pattern.sub(self._replaced, text)

    def _replaced(self, match: re.Match[str]) -> str:
        if match["file"]:
            if match["file"] not in self._numbers:
                msg = f"{self._label}: its PTX has a .loc for file {match['file']} and no .file of that number"
                raise LinkError(msg)
            return f".loc{match['gap']}{self._numbers[match['file']]}{match['line']}"
        # The tail of a longer word, a register or a modifier is no name.
        start = match.start()
        tail = start > 0 and _WORD.match(match.string, start - 1)
        return match[0] if tail else self._names.get(match[0], match[0])

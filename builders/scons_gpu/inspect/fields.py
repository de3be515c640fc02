"""What a field of a key means to a user: the variable, define, flag or tool behind it, and what of it is other."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect.causes import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["of_key", "of_own", "of_unit", "text"]

_TOOLS = {
    "llvm": "LLVM",
    "clang": "clang",
    "nvvm": "libNVVM",
    "libdevice": "libdevice",
    "headers": "CUDA headers",
    "compiler": "compiler",
    "nvcc": "nvcc",
    "assembler": "assembler",
    "fatbinary": "fatbinary",
    "linker": "linker",
}
_OPTIONS = {
    "opt": "GPU_OPT",
    "fast_math": "GPU_FAST_MATH",
    "fast-math": "GPU_FAST_MATH",
    "ftz": "GPU_FTZ",
    "lineinfo": "GPU_LINEINFO",
    "lines": "GPU_LINEINFO",
    "debug": "GPU_DEBUG",
    "by": "GPU_LOWER",
    "lowered-by": "GPU_LOWER",
    "lowered_by": "GPU_LOWER",
    "link": "GPU_LINK",
    "share_twins": "GPU_SHARE_TWINS",
    "maxrregcount": "GPU_MAXRREGCOUNT",
    "seconds": "GPU_CANDIDATE_SECONDS",
    "provider": "GPU_PROVIDER",
    "fail_on_spill": "GPU_FAIL_ON_SPILL",
    "warn_on_spill": "GPU_WARN_ON_SPILL",
    "shared": "position independent code",
}
_LISTS = {
    "cpppath": ("folder", "CPPPATH"),
    "defines": ("define", ""),
    "flags": ("flag", "GPU_CLANGFLAGS"),
    "host flags": ("flag", "CXXFLAGS"),
    "candidate flags": ("flag", "GPU_PTXASFLAGS"),
    "from_nvcc": ("flag", "GPU_NVCCFLAGS"),
    "nvcc_flags": ("flag", "GPU_NVCCFLAGS"),
    "clang_flags": ("flag", "GPU_CLANGFLAGS"),
    "host_flags": ("flag", "GPU_HOSTFLAGS"),
    "ptxas_flags": ("flag", "GPU_PTXASFLAGS"),
    "code": ("flag", "GPU_NVCCFLAGS"),
    "archs": ("architecture", "GPU_ARCHS"),
    "tuning": ("tuning file", "GPU_TUNING"),
}
_FORMS = {"form": {"apart": "image or whole", "closed": "bundle"}, "kind": {"rel": "image", "whole": "bundle", "ptx": "whole or PTX"}}
"""Fields that follow from GPU_LINK, and what their values say of it."""
_SPELLED = (
    (re.compile(r"(?:-Xptxas=)?-O(\d)|CU_JIT_OPTIMIZATION_LEVEL=(\d)"), "GPU_OPT", "3"),
    (re.compile(r"-maxrregcount=(\d+)|CU_JIT_MAX_REGISTERS=(\d+)"), "GPU_MAXRREGCOUNT", ""),
    (re.compile(r"-g()|CU_JIT_GENERATE_DEBUG_INFO=1()"), "GPU_DEBUG", "0"),
    (re.compile(r"-lineinfo()|CU_JIT_GENERATE_LINE_INFO=1()"), "GPU_LINEINFO", "0"),
    (re.compile(r"-arch=(\w+)|CU_JIT_TARGET=(\w+)"), "architecture", ""),
)
"""What an assembler is told, and the variable behind it, with its value where nothing is said."""
_FROM_LINK = re.compile(r"-v|-c|-r|(?:-Xptxas=)?(?:-v|-enable-func-clone-sc|true)")
"""Words that follow from what is made."""


def of_key(stage: str, differing: Mapping[str, tuple[str, str]], key: Mapping[str, str]) -> list[Cause]:
    """The causes behind the fields of a step's key that are other than before; `key` is the whole of it, as it is now."""
    found: list[Cause] = []
    for field, (then, now) in differing.items():
        arch, _, name = field.rpartition(" ")  # a bundle's fields are told for each architecture
        values = _read(then), _read(now)
        prefix = f"{arch} " if arch else ""
        if name in ("options", "kind") and "" in map(_read, differing.get(f"{prefix}provider", ())):
            continue  # that nobody assembles now, or that somebody does, says it all
        if name == "provider":
            found += _provider(values, _versions(f"{prefix}versions", differing, key))
        elif name == "versions":
            continue  # they say of `provider` which version it is
        else:
            found += _field(stage, name, *values)
    return found


def of_unit(differing: Mapping[str, tuple[str, str]]) -> list[Cause]:
    """The causes behind the fields of a unit's own key, but for what its text and its joined texts are."""
    return [cause for field, (then, now) in differing.items() for cause in _field("unit", field, then, now)]


def text() -> Cause:
    """A unit's own text, or that of what joins it."""
    return Cause("text", "of the unit")


def of_own(then: str, now: str) -> list[Cause]:
    """The causes behind the options that a candidate, or a helper's kernel, has of its own."""
    old, new = _read(then) or {}, _read(now) or {}
    differing = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
    return [cause for name in differing for cause in _field("candidate", name, old.get(name), new.get(name))]


def _field(stage: str, name: str, then: Any, now: Any) -> Iterable[Cause]:  # noqa: ANN401 - what JSON can hold
    """The causes behind one field. What its values look like decides before its name does: one name may stand for several things."""
    if isinstance(then, dict) or isinstance(now, dict):
        return _nested(stage, name, then or {}, now or {})
    if _is_signature(then) or _is_signature(now):
        return _signature(stage, str(then or ""), str(now or ""))
    if (stage, name) == ("unit", "debug"):
        return _lines(str(then), str(now))
    if name in _LISTS:
        kind, variable = _LISTS.get(f"{stage} {name}") or _LISTS[name]
        return _listed(kind, variable, _words(then), _words(now))
    if name in _SPECIAL:
        return _SPECIAL[name](then, now)
    return [_single(name, then, now)]


def _single(name: str, then: Any, now: Any) -> Cause:  # noqa: ANN401 - what JSON can hold
    """A field that is one thing."""
    if name in _FORMS:
        words = _FORMS[name]
        return Cause("option", "GPU_LINK", then=words.get(str(then), str(then)), now=words.get(str(now), str(now)), derived=True)
    if name in _OPTIONS:
        return Cause("option", _OPTIONS[name], then=_flag(then), now=_flag(now))
    if name in _TOOLS:
        return _used(_TOOLS[name], _tool(then), _tool(now))
    if name in ("tool", "format"):
        return Cause("scons-gpu", "itself", then=_tool(then), now=_tool(now))
    return Cause("setting", name, then=_short(then), now=_short(now))


def _used(name: str, then: str, now: str) -> Cause:
    """A tool that is another one; one that takes part, or does so no more, follows from an option."""
    return Cause("tool" if then and now else "taken", name, then=then, now=now)


def _spills(then: Any, now: Any) -> Iterator[Cause]:  # noqa: ANN401 - what JSON can hold
    pairs = zip(("fail_on_spill", "warn_on_spill"), _padded(then), _padded(now), strict=True)
    yield from (Cause("option", _OPTIONS[each], then=_flag(a), now=_flag(b)) for each, a, b in pairs if a != b)


def _exports(then: Any, now: Any) -> Iterator[Cause]:  # noqa: ANN401 - what JSON can hold
    yield Cause("sources", "of the module", then="several" if then else "one", now="several" if now else "one", derived=True)


def _lines(then: str, now: str) -> Iterator[Cause]:
    """`full` where GPU_DEBUG is set, `lines` where GPU_LINEINFO is and GPU_DEBUG is not."""
    if "full" in (then, now):
        yield Cause("option", "GPU_DEBUG", then=_flag(then == "full"), now=_flag(now == "full"))
    else:
        yield Cause("option", "GPU_LINEINFO", then=_flag(then == "lines"), now=_flag(now == "lines"))


def _nested(stage: str, name: str, then: Any, now: Any) -> Iterator[Cause]:  # noqa: ANN401 - what JSON can hold
    """A manifest's options of each module, its tools, its sources."""
    if not (isinstance(then, dict) and isinstance(now, dict)):
        yield Cause("setting", name, then=_short(then), now=_short(now))
        return
    for key in sorted(then | now):
        old, new = then.get(key), now.get(key)
        if old == new:
            continue
        if name == "tools":
            yield _used(_TOOLS.get(key, key), _tool(old), _tool(new))
        elif name == "sources":
            yield from _listed("sources", f"of {key}", [each[0] for each in old or ()], [each[0] for each in new or ()])
        elif name == "options" and isinstance(old, dict) and isinstance(new, dict):
            differing = [field for field in sorted(old | new) if old.get(field) != new.get(field)]
            yield from (cause for field in differing for cause in _field(stage, field, old.get(field), new.get(field)))
        elif name == "options":
            yield Cause("module", key, "added" if old is None else "removed")
        elif old is not None and new is not None:  # one more architecture is told where it is built
            yield from _field(stage, name, old, new)


def _pairwise(then: Any, now: Any) -> Iterator[Cause]:  # noqa: ANN401 - what JSON can hold
    """How each candidate is lowered and assembled: what differs there follows from the module's options, or from other candidates."""
    if len(then or ()) == len(now or ()):
        for old, new in zip(then, now, strict=True):
            for before, after in zip(old, new, strict=True):
                differing = [name for name in sorted(before) if before[name] != after.get(name)]
                yield from (cause for name in differing for cause in _field("candidate", name, before[name], after.get(name)))


def _modules(then: Any, now: Any) -> Iterator[Cause]:  # noqa: ANN401 - what JSON can hold
    """A program's modules: name, whether it is bypassed, submodules."""
    old, new = ({each[0]: each[1:] for each in found or ()} for found in (then, now))
    for name in sorted(old | new):
        if old.get(name) != new.get(name):
            yield Cause("module", name, "added" if name not in old else "removed" if name not in new else "changed")


def _signature(stage: str, then: str, now: str) -> list[Cause]:
    """A field that holds another step's whole key."""
    old, new = ({line.split(" = ", 1)[0]: line.split(" = ", 1)[1] for line in text.splitlines() if " = " in line} for text in (then, now))
    return of_key(
        stage, {name: (old.get(name, ""), new.get(name, "")) for name in sorted(old | new) if old.get(name) != new.get(name)}, new
    )


def _is_signature(value: object) -> bool:
    return isinstance(value, str) and "\n" in value and " = " in value


def _provider(values: tuple[Any, Any], versions: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Cause]:
    """`ptxas IDENTITY IDENTITY`: what assembles, and what links."""
    (old, *old_ids), (new, *new_ids) = (str(value or "").split(" ") for value in values)
    if old != new:
        yield Cause("option", "GPU_PROVIDER", then=old, now=new)
        return
    names = [new.partition("+")[0], "nvlink" if new in {"ptxas", "nvptxcompiler"} else new.rpartition("+")[2]]
    for name, a, b in zip(names, _two(old_ids), _two(new_ids), strict=True):
        if a != b:
            yield Cause("tool", name, then=_tool(f"{versions[0].get(name, '')} {a}"), now=_tool(f"{versions[1].get(name, '')} {b}"))


def _versions(field: str, differing: Mapping[str, tuple[str, str]], key: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    pair = differing.get(field) or (key.get(field, ""), key.get(field, ""))
    old, new = (_read(text) or {} for text in pair)
    return (old if isinstance(old, dict) else {}), (new if isinstance(new, dict) else {})


def _two(words: list[str]) -> list[str]:
    return [*words, "", ""][:2]


def _spelled(then: list[str], now: list[str]) -> Iterator[Cause]:
    """What an assembler is told, word by word."""
    for pattern, variable, default in _SPELLED:
        old, new = ([_value(match) for word in words if (match := pattern.fullmatch(word))] for words in (then, now))
        if old != new:
            on = "1" if default == "0" else ""
            values = [(found[-1] or on) if found else default for found in (old, new)]
            kind, name = ("architecture", "") if variable == "architecture" else ("option", variable)
            yield Cause(kind, name, then=values[0], now=values[1])
    known = [pattern for pattern, _, _ in _SPELLED]
    rest = [[word for word in words if not any(pattern.fullmatch(word) for pattern in known)] for words in (then, now)]
    told = [[word for word in words if not _FROM_LINK.fullmatch(word)] for words in rest]
    yield from _listed("flag", "GPU_PTXASFLAGS", *told)


def _value(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group), "")


def _listed(kind: str, variable: str, then: list[str], now: list[str]) -> Iterator[Cause]:
    """What came and went; defines by name."""
    if kind == "define":
        old, new = ({word.partition("=")[0]: word.partition("=") for word in words} for words in (then, now))
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                change = "added" if name not in old else "removed" if name not in new else "changed"
                yield Cause(kind, name, change, then=_defined(old.get(name)), now=_defined(new.get(name)))
        return
    if kind == "architecture":
        yield Cause(kind, variable, then=" ".join(then), now=" ".join(now))
        return
    gone, come = ([word for word in words if word not in others] for words, others in ((then, now), (now, then)))
    shown = f"{variable} " if kind in ("flag", "sources") else ""
    yield from (Cause(kind, f"{shown}{word}", "removed") for word in gone)
    yield from (Cause(kind, f"{shown}{word}", "added") for word in come)
    if then != now and not gone and not come:
        yield Cause(kind, variable, then=" ".join(then), now=" ".join(now))


def _defined(parts: tuple[str, str, str] | None) -> str:
    if parts is None:
        return ""
    return parts[2] if parts[1] else "defined"


def _read(text: str) -> Any:  # noqa: ANN401 - what JSON can hold
    try:
        return json.loads(text)
    except ValueError:
        return text


def _words(value: Any) -> list[str]:  # noqa: ANN401 - what JSON can hold
    return [str(word) for word in value] if isinstance(value, list) else [str(value)] if value else []


def _padded(value: Any) -> list[bool]:  # noqa: ANN401 - what JSON can hold
    return [bool(each) for each in [*(value if isinstance(value, list) else ()), False, False][:2]]


def _flag(value: Any) -> str:  # noqa: ANN401 - what JSON can hold
    return str(int(value)) if isinstance(value, bool) else "" if value is None else str(value)


def _ptx(value: Any) -> str:  # noqa: ANN401 - what JSON can hold
    text = str(value)
    return f"{text[:-1]}.{text[-1]}" if text.isdigit() and len(text) > 1 else text


def _tool(value: Any) -> str:  # noqa: ANN401 - what JSON can hold
    """`22.1.0 (977e27481b9c)`: a version, and the start of the hash that tells it from another build of that version."""
    words = [str(word) for word in value] if isinstance(value, list) else str(value or "").split()
    if not words:
        return ""
    version, identity = " ".join(words[:-1]), words[-1][:12]
    return f"{version} ({identity})" if version else identity


def _short(value: Any) -> str:  # noqa: ANN401 - what JSON can hold
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else f"{text[:77]}..."


_SPECIAL: Mapping[str, Callable[[Any, Any], Iterable[Cause]]] = {
    "options": lambda then, now: _spelled(_words(then), _words(now)),
    "spills": _spills,
    "exports": _exports,
    "modules": _modules,
    "arch": lambda then, now: [Cause("architecture", "", then=str(then), now=str(now))],
    "ptx": lambda then, now: [Cause("taken", "PTX version", then=_ptx(then), now=_ptx(now))],
    "candidates": lambda _then, _now: [Cause("candidates", "of the module")],
    "candidate_options": _pairwise,
}

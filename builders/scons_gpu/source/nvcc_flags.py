"""nvcc's flags, as people have them in Makefiles, become this tool's settings: each is mapped, ignored or refused, and none is guessed."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.source import nvcc_archs
from scons_gpu.source.nvcc_options import ATTACHED, LIST, MAPPED, NONE, REFUSED, TABLE, TOLD, rows
from scons_gpu.source.translation import Remark, Setting, Translation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scons_gpu.source.nvcc_options import Row

__all__ = ["split", "translate"]

_ARCHS = ("gpu-architecture", "gpu-code", "generate-code")
_FORWARD = "forward-unknown-to-host-compiler"
_NUMBER = re.compile(r"\d+")
_REGISTERS = re.compile(r"--?maxrregcount=(\d+)")


@dataclass(frozen=True)
class _Given:
    """One option with one value."""

    row: Row
    value: str
    flag: str


@dataclass
class _Found:
    """What is collected on the way."""

    given: list[_Given] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """Flags that cannot be taken over, and what to do."""
    host: list[Setting] = field(default_factory=list)


def split(text: str, *, subst: Callable[[str], str] = str) -> list[str]:
    """Words of a Makefile's line as the shell would make them; `subst` puts in what variables stand for.

    Raises UsageError where a quote is not closed, and for a variable of make's, which would vanish otherwise.
    """
    if found := re.search(r"\$\([\w.]*\)?", text):
        msg = f"GPU_NVCCFLAGS: {found[0]} is a variable of make's"
        raise UsageError(msg, hint="SCons' own are written ${NAME}; in a SConstruct Python's do as well")
    try:
        return shlex.split(subst(text))
    except ValueError as error:
        msg = f"GPU_NVCCFLAGS: {text}: {error}"
        raise UsageError(msg) from None


@functools.lru_cache(maxsize=64)
def translate(words: tuple[str, ...]) -> Translation:
    """What the flags come to. Raises one UsageError for all that are unknown or refused, each with what to do instead."""
    found = _Found()
    _read(list(words), found)
    settings = list(found.host)
    for given in found.given:
        settings += _settings(given, found)
    asked = [(given.flag, archs) for given in _first(found) if (archs := _architectures(given, found)) is not None]
    settings += [Setting("GPU_ARCHS", name, flag) for flag, archs in asked for name in archs.names]
    _check_math(found)
    if found.wrong:
        raise _refusal(found.wrong)
    told = [given for given in found.given if given.row.does == TOLD]
    return Translation(
        settings=tuple(_debugging(_ordered(settings), found.given)),
        remarks=(
            *(Remark(f"{given.flag} of GPU_NVCCFLAGS is left out: {given.row.why}", given.row.kept) for given in told),
            *(Remark(f"{flag} of GPU_NVCCFLAGS: {archs.remark}") for flag, archs in asked if archs.remark),
        ),
        kept=tuple((_canonical(given), given.row.kept) for given in found.given if given.row.kept),
    )


def _read(words: list[str], found: _Found) -> None:
    """Words to options with their values, as nvcc reads them: `-name value`, `-name=value`, and of single letters `-Ivalue`."""
    forward = any(word.lstrip("-") == _FORWARD for word in words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        known = rows(name)
        if not known and word[1:2] in ATTACHED and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
            known = rows(name) if word[1] not in "Otm" or _NUMBER.fullmatch(value) else ()
        if not known:
            _unknown(word, found, forward=forward)
        elif known[0].takes == NONE:
            found.wrong += [(word, "it takes no value")] if equals else []
            found.given.append(_Given(known[0], "", word))
        elif not equals and not words:
            found.wrong.append((word, "its value is missing"))
        else:
            given = value if equals else words.pop(0)
            found.given += _values(known, given, flag=word if equals else f"{word} {given}", found=found)


def _values(known: Sequence[Row], given: str, *, flag: str, found: _Found) -> Iterator[_Given]:
    """A list's values come one by one; nvcc parts them at commas that no backslash stands before."""
    parts = [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", given)] if known[0].takes == LIST else [given]
    if known[0].short.startswith("X"):
        parts = [word for part in parts for word in _shell_words(part)]
    for part in parts:
        row = next((row for row in known if row.value in ("", part)), None)
        if row is None:
            found.wrong.append((flag, f"it takes {' or '.join(row.value for row in known)}"))
        elif part or known[0].takes != LIST:
            name = flag.removesuffix(given)
            yield _Given(row, part, name + part if len(parts) > 1 else flag)


def _shell_words(part: str) -> list[str]:
    """Nvcc hands these on through a shell."""
    try:
        return shlex.split(part)
    except ValueError:
        return [part]


def _unknown(word: str, found: _Found, *, forward: bool) -> None:
    if not word.startswith("-"):
        found.wrong.append((word, "it is no flag; sources, objects and libraries go to the builder"))
    elif forward:
        found.host.append(Setting("GPU_HOSTFLAGS", word, word))
    else:
        found.wrong.append((word, _nearest(word)))


def _nearest(word: str) -> str:
    import difflib  # noqa: PLC0415 - for a mistake alone

    names = sorted({name for row in TABLE for name in row.names})
    near = difflib.get_close_matches(word.partition("=")[0], names, n=3, cutoff=0.75)
    if near:
        return f"nvcc has no such flag; is {' or '.join(near)} meant?"
    return f"nvcc has no such flag; for the host compiler it is -Xcompiler {word}"


def _settings(given: _Given, found: _Found) -> Iterator[Setting]:
    """What one option sets, but for architectures: those are seen together."""
    row = given.row
    if row.does == REFUSED:
        found.wrong.append((given.flag, row.why.replace("{}", given.value)))
    if row.does != MAPPED or row.long in (*_ARCHS, _FORWARD, "dopt"):
        return
    if row.short == "Xptxas" and (limit := _REGISTERS.fullmatch(given.value)):
        yield Setting("GPU_MAXRREGCOUNT", limit[1], given.flag)
    elif row.long == "options-file":
        found.wrong.append((given.flag, "a file of flags inside a file of flags is not read"))
    elif row.long == "optimize" and not _NUMBER.fullmatch(given.value):
        found.wrong.append((given.flag, "it takes a number"))
    elif isinstance(row.sets, bool):
        yield Setting(row.to, row.sets, given.flag)
    else:
        words = row.sets.split() if row.to == "GPU_CLANGFLAGS" else [row.sets]
        yield from (Setting(row.to, word.replace("{}", given.value), given.flag) for word in words)


def _first(found: _Found) -> list[_Given]:
    """What asks for architectures: -arch, of which the last counts, then each -gencode."""
    arch = [given for given in found.given if given.row.long == "gpu-architecture"][-1:]
    codes = [given for given in found.given if given.row.long == "gpu-code"]
    found.wrong += [(codes[0].flag, "-arch is missing")] if codes and not arch else []
    return [*arch, *(given for given in found.given if given.row.long == "generate-code")]


def _architectures(given: _Given, found: _Found) -> nvcc_archs.Archs | None:
    """Nothing where it cannot be, which is noted."""
    codes = [code.value.strip("\"'[] ") for code in found.given if code.row.long == "gpu-code"]
    try:
        return nvcc_archs.generated(given.value) if given.row.long == "generate-code" else nvcc_archs.named(given.value, codes)
    except nvcc_archs.WrongArchError as error:
        found.wrong.append((given.flag, str(error)))
        return None


def _check_math(found: _Found) -> None:
    """Fast arithmetic is one setting: part of it left exact would be less exact than asked for."""
    last = {given.row.long: given for given in found.given if given.row.long in ("ftz", "prec-div", "prec-sqrt")}
    if any(given.row.long == "use_fast_math" for given in found.given):
        exact = [
            last[name]
            for name, value in (("ftz", "false"), ("prec-div", "true"), ("prec-sqrt", "true"))
            if name in last and last[name].value == value
        ]
        found.wrong += [(given.flag, "-use_fast_math says otherwise: leave one of them out") for given in exact]


def _ordered(settings: Sequence[Setting]) -> list[Setting]:
    """Folders of -isystem are searched after all of -I."""
    return sorted(
        settings, key=lambda setting: setting.name == "CPPPATH" and setting.flag.lstrip("-").startswith(("isystem", "system-include"))
    )


def _debugging(settings: Sequence[Setting], given: Sequence[_Given]) -> list[Setting]:
    """-G with -dopt means lines of optimised code; without, it goes before -lineinfo."""
    debug = [setting for setting in settings if setting.name == "GPU_DEBUG"]
    if not debug:
        return list(settings)
    if any(each.row.long == "dopt" for each in given):
        return [Setting("GPU_LINEINFO", True, each.flag) if each in debug else each for each in settings]  # noqa: FBT003 - a value
    return [each for each in settings if each.name != "GPU_LINEINFO"]


def _canonical(given: _Given) -> str:
    """One word for one option, which nvcc and NVRTC read alike."""
    return f"--{given.row.long}" if given.row.takes == NONE else f"--{given.row.long}={given.value}"


def _refusal(wrong: Sequence[tuple[str, str]]) -> UsageError:
    lines = list(dict.fromkeys(f"{flag}: {why}" for flag, why in wrong))
    hint = "docs/from-nvcc.md has all of nvcc's flags"
    if len(lines) == 1:
        return UsageError(f"GPU_NVCCFLAGS: {lines[0]}", hint=hint)
    return UsageError(f"GPU_NVCCFLAGS: {len(lines)} flags cannot be taken over", output="\n".join(lines), hint=hint)

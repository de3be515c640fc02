"""What a compiler would read today though it did not the last time: files that have come since and would be found before others.

A dependency file tells what was read, and nothing of where the compiler looked in vain. So names that were read are looked for in the
places that come earlier, and names that `__has_include` asks for in all places.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["asked_for", "folders", "named_files", "shadows"]

_ASKS = re.compile(rb"__has_include(?:_next)?\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
_FOLDER = re.compile(r"(-iquote|-I|-isystem|-idirafter)(?:=?(.+))?", re.DOTALL)
_ORDER = ("-iquote", "-I", "-isystem", "-idirafter")


def asked_for(paths: Iterable[str], *, top: str) -> tuple[str, ...]:
    """The names that files below `top` ask for with `__has_include`, sorted. Others belong to toolkits, which are taken as a whole."""
    found: set[bytes] = set()
    for path in paths:
        if not path.startswith("/"):
            data = _read(Path(top, path))
            if b"__has_include" in data:
                found.update(_ASKS.findall(data))
    return tuple(sorted(os.fsdecode(name) for name in found))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def folders(cpppath: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Where clang looks for headers, in its order: `cpppath` and what the flags add."""
    places: dict[str, list[str]] = {option: [] for option in _ORDER}
    places["-I"] += cpppath
    waiting = ""
    for flag in flags:
        if waiting:
            places[waiting].append(flag)
            waiting = ""
        elif match := _FOLDER.fullmatch(flag):
            if match[2]:
                places[match[1]].append(match[2])
            else:
                waiting = match[1]
    return tuple(dict.fromkeys(folder.rstrip("/") for option in _ORDER for folder in places[option]))


def named_files(flags: Iterable[str]) -> list[str]:
    """Files that flags name, as `-ivfsoverlay FILE` and `-fprofile-use=FILE` do: what is in them is not told by the compiler."""
    words = [word for flag in flags for word in dict.fromkeys((flag, flag.partition("=")[2])) if word]
    return [word for word in dict.fromkeys(words) if _is_file(word)]


def shadows(source: str, read: Sequence[str], asked: Iterable[str], *, search: Sequence[str]) -> list[str]:
    """Files that are there, were not read, and would be: `read` and `search` are below the working folder, or absolute."""
    known = {source, *read}
    beside = list(dict.fromkeys(path.rpartition("/")[0] or "." for path in sorted(known) if not path.startswith("/")))
    found: dict[str, None] = {}
    for place, folder in enumerate(search):
        names = [path[len(folder) + 1 :] for path in read if path.startswith(folder + "/")]
        if names:
            _look(names, [*beside, *search[:place]], known, found)
    _look(list(asked), [*beside, *search], known, found)
    return list(found)


def _look(names: Sequence[str], places: Sequence[str], known: set[str], found: dict[str, None]) -> None:
    """Most names are in no place: a place's own listing tells that at once."""
    firsts: dict[str, list[str]] = {}
    for name in names:
        firsts.setdefault(name.partition("/")[0], []).append(name)
    for place in places:
        for first in firsts.keys() & _listing(place):
            for name in firsts[first]:
                path = os.path.normpath(f"{place}/{name}")
                if path not in known and _is_file(path):
                    found[path] = None


@functools.lru_cache(maxsize=1 << 12)
def _listing(folder: str) -> frozenset[str]:
    """What is in a folder: asked once for all sources of a build."""
    try:
        return frozenset((*os.listdir(folder), ".", ".."))  # noqa: PTH208 - names alone, and many of them
    except OSError:
        return frozenset()


def _is_file(path: str) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - as cheap as can be

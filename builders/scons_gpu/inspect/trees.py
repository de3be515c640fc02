"""Copies of a project's sources, to build in: what is under version control, or else everything that no build made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolMissingError, UsageError
from scons_gpu.store import log
from scons_gpu.toolchain.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["copy", "made", "sources"]

_NEVER = (".git", ".gpu-store", ".venv", "__pycache__")
_RECORD = ".sconsign"
_BUILDERS = ("SConstruct", "Sconstruct", "sconstruct", "SConstruct.py")


def sources(top: Path, *, store: Path) -> list[str]:
    """The project's files by path below `top`, sorted. Raises UsageError where there is no SConstruct."""
    if not any((top / name).exists() for name in _BUILDERS):
        msg = f"{top}: no SConstruct"
        raise UsageError(msg, hint="-C names the folder of the project")
    tracked = _tracked(top)
    found = tracked if tracked is not None else list(_unmade(top, store))
    if not any(name in found for name in _BUILDERS):
        msg = f"{top}: its SConstruct is not under version control"
        raise UsageError(msg, hint="git add it: what is built again is what git ls-files lists, as it is now")
    return sorted(found)


def _tracked(top: Path) -> list[str] | None:
    """What git follows below `top`; None where it follows nothing there."""
    try:
        ended = run(["git", "-C", str(top), "ls-files", "-z", "--recurse-submodules"])
    except ToolMissingError:
        return None
    names = [name for name in ended.stdout.split("\0") if name] if ended.status == 0 else []
    return [name for name in names if os.path.lexists(top / name)] or None


def _unmade(top: Path, store: Path) -> Iterator[str]:
    """Everything but stores, and programs that builds left there; the store's log names those."""
    stems = {str(stem) for record in log.read(store / "log.jsonl") for stem in record.get("programs", [])}
    for folder, folders, names in os.walk(top):
        inside = Path(folder)
        folders[:] = sorted(name for name in folders if name not in _NEVER and str(inside / name) not in stems)
        for name in names:
            path = inside / name
            if not name.startswith(_RECORD) and str(path.with_suffix("")) not in stems:
                yield path.relative_to(top).as_posix()


def copy(top: Path, names: Sequence[str], target: Path) -> None:
    """Puts the files there, in the order given: some file systems list them in that order."""
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(top / name, path, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod((top / name).stat().st_mode & 0o777 | 0o600)
            os.utime(path, ns=(_THEN, _THEN))


_THEN = 10**18
"""2001-09-09, in nanoseconds: what a build wrote is newer, whatever it was before."""


def made(target: Path, names: Sequence[str]) -> dict[str, Path]:
    """What a build wrote below `target`, stores and SCons' own record left out. `names`: what was copied there."""
    known = set(names)
    found: dict[str, Path] = {}
    for folder, folders, files in os.walk(target):
        folders[:] = sorted(name for name in folders if name not in _NEVER)
        for name in sorted(files):
            path = Path(folder, name)
            below = path.relative_to(target).as_posix()
            if not name.startswith(_RECORD) and path.is_file() and not (below in known and path.stat().st_mtime_ns == _THEN):
                found[below] = path
    return found

"""SCons in a process in which what must not matter is otherwise: `python -m scons_gpu.inspect.elsewhere ORDER UMASK ARGUMENT...`.

Folders are listed in order, or backwards. A SConstruct is Python, and what it lists with `os` or `glob` has the order of the file system,
which is another on every machine and the same every time on this one.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]


def main(order: str, umask: str, *arguments: str) -> None:
    """Runs SCons."""
    backwards = order == "backwards"
    os.umask(int(umask, 8))
    os.listdir = _listed(os.listdir, backwards=backwards)
    os.scandir = _scanned(os.scandir, backwards=backwards)
    sys.argv = ["scons", *arguments]
    runpy.run_module("SCons", run_name="__main__", alter_sys=True)


def _listed(listdir: Callable[..., list[Any]], *, backwards: bool) -> Callable[..., list[Any]]:
    return lambda *where, **named: sorted(listdir(*where, **named), reverse=backwards)


class _Scanned:
    """What `os.scandir` gives, in order."""

    def __init__(self, entries: Any, *, backwards: bool) -> None:  # noqa: ANN401 - os has no public name for it
        with entries:
            self._entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    def __iter__(self) -> Any:  # noqa: ANN401 - the same
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - the same
        return next(self._entries)

    def __enter__(self) -> Any:  # noqa: ANN401 - the same
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """All is read by now."""


def _scanned(scandir: Callable[..., Any], *, backwards: bool) -> Callable[..., Any]:
    return lambda *where, **named: _Scanned(scandir(*where, **named), backwards=backwards)


if __name__ == "__main__":
    main(*sys.argv[1:])

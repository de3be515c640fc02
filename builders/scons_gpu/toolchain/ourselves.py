"""Which code of ours made a thing: a version tells that of a release, and nothing of a checkout that is being worked on."""

from __future__ import annotations

import functools
from pathlib import Path

import xxhash

import scons_gpu

__all__ = ["identity", "recipe"]

_PACKAGE = Path(scons_gpu.__file__).parent
_MAKERS = ("assemble", "host", "link", "lower", "plan", "source", "split", "store", "workers")
"""Rooms whose code decides what is in a file."""
_RECIPE = tuple(f"lower/{name}.py" for name in ("declared", "flush", "joining", "libdevice", "libnvvm", "linked", "llvm", "nvvm"))


@functools.cache
def identity() -> str:
    """Our version, and a hash over the rooms that make files: another version of one makes its files anew."""
    paths = [str(path.relative_to(_PACKAGE)) for room in _MAKERS for path in sorted((_PACKAGE / room).glob("*.py"))]
    return f"{scons_gpu.__version__} {_hash(paths)}"


@functools.cache
def recipe() -> str:
    """A hash over the code by which a slice becomes PTX. It is in every digest: a store serves checkouts of different code."""
    return _hash(_RECIPE)


def _hash(names: tuple[str, ...] | list[str]) -> str:
    hasher = xxhash.xxh3_64()
    for name in names:
        data = (_PACKAGE / name).read_bytes()
        hasher.update(f"{name} {len(data)}\n".encode() + data)
    return hasher.hexdigest()

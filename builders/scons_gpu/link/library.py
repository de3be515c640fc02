"""Device code that comes as an object: what a library, or an object that anybody compiled, brings to a device link.

It lies in the section `__nv_relfatbin` of each host object (nvcc -dc), compressed as the compiler liked; cuobjdump takes it out, and the
linker reads the host object itself. Such an object registers its kernels through a function that it leaves undefined and that the device
link is to define: `__cudaRegisterLinkedBinary` with the object's identity (crt/link.stub of NVIDIA's toolkits).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, ToolMissingError
from scons_gpu.link import elf
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from scons_gpu.toolchain.tools import Tool

__all__ = ["Library", "Member", "defined", "from_text", "linked", "read", "to_text"]

FORMAT = "scons-gpu/libraries/1"
_SECTION, _MAGIC, _HEAD = b"__nv_relfatbin", b"!<arch>\n", 60
_IDENTITY = re.compile(rb"\0__cudaRegisterLinkedBinary(_\w+)\0")


@dataclass(frozen=True)
class Member:
    """One object with device code."""

    identity: str
    """What stands behind `__cudaRegisterLinkedBinary`; empty where it has nothing to register."""
    kernels: tuple[str, ...]
    """All of them, private ones too."""
    others: tuple[str, ...]
    """Functions and variables that it defines for others."""


@dataclass(frozen=True)
class Library:
    """One file of a link; without members it has no device code."""

    name: str
    members: tuple[Member, ...]
    archive: bool
    """Whether a linker takes of it only what is asked for."""


def read(path: Path, *, name: str, cuobjdump: Tool | None) -> Library:
    """What a static library or an object holds. Raises ToolMissingError where it has device code and nothing here reads that."""
    data = path.read_bytes()
    archive = data.startswith(_MAGIC)
    objects = list(_members(data, name)) if archive else [data]
    return Library(name, tuple(_member(each, name, cuobjdump) for each in objects if _SECTION in each), archive)


def _members(data: bytes, name: str) -> Iterator[bytes]:
    """The files of an archive, its tables too: none of those has device code."""
    at = len(_MAGIC)
    while at + _HEAD <= len(data):
        size = data[at + 48 : at + 58].strip()
        if not size.isdigit():
            msg = f"{name} is no archive that can be read"
            raise DamagedError(msg)
        yield data[at + _HEAD : at + _HEAD + int(size)]
        at += _HEAD + int(size) + int(size) % 2


def _member(data: bytes, name: str, cuobjdump: Tool | None) -> Member:
    if cuobjdump is None:
        msg = f"{name} holds device code, and cuobjdump, which reads it, was not found"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit")
    kernels: set[str] = set()
    others: set[str] = set()
    with private_folder() as folder:
        (folder / "member.o").write_bytes(data)
        done = run([cuobjdump.path, "-xelf", "all", "member.o"], cwd=folder, together=True)
        for cubin in sorted(folder.glob("*.cubin")):
            for symbol in elf.read(cubin.read_bytes(), path=name, resources=False).symbols:
                if symbol.defined and symbol.kind == "kernel":
                    kernels.add(symbol.name)
                elif symbol.defined and symbol.binding != "local":
                    others.add(symbol.name)
    if done.status:
        msg = f"{name}: cuobjdump cannot read its device code"
        raise DamagedError(msg, output=done.output)
    found = _IDENTITY.search(data)
    return Member(identity=found[1].decode() if found else "", kernels=tuple(sorted(kernels)), others=tuple(sorted(others)))


def defined(libraries: Sequence[Library]) -> dict[str, str]:
    """Symbol → the library that defines it, the first in the link's order."""
    found: dict[str, str] = {}
    for library in libraries:
        for symbol in (symbol for member in library.members for symbol in (*member.kernels, *member.others)):
            found.setdefault(symbol, library.name)
    return found


def linked(libraries: Sequence[Library], images: Collection[str]) -> tuple[str, ...]:
    """Identities of the objects whose code is in an image, as its symbols (`images`) tell. An object that is given itself always is."""
    return tuple(
        dict.fromkeys(
            member.identity
            for library in libraries
            for member in library.members
            if member.identity and (not library.archive or not set(images).isdisjoint((*member.kernels, *member.others)))
        )
    )


def to_text(libraries: Sequence[Library]) -> str:
    """As a file holds them."""
    listed = [{"name": each.name, "archive": each.archive, "members": [vars(member) for member in each.members]} for each in libraries]
    return json.dumps({"format": FORMAT, "libraries": listed}, indent=1, sort_keys=True) + "\n"


def from_text(text: str, *, path: str) -> tuple[Library, ...]:
    """Reads what `to_text` wrote. Raises DamagedError for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(data["format"])  # noqa: TRY301 - told as what cannot be read
        return tuple(_library(each) for each in data["libraries"])
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path}: not a list of libraries: {error}"
        raise DamagedError(msg, hint="remove the file; the next build makes it anew") from None


def _library(each: dict[str, object]) -> Library:
    members = each["members"]
    if not isinstance(members, list):
        raise TypeError(members)
    lists = [Member(member["identity"], tuple(member["kernels"]), tuple(member["others"])) for member in members]
    return Library(name=str(each["name"]), members=tuple(lists), archive=bool(each["archive"]))

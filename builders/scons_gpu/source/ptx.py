"""PTX that a user wrote or another tool made: read, and held against the architecture that it is to be built for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import SourceError, UnsupportedArchError
from scons_gpu.source import ptx_reader
from scons_gpu.toolchain.arch import assembles_for

if TYPE_CHECKING:
    from pathlib import Path

    from scons_gpu.source.ptx_reader import Module
    from scons_gpu.toolchain.arch import Target

__all__ = ["Assembler", "check", "check_version", "read_module", "read_ptx", "read_text"]

_VERSION = re.compile(r"^\s*\.version\s+(\d+\.\d+)", re.MULTILINE)
_STRING = re.compile(r'"[^"\n]*"')
_FOREIGN = re.compile(r"[^\x00-\x7f]")
_NAMED = re.compile(r"sm_\d+[af]?")
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Assembler:
    """What will assemble it, where that is known."""

    name: str
    """As a message says it: `ptxas 12.4.131`."""
    newest: int
    """The newest PTX version that it reads: 84 is 8.4."""


def read_ptx(path: Path, *, name: str, target: Target, assembler: Assembler | None = None) -> str:
    """The text of a PTX file, which messages call `name`. Raises SourceError, with the line where one is known.

    UnsupportedArchError: `assembler` is too old for the version of PTX that it is written in.
    """
    text = read_text(path, name=name)
    module = read_module(text, name=name)
    if module is not None:
        check(module, name=name, target=target, assembler=assembler)
    return text


def read_text(path: Path, *, name: str) -> str:
    """The text of a file, whatever it says. Raises SourceError for what is none."""
    return _decoded(_bytes(path, name), name)


def _bytes(path: Path, name: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"cannot be read: {error.strerror or error}"
        raise SourceError(msg, source=name) from error
    if data.startswith(_ELF):
        msg = "this is machine code (ELF), not PTX"
        raise SourceError(msg, source=name, hint="give the PTX that it was assembled from; env.Fatbin and env.DeviceLink take cubins")
    return data


def _decoded(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")  # editors put a mark at the beginning, which no assembler reads
        at = text.find("\0")
        trouble = "a zero byte" if at >= 0 else ""
    except UnicodeDecodeError as error:
        at, trouble = error.start, "a byte that is not UTF-8"
        text = data.decode("latin-1")
    if trouble:
        msg = f"{trouble}: this is no PTX"
        raise SourceError(msg, source=f"{name}:{text.count(chr(10), 0, at) + 1}")
    return text.replace("\r\n", "\n")


def read_module(text: str, *, name: str) -> Module | None:
    """The module that the text is, without its comments; None where there is nothing in it. Raises SourceError."""
    read = ptx_reader.uncommented(text)
    if not read.isascii():
        _check_ascii(read, name)
    try:
        return ptx_reader.parse(read)
    except ptx_reader.UnreadableError as error:
        where = f"{name}:{error.line}" if error.line else name
        raise SourceError(error.why if not error.line else f"this {error.why}", source=where, output=error.shown) from None


def _check_ascii(text: str, name: str) -> None:
    """Strings may be left out of what is assembled; of all else assemblers take ASCII alone, and where none runs nobody else would tell."""
    found = _FOREIGN.search(_STRING.sub(lambda string: "." * len(string[0]), text))
    if found:
        line = text.count("\n", 0, found.start()) + 1
        msg = f"{found[0]!r} stands outside comments and strings, where PTX has ASCII alone"
        raise SourceError(msg, source=f"{name}:{line}", output=text.split("\n")[line - 1].strip())


def check(module: Module, *, name: str, target: Target, assembler: Assembler | None = None) -> None:
    """Whether what the module's head says fits: `.address_size`, `.target`, and `.version` where the assembler is known."""
    header = module.header
    if header.address_size != "64":
        msg = f".address_size is {header.address_size}: PTX with addresses of that size has no place on any GPU of today"
        raise SourceError(msg, source=name, hint="compile it for 64 bits")
    if not assembles_for(header.target[0], target):
        msg = f"its .target is {header.target[0]}, which cannot be built for {target.name}"
        raise SourceError(msg, source=name, hint=_advice(header.target[0]))
    if assembler is not None:
        _check_version(header.version, name=name, assembler=assembler)


def check_version(path: Path, *, name: str, assembler: Assembler) -> None:
    """The same for a file that a compiler has just written, of which the head is enough. One that does not fit is taken away."""
    found = _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))
    try:
        _check_version(found[1] if found else "0.0", name=name, assembler=assembler)
    except UnsupportedArchError:
        path.unlink()
        raise


def _check_version(version: str, *, name: str, assembler: Assembler) -> None:
    if _version(version) > assembler.newest:
        newest = f"{assembler.newest // 10}.{assembler.newest % 10}"
        msg = f"it is written in PTX {version}, and {assembler.name} reads PTX up to {newest}"
        raise UnsupportedArchError(msg, source=name, hint="take a newer ptxas, or have the PTX made for an older one")


def _advice(named: str) -> str:
    if not _NAMED.fullmatch(named):
        return "no architecture is called so"
    if named.endswith("a"):
        return f"PTX for {named} runs on that GPU alone: name {named} in GPU_ARCHS, or compile the source for another"
    if named.endswith("f"):
        return f"PTX for {named} is for that family of GPUs: name one of them in GPU_ARCHS, or compile the source for another"
    return f"PTX is built for the architecture that it names, or a later one: name {named} or a later one in GPU_ARCHS"


def _version(text: str) -> int:
    major, _, minor = text.partition(".")
    return int(major) * 10 + int(minor)

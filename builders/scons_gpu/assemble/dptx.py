"""Deferred PTX: a unit's PTX in a file with a type, handed to the link in place of an object.

The first line is a header in JSON, which says what the PTX is for and how it is to be assembled; then comes the PTX, byte for byte. Nothing
in it is a module's: the store shares it between all modules that hold the unit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.source import ptx_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FORMAT", "Deferred", "is_deferred", "read", "write"]

FORMAT = "scons-gpu/dptx/1"
_START = b'{"format": "scons-gpu/dptx/'
_SHAPING = ("opt", "lineinfo", "debug", "maxrregcount", "flags")
"""The fields of AssembleOptions that shape an object's bytes."""


@dataclass(frozen=True)
class Deferred:
    """One unit's PTX, waiting for its link."""

    ptx: str
    arch: str
    """As `Target.name` spells it."""
    spelled: tuple[str, ...]
    """Its options as the provider spells them: what one link takes must agree in them."""
    options: AssembleOptions
    """The same, to be asked for again."""
    unit: str
    """Digest of the unit; empty where the writer did not know."""
    kernels: tuple[str, ...]
    """Symbols, sorted."""

    @property
    def shaping(self) -> dict[str, Any]:
        """Of the options, those that shape an object's bytes."""
        return {name: getattr(self.options, name) for name in _SHAPING}

    @property
    def empty(self) -> bool:
        """Whether it has neither functions nor variables, so that a link needs nothing of it."""
        return not ptx_reader.holds_any(self.ptx)


def write(ptx: str, *, arch: str, spelled: Sequence[str], options: AssembleOptions) -> bytes:
    """The file's bytes: functions of the arguments alone."""
    data = ptx.encode()
    header = {
        "format": FORMAT,
        "arch": arch,
        "bytes": len(data),
        "kernels": sorted(set(ptx_reader.entries(ptx))),
        "options": {name: value for name, value in asdict(options).items() if name in _SHAPING},
        "spelled": list(spelled),
        "unit": options.unit,
    }
    return json.dumps(header).encode() + b"\n" + data


def is_deferred(data: bytes) -> bool:
    """Whether this is deferred PTX, of whatever version and however damaged."""
    return data.startswith(_START)


def read(data: bytes, *, label: str) -> Deferred:
    """What `write` was given. Raises LinkError for what is something else, DamagedError for what is not whole; both name `label`."""
    header = _header(data, label)
    text = data[data.index(b"\n") + 1 :]
    try:
        if len(text) != header["bytes"]:
            raise _damaged(label, f"holds {len(text)} bytes of PTX where its header says {header['bytes']}")
        options = AssembleOptions(**{name: header["options"][name] for name in _SHAPING})
        return Deferred(
            ptx=text.decode(),
            arch=str(header["arch"]),
            spelled=tuple(map(str, header["spelled"])),
            options=AssembleOptions(**{**asdict(options), "flags": tuple(options.flags)}),
            unit=str(header["unit"]),
            kernels=tuple(map(str, header["kernels"])),
        )
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise _damaged(label, f"does not read: {type(error).__name__} {error}") from None


def _header(data: bytes, label: str) -> dict[str, Any]:
    if not data:
        raise _damaged(label, "is empty")
    if data.startswith(b"\x7fELF"):
        msg = f"{label}: an object, not deferred PTX"
        raise LinkError(msg, hint="a cubin stays one under any name: give it to the link as an object")
    line, end, _ = data.partition(b"\n")
    try:
        header = json.loads(line)
        found = str(header["format"])
    except (ValueError, KeyError, TypeError):
        raise _damaged(label, "has no header that reads" if end else "ends within its header") from None
    if found != FORMAT:
        msg = f"{label}: deferred PTX in the format {found}, and this scons-gpu reads {FORMAT}"
        raise LinkError(msg, hint="build again with one version of scons-gpu: it is written anew")
    if not end:
        raise _damaged(label, "ends with its header")
    return dict(header)


def _damaged(label: str, what: str) -> DamagedError:
    msg = f"{label}: its deferred PTX {what}"
    return DamagedError(msg, hint="build again: it is made anew")

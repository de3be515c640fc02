"""A module's units as whole objects in one archive, for hosts that load kernel by kernel.

The archive is a plain zip: members stored, sorted, dated 1980-01-01, so that equal objects make equal bytes. `manifest.json` in it has
the program's manifest's schema, for this module alone; a kernel's object is the member `<arch>/<object>.cubin` (`<arch>/<unit>.ptx` for
a virtual architecture), its entry point there is `entry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.store.archive import read_zip, write_zip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["MANIFEST", "Bundle", "Entry", "object_name", "read_bundle", "write_bundle"]

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One object of a bundle."""

    arch: str
    name: str
    """Its key with the suffix: `.cubin`, or `.ptx` for a virtual architecture."""
    data: bytes

    @property
    def member(self) -> str:
        """Its name in the archive."""
        return f"{self.arch}/{self.name}"


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds."""

    manifest: str
    objects: Mapping[str, bytes]
    """By member name, `sm_90/<key>.cubin`."""


def object_name(path: Path) -> str:
    """What the manifest calls the object in a file of the store: its key, with the `.2` of a collision if it has one.

    A bundle's member for it is called so too, with the file's last suffix.
    """
    return path.name.removesuffix(path.suffix).removesuffix(".rel").removesuffix(".whole")


def write_bundle(entries: Iterable[Entry], *, manifest: str) -> bytes:
    """The archive. An object that several kernels share may be given several times. Raises LinkError for two of one name that differ."""
    members: dict[str, bytes] = {MANIFEST: manifest.encode()}
    for entry in entries:
        if members.setdefault(entry.member, entry.data) != entry.data:
            msg = f"two objects of the bundle have the name {entry.member}"
            raise LinkError(msg)
    return write_zip(members)


def read_bundle(data: bytes, *, path: str = "bundle") -> Bundle:
    """Reads what `write_bundle` wrote, checksums included. Raises DamagedError, naming `path`, for anything else."""
    try:
        members = read_zip(data)
        manifest = members.pop(MANIFEST).decode()
    except (KeyError, ValueError) as error:
        msg = f"{path}: not a bundle: {error}"
        raise DamagedError(msg, hint="remove the file; the next build makes it anew") from None
    return Bundle(manifest=manifest, objects=members)

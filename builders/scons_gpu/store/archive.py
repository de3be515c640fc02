"""Zip files whose bytes follow from their members alone: stored, sorted by name, dated 1980-01-01, readable by all."""

from __future__ import annotations

import contextlib
import io
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["read_zip", "write_zip"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold
_MODE = 0o100644 << 16  # a plain file, readable by all
_UNIX = 3


def write_zip(members: Mapping[str, bytes]) -> bytes:
    """The archive of `members`, by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = _UNIX  # else it tells Windows from the rest
            info.external_attr = _MODE
            archive.writestr(info, members[name])
    return buffer.getvalue()


def read_zip(data: bytes) -> dict[str, bytes]:
    """The members, checksums checked. Raises ValueError, with what is wrong, for what is no whole zip."""
    with _said(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def read_member(path: Path, name: str) -> bytes:
    """One member of the file, its checksum checked, without reading the others. Raises ValueError as `read_zip`, KeyError, OSError."""
    with path.open("rb") as file, _said(), zipfile.ZipFile(file) as archive:
        return archive.read(name)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(str(error)) from None

"""A module's units, each a program of its own, become its bundle: link/bundle.py is the archive's format, this is what goes into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.link import bundle, manifest
from scons_gpu.link.limits import check_constants, check_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.plan.model import Plan
    from scons_gpu.store.record import Entry

__all__ = ["Units", "link_bundle"]


@dataclass(frozen=True)
class Units:
    """One architecture's units."""

    plan: Plan
    files: Mapping[str, Entry]
    """Part digest → its whole object; PTX for a virtual architecture."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Kernel → its entry point's name in the object, where a twin's object is shared."""


def link_bundle(name: str, units: Sequence[Units], *, archs: Sequence[str], folder: Path) -> bytes:
    """The bundle of module `name`. `archs` are those asked for, with units or not; `folder` is where it will lie.

    Raises LinkError for an object that lacks its kernel, DamagedError for one that does not read, RefusedError for PTX that no GPU takes.
    """
    for each in units:
        _check_ptx(each)
    members = [
        bundle.Entry(arch=each.plan.arch, name=_member(digest, entry.path), data=entry.data)
        for each in units
        for digest, entry in each.files.items()
    ]
    module = manifest.BuiltModule(name=name, archs=tuple(_built(each) for each in units))
    inner = manifest.build_manifest(name, archs=archs, modules=[module], tools={}, folder=folder)
    return bundle.write_bundle(members, manifest=inner)


def _check_ptx(units: Units) -> None:
    """Each is a program of its own."""
    for part in units.plan.units:
        entry = units.files[part.digest]
        if entry.path.suffix == ".ptx":
            check_unit(units.plan, part, entry.data.decode())
            check_constants(units.plan, entry.data.decode(), part=part)


def _member(digest: str, path: Path) -> str:
    """What the manifest calls a store entry: an object by its key, PTX by its unit."""
    return f"{digest if path.suffix == '.ptx' else bundle.object_name(path)}{path.suffix}"


def _built(units: Units) -> manifest.BuiltArch:
    return manifest.BuiltArch(
        plan=units.plan,
        objects={digest: entry.path for digest, entry in units.files.items() if entry.path.suffix == ".cubin"},
        contents={digest: entry.data for digest, entry in units.files.items()},
        records={digest: entry.record for digest, entry in units.files.items()},
        entries=units.entries,
    )

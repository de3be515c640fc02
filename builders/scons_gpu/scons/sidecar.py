"""What stands beside an image for the manifest: each part's object, and what the assembler said of its kernels."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError
from scons_gpu.scons.later import later
from scons_gpu.store import sealed
from scons_gpu.store.record import Entry, Record, Resources
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import scons_gpu.plan as plans
    from scons_gpu.link import bundle, bundled, fatbin, image, manifest, merged, ptx, twins, whole
    from scons_gpu.plan import Part, Plan
    from scons_gpu.scons import unit_files
else:
    bundle, bundled, fatbin = later("scons_gpu.link.bundle"), later("scons_gpu.link.bundled"), later("scons_gpu.link.fatbin")
    image, manifest, ptx = later("scons_gpu.link.image"), later("scons_gpu.link.manifest"), later("scons_gpu.link.ptx")
    merged = later("scons_gpu.link.merged")
    plans, twins, whole = later("scons_gpu.plan"), later("scons_gpu.link.twins"), later("scons_gpu.link.whole")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["Learned", "learned", "read", "to_text"]


@dataclass(frozen=True)
class Learned:
    """What a merge found out that the next one of the same code need not."""

    understood: frozenset[str] = frozenset()
    """The objects, by their SHA-256, in which it found nothing that it does not know."""
    earlier: merged.Earlier | None = None
    """What it assembled together."""


def to_text(  # noqa: PLR0913 - all that a link knows when it is through
    plan: Plan,
    entries: Mapping[str, Entry],
    data: bytes,
    made: Sequence[Resources],
    *,
    besides: Collection[str] = (),
    learned: Learned | None = None,
) -> str:
    """What the manifest has to know of an image's parts when the store is gone: each object's name, and what its assembler reported.

    `made`: the same of kernels that the link itself assembled. `besides`: further entries of the store that the next link will look for.
    """
    reported = {each.kernel: each for each in made}
    parts = {
        part.digest: {
            "object": entry.path.name if entry.path.suffix != ".ptx" else None,
            "resources": [vars(each) for each in _resources(part, entry, reported)],
        }
        for part in plan.parts
        for entry in (entries[part.digest],)
    }
    told = {"learned": {"by": identity(), **_plain(learned)}} if learned and learned.understood else {}
    return sealed.to_text({"image": hashlib.sha256(data).hexdigest(), "parts": parts, "besides": sorted(besides), **told})


def _plain(learned: Learned) -> dict[str, Any]:
    earlier = learned.earlier
    more = {"earlier": {"name": earlier.name, "frame": earlier.frame, "parts": sorted(earlier.parts)}} if earlier else {}
    return {"understood": sorted(learned.understood), **more}


def learned(path: Path) -> Learned:
    """What the file says of the merge before; nothing where that was by other code, or the file is not whole."""
    try:
        told = sealed.from_text(path.read_bytes())["learned"]
        if told["by"] != identity():
            return Learned()
        then = told.get("earlier")
        earlier = merged.Earlier(str(then["name"]), str(then["frame"]), frozenset(map(str, then["parts"]))) if then else None
        return Learned(frozenset(map(str, told["understood"])), earlier)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Learned()


def _resources(part: Part, entry: Entry, made: Mapping[str, Resources]) -> Sequence[Resources]:
    symbols = [name for kernel in part.kernels for name in (kernel.symbol, image.spelled(kernel.symbol))] if made else []
    if [each.kernel for each in entry.record.resources] == [twins.ANONYMOUS]:
        return [dataclasses.replace(each, kernel=image.spelled(part.kernels[0].symbol)) for each in entry.record.resources]
    return entry.record.resources or [made[name] for name in dict.fromkeys(symbols) if name in made]


def read(plan: Plan, image_path: Path) -> manifest.BuiltArch:
    """What it says of the image of `plan`. Raises DamagedError for one that is not of this image."""
    parts = _told(image_path.with_name(f"{plan.arch}.link.json"), image_path)
    return manifest.BuiltArch(
        plan=plan,
        image=image_path,
        objects={digest: Path(part["object"]) for digest, part in parts.items() if str(part["object"]).endswith(".cubin")},
        records={
            digest: Record(sha256="", bytes=0, key=(), resources=tuple(Resources(**each) for each in part["resources"]))
            for digest, part in parts.items()
        },
    )


def _told(path: Path, image_path: Path) -> dict[str, Any]:
    """The parts in a sidecar. One that is not of this image is taken away, so that the next build links again. Raises DamagedError."""
    try:
        told = sealed.from_text(path.read_bytes())
        if told["image"] == hashlib.sha256(image_path.read_bytes()).hexdigest():
            parts: dict[str, Any] = told["parts"]
            return parts
    except (ValueError, KeyError, TypeError):
        pass
    path.unlink(missing_ok=True)
    msg = f"{path} is not what was written beside {image_path.name}"
    raise DamagedError(msg, hint="build again: the image is linked anew")

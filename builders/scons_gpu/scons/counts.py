"""What a build's plans come to: the counts of its end record, the names that gc keeps, and the times that order the next build."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.scons.later import later
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scons_gpu.store import copies
    from scons_gpu.store.log import BuildLog
else:
    copies = later("scons_gpu.store.copies")

__all__ = ["Counts", "count", "load_times", "names", "save_times"]

TIMES_KEPT = 20_000
TAIL_BYTES = 1 << 18
"""How much of the log's end is searched for the last build's counts."""


@dataclass(frozen=True)
class Counts:
    """Counts over all plans of a build."""

    modules: int = 0
    kernels: int = 0
    references: int = 0
    unique: int = 0
    twins: int = 0

    def record(self) -> dict[str, int]:
        """As the end record has them."""
        return asdict(self)


def count(plans: Sequence[Path], log: BuildLog) -> Counts:
    """The counts of these plans. A build that did nothing takes those of the build before, and reads no plan."""
    did = any(record["type"] == "action" for record in log.written)
    return (None if did else _last(log.path, [str(path) for path in plans])) or _counted(plans)


def _counted(plans: Iterable[Path]) -> Counts:
    modules: set[str] = set()
    kernels: set[tuple[str, str, str]] = set()
    digests: list[str] = []
    bodies: dict[str, set[str]] = {}
    for path in plans:
        plan = _read(path)
        units = [part for part in plan.get("parts", ()) if part["role"] == "unit"]
        if units:
            modules.add(str(path.parent))
        for unit in units:
            digests.append(unit["digest"])
            kernels |= {(str(path.parent), plan["arch"], kernel["symbol"]) for kernel in unit["kernels"]}
            bodies.setdefault(f"{unit['body']} {plan['arch']}", set()).add(unit["digest"])
    return Counts(
        modules=len(modules),
        kernels=len({(module, symbol) for module, _, symbol in kernels}),
        references=len(digests),
        unique=len(set(digests)),
        twins=sum(len(found) for found in bodies.values() if len(found) > 1),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _last(log: Path, plans: list[str]) -> Counts | None:
    """The counts that the last build left, if it was of the same plans."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
        ends = [json.loads(line) for line in lines if line.startswith(b"{") and b'"type":"end"' in line]
        last = [end for end in ends if end["plans"] == plans][-1:]
        actions = [line for line in lines if b'"type":"action"' in line and b'"stage":"plan"' in line]
        if last and not any(json.loads(line)["time"] > last[0]["time"] for line in actions[-1:]):
            return Counts(**{name: last[0][name] for name in ("modules", "kernels", "references", "unique", "twins")})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def names(plans: Iterable[Path]) -> set[str]:
    """Every store entry that these plans name: slices, PTX, objects, and the plans' own copies."""
    found: set[str] = set()
    for path in plans:
        with contextlib.suppress(OSError):
            found.add(copies.name_of(path.read_bytes()))
        for part in _read(path).get("parts", ()):
            found |= {part["slice"], part["digest"], *(name for joined in part["joins"] for name in joined["slices"])}
        found |= set(_read(path.with_name(path.name.replace(".plan.json", ".choice.json"))).get("names", ()))
        side = _read(path.with_name(path.name.replace(".plan.json", ".link.json")))
        found |= {entry["object"] for entry in side.get("parts", {}).values() if entry.get("object")}
        found |= set(side.get("besides", ()))
    return found


def load_times(root: Path) -> dict[str, float]:
    """Kernel and architecture → seconds, as earlier builds recorded it."""
    try:
        return {str(name): float(seconds) for name, seconds in json.loads((root / "times.json").read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def save_times(root: Path, times: dict[str, float]) -> None:
    """Keeps the newest times. They order work and shape no byte, so losing them costs nothing."""
    kept = dict(list(times.items())[-TIMES_KEPT:])
    write_atomic(root / "times.json", json.dumps(kept), sync=False)

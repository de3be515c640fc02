"""Which entries the last builds named: one small file a build and program, in `<store>/builds`. `gc` keeps what they name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = ["FORMAT", "forget", "kept", "remember"]

FORMAT = "scons-gpu/build/1"


def remember(root: Path, build: str, *, program: str, names: Collection[str]) -> None:
    """Notes every entry that the program's plans name in this build: slices, digests of PTX, objects; those not touched by it too.

    `program` tells programs of one store apart, those of other checkouts included: the absolute path of its stem will do. May be
    called again in one build with more names; the last call counts. A build that only looked or failed notes nothing.
    """
    data = {"format": FORMAT, "build": build, "program": program, "time": time.time(), "names": sorted(set(names))}
    tag = hashlib.sha256(program.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    # Not synced: one that is lost costs a rebuild after the next gc.
    write_atomic(root / "builds" / f"{build}.{tag}.json", json.dumps(data), sync=False)


def kept(root: Path, *, last: int) -> frozenset[str]:
    """All that the last `last` builds of each program named."""
    return frozenset(name for builds in _by_program(root).values() for _, data in builds[:last] for name in data["names"])


def forget(root: Path, *, last: int) -> int:
    """Takes away the notes of older builds; gives how many."""
    old = [path for builds in _by_program(root).values() for path, _ in builds[last:]]
    for path in old:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(old)


def _by_program(root: Path) -> dict[str, list[tuple[Path, dict[str, Any]]]]:
    """Newest first. What does not read counts as not there."""
    programs: dict[str, list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for path in (root / "builds").glob("*.json"):
        data = _note(path)
        if data is not None:
            programs[data["program"]].append((path, data))
    for builds in programs.values():
        builds.sort(key=lambda entry: (entry[1]["time"], entry[0].name), reverse=True)
    return programs


def _note(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
        good = data["format"] == FORMAT and isinstance(data["program"], str) and all(isinstance(name, str) for name in data["names"])
        return {**data, "time": float(data["time"])} if good else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""The line at the end of a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.store.stats import Stats

__all__ = ["summary"]


def summary(stats: Stats) -> str:
    """`units 294: 12 compiled, 270 reused, 12 shared · 3 images · 1.4 s`. What is none is left out; the parts add up to the units.

    `current` are the units of images that did not have to be linked. `verified` ones are counted among the others too; `other candidates`
    were compiled, or tried, to choose from.
    """
    units = f"units {stats.references}"
    if stats.did_nothing:
        return f"{units}: nothing to do"
    # After a failure nobody knows how many units there would have been.
    current = 0 if stats.failed else max(0, stats.unique - stats.needed)
    counts = {
        "compiled": stats.compiled,
        "reused": stats.reused,
        "deferred": stats.deferred,
        "current": current,
        "shared": stats.shared,
        "failed": stats.failed,
    }
    parts = [
        f"{units}: " + (", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"),
        f"{stats.candidates} other candidates" if stats.candidates else "",
        f"{stats.verified} verified" if stats.verified else "",
        _several(stats.linked, "image"),
        _several(stats.hosts, "host object"),
        f"{stats.wall_seconds:.1f} s",
    ]
    return " · ".join(part for part in parts if part)


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}" if count else ""

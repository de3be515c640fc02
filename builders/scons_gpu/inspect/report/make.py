"""From a store's log to the report's page."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect.report.gather import gather
from scons_gpu.inspect.report.known import read
from scons_gpu.inspect.report.page import page
from scons_gpu.inspect.report.reasons import reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.inspect.report.model import Report

__all__ = ["make", "report"]


def make(store: Path, *, build: str | None = None, manifests: Sequence[Path] = (), running: Mapping[str, Any] | None = None) -> str:
    """The page of one build. See `known.read`; raises ToolMissingError too, where the page's libraries are not installed."""
    return page(report(store, build=build, manifests=manifests, running=running))


def report(store: Path, *, build: str | None = None, manifests: Sequence[Path] = (), running: Mapping[str, Any] | None = None) -> Report:
    """What the page shows."""
    known = read(store, build=build, manifests=manifests, running=running)
    made = gather(known)
    if known.build is None:
        return made
    rows = {unit.digest: row for row, unit in enumerate(made.units)}
    told = reasons(known.history.until(known.build.id), known.build, store=store, rows=rows)
    return dataclasses.replace(made, reasons=told)

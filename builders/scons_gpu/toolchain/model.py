"""A tool that was found, and a place that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Look", "Tool"]


@dataclass(frozen=True)
class Tool:
    """One tool: `version` is what it tells ("" if that cannot be read), `identity` the SHA-256 of what its path really leads to."""

    name: str
    path: str
    version: str
    identity: str
    origin: str


@dataclass(frozen=True)
class Look:
    """One place that was looked at."""

    what: str
    where: str
    origin: str
    result: str

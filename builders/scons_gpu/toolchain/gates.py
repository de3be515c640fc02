"""Versions that are refused or warned of: the rules of `tables.VERSION_RULES`, applied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.toolchain.tables import VERSION_RULES

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["refused", "version_tuple", "warned"]


def version_tuple(version: str) -> tuple[int, ...]:
    """(13, 5, 37) of "13.5.37"; () of what is no version."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def refused(tool: str, version: str) -> str:
    """Why this version may not be used; "" if it may."""
    return next(iter(_verdicts("refuse", tool, version, ())), "")


def warned(tool: str, version: str, numbers: Collection[int] = ()) -> tuple[str, ...]:
    """What to warn of when this version builds for the architectures of these numbers."""
    return tuple(_verdicts("warn", tool, version, numbers))


def _verdicts(verdict: str, tool: str, version: str, numbers: Collection[int]) -> list[str]:
    parts = version_tuple(version)
    rules = [rule for rule in VERSION_RULES if rule.tool == tool and rule.verdict == verdict and rule.first <= parts < rule.end]
    return [rule.why for rule in rules if not rule.archs or rule.archs.intersection(numbers)]

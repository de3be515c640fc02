"""What LLVM prints on its own, made short enough for people."""

from __future__ import annotations

from collections import Counter

__all__ = ["LIMIT", "condense"]

LIMIT = 20
"""Lines that are shown of one unit at most."""


def condense(text: str) -> str:
    """Each line once, in the order of its first appearance, with how often it was said; at most `LIMIT` lines."""
    counts = Counter(line for line in text.splitlines() if line.strip())
    lines = [line if count == 1 else f"{line} ({count} times)" for line, count in counts.items()]
    if len(lines) > LIMIT:
        lines = [*lines[:LIMIT], f"... and {len(lines) - LIMIT} more lines"]
    return "\n".join(lines)

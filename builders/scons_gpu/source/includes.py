"""What a source includes, by its text: for NVRTC, which does not tell what it read.

Every `#include` counts, whatever condition it stands under: too many files are a rebuild too many, one too few is a stale result.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Includes", "includes"]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|([A-Za-z_]\w*))', re.MULTILINE)


class Includes:
    """Files that a source reads, and names that it includes and that are nowhere, or that only the preprocessor knows."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        """`#include NAME`, where NAME is a macro."""


def includes(source: str, *, search: Sequence[str], top: str, toolkit: Sequence[str] = ()) -> Includes:
    """All that `source` includes, and what that includes. `search` and what is found are relative to `top`, or absolute.

    `toolkit`: folders that come after those. Their headers are read too, for another toolkit has others, but what these lack is nobody's
    mistake, and nothing to tell or to wait for.
    """
    found, theirs = Includes(), Includes()
    todo = [source]
    for path in todo:
        said = theirs if path.startswith(tuple(f"{folder}/" for folder in toolkit)) else found
        for name, quoted in _names(Path(top, path), said):
            beside = [os.path.dirname(path)] if quoted else []  # noqa: PTH120 - a string, as the compiler makes it
            places = (os.path.normpath(os.path.join(folder, name)) for folder in (*beside, *search, *toolkit))  # noqa: PTH118 - the same
            there = next((place for place in places if Path(top, place).is_file()), None)
            if there is None:
                said.missing[name] = None
            elif there not in found.files and there != source:
                found.files[there] = None
                todo.append(there)
    return found


def _names(path: Path, found: Includes) -> list[tuple[str, bool]]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", "")
    except OSError:
        return []
    matches = _INCLUDE.findall(text)
    found.unknown.update((macro, None) for _, _, macro in matches if macro)
    return [(quoted or angled, bool(quoted)) for quoted, angled, macro in matches if not macro]

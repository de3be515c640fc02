"""IR of a candidate whose front end failed: one comment line that says why. It is legal IR of an empty module.

A candidate that does not compile is a result, not the end of the build, so its node has to make something.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.errors import GpuError

__all__ = ["from_ir", "to_ir"]

_START = "; scons-gpu: the front end failed: "


def to_ir(error: GpuError) -> str:
    """The text to write in place of IR."""
    return f"{_START}{json.dumps(error.to_json(), sort_keys=True)}\n"


def from_ir(text: str) -> dict[str, str] | None:
    """The error, as JSON says it, of what `to_ir` wrote; None for IR."""
    if not text.startswith(_START):
        return None
    found: dict[str, str] = json.loads(text[len(_START) :].partition("\n")[0])
    return found

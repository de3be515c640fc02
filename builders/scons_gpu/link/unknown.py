"""What merging does when it meets what it does not know: it stops, and names it."""

from __future__ import annotations

from typing import NoReturn

from scons_gpu.errors import LinkError

__all__ = ["UnknownError", "unknown"]


class UnknownError(LinkError):
    """A cubin holds something that is not known, so it cannot be merged."""


def unknown(label: str, what: str) -> NoReturn:
    """Raises UnknownError; `label` is what messages call the cubin."""
    msg = f"{label} holds what merging does not know: {what}"
    raise UnknownError(msg, hint="GPU_LINK=image links it, GPU_LINK=whole gives the code of one piece")

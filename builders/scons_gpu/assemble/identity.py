"""Who made an object: the identity of a tool, as an object's key has it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Tool

__all__ = ["THIS_PROCESS", "identity"]

THIS_PROCESS = secrets.token_hex(8)


def identity(tool: Tool) -> str:
    """A tool whose version cannot be read is one that nobody knows: it works, and what it makes is for this process alone."""
    return tool.identity if tool.version else f"unknown {THIS_PROCESS}"

"""Merged images are, byte for byte, what the assembler makes in one piece; and what cannot be merged is refused by name."""

from __future__ import annotations

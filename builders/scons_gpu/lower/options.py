"""What shapes a unit's PTX besides its slice, and the digest's fields made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.toolchain.ourselves import recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool

__all__ = ["FORMAT", "INSTEAD", "LowerOptions", "key"]

FORMAT = "scons-gpu/ptx/1"
"""Raised when the fields change. A hash over the code of the recipe stands behind it: other code, another digest."""

INSTEAD = "GPU_LOWER=llvm lowers with LLVM"
"""The way out where libNVVM fails. Nobody takes it unasked: a digest says what lowered."""


@dataclass(frozen=True)
class LowerOptions:
    """How one unit is lowered. docs/providers.md tells what each of the two that lower makes of a field."""

    ptx: int
    """PTX ISA version: 78 is 7.8. Comes from `lower.choose`."""
    opt: int = 3
    """0-3: middle end and code generator alike."""
    ftz: bool = False
    """Single precision flushes denormals. Never takes away what the IR itself asks for."""
    fast_math: bool = False
    """Implies `ftz`, and libdevice's square root is the approximate one; with libNVVM single precision divisions and roots altogether.
    Flags on instructions are the front end's to set."""
    debug: bool = False
    """Debug information goes into the PTX as the IR has it."""
    lineinfo: bool = False
    """Lines alone: `.loc` and `.file`. `debug` includes them. With neither, debug information in the IR is dropped."""
    by: str = "llvm"
    """`llvm` or `nvvm`: decided by `lower.choose`."""

    def __post_init__(self) -> None:
        if self.opt not in range(4):
            msg = f"optimisation level {self.opt} is not 0, 1, 2 or 3"
            raise UsageError(msg)

    @property
    def flush(self) -> bool:
        """Whether single precision denormals are flushed, after what implies it."""
        return self.ftz or self.fast_math

    @property
    def keep_debug(self) -> bool:
        """Whether debug information in the IR reaches the PTX."""
        return self.debug or self.lineinfo


def key(  # noqa: PLR0913 - one keyword per field of the digest
    *,
    slice: str,  # noqa: A002 - the field's name in the log and in the record
    target: Target,
    options: LowerOptions,
    llvm: str,
    nvvm: Tool | None = None,
    libdevice: str = "",
    renames: Mapping[str, str] | Iterable[tuple[str, str]] = (),
) -> tuple[tuple[str, str], ...]:
    """The digest's fields as (field, value), sorted by field.

    `llvm` is the toolchain's version and identity of LLVM, which reads every slice; `nvvm` the library that lowers, None where LLVM
    does; `libdevice` its file's identity, "" for a unit that calls none of it.
    """
    fields = {
        "arch": target.name,
        "debug": "full" if options.debug else "lines" if options.lineinfo else "none",
        "fast-math": _flag(on=options.fast_math),
        "format": f"{FORMAT} {recipe()}",
        "ftz": _flag(on=options.flush),
        "libdevice": libdevice,
        "llvm": llvm,
        "lowered-by": options.by,
        "nvvm": f"{nvvm.version} {nvvm.identity}" if nvvm else "",
        "opt": str(options.opt),
        "ptx": str(options.ptx),
        "renames": _renames(renames),
        "slice": slice,
    }
    return tuple(sorted(fields.items()))


def _flag(*, on: bool) -> str:
    return "1" if on else "0"


def _renames(renames: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """JSON, so that no pair of names reads like another; empty where there is nothing to rename."""
    pairs = sorted(dict(renames).items())
    return json.dumps(pairs, separators=(",", ":")) if pairs else ""

"""What is wrong with a release: which member, which field, and how."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Problem", "difference", "guarded"]

_UNREADABLE = (
    *(GpuError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, EOFError, MemoryError),
    *(struct.error, zipfile.BadZipFile),
)


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was made."""

    member: str
    """A file of the release; empty for the archive itself."""
    field: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.member, self.field, self.what) if part)


def guarded(member: str, check: Callable[[], Iterable[Problem]]) -> Iterator[Problem]:
    """What `check` finds in `member`. Whatever stands in a file that anybody may have written, reading it ends in a problem."""
    try:
        yield from check()
    except ToolMissingError:
        raise
    except _UNREADABLE as error:
        said = str(error) or type(error).__name__
        yield Problem(member, "", said.removeprefix(f"{member}: "))


def difference(held: Any, wanted: Any, *, path: str = "") -> tuple[str, str] | None:  # noqa: ANN401 - what JSON holds
    """Where two JSON values first differ, and how; None where they are equal."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        for name in sorted({*held, *wanted}):
            below = f"{path}.{name}" if path else str(name)
            if name not in wanted or name not in held:
                return below, "is there, and should not be" if name in held else "is not there"
            if found := difference(held[name], wanted[name], path=below):
                return found
        return None
    if isinstance(held, list) and isinstance(wanted, list):
        for place, (one, other) in enumerate(zip(held, wanted, strict=False)):
            if found := difference(one, other, path=f"{path}[{place}]"):
                return found
        return None if len(held) == len(wanted) else (path, f"has {len(held)} items, and should have {len(wanted)}")
    return None if type(held) is type(wanted) and held == wanted else (path, f"is {_short(held)}, and should be {_short(wanted)}")


def _short(value: Any) -> str:  # noqa: ANN401 - what JSON holds
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."

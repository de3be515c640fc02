"""What the parts of a module may not have between them, once functions of one source are in parts of another.

A split sees to that for one source: it joins kernels, or refuses. Here is the rest, which shows only when the sources meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import RefusedError
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from scons_gpu.plan.domain import Taken
    from scons_gpu.plan.model import Part

__all__ = ["Held", "check"]


@dataclass(frozen=True)
class Held:
    """A part with what is in it, of its own and joined."""

    part: Part
    shared: frozenset[tuple[int, str]]
    """Shared memory of its own, each with the place of the source."""
    indirect: Collection[str]
    taken: Taken

    @property
    def reaches(self) -> set[str]:
        """`calls` through memory, `takes` functions' addresses."""
        return {*self.indirect, *(each for _, offer in self.taken.offers for each in offer.indirect)}

    @property
    def joined_reaches(self) -> bool:
        """Whether something that joins it does one of these."""
        return any(offer.indirect for _, offer in self.taken.offers)


def check(held: Sequence[Held], *, link: str) -> None:
    """Raises RefusedError, with the kernel and its source, for what would be two things where the undivided module has one."""
    if not any(each.taken.joins for each in held):
        return
    if link == "bundle":
        _check_calls(held)
    else:
        _check_shared(held)


def _check_calls(held: Sequence[Held]) -> None:
    """Each unit of a bundle is a program of its own, and what one puts into memory is no function of another."""
    reaching = [each for each in held if each.reaches]
    if not any("calls" in each.reaches for each in reaching):
        return
    for each in reaching:
        others = [other for other in reaching if other.part.kernels[0].symbol != each.part.kernels[0].symbol]
        if each.joined_reaches and others:
            other = others[0].part
            msg = f"it and kernel {other.kernels[0].readable} of {other.source} may call functions of each other through memory"
            hint = "link an image, or put into one source what such calls lead to"
            raise RefusedError(msg, kernel=each.part.kernels[0].readable, source=each.part.source, hint=hint)


def _check_shared(held: Sequence[Held]) -> None:
    """State holds functions of its own: shared memory that one of them and a kernel both name is one undivided, and would be two."""
    states = [each for each in held if each.part.role == "state"]
    for unit in (each for each in held if each.part.role == "unit"):
        for state in (each for each in states if not set(each.part.defines).isdisjoint(unit.part.uses)):
            mine, theirs = unit.taken.shared.keys(), state.taken.shared.keys()
            both = (mine & (state.shared | theirs)) | (theirs & unit.shared)
            if both:
                name = demangle(min(both)[1])
                msg = f"it and a function that it may call through a variable of {state.part.source} both use shared memory {name}"
                hint = "make the table of functions constant, or pass the shared memory as an argument"
                raise RefusedError(msg, kernel=unit.part.kernels[0].readable, source=unit.part.source, hint=hint)

"""What other sources define of what a unit needs becomes part of its module, before anything is optimised.

LLVM's own linker does it, a source at a time. Texts of one source belong together: what they call by one private name is one thing
(shared memory, most of all), so private names are linked as visible ones meanwhile. Private names of two sources mean two things, and
LLVM tells them apart. In the end all but kernels and state is private again, as in a module of one source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Group", "join"]

_PRIVATE = ("internal", "private")
_ELSEWHERE = "available_externally"
_NUMBERED = "__private."
"""How the split calls what has no name: such names mean nothing across texts."""


@dataclass(frozen=True)
class Group:
    """The texts that join a unit from one source."""

    texts: tuple[str, ...]
    renames: Mapping[str, str] = field(default_factory=dict)
    own: bool = False
    """Whether that is the unit's own source."""
    dropped: tuple[str, ...] = ()
    """State of the unit's text that another source defines."""
    shows: tuple[str, ...] = ()
    """State that stays visible, unless it is private."""
    source: str = ""


def join(module: Any, groups: Iterable[Group], *, read: Callable[[str, Mapping[str, str]], Any]) -> None:  # noqa: ANN401 - llvmlite has no types
    """Links `groups` into `module`, in their order. `read` parses a text and renames what it declares.

    Raises LinkError where LLVM links nothing: module flags that contradict each other.
    """
    seen = {value.name for value in _defined(module) if value.linkage.name not in (*_PRIVATE, "linkonce_odr")}
    for group in groups:
        seen.update(group.shows)
        for name in group.dropped:
            module.get_global_variable(name).linkage = _ELSEWHERE
        modules = [read(text, group.renames) for text in group.texts]
        try:
            _join(module, modules, own=group.own)
        except RuntimeError as error:
            msg = f"what joins it from {group.source or 'another source'} does not link with it"
            raise LinkError(msg, output=str(error), hint="compile both sources with the same options") from None
    for value in _defined(module):
        if value.name not in seen and value.linkage.name not in (*_PRIVATE, _ELSEWHERE):
            value.linkage = "internal"


def _join(module: Any, others: Sequence[Any], *, own: bool) -> None:  # noqa: ANN401 - llvmlite has no types
    base, rest = (module, others) if own else (others[0], others[1:])
    for other in rest:
        _merge(base, other)
    if not own:
        module.link_in(base)


def _merge(base: Any, other: Any) -> None:  # noqa: ANN401 - llvmlite has no types
    """Links two texts of one source: a name of both is one thing, which the first of them brings."""
    mine, theirs = _named(base), _named(other)
    linkages = {}
    for name in mine.keys() & theirs.keys():
        defined = [value for value in (mine[name], theirs[name]) if not value.is_declaration]
        if defined:
            found = [value.linkage.name for value in defined]
            linkages[name] = next((each for each in found if each not in _PRIVATE), "internal")
            for value in defined:
                value.linkage = "weak_odr"
    base.link_in(other)
    for name, value in _named(base).items():
        if name in linkages:
            value.linkage = linkages[name]


def _named(module: Any) -> dict[str, Any]:  # noqa: ANN401 - llvmlite has no types
    values = (*module.functions, *module.global_variables)
    return {value.name: value for value in values if value.name and not value.name.startswith((_NUMBERED, "llvm."))}


def _defined(module: Any) -> list[Any]:  # noqa: ANN401 - llvmlite has no types
    values = (*module.functions, *module.global_variables)
    return [value for value in values if not value.is_declaration and not value.name.startswith("llvm.")]

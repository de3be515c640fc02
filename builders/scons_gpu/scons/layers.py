"""Where a variable's value comes from: a module's or source's own, the command line, the environment, and GPU_NVCCFLAGS where it was set.

The nearest place that sets a variable decides. Within one place the variable itself goes before what GPU_NVCCFLAGS says of it; a place
further away does not. Flags are added to those that a variable holds, before them, so that the user's own come last and win.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.scons.later import later
from scons_gpu.toolchain import arch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.source import nvcc_flags
    from scons_gpu.source.translation import Translation
else:
    nvcc_flags = later("scons_gpu.source.nvcc_flags")

__all__ = ["NVCC", "Layers", "without", "words"]

NVCC = "GPU_NVCCFLAGS"
_ADDED = ("GPU_PTXASFLAGS", "GPU_HOSTFLAGS")
"""Flags of both come together."""
_ON = {"1", "yes", "true", "on"}


@dataclass(frozen=True)
class Layers:
    """Gives variables' values, when called with a name."""

    env: Any
    places: tuple[Any, ...]
    """Dictionaries, the nearest first; the last is `env`."""
    defaults: Mapping[str, Any]
    nvcc: Translation
    level: int
    """Which of them GPU_NVCCFLAGS was taken from."""

    def __call__(self, name: str) -> Any:
        """The value, with what GPU_NVCCFLAGS says of it."""
        if name not in _ADDED or not self.nvcc.all(name):
            return self._decided(name)
        own = self._decided(name)
        words = self.env.Split(own) if isinstance(own, str) else self.env.Flatten([own or ()])
        return [*(word.replace("$", "$$") for word in self.nvcc.all(name)), *words]

    def overruled(self) -> Iterator[str]:
        """A sentence for each variable that goes before a flag that says otherwise, in the one place. A nearer one is meant to."""
        place = self.places[self.level]
        for name in dict.fromkeys(setting.name for setting in self.nvcc.settings):
            last, flags = self.nvcc.last(name), self._flags(name)
            if last and flags is not None and self._sets(place, name) and not _same(name, place[name], flags):
                held = place[name]
                shown = " ".join(map(str, held)) if isinstance(held, (list, tuple)) else held
                yield f"{name}={shown} goes before {last.flag} of {NVCC}"

    def remarks(self) -> list[str]:
        """What is to be told: variables that go before a flag, and flags that are lost, unless who compiles is given them."""
        compiling = {self("GPU_FRONTEND"), "object" if self("GPU_HOST") == "nvcc" else ""}
        return [*self.overruled(), *(remark.text for remark in self.nvcc.remarks if compiling.isdisjoint(remark.unless))]

    def _decided(self, name: str) -> Any:
        for level, place in enumerate(self.places):
            if self._sets(place, name):
                return place[name]
            if level == self.level and (flags := self._flags(name)) is not None:
                return flags
        return self.env.get(name, self.defaults.get(name, ""))

    def _flags(self, name: str) -> Any:
        """What the flags set a variable to; nothing where they do not, or where both come together."""
        if name in _ADDED or name not in self.defaults:
            return None
        if name == "GPU_ARCHS":
            return list(self.nvcc.all(name)) or None
        last = self.nvcc.last(name)
        return None if last is None or name == "GPU_CLANGFLAGS" else last.value

    def _sets(self, place: Any, name: str) -> bool:
        """In an environment what is as the tool has set it was not set by the user."""
        if place is not self.env:
            return name in place
        default = self.defaults.get(name)
        return name in place and place[name] != default and bool(place[name] or default)


def _same(name: str, held: Any, flags: Any) -> bool:
    """Whether two values of a variable mean one; what does not read is told elsewhere."""
    if name == "GPU_ARCHS":
        try:
            return set(arch.parse(held)) == set(arch.parse(flags))
        except UsageError:
            return True
    return (str(held).lower() in _ON) == flags if isinstance(flags, bool) else str(held) == str(flags)


def without(defines: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `others` whose name is not defined already."""
    names = {define.partition("=")[0] for define in defines}
    return tuple(define for define in others if define.partition("=")[0] not in names)


def words(env: Any, value: Any) -> list[str]:
    """The words of lines of a Makefile, as the shell would have them; nodes among the lines are seen from the top."""
    found: list[str] = []
    for item in env.Flatten([value]):
        if hasattr(item, "get_path"):
            path = str(item.get_path())
            found.append(path if path.startswith("/") else f"#{path}")
        else:
            found += nvcc_flags.split(str(item), subst=lambda text: str(env.subst(text, raw=1)))
    return found

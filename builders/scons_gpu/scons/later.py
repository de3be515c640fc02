"""Modules that are loaded when they are first used: a build with nothing to do never enters most rooms, and loading all takes 0.1 s."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["later"]


class _Later:
    """Stands for a module, and gives what the module has."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_module(self._name)
        return getattr(self._module, attribute)


def later(name: str) -> Any:
    """A module by its name, not loaded yet.

    It stands in the `else` of `if TYPE_CHECKING`, whose other branch imports the module, so that its types are known.
    """
    return _Later(name)

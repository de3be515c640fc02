"""Which variables are state, which are tables, and what each is called outside the source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.split.closure import plain
from scons_gpu.split.uses import only_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.split.closure import Graph
    from scons_gpu.split.module import Module, Variable

__all__ = ["GLOBAL_SPACES", "LIMIT", "SHARED", "Tables", "find_state", "visible_name"]

LIMIT = 256
"""Bytes up to which a table is copied into its units: below that an object of its own costs more than it saves."""

SHARED, CONSTANT = 3, 4
GLOBAL_SPACES = {0: "global", 1: "global", CONSTANT: "constant"}
"""Address spaces of memory that outlives a launch, under the names people know; 0, generic, is put into global memory."""


def find_state(module: Module, graph: Graph) -> list[str]:
    """Symbols of the memory that lives on between launches, in the order of the text."""
    definitions = [
        variable
        for variable in module.variables.values()
        if not variable.declared and variable.space in GLOBAL_SPACES and (not variable.constant or variable.initialised_outside)
    ]
    doubtful = {variable.symbol for variable in definitions if variable.local and not variable.initialised_outside}
    users = graph.users(doubtful) if doubtful else {}
    held = {symbol for entries in module.used.values() for entry in entries for symbol in doubtful if entry.find(symbol) >= 0}
    return [
        variable.symbol
        for variable in definitions
        if variable.symbol not in doubtful or variable.symbol in held or not _only_read(module, variable.symbol, users[variable.symbol])
    ]


def _only_read(module: Module, symbol: str, users: Sequence[str]) -> bool:
    return all(user in module.functions and only_read(module.functions[user].piece.text(), symbol) for user in users)


def visible_name(symbol: str, content: str) -> str:
    """What a private variable is called once others see it. PTX knows no dots in names, hence the dollar."""
    name = re.sub(r"[^\w$]", "_", plain(symbol), flags=re.ASCII)
    if not name or name[0].isdigit():
        name = f"_{name}"
    return f"@{name}${content[:16]}"


class Tables:
    """Read-only arrays that units see as `available_externally`, each with an object of its own that the link takes on demand."""

    def __init__(self, module: Module, state: Sequence[str]) -> None:
        self._module = module
        self._state = set(state)
        self._read: dict[tuple[str, str], bool] = {}

    def hoisted(self, variable: Variable) -> bool:
        """Whether units leave this one to another object: large, constant, in memory of the device, and naming nothing."""
        return (
            variable.constant
            and not variable.declared
            and variable.space in GLOBAL_SPACES
            and variable.symbol not in self._state
            and not variable.names
            and variable.bytes > LIMIT
        )

    def address_matters(self, symbol: str, members: Sequence[str], graph: Graph) -> bool:
        """Whether a unit of these members could tell two equal tables apart. Asked per unit, so that another kernel changes nothing."""
        if self._module.variables[symbol].unnamed:
            return False
        return any(symbol in graph.names.get(user, ()) and not self._only_read(symbol, user) for user in members)

    def _only_read(self, symbol: str, user: str) -> bool:
        if (symbol, user) not in self._read:
            function = self._module.functions.get(user)
            self._read[symbol, user] = function is not None and only_read(function.piece.text(), symbol, compared=True)
        return self._read[symbol, user]

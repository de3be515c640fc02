"""Who names whom in a PTX module, and what lives on between launches."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from scons_gpu.split.ptx_uses import calls, only_read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from scons_gpu.split.pieces import Piece
    from scons_gpu.split.ptx_module import Function, PtxModule, Variable

__all__ = ["PtxGraph"]

_KNOWN = re.compile(r"vprintf|malloc|free|__assertfail|__cnp\w*|__cuda_syscall\w*")
"""Functions that the device or its driver brings."""

_OF_COMPILERS = re.compile(r".*\$|__|_ZZ")
"""How names begin that no host code can know: with what C++ keeps for compilers, or of a variable inside a function."""

_BOUND = re.compile(r"\.(?:texref|samplerref|surfref)\b|\.managed\b")
"""Variables that the driver fills."""


class PtxGraph:
    """One module's."""

    def __init__(self, module: PtxModule) -> None:
        self._module = module
        self.names: dict[str, tuple[str, ...]] = {}
        for name, function in module.functions.items():
            self.names[name] = _names(function.piece, name) if function.piece else ()
        for name, variable in module.variables.items():
            self.names[name] = _names(variable.piece, name)
        self.kernels = tuple(sorted(name for name, one in module.functions.items() if one.entry and one.defined))
        self._taken: dict[str, bool] = {}
        self._indirect: dict[str, bool] = {}
        self._users = self._users_of(self._doubtful())
        self.state = frozenset(name for name, one in module.variables.items() if self._is_state(one))

    def members(self, roots: Iterable[str], *, stop: Collection[str] = ()) -> list[str]:
        """The roots and all they lead to, breadth first; of what is in `stop` the names are not followed, of roots they are."""
        todo = list(dict.fromkeys(roots))
        seen, first = set(todo), len(todo)
        for index, name in enumerate(todo):
            if index >= first and name in stop:
                continue
            for each in self.names.get(name, ()):
                if each not in seen:
                    seen.add(each)
                    todo.append(each)
        return todo

    def is_shared(self, name: str) -> bool:
        """Whether it is shared memory of a size that the source says."""
        variable = self._module.variables.get(name)
        return variable is not None and variable.space == "shared" and not variable.declared

    def is_dynamic(self, name: str) -> bool:
        """Whether it is shared memory that the launch gives its size."""
        variable = self._module.variables.get(name)
        return variable is not None and variable.space == "shared" and variable.declared

    def is_undefined(self, name: str) -> bool:
        """Whether neither this source nor the device defines it."""
        function, variable = self._module.functions.get(name), self._module.variables.get(name)
        if function is not None:
            return not function.defined and not _KNOWN.fullmatch(name)
        return variable is not None and variable.declared and variable.space != "shared"

    def needs(self, users: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """(What is undefined, who of `users` names it), sorted."""
        return tuple(sorted({(name, user) for user in users for name in self.names.get(user, ()) if self.is_undefined(name)}))

    def calls_through_memory(self, name: str) -> bool:
        """Whether a function calls what it does not name."""
        if name not in self._indirect:
            function = self._module.functions.get(name)
            known = self._module.functions.keys() | self._module.aliases.keys()
            self._indirect[name] = function is not None and any(call.callee not in known for call in calls(function.body))
        return self._indirect[name]

    def takes_address(self, name: str) -> bool:
        """Whether it names a function other than to call it."""
        if name not in self._taken:
            function = self._module.functions.get(name)
            self._taken[name] = self._takes(function) if function else any(map(self._is_function, self.names.get(name, ())))
        return self._taken[name]

    def _takes(self, function: Function) -> bool:
        if function.piece is None:
            return False
        targets = {alias: target for alias, (target, _) in self._module.aliases.items()}
        called = Counter(f"@{targets.get(call.callee, call.callee)}" for call in calls(function.body))
        named = Counter(function.piece.refs[index] for index in function.piece.order)
        return any(
            count > called[ref]
            for ref, count in named.items()
            if ref[0] == "@" and ref[1:] != function.name and self._is_function(ref[1:]) and not self._module.functions[ref[1:]].entry
        )

    def _is_function(self, name: str) -> bool:
        return name in self._module.functions

    def _is_state(self, variable: Variable) -> bool:
        """Memory that is one, whoever names it; all that is not shown to be only read."""
        if variable.declared or variable.space == "shared":
            return False
        return variable.name not in self._users or not self._only_read(variable)

    def _doubtful(self) -> list[str]:
        """Variables that may be copied: nobody else knows them by name. The driver finds what has no linkage as well as the rest."""
        return [
            name
            for name, one in self._module.variables.items()
            if one.local and one.space in ("global", "const") and _OF_COMPILERS.match(name) and not _BOUND.search(one.declarator.start)
        ]

    def _users_of(self, wanted: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in wanted}
        for user, names in self.names.items():
            for name in names:
                if name in found:
                    found[name].append(user)
        return found

    def _only_read(self, variable: Variable) -> bool:
        """No kernel writes `.const`; without an initial value, somebody else does."""
        if variable.space == "const":
            return bool(variable.declarator.value)
        functions = self._module.functions
        return all(user in functions and only_read(functions[user].body, variable.name) for user in self._users[variable.name])


def _names(piece: Piece, own: str) -> tuple[str, ...]:
    return tuple(ref[1:] for ref in piece.refs if ref[0] == "@" and ref[1:] != own)

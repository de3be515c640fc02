"""A module's kernels become units: who goes with whom, what each unit holds, and what the index says of it."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from scons_gpu.errors import RefusedError
from scons_gpu.split import signature
from scons_gpu.split.canonical import Member, variable_text, write
from scons_gpu.split.closure import Graph, components, plain
from scons_gpu.split.exports import Exports, as_linkage
from scons_gpu.split.holding import Holding, Lacking
from scons_gpu.split.index import CALLED, RUNTIME, Index, Kernel, Shared, State, Table, Type, Unit
from scons_gpu.split.module import PTX_NAME
from scons_gpu.split.readable import demangle
from scons_gpu.split.state import CONSTANT, GLOBAL_SPACES, SHARED, Tables, find_state, visible_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from scons_gpu.split.module import Module, Variable
    from scons_gpu.split.pieces import Piece

__all__ = ["Splitter"]

_BOUNDS = re.compile(r'"nvvm\.(maxntid|reqntid|minctasm)"="([\d,]+)"')


class Splitter:
    """One module, one form."""

    def __init__(self, module: Module, *, form: str, put: Callable[[str], str], exports: bool = False) -> None:
        self._module = module
        self.apart = form == "apart"
        self._put = put
        self._graph = Graph(module)
        self._state = find_state(module, self._graph)
        self.state = frozenset(self._state)
        self.tables = Tables(module, self._state)
        self._order = {symbol: index for index, symbol in enumerate(module.variables)}
        self._found: dict[str, tuple[Table, Piece]] = {}
        self._pieces: dict[tuple[str, str], Piece] = {}
        self._state_names: dict[str, str] = {}
        self._state_contents: dict[str, str] = {}
        self.stop = frozenset((*self._state, *self._graph.kernels) if self.apart else self._graph.kernels)
        self._closures = {kernel: self._graph.members([kernel], stop=self.stop) for kernel in sorted(self._graph.kernels)}
        self._undefined, self._may_lack = self._find_undefined()
        self._table_contents: dict[str, str] = {}
        self._declared: dict[str, Type] = {}
        self._calling: dict[str, bool] = {}
        self._taking: dict[str, bool] = {}
        self._exports = Exports(module, self._graph, self, wanted=exports)
        self._name_state()

    def index(self, *, source: str, arch: str) -> Index:
        """Splits, puts every slice, and says what was found. Raises RefusedError for what no unit could hold rightly."""
        groups = self._groups()
        self._refuse_lost_assembly(groups, source=source)
        self._refuse_doubled_shared(source=source)
        odd = [symbol for symbol in self._state if not self._module.variables[symbol].local and not PTX_NAME.fullmatch(symbol)]
        if odd:
            msg = f"cannot become units: variable {', '.join(odd)}, whose name PTX cannot spell"
            raise RefusedError(msg, source=source, hint="rename it, or make it internal")
        state = tuple(sorted((self._describe_state(symbol) for symbol in self._state), key=lambda found: found.symbol))
        units = tuple(self._unit(kernels, reasons) for kernels, reasons in groups)
        state_slice, state_symbols, state_lacking = self._state_slice() if self.apart and state else ("", (), Lacking())
        exports = self._exports.all(self._put)
        tables = tuple(sorted((table for table, _ in self._found.values()), key=lambda table: table.symbol))
        return Index(
            source=source,
            arch=arch,
            form="apart" if self.apart else "closed",
            units=units,
            state=state,
            state_slice=state_slice,
            state_libdevice=state_lacking.libdevice,
            state_needs=state_lacking.needs,
            state_lacks=state_lacking.lacks,
            state_shared=tuple(plain(symbol) for symbol in state_symbols if self.is_shared(symbol)),
            state_names=self.named_of(state_symbols),
            tables=tables,
            exports=exports,
            declared=tuple(sorted(self._declared.items())),
        )

    def _refuse_lost_assembly(self, groups: Sequence[tuple[tuple[str, ...], tuple[str, ...]]], *, source: str) -> None:
        """File-scope assembly goes with kernels that name it: one in it is not in the index, a variable of the host's may be lost."""
        graph = self._graph
        if graph.assembly_kernels:
            msg = f"cannot become units: kernel {', '.join(graph.assembly_kernels)} in file-scope assembly"
            raise RefusedError(msg, source=source, hint="write the kernel itself in CUDA C++ or IR, and its body as inline assembly")
        if graph.assembly_visible and not any(graph.needs_assembly(self._closures[kernel]) for kernels, _ in groups for kernel in kernels):
            msg = f"file-scope assembly defines {', '.join(graph.assembly_visible)} for the host, and no kernel names it"
            raise RefusedError(msg, source=source, hint="define it as a variable, without assembly")

    def _refuse_doubled_shared(self, *, source: str) -> None:
        """State holds functions of its own: shared memory that one of them and a kernel both name is one undivided, and would be two."""
        for kernel in self._closures if self.apart else ():
            mine = {symbol for symbol in self._closures[kernel] if self.is_shared(symbol)}
            state = [symbol for symbol in self._closures[kernel] if symbol in self._state_names] if mine else ()
            both = [symbol for symbol in self._graph.members(state, stop=self._graph.kernels) if symbol in mine]
            if both:
                msg = f"kernel {plain(kernel)} and a function that it may call through a variable both use shared memory {plain(both[0])}"
                raise RefusedError(msg, source=source, hint="make the table of functions constant, or build with GPU_LINK=bundle")

    def is_shared(self, symbol: str) -> bool:
        """Whether this source defines it, in shared memory."""
        variable = self._module.variables.get(symbol)
        return variable is not None and variable.space == SHARED and not variable.declared

    def _groups(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        keys: dict[str, list[tuple[str, str]]] = {}
        for kernel, members in self._closures.items():
            keys[kernel] = [("asm", "")] if self._graph.needs_assembly(members) else []
        if not self.apart:
            self._join_closed(keys)
        return components(keys)

    def _join_closed(self, keys: dict[str, list[tuple[str, str]]]) -> None:
        """In a bundle each unit is a program of its own: memory and addresses that two kernels share must be in one."""
        takers, callers = [], []
        for kernel, members in self._closures.items():
            for symbol in members:
                if symbol in self.state:
                    keys[kernel].append(("state", symbol))
                elif symbol in self._graph.kernels and symbol != kernel:
                    keys[kernel].append(("kernel-reference", symbol))
                    keys[symbol].append(("kernel-reference", symbol))
            takers += [kernel] if self._takes(members) else []
            callers += [kernel] if self._calls(members) else []
        if callers:
            for kernel in dict.fromkeys((*callers, *takers)) if takers else ():
                keys[kernel].append(("indirect-call", ""))

    def _takes(self, symbols: Sequence[str]) -> bool:
        """Whether one of them takes a function's address."""
        return any(_remember(self._taking, symbol, self._graph.taken) for symbol in symbols)

    def _calls(self, symbols: Sequence[str]) -> bool:
        """Whether one of them calls through memory."""
        functions = [symbol for symbol in symbols if symbol in self._module.functions]
        return any(_remember(self._calling, symbol, self._graph.calls_through_memory) for symbol in functions)

    def indirect(self, symbols: Sequence[str]) -> tuple[str, ...]:
        """What a bundle of several sources has to know of them."""
        if self.apart or not self._exports.wanted:
            return ()
        return (*(("calls",) if self._calls(symbols) else ()), *(("takes",) if self._takes(symbols) else ()))

    def _unit(self, kernels: Sequence[str], reasons: Sequence[str]) -> Unit:
        symbols = self._closures[kernels[0]] if len(kernels) == 1 else self._graph.members(kernels, stop=self.stop)
        assembly = self._graph.needs_assembly(symbols)
        pinned = frozenset(self._graph.assembly_names if assembly else ())
        holding = dataclasses.replace(self._open(kernels, symbols, assembly=assembly), roots=kernels, pinned=pinned)
        if assembly or holding.left:
            first = (*kernels, *self._graph.assembly_names) if assembly else kernels
            symbols = self._graph.members(first, stop=self.stop | holding.left)
        symbols = self.as_declared(symbols)
        members = [self.member(symbol, symbols, holding) for symbol in symbols]
        written = write(self._module, members, assembly=self._module.assembly if assembly else ())
        variables = [self._module.variables[symbol] for symbol in symbols if symbol in self._module.variables]
        names = {member.symbol: plain(member.name) for member in members if member.name}
        lacking = self.lacking(kernels, symbols, left=holding.left, assembly=assembly)
        return Unit(
            kernels=tuple(self._kernel(kernel) for kernel in kernels),
            slice=self._put(written.text),
            bytes=len(written.text),
            body=written.body,
            joined=", ".join(reasons) if len(kernels) > 1 else "",
            state=tuple(sorted(names[symbol] for symbol in symbols if symbol in self._state_names)) if self.apart else (),
            tables=self.tables_of(symbols, names),
            names=self.named_of(symbols, held=kernels),
            needs=lacking.needs,
            lacks=lacking.lacks,
            libdevice=lacking.libdevice,
            indirect=self.indirect(symbols),
            shared=self.shared_of(symbols),
            constant_bytes=sum(v.bytes for v in variables if v.space == CONSTANT and self._defined_here(v)),
        )

    def _open(self, roots: Sequence[str], symbols: Sequence[str], *, assembly: bool) -> Holding:
        """What a text leaves to be joined, and whether anything joins it at all. One that nothing joins is as in a module of one source."""
        exports = self._exports
        if not exports.wanted:
            return Holding()
        functions = self._module.functions
        shared = any(functions[symbol].weak for symbol in roots if symbol in functions)  # another source may bring the same kernel
        left = frozenset() if assembly else (exports.left if shared else exports.replaceable).intersection(symbols)
        lacking = self.lacking(roots, symbols, assembly=assembly)
        return Holding(left=left, open=bool(left or lacking.needs or lacking.lacks))

    def tables_of(self, symbols: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
        """The tables among them that the text leaves to objects of their own."""
        variables = [self._module.variables[symbol] for symbol in symbols if symbol in self._module.variables] if self.apart else []
        seen = {names.get(found.symbol, "") for found in variables if self.tables.hoisted(found)}
        return tuple(sorted(name for name in seen if f"@{name}" in self._found))

    def named_of(self, symbols: Sequence[str], *, held: Sequence[str] = ()) -> tuple[str, ...]:
        """The kernels among them that the text leaves to other objects, and the functions that the device brings."""
        if not self.apart:
            return ()
        kernels = [plain(symbol) for symbol in symbols if symbol in self._graph.kernels and symbol not in held]
        return tuple(sorted({*kernels, *CALLED.intersection(plain(each) for each in symbols if each in self._module.declarations)}))

    def shared_of(self, symbols: Sequence[str]) -> tuple[Shared, ...]:
        """The shared memory that a text of these defines."""
        variables = (self._module.variables[symbol] for symbol in symbols if self.is_shared(symbol))
        return tuple(Shared(plain(found.symbol), found.bytes, found.alignment) for found in variables)

    def dynamic_shared(self, symbols: Sequence[str]) -> bool:
        """Whether one of them is shared memory whose size the launch gives."""
        variables = (self._module.variables[symbol] for symbol in symbols if symbol in self._module.variables)
        return any(found.space == SHARED and found.declared for found in variables)

    def as_declared(self, symbols: Sequence[str]) -> list[str]:
        """The members, with the shared variables of each function in the source's order.

        Assemblers lay them out as they are listed, and choose registers by where they lie. A function's own variables keep their order
        when anything else in the source moves.
        """
        module, found = self._module, list(symbols)
        place = {symbol: index for index, symbol in enumerate(found)}
        waiting = {symbol for symbol in symbols if symbol in module.variables and module.variables[symbol].space == SHARED}
        for function in symbols if len(waiting) > 1 else ():
            own = [name for name in self._graph.names.get(function, ()) if name in waiting]
            waiting.difference_update(own)
            places = sorted(place[name] for name in own)
            for index, name in zip(places, sorted(own, key=self._order.__getitem__), strict=True):
                found[index] = name
        return found

    def _defined_here(self, variable: Variable) -> bool:
        elsewhere = self.apart and (variable.symbol in self._state_names or self.tables.hoisted(variable))
        return not variable.declared and not elsewhere

    def member(self, symbol: str, symbols: Sequence[str], holding: Holding) -> Member:
        """How a text of `symbols` holds one of them."""
        module = self._module
        if symbol in module.functions:
            return self._function(symbol, holding)
        if symbol in module.declarations:
            if holding.open and symbol in self._undefined:
                return self._prototype(symbol)
            return Member(symbol, module.declarations[symbol].piece, name=symbol, local=False, defined=False, kind="declaration")
        if symbol in module.aliases:
            return Member(symbol, module.aliases[symbol], name=_stable(symbol), kind="alias")
        return self._of_variable(module.variables[symbol], symbols, holding)

    def _of_variable(self, variable: Variable, symbols: Sequence[str], holding: Holding) -> Member:
        """How a unit holds a variable: declared, seen as a table, visible, or as a private copy."""
        symbol = variable.symbol
        if symbol in self._state_names:
            return self._of_state(variable)
        if variable.declared or (symbol in holding.left and symbol not in holding.pinned):
            linkage = "extern_weak" if variable.linkage == "extern_weak" else "external"
            return self._variable(variable, linkage, name=symbol, local=variable.declared and variable.space == SHARED)
        hoisted = self.apart and self.tables.hoisted(variable)
        if symbol in holding.pinned and not (hoisted and holding.open):
            return self._variable(variable, _visible(variable), name=symbol, local=False)
        if hoisted:
            return self._table(variable, symbols, named=symbol in holding.pinned)
        if holding.open and variable.space == SHARED and variable.linkage == "linkonce_odr":
            return self._variable(variable, "linkonce_odr", name=symbol, local=False)
        return self._copy(variable)

    def _of_state(self, variable: Variable) -> Member:
        if not self.apart and variable.local:  # a bundle's unit is a program: what is private stays so
            return self._copy(variable)
        linkage = "external" if self.apart else _visible(variable)
        return self._variable(variable, linkage, name=self._state_names[variable.symbol], local=False)

    def _copy(self, variable: Variable) -> Member:
        """A copy of the unit's own. The names of private variables are numbers in disguise: front ends count them through the file."""
        name = "" if variable.linkage == "private" else _stable(variable.symbol)
        return self._variable(variable, "internal", name=name, local=True)

    def _function(self, symbol: str, holding: Holding) -> Member:
        function = self._module.functions[symbol]
        pinned = symbol in holding.pinned and not function.kernel
        if symbol not in holding.roots if function.kernel else symbol in holding.left and not pinned:
            return self._prototype(symbol)
        if pinned:
            return Member(symbol, as_linkage(function.piece, ""), name=symbol, local=False)
        if holding.open and function.linkage == "linkonce_odr" and not function.kernel and _stable(symbol):
            return Member(symbol, as_linkage(function.piece, "linkonce_odr "), name=symbol, local=False)
        return Member(symbol, function.piece, name=_stable(symbol))

    def _prototype(self, symbol: str) -> Member:
        """A kernel as it is. Of what joins the text nothing but the type: so a kernel that two sources bring is the same in both."""
        module = self._module

        def text() -> str:
            declared, function = module.declarations.get(symbol), module.functions.get(symbol)
            if function is not None and function.kernel:
                return f"declare {_prototype(function.prototype)}"
            head = (declared or module.functions[symbol]).piece.text().partition(" {\n")[0]
            return signature.declaration(head, symbol, module.types, weak=declared is not None and declared.weak)

        return Member(symbol, self._piece(symbol, "prototype", text), name=symbol, local=False, defined=False, kind="declaration")

    def _variable(self, variable: Variable, linkage: str, *, name: str, local: bool) -> Member:
        piece = self._piece(variable.symbol, linkage, lambda: variable_text(variable, linkage=linkage))
        return Member(variable.symbol, piece, name=name, local=local, defined=linkage not in ("external", "extern_weak"), kind="variable")

    def _piece(self, symbol: str, role: str, text: Callable[[], str]) -> Piece:
        """Text is cut up once for each way in which units hold a symbol."""
        if (symbol, role) not in self._pieces:
            self._pieces[symbol, role] = self._module.tokeniser.piece(text())
        return self._pieces[symbol, role]

    def lacking(self, roots: Collection[str], symbols: Sequence[str], *, left: Collection[str] = (), assembly: bool = False) -> Lacking:
        """What a text of `symbols` names and nobody in it defines; libdevice's functions apart."""
        missing = self._undefined.intersection(symbols)
        if assembly:
            missing -= {name for name in missing if plain(name) in self._graph.assembly_defines}
        wanted = missing.union(left) if left else missing
        needs: set[tuple[str, str]] = set()
        lacks: set[tuple[str, str]] = set()
        for user in symbols if wanted else ():
            if user in roots or not (user in self.stop or user in left):
                for name in wanted.intersection(self._graph.names.get(user, ())):
                    needed = name not in self._may_lack or self._graph.calls(user, name)
                    (needs if needed else lacks).add((name, user))
        device = {pair for pair in needs if pair[0].startswith("@__nv_")}
        for name in {name for name, _ in (*(needs - device), *lacks)} & missing:
            self._declared.setdefault(plain(name), self._type(name))
        return Lacking(needs=_plain(needs - device), lacks=_plain(lacks), libdevice=bool(device))

    def _type(self, symbol: str) -> Type:
        if symbol in self._module.variables:
            return signature.of_variable(self._module.variables[symbol], self._module)
        return signature.of_function(self._module.declarations[symbol].piece.text(), symbol, self._module.types)

    def _find_undefined(self) -> tuple[frozenset[str], frozenset[str]]:
        """What this source names and neither it nor the device defines; and those of them that may stay so while nobody calls them."""
        declared = [found for found in self._module.declarations.values() if not found.symbol.startswith(("@llvm.", '@"llvm.'))]
        functions = {found.symbol for found in declared if plain(found.symbol) not in RUNTIME}
        variables = [found for found in self._module.variables.values() if found.declared and found.space != SHARED]
        lacking = {found.symbol for found in declared if found.weak}
        lacking |= {found.symbol for found in variables if found.linkage == "extern_weak"}
        return frozenset(functions.union(found.symbol for found in variables)), frozenset(lacking)

    def _kernel(self, symbol: str) -> Kernel:
        function = self._module.functions[symbol]
        bounds = dict(_BOUNDS.findall(self._module.attributes.get(function.attributes, "")))
        threads = bounds.get("reqntid") or bounds.get("maxntid")
        return Kernel(
            symbol=plain(symbol),
            readable=demangle(plain(symbol)),
            weak=function.weak,
            max_threads=_product(threads) if threads else None,
            min_blocks=int(bounds["minctasm"]) if "minctasm" in bounds else None,
            dynamic_shared=self.dynamic_shared(self._closures[symbol]),
        )

    def _name_state(self) -> None:
        """Private state is called by its content as well: two sources may both have a `memo`."""
        taken: dict[str, int] = {}
        self._state_names = {symbol: symbol for symbol in self._state}  # known as state while contents are taken
        contents = {symbol: self._state_content(symbol) for symbol in self._state}
        for symbol, content in contents.items():
            if not self._module.variables[symbol].local:
                continue
            name = visible_name("@" if symbol[1:].isdigit() else symbol, content)
            taken[name] = taken.get(name, 0) + 1
            self._state_names[symbol] = name if taken[name] == 1 else f"{name}${taken[name]}"
        self._state_contents = contents

    def _state_content(self, symbol: str) -> str:
        symbols = self._graph.members([symbol], stop=self._graph.kernels)
        members = [self._in_state_slice(name, Holding()) for name in symbols]
        variables = self._module.variables  # names that others see are part of it: two pointers may differ in what they point to alone
        members = [
            dataclasses.replace(member, local=member.symbol not in self._state or variables[member.symbol].local) for member in members
        ]
        return write(self._module, members, used=False).body

    def _in_state_slice(self, symbol: str, holding: Holding) -> Member:
        """What stands in the text that defines all state: everything whole, kernels declared."""
        variable = self._module.variables.get(symbol)
        if variable is None or variable.declared or symbol in holding.left:
            return self.member(symbol, (), holding)
        if symbol in self._state_names:
            return self._variable(variable, _visible(variable), name=self._state_names[symbol], local=False)
        return self._copy(variable)

    def _state_slice(self) -> tuple[str, list[str], Lacking]:
        """Its name in the store, what it holds, and what initial values lead to that nobody here defines."""
        roots = sorted(self._state, key=self._state_names.__getitem__)
        symbols = self._graph.members(roots, stop=self._graph.kernels)
        holding = self._open(roots, symbols, assembly=False)
        if holding.left:
            symbols = self._graph.members(roots, stop=self._graph.kernels | holding.left)
        written = write(self._module, [self._in_state_slice(symbol, holding) for symbol in symbols])
        return self._put(written.text), symbols, self.lacking(roots, symbols, left=holding.left)

    def _describe_state(self, symbol: str) -> State:
        variable = self._module.variables[symbol]
        return State(
            symbol=plain(self._state_names[symbol] if self.apart else symbol),
            name=plain(symbol),
            bytes=variable.bytes,
            space=GLOBAL_SPACES[variable.space],
            private=variable.local,
            weak=variable.weak,
            content=self._state_contents[symbol],
            type=signature.of_variable(variable, self._module) if self._exports.wanted and not variable.local else Type(""),
        )

    def _table(self, variable: Variable, symbols: Sequence[str], *, named: bool = False) -> Member:
        """A table as its units see it; the first to do so has its slice made. `named`: under its own name, whoever reads it."""
        definition = self._variable(variable, "", name="@table", local=True)
        if variable.symbol not in self._table_contents:
            self._table_contents[variable.symbol] = write(self._module, [definition], used=False).body
        content = self._table_contents[variable.symbol]
        matters = named or self.tables.address_matters(variable.symbol, symbols, self._graph)
        number = f"@__table{variable.symbol[1:]}" if variable.symbol[1:].isdigit() else variable.symbol
        name = visible_name(number if matters else "@__table", content)
        if name not in self._found:
            text = write(self._module, [dataclasses.replace(definition, name=name)], used=False).text
            table = Table(symbol=plain(name), slice=self._put(text), bytes=variable.bytes, space=GLOBAL_SPACES[variable.space])
            self._found[name] = (table, definition.piece)
        return self._variable(variable, "available_externally", name=name, local=False)


def _remember(known: dict[str, bool], symbol: str, ask: Callable[[str], bool]) -> bool:
    if symbol not in known:
        known[symbol] = ask(symbol)
    return known[symbol]


def _plain(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((plain(name), plain(user)) for name, user in pairs))


def _stable(symbol: str) -> str:
    """The symbol itself, or nothing for one that has only a number."""
    return "" if symbol[1:].isdigit() else symbol


def _visible(variable: Variable) -> str:
    return "weak_odr" if variable.weak else ""


def _prototype(head: str) -> str:
    """A definition's head as a declaration: what follows the arguments may refer to the body's debug information."""
    return re.sub(r" (?:!\w+ !\d+|personality .*|prefix .*|prologue .*)", "", head)


def _product(counts: str) -> int:
    product = 1
    for count in counts.split(","):
        product *= int(count)
    return product

"""PTX becomes an index and slices: each entry with all that it reaches, as text that needs nothing but an assembler.

The rules are those of IR. What differs: nobody says in PTX which variable the host knows. nvcc gives none of them a linkage and the driver
finds them all by name, so memory without one keeps its name and is state, unless only a compiler could have named it and nothing writes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.errors import RefusedError
from scons_gpu.source.ptx import check, read_module
from scons_gpu.split import digest
from scons_gpu.split.closure import components
from scons_gpu.split.index import CALLED, Export, Index, Kernel, Shared, State, Unit
from scons_gpu.split.ptx_graph import PtxGraph
from scons_gpu.split.ptx_module import PtxModule, read
from scons_gpu.split.ptx_write import Writer
from scons_gpu.split.readable import demangle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scons_gpu.split.ptx_module import Variable
    from scons_gpu.split.ptx_write import Written
    from scons_gpu.toolchain.arch import Target

__all__ = ["split_ptx"]

_BOUNDS = re.compile(r"\.(maxntid|reqntid|minnctapersm) ((?:\d+, )*\d+)")
_SPACES = {"global": "global", "const": "constant", "tex": "global"}


def split_ptx(  # noqa: PLR0913 - one keyword for each thing that decides
    text: str, *, source: str, target: Target, form: str, put: Callable[[str], str], lines: bool = False
) -> Index:
    """The index of one source's PTX, as `split` makes one of IR. `lines` keeps line information, which is then part of digests.

    Raises SourceError for PTX that does not read or is for another architecture, RefusedError for what cannot become units.
    """
    module = read_module(text, name=source)
    if module is None:
        return Index(source=source, arch=target.name, form=form, language="ptx")
    check(module, name=source, target=target)
    return _Splitter(read(module, source=source, lines=lines), form=form, put=put, source=source).index(arch=target.name)


class _Splitter:
    """One module, one form."""

    def __init__(self, module: PtxModule, *, form: str, put: Callable[[str], str], source: str) -> None:
        self._module = module
        self._apart = form == "apart"
        self._form = form
        self._put = put
        self._source = source
        self._graph = PtxGraph(module)
        self._writer = Writer(module, self._graph, apart=self._apart)
        kernels = self._graph.kernels
        self._stop = frozenset((*self._graph.state, *kernels)) if self._apart else frozenset(kernels)
        self._closures = {kernel: self._graph.members([kernel], stop=self._stop) for kernel in kernels}

    def index(self, *, arch: str) -> Index:
        """Splits, puts every slice, and says what was found."""
        self._refuse_doubled_shared()
        state = tuple(self._describe_state(self._module.variables[name]) for name in sorted(self._graph.state))
        slice_ = self._writer.state() if self._apart and state else None
        left_out = "its debug sections (DWARF) are left out: they do not divide. Line information stays where GPU_LINEINFO asks for it"
        return Index(
            source=self._source,
            arch=arch,
            form=self._form,
            language="ptx",
            units=tuple(self._unit(kernels, reasons) for kernels, reasons in components(self._keys())),
            state=state,
            state_slice=self._put(slice_.text) if slice_ else "",
            state_needs=self._graph.needs(self._state_users()) if slice_ else (),
            state_names=self._named(self._graph.members(self._graph.state, stop=self._graph.kernels)) if slice_ else (),
            exports=self._exports(),
            notes=(left_out,) if self._module.debug else (),
        )

    def _keys(self) -> dict[str, list[tuple[str, str]]]:
        """What each kernel shares with others, by reason: kernels that share a thing are one unit."""
        keys: dict[str, list[tuple[str, str]]] = {kernel: [] for kernel in self._closures}
        if self._apart:
            return keys
        takers, callers = [], []
        for kernel, members in self._closures.items():
            for name in members:
                if name in self._graph.state:
                    keys[kernel].append(("state", name))
                elif name in keys and name != kernel:
                    keys[kernel].append(("kernel-reference", name))
                    keys[name].append(("kernel-reference", name))
            takers += [kernel] if any(map(self._graph.takes_address, members)) else []
            callers += [kernel] if any(map(self._graph.calls_through_memory, members)) else []
        if callers and takers:
            for kernel in dict.fromkeys((*callers, *takers)):
                keys[kernel].append(("indirect-call", ""))
        return keys

    def _refuse_doubled_shared(self) -> None:
        """State holds functions of its own: shared memory that one of them and a kernel both name is one undivided, and would be two."""
        for kernel, members in self._closures.items() if self._apart else ():
            reached = self._graph.members([name for name in members if name in self._graph.state], stop=self._graph.kernels)
            both = [name for name in sorted(set(members).intersection(reached)) if self._graph.is_shared(name)]
            if both:
                msg = f"kernel {kernel} and a function that it may call through a variable both use shared memory {both[0]}"
                raise RefusedError(msg, source=self._source, hint="build with GPU_LINK=bundle")

    def _unit(self, kernels: Sequence[str], reasons: Sequence[str]) -> Unit:
        members = self._closures[kernels[0]] if len(kernels) == 1 else self._graph.members(kernels, stop=self._stop)
        written: Written = self._writer.unit(kernels, members)
        variables = [self._module.variables[name] for name in members if name in self._module.variables]
        functions = [self._module.functions[name] for name in members if name in self._module.functions]
        defined = [one.declarator for one in variables if not one.declared and not (self._apart and one.name in self._graph.state)]
        shared = [one for one in defined if one.space == "shared"]
        shared += [own for function in functions if function.defined and self._holds(function.name, kernels) for own in function.shared]
        return Unit(
            kernels=tuple(self._kernel(kernel) for kernel in kernels),
            slice=self._put(written.text),
            bytes=len(written.text),
            body=written.body,
            joined=", ".join(reasons) if len(kernels) > 1 else "",
            state=tuple(sorted(one.name for one in variables if one.name in self._graph.state)) if self._apart else (),
            names=self._named(members, held=kernels),
            needs=self._graph.needs(name for name in members if self._holds(name, kernels)),
            shared=tuple(Shared(one.name, one.bytes, one.align) for one in shared),
            constant_bytes=sum(one.bytes for one in defined if one.space == "const"),
        )

    def _named(self, members: Sequence[str], *, held: Sequence[str] = ()) -> tuple[str, ...]:
        """The kernels among them that the text leaves to other objects, and the functions that the device brings."""
        defined = self._module.functions
        found = {
            name for name in members if name in self._graph.kernels or (name in CALLED and not (name in defined and defined[name].defined))
        }
        return tuple(sorted(found - {*held})) if self._apart else ()

    def _holds(self, name: str, kernels: Sequence[str]) -> bool:
        """Whether a unit of these kernels holds a member itself, and does not leave it to another object."""
        return name in kernels or name not in self._stop

    def _kernel(self, name: str) -> Kernel:
        function = self._module.functions[name]
        bounds = dict(_BOUNDS.findall(function.head))
        threads = bounds.get("reqntid") or bounds.get("maxntid")
        return Kernel(
            symbol=name,
            readable=demangle(name),
            weak=function.linkage == "weak",
            max_threads=_product(threads) if threads else None,
            min_blocks=int(bounds["minnctapersm"]) if "minnctapersm" in bounds else None,
            dynamic_shared=any(self._graph.is_dynamic(member) for member in self._closures[name]),
        )

    def _state_users(self) -> list[str]:
        """What stands in the object that defines all state."""
        found = self._graph.members(self._graph.state, stop=self._graph.kernels)
        return [name for name in found if name not in self._graph.kernels]

    def _describe_state(self, variable: Variable) -> State:
        return State(
            symbol=variable.name,
            name=variable.name,
            bytes=variable.declarator.bytes,
            space=_SPACES[variable.space],
            private=variable.local,
            weak=variable.linkage in ("weak", "common"),
            content=digest.content(self._writer.definition(variable.name).text.encode()),
        )

    def _exports(self) -> tuple[Export, ...]:
        found = {one.name: one.linkage for one in self._module.functions.values() if one.defined and not one.entry and one.linkage}
        found |= {name: linkage for name, (_, linkage) in self._module.aliases.items() if linkage}
        return tuple(Export(symbol=name, weak=linkage == "weak") for name, linkage in sorted(found.items()))


def _product(counts: str) -> int:
    product = 1
    for count in counts.split(", "):
        product *= int(count)
    return product

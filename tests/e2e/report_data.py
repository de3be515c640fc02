"""A report of any size, made up: what the page is tried and measured on."""

from __future__ import annotations

import random
from itertools import pairwise

from scons_gpu.inspect.report.model import Edge, File, Kernel, Lane, Module, Node, Overview, Reason, Report, Step, Tool, Twin, Unit

__all__ = ["generated"]

_VERBS = ("softmax", "reduce", "gather", "gemm", "layer_norm", "transpose", "relu_backward", "scatter_add")
_TYPES = ("float", "__half", "double", "int", "__nv_bfloat16")
_RESULTS = ("compiled", "reused", "kept", "compiled", "kept", "reused", "kept")


def generated(units: int, *, modules: int = 100, seed: int = 7) -> Report:
    """A program of `modules` modules in a tree, with `units` units, of which a tenth has two owners; equal for equal arguments."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    names = [f"net.block{number // 10}.layer{number}" if number else "net" for number in range(modules)]
    made = tuple(_unit(number, names, chance) for number in range(units))
    kernels = tuple(_kernel(number, module, made[number], chance) for number in range(units) for module in made[number].modules)
    nodes, edges = _graph(names, made)
    steps = tuple(_step(number, unit, chance) for number, unit in enumerate(made) if unit.result in {"compiled", "failed"})
    return Report(
        overview=Overview(
            build="20261201T101500-4711",
            state="done",
            began=1796120100.0,
            wall_seconds=max((step.start + step.seconds for step in steps), default=0.0),
            jobs=8,
            argv=("-j8",),
            programs=("net",),
            counts={
                "modules": modules,
                "kernels": len(kernels),
                "references": len(kernels),
                "unique": units,
                "shared": len(kernels) - units,
                "needed": sum(unit.result != "kept" for unit in made),
                **{name: sum(unit.result == name for unit in made) for name in ("compiled", "reused", "deferred", "failed")},
            },
            cpu_seconds={"lower": sum(step.cpu for step in steps) * 0.6, "assemble": sum(step.cpu for step in steps) * 0.4, "link": 2.5},
        ),
        modules=tuple(_module(name, names, made) for name in names),
        units=made,
        kernels=kernels,
        steps=steps,
        lanes=tuple(Lane(f"worker {4711 + number}") for number in range(8)),
        reasons=tuple(
            Reason("lower", unit.name, unit.arch, unit.modules, f"its slice changed: {unit.sources[0]} was edited", row)
            for row, unit in enumerate(made)
            if unit.result == "compiled"
        ),
        twins=tuple(Twin(group, row, f"{row:032x}") for group in range(units // 50) for row in (group * 50, group * 50 + 1)),
        tools=(Tool("net", "ptxas", "13.5", "ab" * 32), Tool("net", "llvm", "22.1", "cd" * 32)),
        nodes=nodes,
        edges=edges,
    )


def _unit(number: int, names: list[str], chance: random.Random) -> Unit:
    home = number % len(names)
    owners = [names[home]] if number % 10 else [names[home], names[(home * 7 + 3) % len(names)]]
    kernel = f"{_VERBS[number % 8]}<{_TYPES[number // 8 % 5]}, {32 << number % 5}>({_TYPES[number // 8 % 5]}*, int)#{number}"
    result = _RESULTS[number % 7] if number != 5 else "failed"
    source = f"src/{names[home].replace('.', '/')}/{_VERBS[number % 8]}.cu"
    seconds = round(chance.lognormvariate(-2.5, 1.0), 3)
    return Unit(
        f"{chance.getrandbits(128):032x}", kernel, "sm_90", result, seconds, 900 + number % 5000, tuple(dict.fromkeys(owners)), (source,)
    )


def _kernel(number: int, module: str, unit: Unit, chance: random.Random) -> Kernel:
    spills = 0 if number % 17 else 8 * chance.randrange(1, 200)
    return Kernel(
        name=unit.name,
        symbol=f"_Z{number}k",
        program="net",
        module=module,
        source=unit.sources[0],
        arch=unit.arch,
        unit=number,
        registers=16 + number % 200,
        spill_bytes=spills,
        shared_bytes=1024 * (number % 9),
        stack_bytes=0,
        constant_bytes=380,
        max_threads=1024,
        occupancy=100.0 - number % 80,
        code_bytes=512 * (1 + number % 60),
        lowered_by="llvm",
    )


def _step(number: int, unit: Unit, chance: random.Random) -> Step:
    took = unit.seconds or 0.0
    begun = (number // 8) * 0.06 + chance.random() * 0.02
    return Step(
        "lower",
        unit.name,
        unit.arch,
        "built" if unit.result == "compiled" else "failed",
        number % 8,
        begun,
        took,
        took,
        90_000,
        number,
        unit.modules,
    )


def _module(name: str, names: list[str], units: tuple[Unit, ...]) -> Module:
    mine = [unit for unit in units if name in unit.modules]
    place = names.index(name)
    below = names[1::10] if place == 0 else names[place + 1 : place + 10] if place % 10 == 1 else []
    return Module(
        name=name,
        program="net",
        root=place == 0,
        bypass=False,
        link="image",
        submodules=tuple(below),
        kernels=len(mine),
        references=len(mine),
        compiled=sum(unit.result == "compiled" for unit in mine),
        failed=sum(unit.result == "failed" for unit in mine),
        files=(File(f"net/{name}/sm_90.cubin", "sm_90", 4000 * len(mine)), File(f"net/{name}.fatbin", "", 4100 * len(mine))),
    )


def _graph(names: list[str], units: tuple[Unit, ...]) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Program, modules, images, sources, then a unit and an object each."""
    nodes = [Node("program", "net", "")]
    modules, images, sources = {}, {}, {}
    edges: list[Edge] = []
    for row, name in enumerate(names):
        modules[name] = len(nodes)
        nodes.append(Node("module", name, name, row))
        images[name] = len(nodes)
        nodes.append(Node("image", f"{name}/sm_90.cubin", name))
        edges.append(Edge(images[name], modules[name]))
    edges.append(Edge(modules[names[0]], 0))
    for group in range(1, len(names), 10):
        edges.append(Edge(modules[names[group]], modules[names[0]]))
        edges += [Edge(modules[name], modules[names[group]]) for name in names[group + 1 : group + 10]]
    for row, unit in enumerate(units):
        for source in unit.sources:
            if source not in sources:
                sources[source] = len(nodes)
                nodes.append(Node("source", source, unit.modules[0]))
        place = len(nodes)
        nodes += [Node("unit", unit.name, "", row, unit.result), Node("object", f"{row:032x}.rel.cubin", "")]
        edges += [Edge(sources[source], place) for source in unit.sources]
        edges += [Edge(one, other) for one, other in pairwise([place, place + 1])]
        edges += [Edge(place + 1, images[name]) for name in unit.modules]
    return tuple(nodes), tuple(edges)

"""The rows of a report, from what is known of a build. Pure: equal records, plans and manifests give equal rows."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from scons_gpu.inspect import timeline
from scons_gpu.inspect.builds import UNIT_STAGES
from scons_gpu.inspect.report import nodes
from scons_gpu.inspect.report.model import Failure, File, Kernel, Lane, Module, Overview, Report, Step, Tool, Twin, Unit
from scons_gpu.tune.occupancy import WARP, occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scons_gpu.inspect.builds import Action, Build, History
    from scons_gpu.inspect.report.known import Known, Program
    from scons_gpu.link import manifest
    from scons_gpu.plan.model import Part, PlannedKernel

__all__ = ["gather", "results"]

_FAILED = ("failed", "differs")
_NO_COUNTS = ("schema", "build", "wall_seconds", "cpu_seconds")


def gather(known: Known) -> Report:
    """All rows but the reasons, for which the store is asked (reasons.py)."""
    build = known.build
    if build is None:
        return Report()
    units, ran = _units(known, build), timeline.timeline(build)
    rows = {unit.digest: row for row, unit in enumerate(units)}
    kernels = tuple(each for program in known.programs for each in _kernels(program, rows))
    modules = tuple(each for program in known.programs for each in _modules(program, units, rows))
    report = Report(
        overview=_overview(known, build, ran.wall_seconds),
        modules=modules,
        units=units,
        kernels=kernels,
        steps=tuple(_steps(ran, rows)),
        lanes=tuple(Lane(lane.name) for lane in ran.lanes),
        failures=tuple(_failures(build)),
        twins=tuple(_twins(known, rows)),
        tools=tuple(_tools(known.programs)),
    )
    owners = [f"module:{program.stem}/{module.name}" for program in known.programs for module in _modules(program, units, rows)]
    drawn, edges = nodes.rows(known.graph, modules={name: row for row, name in enumerate(owners)}, units=rows, of=units)
    return dataclasses.replace(report, nodes=drawn, edges=edges)


def results(build: Build) -> dict[str, str]:
    """Digest → what became of it in this build, by the rules of store/stats.py; units that were not due are left out."""
    needed = build.end.needed if build.end else frozenset()
    actions = [action for action in build.actions if action.unit and action.role == "unit"]
    failed = {action.unit for action in actions if action.result in _FAILED}
    candidates = {action.unit for action in actions if action.candidate and action.stage in UNIT_STAGES}
    lost = candidates - needed if build.end else set()
    compiled = {action.unit for action in actions if action.result == "built"}
    found = dict.fromkeys(needed, "reused") | dict.fromkeys(compiled, "compiled")
    found |= dict.fromkeys(build.end.deferred if build.end else (), "deferred")
    return found | dict.fromkeys(lost, "candidate") | dict.fromkeys(failed, "failed")


def _overview(known: Known, build: Build, seconds: float) -> Overview:
    counts = known.counts.to_json()
    return Overview(
        build=build.id,
        state=_state(known, build),
        began=min([build.time, *(action.start for action in build.actions if action.start)]),
        wall_seconds=seconds,
        jobs=build.jobs,
        argv=build.argv,
        programs=tuple(program.name for program in known.programs),
        counts={name: value for name, value in counts.items() if name not in _NO_COUNTS},
        cpu_seconds=dict(known.counts.cpu_seconds),
        notes=(*known.notes, *(note for program in known.programs for note in program.notes)),
    )


def _state(known: Known, build: Build) -> str:
    if known.running:
        return "running"
    return "killed" if build.end is None else "done" if build.end.ok else "failed"


@dataclasses.dataclass
class _Found:
    """A unit, while its owners are collected."""

    part: Part
    arch: str
    modules: dict[str, None]
    sources: dict[str, None]


def _units(known: Known, build: Build) -> tuple[Unit, ...]:
    """Those of all plans, by their first mention; then candidates that no plan took."""
    found: dict[str, _Found] = {}
    for plan in (plan for program in known.programs for plan in program.plans):
        for part in plan.units:
            one = found.setdefault(part.digest, _Found(part, plan.arch, {}, {}))
            one.modules[plan.module] = None
            one.sources |= dict.fromkeys([part.source, *(kernel.source for kernel in part.kernels), *(each.source for each in part.joins)])
    became = results(build)
    planned = [_unit(one, became.get(digest, "kept"), known.history) for digest, one in found.items()]
    others = {action.unit: action for action in build.actions if action.unit not in found and became.get(action.unit) == "candidate"}
    return (*planned, *(_candidate(action, known.history) for action in others.values()))


def _unit(one: _Found, result: str, history: History) -> Unit:
    part = one.part
    return Unit(
        digest=part.digest,
        name=part.readable,
        arch=one.arch,
        result="failed" if part.refused else result,
        seconds=_seconds(part.digest, history),
        slice_bytes=part.bytes,
        modules=tuple(one.modules),
        sources=tuple(one.sources),
        joined=part.joined,
    )


def _candidate(action: Action, history: History) -> Unit:
    return Unit(action.unit, action.name, action.arch, "candidate", _seconds(action.unit, history), 0, action.owners, ())


def _seconds(digest: str, history: History) -> float | None:
    """What its steps took in the build that last made it."""
    made = [action for action in history.by_unit.get(digest, ()) if action.result == "built"]
    return sum(action.seconds for action in made if action.build == made[-1].build) if made else None


def _kernels(program: Program, rows: Mapping[str, int]) -> Iterator[Kernel]:
    for plan in program.plans:
        for part in plan.units:
            for kernel in part.kernels:
                built = _built_of(program, plan.module, plan.arch, kernel.symbol, part.digest)
                row = _row(program, plan.module, plan.arch, kernel, unit=rows[part.digest], built=built)
                yield row if built else dataclasses.replace(row, shared_bytes=kernel.shared_bytes, max_threads=kernel.max_threads)


def _built_of(program: Program, module: str, arch: str, symbol: str, digest: str) -> manifest.Build | None:
    """What the manifest says of it, where that is of this very unit."""
    found = program.manifest.modules.get(module) if program.manifest else None
    kernel = found.kernels.get(symbol) if found else None
    built = kernel.archs.get(arch) if kernel else None
    return built if built and built.unit == digest else None


def _row(  # noqa: PLR0913 - all that is known of it
    program: Program, module: str, arch: str, kernel: PlannedKernel, *, unit: int, built: manifest.Build | None
) -> Kernel:
    return Kernel(
        name=kernel.readable,
        symbol=kernel.symbol,
        program=program.name,
        module=module,
        source=kernel.source,
        arch=arch,
        unit=unit,
        registers=built.registers if built else None,
        spill_bytes=built.spill_bytes if built else None,
        shared_bytes=built.shared_bytes if built else 0,
        stack_bytes=built.stack_bytes if built else None,
        constant_bytes=built.constant_bytes if built else None,
        max_threads=built.max_threads if built else None,
        occupancy=_occupancy(arch, built.registers, built.shared_bytes, built.max_threads)
        if built and built.registers is not None
        else None,
        code_bytes=program.code.get((module, arch, built.entry if _bundled(program, module) else kernel.symbol)) if built else None,
        lowered_by=(built.lowered_by or "") if built else "",
        chosen=_chosen(built),
    )


def _bundled(program: Program, module: str) -> bool:
    """Whether its kernels lie in objects of their own, under entry names that those have."""
    return bool(program.manifest and program.manifest.modules[module].bundle)


@functools.cache
def _occupancy(arch: str, registers: int, shared_bytes: int, most: int) -> float:
    """Per cent, over blocks of all sizes within the launch bounds. Kernels that take the same are many."""
    sizes = range(WARP, max(most, WARP) + 1, WARP)
    return float(max(occupancy(arch, registers, shared_bytes, threads) for threads in sizes)) * 100


def _chosen(built: manifest.Build | None) -> str:
    return f"{built.chosen['candidate']}: {built.chosen['why']}" if built and built.chosen else ""


def _modules(program: Program, units: Sequence[Unit], rows: Mapping[str, int]) -> Iterator[Module]:
    """The manifest's tree; without one, the modules that have plans, side by side."""
    of: dict[str, list[Unit]] = defaultdict(list)
    kernels: dict[str, set[str]] = defaultdict(set)
    for plan in program.plans:
        of[plan.module] += [units[rows[part.digest]] for part in plan.units]
        kernels[plan.module] |= {kernel.symbol for kernel in plan.kernels}
    described = program.manifest.modules if program.manifest else {}
    below = {name for module in described.values() for name in module.submodules}
    for name in dict.fromkeys([*described, *of]):
        module = described.get(name)
        yield Module(
            name=name,
            program=program.name,
            root=name not in below,
            bypass=bool(module and module.bypass),
            link=_link(program, name),
            submodules=module.submodules if module else (),
            kernels=len(kernels[name] or (module.kernels if module else ())),
            references=len(of[name]),
            compiled=sum(unit.result == "compiled" for unit in of[name]),
            failed=sum(unit.result == "failed" for unit in of[name]),
            files=tuple(_files(program, module)) if module else (),
        )


def _link(program: Program, name: str) -> str:
    return next((plan.link for plan in program.plans if plan.module == name), "")


def _files(program: Program, module: manifest.Module) -> Iterator[File]:
    for arch, image in sorted(module.images.items()):
        yield File(image.file, arch, program.sizes.get(image.file))
    for file in filter(None, (module.fatbin, module.bundle)):
        yield File(file, "", program.sizes.get(file))


def _steps(found: timeline.Timeline, rows: Mapping[str, int]) -> Iterator[Step]:
    for step in found.steps:
        action = step.action
        yield Step(
            stage=action.stage,
            name=action.name,
            arch=action.arch,
            result=action.result,
            lane=step.lane,
            start=step.start,
            seconds=step.seconds,
            cpu=action.cpu,
            peak_kib=action.peak_kib,
            unit=rows.get(action.unit, -1),
            modules=action.owners,
        )


def _failures(build: Build) -> Iterator[Failure]:
    for action in build.actions:
        if action.result in _FAILED:
            yield Failure(action.stage, action.name, action.arch, action.owners, action.output)


def _twins(known: Known, rows: Mapping[str, int]) -> Iterator[Twin]:
    bodies: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for plan in (plan for program in known.programs for plan in program.plans):
        for part in plan.units:
            if part.body:
                bodies[part.body, plan.arch][part.digest] = None
    objects = _objects(known.programs)
    for group, digests in enumerate(each for each in bodies.values() if len(each) > 1):
        yield from (Twin(group, rows[digest], objects.get(digest, "")) for digest in digests)


def _objects(programs: Sequence[Program]) -> dict[str, str]:
    """Unit → key of its object, as the manifests have it."""
    return {
        build.unit: build.object
        for program in programs
        if program.manifest
        for module in program.manifest.modules.values()
        for kernel in module.kernels.values()
        for build in kernel.archs.values()
        if build.object
    }


def _tools(programs: Sequence[Program]) -> Iterator[Tool]:
    for program in programs:
        for name, tool in sorted(program.manifest.tools.items()) if program.manifest else ():
            yield Tool(program.name, name, tool.version, tool.identity)

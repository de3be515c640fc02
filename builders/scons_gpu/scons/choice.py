"""The choice as a node: candidates become units of the batch, and of what they come to the plan is made that the image is linked from."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import GpuError, RefusedError, from_json
from scons_gpu.scons.images import Linking, read_plan
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.link import elf
    from scons_gpu.plan import Part, Plan, PlannedCandidate, PlannedProblem
    from scons_gpu.scons.units import Recipe
    from scons_gpu.tune import choose as choices
    from scons_gpu.tune import model
    from scons_gpu.tune import tuning as tunings
    from scons_gpu.tune.model import Decision, Problem, Result
    from scons_gpu.tune.tuning import Tuning
else:
    plans, elf = later("scons_gpu.plan"), later("scons_gpu.link.elf")
    choices, model, tunings = later("scons_gpu.tune.choose"), later("scons_gpu.tune.model"), later("scons_gpu.tune.tuning")

__all__ = ["ChoiceJob", "Helper"]

INSTRUCTION_BYTES = 16
"""Of machine code, on every architecture from sm_70 on."""


@dataclass(frozen=True)
class Helper:
    """A module whose kernels a candidate may ask for."""

    recipe: Recipe
    plan: Path

    def parts(self, recipe: Recipe) -> Plan:
        """Its plan, for an owner whose units are made by `recipe`: what the two do differently is written into each part."""
        lower = None if self.recipe.lower == recipe.lower else vars(self.recipe.lower)
        options = None if self.recipe.options == recipe.options else vars(self.recipe.options)
        plan = read_plan(self.plan)
        return dataclasses.replace(plan, parts=tuple(dataclasses.replace(part, lower=lower, assemble=options) for part in plan.parts))


@dataclass(kw_only=True)
class ChoiceJob(Linking):
    """Candidates become the plan of one module for one architecture."""

    stage: ClassVar[str] = "choose"
    recipe: Recipe
    plan: Path
    tuning: Sequence[tuple[str, Path]]
    """Files that decide, by the names that the user gave them."""
    helpers: Sequence[Helper]
    tools: Mapping[str, str]

    def decided(self) -> Sequence[tuple[Recipe, Path]]:
        """The undecided plan."""
        return ((self.recipe, self.plan),)

    def makes_nothing(self) -> bool:
        """There is always a plan."""
        return False

    def command(self) -> list[str]:
        """Only a build knows all candidates of a module."""
        return ["scons", str(self.target)]

    def units(self) -> list[Any]:
        """The nodes of candidates that the store lacks: of a problem that a tuning file decides, its solution's alone."""
        nodes: list[Any] = []
        tuning = self.read_tuning()
        for problem in read_plan(self.plan).problems:
            known = choices.known(_problem(problem, self.arch), tuning, candidates=_compiled(problem))
            for number, candidate in enumerate(problem.candidates):
                if candidate.part is not None and (known is None or model.pairs(candidate.values) == known.values):
                    nodes += self.recipe.candidate(candidate.part, limited=number > 0)
        return list(dict.fromkeys(nodes))

    def read_tuning(self) -> list[Tuning]:
        """The files that decide."""
        return [tunings.read(path, name=name) for name, path in self.tuning]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Decides each problem and writes the plan without them."""
        self.raise_kept()
        plan, tuning = read_plan(self.plan), self.read_tuning()
        chosen: dict[str, tuple[PlannedCandidate, dict[str, Any]]] = {}
        said: list[str] = []
        for problem in plan.problems:
            decision, results = self.decide(problem, tuning)
            candidate = next(each for each in problem.candidates if model.pairs(each.values) == decision.values)
            failed = sum(bool(result.failure) for result in results)
            told: dict[str, Any] = {
                "by": decision.by,
                "candidate": decision.label,
                "why": decision.why,
                "of": len(results),
                "failed": failed,
            }
            if decision.file:
                told["file"] = decision.file
            if candidate.ir:
                told["ir"] = f"{self.target.parent.parent.name}/{self.target.parent.name}/{candidate.ir}"
            if candidate.part is not None and (candidate.part.lower or candidate.part.assemble):
                told["options"] = {**(candidate.part.lower or {}), **(candidate.part.assemble or {})}
            chosen[problem.kernel.symbol] = (candidate, told)
            said += _sentences(problem, decision, results)
        helpers = [helper.parts(self.recipe) for helper in self.helpers]
        for helper in helpers:
            _check(helper)
        write_atomic(self.target, plans.to_text(plans.decided(plan, chosen, helpers)))
        return Outcome(output="\n".join(said))

    def decide(self, planned: PlannedProblem, tuning: Sequence[Tuning]) -> tuple[Decision, list[Result]]:
        """One problem: in one build the same one, with the same candidates, is decided once."""
        problem = _problem(planned, self.arch)
        results = [self.result(planned, candidate) for candidate in planned.candidates]
        known = choices.known(problem, tuning, candidates=_compiled(planned))
        if known is not None and any(result.failure for result in results if result.values == known.values):
            self.compile_all(planned)
            results = [self.result(planned, candidate) for candidate in planned.candidates]
        asked = (problem, tuple(results), tuple(self.tuning))
        with self.workspace.session.lock:
            if asked not in self.workspace.decisions:
                self.workspace.decisions[asked] = choices.choose(problem, results, tuning, tools=self.tools)
            return self.workspace.decisions[asked], results

    def result(self, planned: PlannedProblem, candidate: PlannedCandidate) -> Result:
        """What a candidate came to; without figures where it was not compiled, because a tuning file decides."""
        values = model.pairs(candidate.values)
        failure = from_json(candidate.failure) if candidate.failure else None
        if candidate.part is None or failure is not None:
            return model.Result(values=values, failure=_reason(failure) if failure else "there is nothing to compile")
        if (failure := self.recipe.failure(candidate.part)) is not None:
            return model.Result(values=values, failure=_reason(failure))
        launched = _launched(candidate)
        entry = None if self.recipe.kind == "ptx" else self.workspace.store.load(self.recipe.object_path(candidate.part))
        if entry is None:
            return model.Result(values=values, **launched)
        symbol = planned.kernel.symbol
        used = next((each for each in entry.record.resources if each.kernel == symbol), None)
        code = next((each.code_bytes for each in elf.read(entry.data, path=candidate.part.readable).kernels if each.symbol == symbol), None)
        return model.Result(
            values=values,
            registers=used.registers if used else None,
            spill_bytes=used.spill_stores + (used.spill_loads or 0) if used and used.spill_stores is not None else None,
            shared_bytes=used.shared_bytes if used else None,
            stack_bytes=used.stack_bytes if used else None,
            max_threads=candidate.part.kernels[0].max_threads,
            instructions=code // INSTRUCTION_BYTES if code is not None else None,
            **launched,
        )

    def compile_all(self, planned: PlannedProblem) -> None:
        """What a tuning file chose does not compile here: then the others are compiled after all, here and now."""
        for number, candidate in enumerate(planned.candidates):
            if candidate.part is None:
                continue
            for made in self.recipe.candidate(candidate.part, limited=number > 0):
                for each in (*made.needs, made):
                    each.attributes.gpu.run(each)


def _problem(planned: PlannedProblem, arch: str) -> Problem:
    return model.Problem(kernel=planned.kernel.readable, arch=arch, keys=model.pairs(planned.keys))


def _compiled(planned: PlannedProblem) -> list[Any]:
    """The values of candidates that have a unit."""
    return [model.pairs(candidate.values) for candidate in planned.candidates if candidate.part is not None]


def _reason(error: GpuError) -> str:
    """What failed, without the kernel and module that whoever shows it names."""
    lines = [error.what, *(f"    {line}" for line in error.output.rstrip().splitlines()), *([f"  {error.hint}"] if error.hint else [])]
    return "\n".join(lines)


def _launched(candidate: PlannedCandidate) -> dict[str, int]:
    launch = candidate.launch or {}
    block, shared = launch.get("block"), launch.get("shared")
    sizes = block if isinstance(block, list) else [block]
    threads = {"block_threads": prod(sizes)} if all(isinstance(size, int) for size in sizes) else {}
    return {**threads, **({"dynamic_bytes": shared} if isinstance(shared, int) else {})}


def _sentences(problem: PlannedProblem, decision: Decision, results: Sequence[Result]) -> list[str]:
    """What a build says of a decision, and of candidates that failed: their first line, the log has the rest."""
    by = f"by {decision.by}" + (f", {decision.file}" if decision.file else "")
    lines = [f"{problem.kernel.readable}: {decision.label} ({by}: {decision.why})"]
    return lines + [f"    {result.label} cannot be compiled: {result.failure.splitlines()[0]}" for result in results if result.failure]


def _check(helper: Plan) -> None:
    """Raises RefusedError for a module of helpers whose kernels have candidates: it would be a round more."""
    if helper.problems:
        msg = f"its helper {helper.module} has candidates of its own"
        raise RefusedError(msg, hint="kernels that are asked for ask for no others: there is one round")


def shown(path: Path, top: str) -> str:
    """A tuning file as messages and manifests name it: from the top."""
    return os.path.relpath(path, top)

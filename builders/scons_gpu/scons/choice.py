"""The choice as a node: candidates become units of the batch, and of what they come to the plan is made that the image is linked from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import UsageError, from_json
from scons_gpu.scons import _internals
from scons_gpu.scons.images import Linking, read_plan
from scons_gpu.scons.later import later
from scons_gpu.scons.modules import helper_folder, name_below_top
from scons_gpu.scons.settings import ASSEMBLING
from scons_gpu.scons.steps import Outcome, options_text, read_index, write_plan
from scons_gpu.store import sealed
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain import versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import scons_gpu.plan as plans
    from scons_gpu.errors import GpuError
    from scons_gpu.link import elf, image, limits, twins
    from scons_gpu.plan import Plan, PlannedCandidate, PlannedProblem
    from scons_gpu.scons.candidates import Candidate
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.program import Chain
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.scons.sources import SplitJob
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.tune import choose as choices
    from scons_gpu.tune import model
    from scons_gpu.tune import tuning as tunings
    from scons_gpu.tune.model import Decision, Problem, Result
    from scons_gpu.tune.tuning import Tuning
else:
    plans, elf, image = later("scons_gpu.plan"), later("scons_gpu.link.elf"), later("scons_gpu.link.image")
    limits, twins = later("scons_gpu.link.limits"), later("scons_gpu.link.twins")
    choices, model, tunings = later("scons_gpu.tune.choose"), later("scons_gpu.tune.model"), later("scons_gpu.tune.tuning")

__all__ = ["ChoiceJob", "Helper", "declare_choice", "problem_of", "signature", "tuned", "variants"]

_image = _internals.builder(_internals.Image)

INSTRUCTION_BYTES = 16
"""Of machine code, on every architecture from sm_70 on."""


def variants(chain: Chain, target: Target) -> list[tuple[Any, SplitJob]]:
    """The indexes of sources that candidates have of their own."""
    base = {source.file("", "") for source in chain.module.sources}
    sources = {one.source.file("", ""): one.source for one in _candidates(chain) if one.source.file("", "") not in base}
    return [chain.index(source, target, may_fail=True) for source in sources.values()]


def signature(chain: Chain, target: Target) -> dict[str, Any]:
    """What shapes the plan of a module with candidates, besides what shapes any plan."""
    options = [[vars(chain.lower_options(target, one.settings)), vars(one.settings.assemble)] for one in _candidates(chain)]
    return {"candidates": [each.signature() for each in chain.module.candidates], "candidate_options": options}


def tuned(chain: Chain, target: Target) -> list[plans.Tuned]:
    """The candidates, once their indexes are there."""
    return [
        plans.Tuned(
            pattern=each.pattern,
            source=each.source.name,
            variants=tuple(_variant(chain, target, candidate) for candidate in each.candidates),
            keys=each.keys,
        )
        for each in chain.module.candidates
    ]


def _variant(chain: Chain, target: Target, candidate: Candidate) -> plans.Variant:
    options, assemble = chain.lower_options(target, candidate.settings), candidate.settings.assemble
    return plans.Variant(
        values=candidate.values,
        label=model.label(model.pairs(candidate.values)),
        index=read_index(chain.folder / candidate.source.file(target.name, "index.json")),
        key=chain.key(target, options),
        needs=candidate.needs,
        launch=candidate.launch,
        ir=chain.text(candidate.source, target).name,
        lower=None if options == chain.lower_options(target) else vars(options),
        assemble=None if assemble == chain.settings.assemble else vars(assemble),
    )


def _candidates(chain: Chain) -> list[Candidate]:
    return [candidate for each in chain.module.candidates for candidate in each.candidates]


def declare_choice(  # noqa: PLR0913 - what a choice is made of
    chain: Chain, target: Target, path: Path, *, undecided: Any, plan: Path, recipe: Recipe, ptx: bool
) -> tuple[Any, Recipe]:
    """The node that makes the plan at `path` of the undecided one, and how its units are made: some are helpers'."""
    helpers = [(module, *_for_owner(chain, module).plan(target, ptx=ptx)) for module in chain.module.helpers]
    recipe = dataclasses.replace(recipe, splits=[*recipe.splits, *(split for *_, made in helpers for split in made.splits)])
    if chain.settings.link == "whole" and not ptx:
        _check_one_piece(chain, recipe, {module.name: made for module, _, _, made in helpers})
    tuning = [(name_below_top(node, chain.env), Path(node.rfile().get_abspath())) for node in chain.settings.tuning]
    assembler = chain.assembler
    tools = {"llvm": chain.tools.llvm.partition(" ")[0], **({versions.family(assembler): assembler.version} if assembler else {})}
    job = ChoiceJob(
        **chain.common(target, chain.module.name, path),
        signature=options_text(
            link=chain.link_signature(recipe),
            tuning=[name for name, _ in tuning],
            seconds=chain.settings.candidate_seconds,
            helpers=[[module.name, chain.link_signature(made)] for module, _, _, made in helpers],
        ),
        recipe=recipe,
        measured=recipe.measured,
        plan=plan,
        tuning=tuning,
        helpers=[Helper(recipe=made, plan=file) for _, _, file, made in helpers],
        tools={name: version for name, version in tools.items() if version},
    )
    node = _image(chain.env, path, [undecided, *(node for _, node, _, _ in helpers), *chain.settings.tuning], job)
    chain.workspace.choices[str(chain.folder.parent)].append((job, undecided))
    return node, recipe


def _check_one_piece(chain: Chain, recipe: Recipe, helpers: Mapping[str, Recipe]) -> None:
    """A module that is assembled in one piece has one set of options. Raises UsageError for a candidate or a helper with others."""
    asked = [(f"candidates of {each.pattern}", one.settings.assemble) for each in chain.module.candidates for one in each.candidates]
    asked += [(f"helper {name}", made.options) for name, made in helpers.items()]
    for who, options in asked:
        differing = [variable for name, variable in ASSEMBLING.items() if getattr(options, name) != getattr(recipe.options, name)]
        if differing:
            msg = f"module {chain.module.name}: {who}: {differing[0]} cannot be another one than the module's with GPU_LINK=whole"
            hint = (
                "what is assembled in one piece has one set of options: take launch bounds, which are the kernel's own, or GPU_LINK=image"
            )
            raise UsageError(msg, hint=hint)


def _for_owner(chain: Chain, module: Module) -> Chain:
    """The way of a module of helper kernels to a plan, for images of its owner's kind. The owner's tools make them: its PTX must fit those.

    Raises UsageError for a helper that wants others: what lowers is in its digests, and would be another one than lowers.
    """
    own, owner = module.settings, chain.settings
    if own.cuda_path != owner.cuda_path:
        msg = f"module {chain.module.name}: helper {module.name}: GPU_CUDA_PATH cannot be another one than the module's"
        raise UsageError(msg, hint="the kernels of a helper go into the module's image, and are compiled with its tools")
    return dataclasses.replace(
        chain,
        module=dataclasses.replace(module, settings=dataclasses.replace(own, link=owner.link, provider=owner.provider)),
        folder=chain.folder.with_name(helper_folder(chain.module, module)),
        tools=chain.session.toolchain(own, chain.workspace.facts),
    )


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
        folder = self.plan.parent
        ir = [f"{folder.parent.name}/{folder.name}/{split.ir.name}" for split in self.recipe.splits]
        origin = {"ir": ir, "options": _options(vars(self.recipe.lower), vars(self.recipe.options))}
        parts = []
        for part in plan.parts:
            kernels = tuple(dataclasses.replace(kernel, origin=origin) for kernel in part.kernels)
            parts.append(dataclasses.replace(part, lower=lower, assemble=options, kernels=kernels))
        return dataclasses.replace(plan, parts=tuple(parts))


@dataclass(kw_only=True)
class ChoiceJob(Linking):
    """Candidates become the plan of one module for one architecture."""

    stage: ClassVar[str] = "choose"
    published: ClassVar[bool] = False
    recipe: Recipe
    """How units are made for the image."""
    measured: Recipe
    """How candidates are made to be measured."""
    plan: Path
    tuning: Sequence[tuple[str, Path]]
    """Files that decide, by the names that the user gave them."""
    helpers: Sequence[Helper]
    tools: Mapping[str, str]
    copy: str = field(default="", init=False)

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
        plan, tuning = read_plan(self.plan), self.read_tuning()
        # Those without candidates too: they are of the same batch, and the image will ask for them anyway.
        nodes = [node for part in plan.parts if part.role != "table" for node in self.recipe.missing(part)]
        for problem in plan.problems:
            known = choices.known(problem_of(problem, self.arch), tuning, candidates=_compiled(problem))
            for number, candidate in enumerate(problem.candidates):
                if candidate.part is not None and (known is None or model.pairs(candidate.values) == known.values):
                    nodes += self.measured.candidate(candidate.part, limited=number > 0)
        return list(dict.fromkeys(nodes))

    def read_tuning(self) -> list[Tuning]:
        """The files that decide."""
        return [tunings.read(path, name=name) for name, path in self.tuning]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Decides each problem and writes the plan without them."""
        self.raise_kept()
        plan, tuning = read_plan(self.plan), self.read_tuning()
        chosen: dict[str, tuple[PlannedCandidate, dict[str, Any], dict[str, Any]]] = {}
        said: list[str] = []
        results: dict[str, list[Result]] = {}
        for problem in plan.problems:
            decision, found, first = self.decide(problem, tuning)
            candidate = next(each for each in problem.candidates if model.pairs(each.values) == decision.values)
            chosen[problem.kernel.symbol] = (candidate, _told(decision, found), self.origin(candidate))
            results[problem.kernel.symbol] = found
            if first:
                said += _sentences(problem, decision, found)
        helpers = [helper.parts(self.recipe) for helper in self.helpers]
        made = plans.decided(plan, chosen, helpers)
        write_atomic(self.sidecar, self.kept(plan, results))
        self.copy = write_plan(self, made)
        return Outcome(output="\n".join(said))

    def record(self) -> dict[str, Any]:
        """With the plan's copy."""
        return {"plan": self.copy}

    @property
    def sidecar(self) -> Path:
        """What every candidate came to, and which objects that took: for `gc`, and for who looks."""
        return self.target.with_name(f"{self.arch}.choice.json")

    def sidecars(self) -> Sequence[Path]:
        """The results."""
        return (self.sidecar,)

    def kept(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> str:
        """The sidecar's text."""
        problems, names = {}, set()
        for problem in plan.problems:
            each = list(zip(problem.candidates, results[problem.kernel.symbol], strict=True))
            problems[problem.kernel.symbol] = [{**vars(result), "values": dict(result.values)} for _, result in each]
            for candidate, _ in each:
                if candidate.part is not None:
                    names |= {candidate.part.slice, candidate.part.digest, self.measured.result_path(candidate.part).name}
                    names |= {name for joined in candidate.part.joins for name in joined.slices}
        return sealed.to_text({"names": sorted(names), "problems": problems})

    def origin(self, candidate: PlannedCandidate) -> dict[str, Any]:
        """IR and options of a candidate, as `compare` builds it undivided."""
        part = candidate.part
        joined = [each.source for each in part.joins if not each.own] if part is not None else []
        others = [next(split.ir.name for split in self.recipe.splits if split.source.name == source) for source in sorted(joined)]
        ir = [f"{self.target.parent.parent.name}/{self.target.parent.name}/{name}" for name in (candidate.ir, *others)]
        return {"ir": ir, "options": _options(part.lower, part.assemble) if part is not None else {}}

    def decide(self, planned: PlannedProblem, tuning: Sequence[Tuning]) -> tuple[Decision, list[Result], bool]:
        """One problem, and whether it was decided now: the same one with the same candidates is decided once in a build."""
        problem = problem_of(planned, self.arch)
        if (first_part := planned.candidates[0].part) is not None:
            self.measured.unlimited(first_part)
        results = [self.result(planned, candidate) for candidate in planned.candidates]
        known = choices.known(problem, tuning, candidates=_compiled(planned))
        if known is not None and any(result.failure for result in results if result.values == known.values):
            self.compile_all(planned)
            results = [self.result(planned, candidate) for candidate in planned.candidates]
        asked = (problem, tuple(results), tuple(self.tuning), tuple(sorted(self.tools.items())))
        with self.workspace.session.lock:
            first = asked not in self.workspace.decisions
            if first:
                self.workspace.decisions[asked] = choices.choose(problem, results, tuning, tools=self.tools)
            return self.workspace.decisions[asked], results, first

    def result(self, planned: PlannedProblem, candidate: PlannedCandidate) -> Result:
        """What a candidate came to; without figures where it was not compiled, because a tuning file decides."""
        values = model.pairs(candidate.values)
        failure = from_json(candidate.failure) if candidate.failure else None
        if candidate.part is None or failure is not None:
            return model.Result(values=values, failure=_reason(failure) if failure else "there is nothing to compile")
        if (failure := self.measured.failure(candidate.part)) is not None:
            return model.Result(values=values, failure=_reason(failure))
        launched = _launched(candidate)
        entry = self.workspace.store.load(self.measured.result_path(candidate.part))
        if entry is None or self.measured.kind == "ptx":  # what its assembler will say, nobody knows, but what no GPU takes
            refused = limits.unit_refusal(candidate.part, entry.data.decode()) if entry else None
            return model.Result(values=values, failure=refused.what) if refused else model.Result(values=values, **launched)
        symbol = twins.ANONYMOUS if self.measured.twin(candidate.part) else planned.kernel.symbol
        # A relocatable object may ask for more than a kernel can have: the link would refuse it.
        if wrong := image.too_much_shared(max((used.shared_bytes or 0 for used in entry.record.resources), default=0)):
            return model.Result(values=values, failure=wrong)
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
        """What a tuning file chose does not compile here: then the others are compiled after all."""
        with self.workspace.late:  # another module may have the same problem
            for number, candidate in enumerate(planned.candidates):
                if candidate.part is not None and not self.workspace.store.check(self.measured.result_path(candidate.part)):
                    known = set(self.workspace.units)
                    self.measured.make_now(self.measured.candidate(candidate.part, limited=number > 0), known=known)


def problem_of(planned: PlannedProblem, arch: str) -> Problem:
    """A plan's problem as tuning files and dumps know it."""
    return model.Problem(kernel=planned.kernel.readable, arch=arch, keys=model.pairs(planned.keys))


def _compiled(planned: PlannedProblem) -> list[Any]:
    """The values of candidates that have a unit."""
    return [model.pairs(candidate.values) for candidate in planned.candidates if candidate.part is not None]


def _reason(error: GpuError) -> str:
    """What failed, without the kernel and module that whoever shows it names."""
    lines = [error.what, *(f"    {line}" for line in error.output.rstrip().splitlines()), *([f"  {error.hint}"] if error.hint else [])]
    return "\n".join(lines)


def _launched(candidate: PlannedCandidate) -> dict[str, Any]:
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


def _told(decision: Decision, results: Sequence[Result]) -> dict[str, Any]:
    """What the manifest says of a decision."""
    failed = sum(bool(result.failure) for result in results)
    told = {"by": decision.by, "candidate": decision.label, "why": decision.why, "of": len(results), "failed": failed}
    return {**told, **({"file": decision.file} if decision.file else {})}


def _options(lower: Mapping[str, Any] | None, assemble: Mapping[str, Any] | None) -> dict[str, Any]:
    """By the names that the manifest's `options` have."""
    found = {name: value for name, value in (lower or {}).items() if name != "ptx"}
    if assemble:
        found |= {"maxrregcount": assemble["maxrregcount"], "ptxas_flags": list(assemble["flags"])}
    return found

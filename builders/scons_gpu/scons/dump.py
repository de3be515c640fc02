"""`scons gpu-dump`: every candidate of a program as an image of its own, to be measured on a machine with a GPU."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import GpuError
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.choice import problem_of
from scons_gpu.scons.images import Linking, read_plan
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.link import image, ptx, twins, whole
    from scons_gpu.plan import Part, Plan, PlannedCandidate, PlannedProblem
    from scons_gpu.scons.choice import ChoiceJob
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.scons.session import Workspace
    from scons_gpu.tune import dump, launch
    from scons_gpu.tune.dump import DumpedCandidate, DumpedProblem
else:
    plans, image, ptx = later("scons_gpu.plan"), later("scons_gpu.link.image"), later("scons_gpu.link.ptx")
    twins, dump = later("scons_gpu.link.twins"), later("scons_gpu.tune.dump")
    launch, whole = later("scons_gpu.tune.launch"), later("scons_gpu.link.whole")

__all__ = ["DumpJob", "declare_dump"]

_image = _internals.builder(_internals.Image)


def declare_dump(env: Any, workspace: Workspace, *, base: Path) -> None:
    """The program's dump, where somebody wants one: it holds all candidates, those that a tuning file makes needless too."""
    choices, path = workspace.choices.get(str(base), []), base.with_name(f"{base.name}.gpudump")
    if not choices:
        workspace.session.warn(f"{base.name}: no kernel of the program has candidates, so there is nothing to dump")
        env.Alias("gpu-dump", [])
        return
    left = asked.cleaning() and path.exists()  # by a build that was asked for it
    if not (left or asked.wanted(env.fs, "gpu-dump", str(path))):
        return
    jobs = [job for job, _ in choices]
    job = DumpJob(
        workspace=workspace,
        name=os.path.relpath(path, env.fs.Top.get_abspath()),
        target=path,
        place=workspace.session.place(str(path)),
        signature=options_text(tool=identity(), choices=[job.signature for job in jobs], archs=[job.arch for job in jobs]),
        choices=jobs,
    )
    node = _image(env, path, [node for _, node in choices], job)
    env.Alias("gpu-dump", node)
    if left:
        env.Clean(str(base.with_name(f"{base.name}.json")), node)


@dataclass(kw_only=True)
class DumpJob(Linking):
    """All candidates of a program become one archive."""

    stage: ClassVar[str] = "dump"
    published: ClassVar[bool] = False
    choices: Sequence[ChoiceJob]

    def decided(self) -> Sequence[tuple[Recipe, Path]]:
        """What is to be decided, of each module and architecture."""
        return [(choice.recipe, choice.plan) for choice in self.choices]

    def makes_nothing(self) -> bool:
        """There is always an archive."""
        return False

    def command(self) -> list[str]:
        """Only a build knows all candidates of a program."""
        return ["scons", str(self.target)]

    def units(self) -> list[Any]:
        """The nodes of all candidates that the store lacks, with the state and tables that they use."""
        nodes: list[Any] = []
        for recipe, path in self.decided():
            plan = read_plan(path)
            for problem in plan.problems:
                for number, candidate in enumerate(problem.candidates):
                    if candidate.part is not None:
                        # The image is made of what a link takes; what measures it, the choice wants.
                        for made in (recipe, recipe.measured):
                            nodes += made.candidate(candidate.part, limited=number > 0)
                        nodes += [node for part in plans.reached(candidate.part, plan) for node in recipe.missing(part)]
        return list(dict.fromkeys(nodes))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Links each candidate alone, and writes the archive."""
        self.raise_kept()
        problems = [
            self.problem(choice, plan, problem) for choice in self.choices for plan in [read_plan(choice.plan)] for problem in plan.problems
        ]
        tools = {name: version for choice in self.choices for name, version in choice.tools.items()}
        write_atomic(self.target, dump.write_dump(problems, tools=tools))
        return Outcome()

    def problem(self, choice: ChoiceJob, plan: Plan, planned: PlannedProblem) -> DumpedProblem:
        """One problem with all its candidates."""
        problem = problem_of(planned, choice.arch)
        candidates = tuple(self.candidate(choice, plan, planned, candidate) for candidate in planned.candidates)
        return dump.DumpedProblem(problem=problem, entry=planned.kernel.symbol, launch=None, candidates=candidates)

    def candidate(self, choice: ChoiceJob, plan: Plan, planned: PlannedProblem, candidate: PlannedCandidate) -> DumpedCandidate:
        """One candidate, linked alone. What the link refuses is its failure."""
        result, data = choice.result(planned, candidate), None
        if candidate.part is not None and not result.failure:
            try:
                data = self.image(choice.recipe, plan, candidate.part)
            except GpuError as error:
                result = dataclasses.replace(result, failure=str(error))
        recipe, entry = choice.recipe, planned.kernel.symbol
        if candidate.part is not None and recipe.twin(candidate.part):
            entry = twins.ANONYMOUS
        how = launch.read_launch(candidate.launch) if candidate.launch is not None else None
        return dump.DumpedCandidate(result=result, image=data, entry=entry, launch=how)

    def image(self, recipe: Recipe, plan: Plan, part: Part) -> bytes:
        """The candidate's kernel with the state and tables that it uses, as a loader takes it."""
        parts = (part, *plans.reached(part, plan))
        alone = dataclasses.replace(plan, parts=parts, problems=(), state=tuple(each for each in plan.state if each.symbol in part.uses))
        entries = {}
        for each in parts:
            entry = recipe.ptx_entry(each) if recipe.kind == "merge" else self.workspace.store.load(recipe.result_path(each))
            if entry is None:
                raise self.lost(recipe, each)
            entries[each.digest] = entry
        if recipe.kind in {"ptx", "merge"}:
            if recipe.provider is None:
                text = ptx.merge_ptx([whole.ptx_part(each, entries[each.digest].data) for each in parts], target=recipe.target)
                return text.encode()
            made = whole.assemble_whole(alone, entries, provider=recipe.assembler(), options=recipe.assemble_options(part))
            return made.data if made else b""
        if recipe.kind == "whole":
            return entries[part.digest].data
        linked = image.link_image(alone, entries, provider=recipe.assembler(), options=recipe.assemble_options(part))
        return linked.data if linked else b""

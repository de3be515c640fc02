"""Which candidate a problem takes: a pure function of what was compiled and of what tuning files know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import AllFailedError, UsageError
from scons_gpu.toolchain.arch import Target
from scons_gpu.tune import occupancy
from scons_gpu.tune.model import Decision, spelled
from scons_gpu.tune.solution import refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from fractions import Fraction

    from scons_gpu.tune.model import Pairs, Problem, Result
    from scons_gpu.tune.solution import Solution
    from scons_gpu.tune.tuning import Tuning

__all__ = ["choose", "known"]


def choose(problem: Problem, results: Sequence[Result], tuning: Sequence[Tuning], *, tools: Mapping[str, str]) -> Decision:
    """The candidate to take, from `results` in the order in which the candidates were declared.

    The first tuning file that has a solution which counts decides. It counts for the architecture that it was measured as, if the
    device that is named runs its code, and if its candidate is there and could be compiled; with other tools than `tools` it counts,
    and the decision says so. For want of one: the only candidate that could be compiled; else by spilled bytes, occupancy and
    instructions, in this order, then the one declared first. What is not known of a candidate is worse than anything known.

    Raises AllFailedError, which says why for each, where no candidate could be compiled; UsageError where there is none.
    """
    if not results:
        msg = f"{problem.text()} has no candidates"
        raise UsageError(msg, hint='name what it is to be compiled with, as in candidates={"gemm": [{"TILE": 64}, {"TILE": 128}]}')
    whole = [one for one in results if not one.failure]
    if not whole:
        raise _all_failed(problem, results)
    failed = {one.values for one in results if one.failure} - {one.values for one in whole}
    notes: list[str] = []
    for file in tuning:
        solution = file.find(problem)
        if solution is None:
            continue
        why = _passed_over(solution, candidates={one.values for one in results}, failed=failed)
        if not why:
            return Decision(by="tuning", values=solution.values, why=_sentence(_measured(solution, tools), notes), file=file.file)
        notes.append(f"{solution.label}, which was measured, is passed over: {why}")
    if not notes:
        notes += _elsewhere(problem, tuning)
    return _without_tuning(problem, results, whole, notes)


def known(problem: Problem, tuning: Sequence[Tuning], *, candidates: Collection[Pairs] | None = None) -> Solution | None:
    """The solution that `choose` would take, before anything is compiled; of those that are among `candidates`, where these are given.

    Whoever compiles it alone must compile the others too if it fails.
    """
    found = [one for file in tuning if (one := file.find(problem))]
    return next((one for one in found if not _passed_over(one, candidates=candidates, failed=())), None)


def _passed_over(solution: Solution, *, candidates: Collection[Pairs] | None, failed: Collection[Pairs]) -> str:
    """Why a solution of this very problem is not taken; empty where it is."""
    if candidates is not None and solution.values not in candidates:
        return "it is no candidate any more"
    return "it cannot be compiled" if solution.values in failed else refusal(solution)


def _measured(solution: Solution, tools: Mapping[str, str]) -> str:
    said = f"measured on {solution.device.name or 'a GPU'} ({solution.device.capability}), the fastest of {solution.candidates}"
    differ = [
        f"{name} {version}, here {tools[name] or 'of no known version'}"
        for name, version in solution.tools
        if name in tools and tools[name] != version
    ]
    return said + (f", with other tools: {'; '.join(differ)}" if differ else "")


def _elsewhere(problem: Problem, tuning: Sequence[Tuning]) -> list[str]:
    """Whoever measured on another GPU may wonder why it does not count."""
    archs = {
        one.problem.arch
        for file in tuning
        for one in file.solutions
        if (one.problem.kernel, one.problem.keys) == (problem.kernel, problem.keys)
    }
    by_number = sorted(archs, key=lambda arch: (Target(name=arch, real=True).number, arch))
    return [f"it was measured as {', '.join(by_number)} only"] if archs else []


def _without_tuning(problem: Problem, results: Sequence[Result], whole: Sequence[Result], notes: list[str]) -> Decision:
    different = list({one.values: one for one in reversed(whole)})[::-1]
    if len(different) == 1:
        total = len({one.values for one in results})
        said = "the only candidate" if total == 1 else f"the only one of {total} candidates that can be compiled"
        return Decision(by="only", values=different[0], why=_sentence(said, notes))
    ranked = sorted((_Rank.of(problem.arch, one) for one in whole), key=_Rank.key)
    first = ranked[0]
    second = next(one for one in ranked if one.result.values != first.result.values)
    return Decision(by="resources", values=first.result.values, why=_sentence(first.against(second), notes))


@dataclass(frozen=True)
class _Rank:
    """A candidate and what it is ranked by."""

    result: Result
    spills: int | None
    filled: Fraction | None
    instructions: int | None
    sm: occupancy.Limits
    borrowed: bool
    """Whether the limits are those of another architecture."""

    @classmethod
    def of(cls, arch: str, result: Result) -> _Rank:
        sm = occupancy.limits(arch)
        borrowed = sm.number != Target(name=arch, real=True).number
        return cls(result, result.spill_bytes, _filled(arch, result), result.instructions, sm, borrowed)

    def key(self) -> tuple[tuple[bool, int | Fraction], ...]:
        """Sorted by this the best is first; Python's sort keeps the order of declaration among equals."""
        fuller = None if self.filled is None else -self.filled
        return tuple((value is None, 0 if value is None else value) for value in (self.spills, fuller, self.instructions))

    def against(self, other: _Rank) -> str:
        """What decided between this one and the next best."""
        beside = f"and {other.result.label}, the next best,"
        if self.spills != other.spills:
            return f"it spills {_said(self.spills)} bytes, {beside} {_said(other.spills)}"
        if self.filled != other.filled:
            limits = f" by the limits of {self.sm.number / 10:.1f}" if self.borrowed else ""
            return f"it fills {self._warps()} of {self.sm.warps} warps{limits}, {beside} {other._warps()}"
        if self.instructions != other.instructions:
            return f"it has {_said(self.instructions)} instructions, {beside} {_said(other.instructions)}"
        return f"{other.result.label}, declared later, is its equal in spills, occupancy and instructions"

    def _warps(self) -> str:
        return _said(None if self.filled is None else int(self.filled * self.sm.warps))


def _filled(arch: str, result: Result) -> Fraction | None:
    """By the block that launches it, else by the largest that launch bounds allow, else by the size that suits it best."""
    if result.registers is None or result.shared_bytes is None:
        return None
    shared = result.shared_bytes + result.dynamic_bytes
    threads = result.block_threads or result.max_threads
    return occupancy.occupancy(arch, result.registers, shared, threads) if threads else occupancy.best(arch, result.registers, shared)


def _said(value: int | None) -> str:
    return "an unknown number" if value is None else str(value)


def _sentence(said: str, notes: Sequence[str]) -> str:
    return "; ".join([said, *dict.fromkeys(notes)])


def _all_failed(problem: Problem, results: Sequence[Result]) -> AllFailedError:
    count = len(results)
    said = "its only candidate cannot be compiled" if count == 1 else f"none of its {count} candidates can be compiled"
    lines = []
    for one in results:
        first, *rest = one.failure.rstrip().splitlines() or [""]
        lines += [f"{one.label}: {first}", *(f"    {line}" for line in rest)]
    hint = f"mend one of them, or add one that can be compiled for {problem.arch}"
    msg = f"{said} ({spelled(problem.keys)})" if problem.keys else said
    return AllFailedError(msg, kernel=problem.kernel, arch=problem.arch, output="\n".join(lines), hint=hint)

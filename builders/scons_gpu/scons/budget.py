"""`env.GpuBudget`: a program is held against a budget as a step of the build, which fails where a kernel takes more than it may."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import UsageError
from scons_gpu.scons import _internals
from scons_gpu.scons.embed import program_nodes
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from scons_gpu.inspect import budgets, figures
    from scons_gpu.scons.session import Session
else:
    budgets, figures = later("scons_gpu.inspect.budgets"), later("scons_gpu.inspect.figures")

__all__ = ["declare_budget"]

_artefact = _internals.builder(_internals.Artefact)


@dataclass(kw_only=True)
class BudgetJob(Step):
    """A program's kernels are held against their limits."""

    stage: ClassVar[str] = "budget"
    manifest: Path
    budget: Path
    spelled: str
    """The budget's path as the user sees it."""

    def command(self) -> list[str]:
        """By hand."""
        return ["scons-gpu", "budget", "check", str(self.budget), str(self.manifest)]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """The file says what was checked: equal programs have equal files."""
        limits = budgets.read(self.budget.read_text(encoding="utf-8"), path=self.spelled)
        checked = budgets.check(limits, figures.of_manifest(self.manifest))
        if (refused := budgets.refusal(checked, budget=self.spelled)) is not None:
            raise refused
        write_atomic(self.target, checked.sentence() + "\n")
        return Outcome()


def declare_budget(env: Any, session: Session, target: Any, program: Any, budget: Any) -> list[Any]:
    """The step's node. Raises UsageError for what is no program, and for several budgets."""
    manifest, made = program_nodes(env, program, asked=f"GpuBudget({target})")
    found = env.arg2nodes(env.Flatten([budget]), env.fs.File)
    if len(found) != 1:
        msg = f"GpuBudget({target}): {len(found)} budgets"
        raise UsageError(msg, hint="one file holds the limits of all kernels")
    path = Path(env.File(target).get_abspath())
    top = env.fs.Top.get_abspath()
    job = BudgetJob(
        workspace=manifest.attributes.gpu.workspace,
        name=os.path.relpath(path, top),
        target=path,
        place=session.place(str(path)),
        signature=options_text(tool=identity()),
        manifest=manifest.attributes.gpu.target,
        budget=Path(found[0].rfile().get_abspath()),
        spelled=os.path.relpath(found[0].rfile().get_abspath(), top),
    )
    return [_artefact(env, path, [manifest, *made, found[0]], job)]

"""The page that shows a build, as a node: made anew whenever its programs' manifests are others.

It tells of the build that makes it, times and all, so it is no part of what a program ships, and two builds of one tree have two of
them. What it depends on are the manifests: a build with nothing to do leaves it alone, and it then still tells of the build that made it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import UsageError
from scons_gpu.scons import _internals
from scons_gpu.scons.embed import manifests_among
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.inspect.report import libraries, make
    from scons_gpu.scons.session import Session
else:
    libraries, make = later("scons_gpu.inspect.report.libraries"), later("scons_gpu.inspect.report.make")

__all__ = ["declare_report"]

_artefact = _internals.builder(_internals.Artefact)


@dataclass(kw_only=True)
class ReportJob(Step):
    """The page."""

    stage: ClassVar[str] = "report"
    manifests: Sequence[Path]

    def command(self) -> list[str]:
        """By hand; then of the build before."""
        return self.gpu("report", *map(str, self.manifests))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """From the log as it is by now, and what its end would say."""
        running = self.workspace.ending()
        page = make.make(self.workspace.store.root, build=running["build"], manifests=self.manifests, running=running)
        write_atomic(self.target, page)
        return Outcome()


def declare_report(env: Any, session: Session, target: Any, programs: Any) -> list[Any]:
    """The page's node. Raises UsageError for what is no program, ToolMissingError where the page's libraries are not installed."""
    nodes, found = manifests_among(env, programs)
    if not found:
        msg = f"GpuReport({target}): {', '.join(map(str, nodes)) or 'nothing'} is no program"
        raise UsageError(msg, hint="give it what env.GpuProgram gives, or the name of a program's manifest")
    jobs = [node.attributes.gpu for node in found]
    if any(job.workspace is not jobs[0].workspace for job in jobs):
        msg = f"GpuReport({target}): {', '.join(map(str, found))} have different stores"
        raise UsageError(msg, hint="make a report for the programs of each GPU_STORE")
    path = Path(env.File(target).get_abspath())
    job = ReportJob(
        workspace=jobs[0].workspace,
        name=os.path.relpath(path, env.fs.Top.get_abspath()),
        target=path,
        place=session.place(str(path)),
        signature=options_text(libraries=libraries.versions(), tool=identity()),
        manifests=[job.target for job in jobs],
    )
    return [_artefact(env, path, found, job)]

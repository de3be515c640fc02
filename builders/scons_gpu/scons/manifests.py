"""A manifest becomes a node: of a program, and of the device's half of an ordinary program's `.cu`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from scons_gpu.scons import _internals
from scons_gpu.scons.packing import ManifestJob, ModuleNode
from scons_gpu.scons.steps import options_text
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.scons.session import Workspace
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["declare_manifest"]

_artefact = _internals.builder(_internals.Artefact)


def declare_manifest(env: Any, workspace: Workspace, base: Path, modules: Sequence[ModuleNode], *, tools: Toolchain) -> Any:
    """The node of `<base>.json`. `modules`: all of the program's, root last."""
    path = base.with_name(f"{base.name}.json")
    job = ManifestJob(
        workspace=workspace,
        name=os.path.relpath(path, env.fs.Top.get_abspath()),
        target=path,
        place=workspace.session.place(str(base)),
        program=base.name,
        modules=tuple(modules),
        tools=tools,
    )
    job.signature = _signature(modules, job)
    nodes = [entry for entry in modules if entry.node is not None]
    # The plans too: they may change, and the manifest with them, where no image does.
    decided = [plan for entry in nodes for _, plan, _ in entry.plans]
    return _artefact(env, path, [*(entry.node for entry in nodes), *decided], job)


def _signature(built: Sequence[ModuleNode], job: ManifestJob) -> str:
    modules = [entry.module for entry in built]
    tree = [[module.name, module.bypass, sorted(module.submodule_names)] for module in modules]
    tools = {name: " ".join(fact) for name, fact in job.tools_used().items()}
    return options_text(
        modules=sorted(tree),
        sources={module.name: [[source.stem, source.variant] for source in module.sources] for module in modules},
        options={entry.module.name: entry.options() for entry in built},
        tools=tools,
        tool=identity(),
    )

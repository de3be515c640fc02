"""Images that are merged: what links them, and which modules of `GPU_LINK=auto` they are for."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.key import object_key
from scons_gpu.errors import LinkError, ToolStoppedError, UsageError
from scons_gpu.scons import sidecar
from scons_gpu.scons.images import OnePlan
from scons_gpu.scons.later import later
from scons_gpu.scons.providers import choice_for
from scons_gpu.scons.settings import ASSEMBLING
from scons_gpu.scons.steps import Outcome
from scons_gpu.split import digest
from scons_gpu.store import record as records
from scons_gpu.workers.isolated import isolated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.link import merged, proven, unknown, whole
    from scons_gpu.plan import Plan
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.scons.session import Workspace
    from scons_gpu.store.record import Entry, Resources
    from scons_gpu.toolchain.tools import Toolchain
else:
    merged, proven, whole = later("scons_gpu.link.merged"), later("scons_gpu.link.proven"), later("scons_gpu.link.whole")
    unknown = later("scons_gpu.link.unknown")

__all__ = ["MergeJob", "settled"]


@dataclass(kw_only=True)
class MergeJob(OnePlan):
    """Whole objects become a cubin."""

    may_fall_back: bool = False
    """Whether the module is assembled in one piece where an object holds what merging does not know."""

    def make(self, plan: Plan, entries: dict[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """One merge, and one assembly of what shares memory, where that changed."""
        told = sidecar.learned(self.sidecar)
        assembler = _Assembler(self.recipe, self.besides)
        try:
            made = merged.link_merged(
                plan,
                entries,
                ptx=self.recipe.ptx_entry,
                assembler=assembler,
                twin=self.recipe.twin,
                understood=told.understood,
                earlier=told.earlier,
            )
        except unknown.UnknownError as error:
            if not self.may_fall_back:
                raise
            return self._in_one_piece(plan, str(error))
        if made is None:
            msg = "there is nothing to merge"
            raise LinkError(msg)
        self.learned = sidecar.Learned(made.understood, made.earlier)
        # An object that was made before anybody knew that its kernel shares memory is in no image.
        shared = {part.digest: entry for part in plan.parts if part.digest in made.together and (entry := self.recipe.ptx_entry(part))}
        self.besides |= {entries[digest].path.name for digest in shared}
        entries |= shared
        together = made.made
        outcome = Outcome(output=made.output, cpu=together.cpu, peak_kib=together.peak_kib) if together else Outcome()
        return outcome, made.data, together.resources if together else ()

    def _in_one_piece(self, plan: Plan, why: str) -> tuple[Outcome, bytes, Sequence[Resources]]:
        ptx = {part.digest: self.recipe.ptx_entry(part) for part in plan.parts}
        made = whole.assemble_whole(plan, ptx, provider=self.recipe.assembler(), options=self.recipe.options)
        if made is None:
            msg = "there is nothing to assemble"
            raise LinkError(msg)
        said = "\n".join(text for text in (f"assembled in one piece: {why}", made.output) if text)
        resources = [each for found in made.resources.values() for each in found]
        return Outcome(output=said, cpu=made.cpu, peak_kib=made.peak_kib), made.data, resources


@dataclass(frozen=True)
class _Assembler:
    """Objects of what shares memory, in the store."""

    recipe: Recipe
    used: set[str]
    """Names of those that were asked for."""

    def kept(self, text: str) -> Any:
        """From the store."""
        name = hashlib.sha256(text.encode()).hexdigest()
        entry = self.object(name)
        return entry and merged.Together(entry.data, name, output=entry.record.output, resources=tuple(entry.record.resources))

    def made(self, text: str) -> Any:
        """From the store too."""
        if (kept := self.kept(text)) is not None:
            return kept
        name, store = hashlib.sha256(text.encode()).hexdigest(), self.recipe.workspace.store
        path, key = self._place(name)
        made = self.recipe.assembler().compile(text, target=self.recipe.target, options=self.recipe.options)
        record = records.make(made.data, key=key, output=made.output, seconds=made.seconds, resources=made.resources)
        store.save(path, made.data, record)
        self.used.add(path.name)
        return merged.Together(made.data, name, output=made.output, resources=made.resources, cpu=made.cpu, peak_kib=made.peak_kib)

    def object(self, name: str) -> Entry | None:
        """That of the PTX of this hash, by this tool with these options."""
        path, _ = self._place(name)
        entry = self.recipe.workspace.store.load(path)
        if entry:
            self.used.add(path.name)
        return entry

    def _place(self, name: str) -> tuple[Path, tuple[tuple[str, str], ...]]:
        recipe = self.recipe
        provider, options = recipe.assembler(), recipe.options
        key = object_key(digest=name, kind="whole", provider=provider, options=options, target=recipe.target)
        return recipe.workspace.store.claim("object", digest.fields(dict(key)), key, suffix=".whole.cubin"), key


def settled(workspace: Workspace, module: Module, tools: Toolchain) -> Module:
    """The module with the link mode that `auto` comes to.

    Raises UsageError for a module that is to be merged, by name, and whose tools or options do not let it, and ToolStoppedError where
    the assembler was ended from outside before that was known.
    """
    wanted = module.settings.link
    if wanted not in {"auto", "merge"}:
        return module
    try:
        why = _several_options(module) or _unmergeable(workspace, module, tools)
    except ToolStoppedError as error:
        error.what = f"{error.what} while GPU_LINK={wanted} found out whether its objects merge"
        raise error.at(module=module.name) from None
    if wanted == "auto":
        why = why or _asked_for_a_link(module) or _several_targets(module)
        if why:
            workspace.unmerged.setdefault(why, []).append(module.name)
        return dataclasses.replace(module, settings=dataclasses.replace(module.settings, link="image" if why else "merge", auto=True))
    if why:
        msg = f"module {module.name}: GPU_LINK=merge: {why}"
        raise UsageError(msg, hint="GPU_LINK=auto merges where it is proven and links elsewhere; GPU_LINK=whole gives the same code")
    return module


def _several_options(module: Module) -> str:
    """Which of a module's kernels are to be assembled in another way than the others; empty where none is."""
    asked = [(f"candidates of {each.pattern}", one.settings) for each in module.candidates for one in each.candidates]
    asked += [(f"helper {helper.name}", helper.settings) for helper in module.helpers]
    for who, own in asked:
        for name, variable in ASSEMBLING.items():
            if getattr(own.assemble, name) != getattr(module.settings.assemble, name):
                return f"{who} have {variable} of their own, and one image of merged objects has one value of it"
    return ""


def _asked_for_a_link(module: Module) -> str:
    """What the user set that is about linking, and means nothing where nothing is linked."""
    own = module.settings
    return f"GPU_PROVIDER={own.provider} names what links" if "+" in own.provider else "GPU_DEFER=always" if own.defer == "always" else ""


def _several_targets(module: Module) -> str:
    """PTX says itself which version and target it is for: whether its objects go together with others shows at the link alone."""
    ptx = next((source.name for source in module.sources if source.stem.endswith(".ptx")), "")
    return f"{ptx} is PTX, beside other sources" if ptx and len(module.sources) > 1 else ""


def _unmergeable(workspace: Workspace, module: Module, tools: Toolchain) -> str:
    settings, facts = module.settings, workspace.facts
    if settings.lineinfo or settings.debug:
        return proven.DEBUG
    choice = choice_for(tools, settings, facts, needs=("compile",))
    if choice is None or choice.making is None:
        return ""  # the module ends with PTX
    provider, tool = isolated(choice.making, workspace.session.run), choice.making.compiler
    for target in settings.archs:
        if target.real and (why := proven.unproven(provider, target, tool=tool.path, facts=facts)):
            return f"{tool.name} {tool.version} for {target.name}: {why}"
    return ""

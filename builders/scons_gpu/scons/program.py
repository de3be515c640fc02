"""A program becomes nodes: for each module and architecture a chain from sources to an image, then fatbins and the manifest."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.choose import choose
from scons_gpu.errors import GpuError, UsageError
from scons_gpu.lower import options as lowering
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.images import BundleJob, ImageJob, ManifestJob, ModuleNode, PackJob, PtxJob
from scons_gpu.scons.later import later
from scons_gpu.scons.modules import reach
from scons_gpu.scons.steps import CudaJob, IrJob, PlanJob, SplitJob, note_looking, options_text
from scons_gpu.scons.units import Recipe
from scons_gpu.split import INDEX_FORMAT
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.choose import Need
    from scons_gpu.assemble.provider import Provider
    from scons_gpu.scons import choice, dump
    from scons_gpu.scons.modules import Module, Source
    from scons_gpu.scons.session import Session, Workspace
    from scons_gpu.scons.settings import Settings
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain
else:
    choice, dump = later("scons_gpu.scons.choice"), later("scons_gpu.scons.dump")

__all__ = ["Chain", "declare_program", "pack_signature"]

_artefact = _internals.builder(_internals.Artefact)
_compiled = _internals.builder(_internals.Compiled)
_image = _internals.builder(_internals.Image)


@dataclass(frozen=True)
class Chain:
    """One module's way from sources to images, within one program."""

    session: Session
    workspace: Workspace
    env: Any
    module: Module
    folder: Path
    tools: Toolchain
    place: int

    @property
    def settings(self) -> Settings:
        """The module's."""
        return self.module.settings

    @property
    def environment(self) -> dict[str, str]:
        """Where the user said the tools are, as a command run by hand is told."""
        return self.settings.environment

    @property
    def form(self) -> str:
        """How units are cut for the link mode."""
        return "closed" if self.settings.link == "bundle" else "apart"

    def lower_options(self, target: Target, settings: Settings | None = None) -> lowering.LowerOptions:
        """How its units become PTX; a candidate's with settings of its own."""
        settings = settings or self.settings
        return lowering.LowerOptions(
            ptx=versions.ptx_version(target, llvm=self.tools.llvm, ptxas=self.tools.ptxas),
            opt=settings.opt,
            ftz=settings.ftz,
            fast_math=settings.fast_math,
            debug=settings.debug,
            lineinfo=settings.lineinfo,
        )

    def key(self, target: Target, options: lowering.LowerOptions) -> Any:
        """The plan's `Key`."""
        libdevice_identity = self.tools.libdevice.identity if self.tools.libdevice else ""

        def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
            return lowering.key(
                slice=slice_name,
                target=target,
                options=options,
                llvm=self.tools.llvm,
                libdevice=libdevice_identity if libdevice else "",
                renames=renames,
            )

        return key

    def common(self, target: Target | None, name: str, path: Path) -> dict[str, Any]:
        """What every step is told."""
        return {
            "workspace": self.workspace,
            "name": name,
            "arch": target.name if target else "",
            "owners": [self.module.name],
            "place": self.place,
            "target": path,
            "environment": self.environment,
        }

    def clang(self, source: Source) -> Tool:
        """What compiles a `.cu`."""
        try:
            for warning in versions.check_clang(self.tools):
                self.session.warn(warning)
            return versions.require(self.tools, "clang")
        except GpuError as error:
            raise error.at(module=self.module.name, source=source.name) from None

    def ir(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, Path]:
        """Source to IR."""
        path = self.folder / source.file(target.name, "ll")
        common = {**self.common(target, source.name, path), "source": source, "targeted": target}
        if not source.name.endswith(".cu"):
            signature = options_text(llvm=self.tools.llvm, arch=target.name, tool=identity())
            return _compiled(self.env, path, [source.node], IrJob(**common, signature=signature)), path
        clang = self.clang(source)
        signature = options_text(
            clang=f"{clang.version} {clang.identity}",
            arch=target.name,
            tool=identity(),
            headers=self.tools.headers_identity,
            **vars(source.options),
        )
        job = CudaJob(
            **common,
            signature=signature,
            clang=clang,
            options=source.options,
            headers=self.tools.headers,
            top=str(self.env.fs.Top.get_abspath()),
            may_fail=may_fail,
        )
        return _compiled(self.env, path, [source.node], job), path

    def index(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, SplitJob]:
        """IR to index."""
        node, ir = self.ir(source, target, may_fail=may_fail)
        path = self.folder / source.file(target.name, "index.json")
        exports = len(self.module.sources) > 1  # with one source, nobody could ask for them
        signature = options_text(
            form=self.form,
            exports=exports,
            format=INDEX_FORMAT,
            llvm=self.tools.llvm,
            tool=identity(),
            bits=os.environ.get("SCONS_GPU_TEST_HASH_BITS", ""),
        )
        job = SplitJob(
            **self.common(target, source.name, path),
            source=source,
            targeted=target,
            signature=signature,
            ir=ir,
            form=self.form,
            exports=exports,
        )
        return _artefact(self.env, path, [node], job), job

    def plan(self, target: Target, *, ptx: bool = False) -> tuple[Any, Path, Recipe]:
        """Indexes to plan, and how its units are made."""
        path = self.folder / f"{target.name}.plan.json"
        known = self.workspace.chains.get(path)
        if known is None:
            known = self.workspace.chains[path] = self._plan(target, path, ptx=ptx)
        return known

    def _plan(self, target: Target, path: Path, *, ptx: bool) -> tuple[Any, Path, Recipe]:
        found = [self.index(source, target) for source in self.module.sources]
        tuned = bool(self.module.candidates)
        variants = choice.variants(self, target) if tuned else []
        options = self.lower_options(target)
        signature = options_text(
            module=self.module.name,
            link=self.settings.link,
            llvm=self.tools.llvm,
            libdevice=self.tools.libdevice.identity if self.tools.libdevice else "",
            tool=identity(),
            **(choice.signature(self, target) if tuned else {}),
            **vars(options),
        )
        planned = path.with_name(f"{target.name}.candidates.json") if tuned else path
        job = PlanJob(
            **self.common(target, self.module.name, planned),
            signature=signature,
            module=self.module.name,
            link=self.settings.link,
            indexes=[split.target for _, split in found],
            lower=options,
            key=self.key(target, options),
            tuned=functools.partial(choice.tuned, self, target) if tuned else tuple,
        )
        node = _artefact(self.env, planned, [node for node, _ in (*found, *variants)], job)
        recipe = self.recipe(target, options, [split for _, split in (*found, *variants)], ptx=ptx)
        if tuned:
            node = choice.declare_choice(self, target, path, undecided=node, plan=planned, recipe=recipe, ptx=ptx)
        return node, path, recipe

    def recipe(self, target: Target, options: lowering.LowerOptions, splits: Sequence[SplitJob], *, ptx: bool) -> Recipe:
        """How the units of one architecture are made."""
        kind = "ptx" if ptx or not target.real else "whole" if self.settings.link == "bundle" else "rel"
        provider = None
        if kind != "ptx":
            needs: tuple[Need, ...] = ("compile",) if kind == "whole" else ("relocatable", "link")
            provider = _provider(self.tools, self.settings.provider, needs, self.workspace.facts)
        return Recipe(
            workspace=self.workspace,
            env=self.env,
            module=self.module.name,
            target=target,
            tools=self.tools,
            lower=options,
            options=self.settings.assemble,
            provider=provider,
            kind=kind,
            share_twins=self.settings.share_twins,
            splits=splits,
            environment=self.environment,
            place=self.place,
            seconds=self.settings.candidate_seconds,
            verify=self.settings.verify_reuse,
        )

    def link_signature(self, recipe: Recipe) -> str:
        """All that shapes an image besides its plan."""
        provider = recipe.provider
        spelled = provider.spelling(target=recipe.target, options=recipe.options, relocatable=recipe.kind == "rel") if provider else ()
        return options_text(
            provider=f"{provider.name} {provider.identity} {provider.link_identity}" if provider else "",
            options=list(spelled),
            fail_on_spill=recipe.options.fail_on_spill,
            kind=recipe.kind,
            share_twins=recipe.share_twins,
            tool=identity(),
        )

    def image(self, target: Target, *, path: Path | None = None, ptx: bool = False) -> tuple[Any, Path, Any, Path]:
        """Plan to image; to PTX for a virtual architecture, or where asked for."""
        ptx = ptx or not target.real
        node, plan, recipe = self.plan(target, ptx=ptx)
        self.workspace.plans.setdefault(str(self.folder.parent), []).append(plan)
        path = path or self.folder / f"{target.name}.{'ptx' if ptx else 'cubin'}"
        kind = PtxJob if ptx else ImageJob
        job = kind(**self.common(target, self.module.name, path), signature=self.link_signature(recipe), recipe=recipe, plan=plan)
        made = _image(self.env, path, [node], job)
        return made, path, node, plan

    def fatbin(self) -> ModuleNode:
        """Images to fatbin."""
        images = [(target, *self.image(target)) for target in self.settings.archs]
        path = self.folder.with_name(f"{self.module.name}.fatbin")
        job = PackJob(
            **self.common(None, self.module.name, path),
            signature=pack_signature(versions.require(self.tools, "fatbinary"), archs=[target.name for target in self.settings.archs]),
            images=[(target, image) for target, _, image, _, _ in images],
            plans=[plan for _, _, _, _, plan in images],
            fatbinary=versions.require(self.tools, "fatbinary"),
        )
        node = _artefact(self.env, path, [node for _, node, _, _, _ in images], job)
        return self.made(node, path, [(target, decided, plan) for target, _, _, decided, plan in images])

    def bundle(self) -> ModuleNode:
        """Plans to bundle."""
        plans = [(target, *self.plan(target)) for target in self.settings.archs]
        self.workspace.plans.setdefault(str(self.folder.parent), []).extend(plan for _, _, plan, _ in plans)
        path = self.folder.with_name(f"{self.module.name}.gpubundle")
        job = BundleJob(
            **self.common(None, self.module.name, path),
            signature="\n".join(self.link_signature(recipe) for _, _, _, recipe in plans),
            recipes=[(recipe, plan) for _, _, plan, recipe in plans],
        )
        node = _image(self.env, path, [node for _, node, _, _ in plans], job)
        return self.made(node, path, [(target, decided, plan) for target, decided, plan, _ in plans])

    def made(self, node: Any, path: Path, plans: Sequence[tuple[Target, Any, Path]]) -> ModuleNode:
        """The module's end of the chain."""
        ptx = tuple((target.name, self.lower_options(target).ptx) for target, _, _ in plans)
        return ModuleNode(module=self.module, node=node, path=path, plans=tuple(plans), ptx=ptx)


@functools.cache
def _provider(tools: Toolchain, wanted: str, needs: tuple[Need, ...], facts: Path) -> Provider:
    """One for all modules, and so one look at what the assembler can do."""
    return choose(tools, wanted=wanted, needs=needs, facts=facts).provider


def pack_signature(fatbinary: Tool, *, archs: Sequence[str]) -> str:
    """All that shapes a fatbin besides its images."""
    return options_text(fatbinary=fatbinary.identity, archs=list(archs), tool=identity())


def declare_program(env: Any, session: Session, stem: str, root: Module) -> list[Any]:
    """The nodes of a program: its manifest, then each module's fatbin or bundle in order of declaration."""
    base = Path(env.File(f"{stem}.json").get_abspath()).with_suffix("")
    modules = reach(env, root, session.declared)
    _check_stores(root, modules)
    workspace = session.workspace(root.settings.store, fallback=base / ".gpu-store")
    if str(base) in workspace.plans:
        msg = f"two programs are called {stem}"
        raise UsageError(msg, hint="give each GpuProgram a name of its own")
    workspace.plans[str(base)] = []
    built = [_module(env, session, workspace, module, base) for module in modules]
    nodes = [entry for entry in built if entry.node is not None]
    manifest = base.with_name(f"{base.name}.json")
    job = ManifestJob(
        workspace=workspace,
        name=os.path.relpath(manifest, env.fs.Top.get_abspath()),
        target=manifest,
        place=session.place(str(base)),
        program=base.name,
        modules=tuple(built),
        tools=session.toolchain(root.settings, workspace.facts),
    )
    job.signature = _manifest_signature(built, job)
    # The plans too: they may change, and the manifest with them, where no image does.
    decided = [plan for entry in nodes for _, plan, _ in entry.plans]
    node = _artefact(env, manifest, [*(entry.node for entry in nodes), *decided], job)
    note_looking(workspace)
    dumps = workspace.choices.get(str(base)) or asked.wanted(env.fs, "gpu-dump")
    return [node, *(entry.node for entry in nodes), *(dump.declare_dump(env, workspace, root=root, base=base) if dumps else ())]


def _check_stores(root: Module, modules: Sequence[Module]) -> None:
    for module in modules:
        if module.settings.store != root.settings.store:
            msg = f"module {module.name} at {module.place} has another GPU_STORE than {root.name} at {root.place}"
            raise UsageError(msg, hint="a program has one store: set it for the environment that all of its modules come from")


def _module(env: Any, session: Session, workspace: Workspace, module: Module, base: Path) -> ModuleNode:
    if module.bypass or not module.sources:
        return ModuleNode(module=module, node=None, path=None, plans=())
    tools = session.toolchain(module.settings, workspace.facts)
    for warning in versions.check(tools, module.settings.archs):
        session.warn(warning)
    chain = Chain(
        session=session,
        workspace=workspace,
        env=env,
        module=module,
        folder=base / module.name,
        tools=tools,
        place=session.place(str(base), module.name),
    )
    return chain.bundle() if module.settings.link == "bundle" else chain.fatbin()


def _manifest_signature(built: Sequence[ModuleNode], job: ManifestJob) -> str:
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

"""A program becomes nodes: for each module and architecture a chain from sources to an image, then fatbins and the manifest."""

from __future__ import annotations

import dataclasses
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, UsageError
from scons_gpu.lower import choose as optimiser
from scons_gpu.lower import options as lowering
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.images import BundleJob, ImageJob, PtxJob, WholeJob
from scons_gpu.scons.later import later
from scons_gpu.scons.manifests import declare_manifest
from scons_gpu.scons.merging import MergeJob, settled
from scons_gpu.scons.modules import reach
from scons_gpu.scons.packing import ModuleNode, PackJob
from scons_gpu.scons.providers import check_tools, choice_for
from scons_gpu.scons.recipe import Recipe
from scons_gpu.scons.sources import CudaJob, IrJob, NvccJob, NvrtcJob, PtxSourceJob, SameIrJob, SplitJob
from scons_gpu.scons.steps import PlanJob, note_looking, options_text
from scons_gpu.split import INDEX_FORMAT
from scons_gpu.toolchain import frontends, versions
from scons_gpu.toolchain.ourselves import identity
from scons_gpu.workers.isolated import isolated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.choose import Choice
    from scons_gpu.assemble.making import Making
    from scons_gpu.scons import choice, dump, editor, unit_files
    from scons_gpu.scons.libraries import Libraries
    from scons_gpu.scons.modules import Module, Source
    from scons_gpu.scons.session import Session, Workspace
    from scons_gpu.scons.settings import Settings
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain
else:
    choice, dump, editor, unit_files = (later(f"scons_gpu.scons.{name}") for name in ("choice", "dump", "editor", "unit_files"))

__all__ = ["Chain", "declare_program", "pack_signature"]

_KINDS = {"image": "rel", "bundle": "whole", "whole": "ptx", "merge": "merge"}
"""Link mode → what a link takes of each unit."""

_artefact, _compiled = _internals.builder(_internals.Artefact), _internals.builder(_internals.Compiled)
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

    @functools.cached_property
    def choice(self) -> Choice | None:
        """What assembles and links its units; None for a module whose architectures are all virtual."""
        return choice_for(self.tools, self.settings, self.workspace.facts)

    @property
    def making(self) -> Making | None:
        """How that is made; None where the module ends with PTX."""
        return self.choice.making if self.choice else None

    @property
    def assembler(self) -> Tool | None:
        """What reads its PTX, as far as is known: what a driver reads, nobody knows."""
        return self.making.compiler if self.making else None if self.choice else self.tools.ptxas

    @property
    def form(self) -> str:
        """How units are cut for the link mode."""
        return "closed" if self.settings.link == "bundle" else "apart"

    @property
    def libraries(self) -> Libraries | None:
        """What is linked besides its sources."""
        return None

    @property
    def exports(self) -> bool:
        """Whether other sources may ask for what one of them defines."""
        return len(self.module.sources) > 1

    @property
    def dump(self) -> Path | None:
        """Where the files of its units go that nobody but the user reads."""
        if self.settings.dump is None:
            return None
        return unit_files.folder_of(self.settings.dump, self.folder, top=Path(self.env.fs.Top.get_abspath()))

    def lower_options(self, target: Target, settings: Settings | None = None) -> lowering.LowerOptions:
        """How its units become PTX; a candidate's with settings of its own."""
        settings = settings or self.settings
        chosen = optimiser.choose(self.tools, wanted=settings.lower, target=target, assembler=self.assembler, facts=self.workspace.facts)
        return lowering.LowerOptions(
            ptx=chosen.ptx,
            by=chosen.by,
            opt=settings.opt,
            ftz=settings.ftz,
            fast_math=settings.fast_math,
            debug=settings.debug,
            lineinfo=settings.lineinfo,
        )

    def key(self, target: Target, options: lowering.LowerOptions) -> Any:
        """The plan's `Key`."""
        libdevice_identity = self.tools.libdevice.identity if self.tools.libdevice else ""
        nvvm = optimiser.library(self.tools, options)

        def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
            return lowering.key(
                slice=slice_name,
                target=target,
                options=options,
                llvm=self.tools.llvm,
                nvvm=nvvm,
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

    @property
    def front_end(self) -> frontends.FrontEnd:
        """What compiles a `.cu`. Raises ToolMissingError."""
        return frontends.choose(self.tools, wanted=self.settings.frontend, environ=os.environ, facts=self.workspace.facts)

    def clang(self, source: Source) -> Tool:
        """Clang, held against what CUDA sources need."""
        try:
            for warning in versions.check_clang(self.tools):
                self.session.warn(warning)
            return versions.require(self.tools, "clang")
        except GpuError as error:
            raise error.at(module=self.module.name, source=source.name) from None

    def ir(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, Path]:
        """Source to IR; to PTX where it is PTX."""
        path = self.text(source, target)
        common = {**self.common(target, source.name, path), "source": source, "targeted": target}
        if source.name.endswith(".ptx"):
            return self._ptx_source(source, target, common), path
        if not source.name.endswith(".cu"):
            signature = options_text(llvm=self.tools.llvm, arch=target.name, tool=identity())
            return _compiled(self.env, path, [source.node], IrJob(**common, signature=signature)), path
        front = self._front_end(source)
        if not front.divides:
            return self._nvidia(source, front, common, may_fail=may_fail), path
        if not may_fail and (alike := self._alike(target)):
            job = SameIrJob(**common, ir=self.text(source, alike), signature=options_text(arch=target.name, tool=identity()))
            return _artefact(self.env, path, [self._once(source, alike)], job), path
        return self._once(source, target, may_fail=may_fail), path

    def _alike(self, target: Target) -> Target | None:
        """The real architecture of the module's that clang compiles for as for this virtual one: `sm_90`, of `compute_90`."""
        alike = [each for each in self.settings.archs if (each.number, each.suffix) == (target.number, target.suffix)]
        return next((each for each in alike if each.real and not target.real), None)

    def _once(self, source: Source, target: Target, *, may_fail: bool = False) -> Any:
        """What clang makes of a source, as a node. A virtual architecture may have asked for it before."""
        path = self.text(source, target)
        asked_by, node = self.workspace.compiled.get(path, (None, None))
        if asked_by is not self:
            node = self._clang(source, target, path, may_fail=may_fail)
            self.workspace.compiled[path] = self, node
        return node

    def _clang(self, source: Source, target: Target, path: Path, *, may_fail: bool) -> Any:
        common = {**self.common(target, source.name, path), "source": source, "targeted": target}
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
            tool=clang,
            options=source.options,
            headers=self.tools.headers,
            top=str(self.env.fs.Top.get_abspath()),
            may_fail=may_fail,
        )
        return _compiled(self.env, path, [source.node], job)

    def _front_end(self, source: Source) -> frontends.FrontEnd:
        try:
            return self.front_end
        except GpuError as error:
            raise error.at(module=self.module.name, source=source.name) from None

    def _nvidia(self, source: Source, front: frontends.FrontEnd, common: dict[str, Any], *, may_fail: bool) -> Any:
        """CUDA C++ to PTX, by nvcc or NVRTC."""
        self.session.warn(front.said)
        target: Target = common["targeted"]
        assembler = versions.reader_of_ptx(self.assembler) if target.real else None
        signature = options_text(
            compiler=f"{front.name} {front.tool.version} {front.tool.identity}",
            arch=target.name,
            assembler=assembler,
            tool=identity(),
            **vars(source.options),
        )
        made = {**common, "signature": signature, "tool": front.tool, "options": source.options, "headers": "", "may_fail": may_fail}
        kind = NvccJob if front.name == "nvcc" else NvrtcJob
        job = kind(**made, top=str(self.env.fs.Top.get_abspath()), assembler=assembler)
        return _compiled(self.env, common["target"], [source.node], job)

    def _ptx_source(self, source: Source, target: Target, common: dict[str, Any]) -> Any:
        assembler = versions.reader_of_ptx(self.assembler) if target.real else None
        signature = options_text(arch=target.name, assembler=assembler, tool=identity())
        job = PtxSourceJob(**common, signature=signature, assembler=assembler)
        return _compiled(self.env, common["target"], [source.node], job)

    def text(self, source: Source, target: Target) -> Path:
        """What a source is split from."""
        ptx = source.name.endswith(".ptx") or (source.name.endswith(".cu") and not self._front_end(source).divides)
        return self.folder / source.file(target.name, "ptx" if ptx else "ll")

    def index(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, SplitJob]:
        """IR to index."""
        node, ir = self.ir(source, target, may_fail=may_fail)
        path = self.folder / source.file(target.name, "index.json")
        lines = ir.suffix == ".ptx" and (self.settings.lineinfo or self.settings.debug)
        signature = options_text(
            form=self.form,
            exports=self.exports,
            format=INDEX_FORMAT,
            **({"lines": lines} if ir.suffix == ".ptx" else {"llvm": self.tools.llvm}),
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
            lines=lines,
            exports=self.exports,
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
            nvvm=f"{nvvm.version} {nvvm.identity}" if (nvvm := optimiser.library(self.tools, options)) else "",
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
            libraries=self.libraries,
            tuned=functools.partial(choice.tuned, self, target) if tuned else tuple,
        )
        more = [self.libraries.node] if self.libraries else []
        node = _artefact(self.env, planned, [*(node for node, _ in (*found, *variants)), *more], job)
        recipe = self.recipe(target, options, [split for _, split in (*found, *variants)], ptx=ptx)
        if tuned:
            node, recipe = choice.declare_choice(self, target, path, undecided=node, plan=planned, recipe=recipe, ptx=ptx)
        return node, path, recipe

    def recipe(self, target: Target, options: lowering.LowerOptions, splits: Sequence[SplitJob], *, ptx: bool) -> Recipe:
        """How the units of one architecture are made."""
        kind = "ptx" if ptx or not target.real or self.making is None else _KINDS[self.settings.link]
        provider = isolated(self.making, self.session.run) if target.real and not ptx and self.making else None
        return Recipe(
            workspace=self.workspace,
            env=self.env,
            module=self.module.name,
            target=target,
            tools=self.tools,
            lower=options,
            options=self.settings.assemble,
            provider=provider,
            deferred=provider is not None and kind == "rel" and self.making is not None and self.making.deferred,
            measurer=isolated(dataclasses.replace(self.making, deferred=False), self.session.run) if provider and self.making else None,
            kind=kind,
            share_twins=self.settings.share_twins,
            splits=splits,
            environment=self.environment,
            place=self.place,
            seconds=self.settings.candidate_seconds,
            verify=self.settings.verify_reuse,
            dump=self.dump,
        )

    def link_signature(self, recipe: Recipe) -> str:
        """All that shapes an image besides its plan."""
        provider = recipe.provider
        spelled = provider.spelling(target=recipe.target, options=recipe.options, relocatable=recipe.kind == "rel") if provider else ()
        tools = [self.making.compiler, self.making.linker] if provider and self.making else []
        return options_text(
            provider=f"{provider.name} {provider.identity} {provider.link_identity}" if provider else "",
            versions={tool.name: tool.version for tool in tools if tool},
            options=list(spelled),
            spills=[recipe.options.fail_on_spill, recipe.options.warn_on_spill],
            kind=recipe.kind,
            share_twins=recipe.share_twins,
            tool=identity(),
        )

    def image(self, target: Target, *, path: Path | None = None, ptx: bool = False) -> tuple[Any, Path, Any, Path]:
        """Plan to image; to PTX for a virtual architecture, or where asked for."""
        ptx = ptx or not target.real or self.making is None
        node, plan, recipe = self.plan(target, ptx=ptx)
        self.workspace.plans.setdefault(str(self.folder.parent), []).append(plan)
        path = path or self.folder / f"{target.name}.{'ptx' if ptx else 'cubin'}"
        kind = PtxJob if ptx else {"whole": WholeJob, "merge": MergeJob}.get(self.settings.link, ImageJob)
        more = {"may_fall_back": self.settings.auto} if kind is MergeJob else {}
        common = self.common(target, self.module.name, path)
        job = kind(**common, **more, signature=self.link_signature(recipe), recipe=recipe, plan=plan)
        job.libraries = self.libraries
        made = _image(self.env, path, [node, *(self.libraries.files if self.libraries else ())], job)
        return made, path, node, plan

    def end(self) -> ModuleNode:
        """What the chain ends with, for a program."""
        return self.fatbin()

    def fatbin(self) -> ModuleNode:
        """Images to fatbin."""
        images = [(target, *self.image(target)) for target in self.settings.archs]
        path = self.folder.with_name(f"{self.module.name}.fatbin")
        packer = versions.require(self.tools, "fatbinary") if self.making else self.tools.fatbinary
        job = PackJob(
            **self.common(None, self.module.name, path),
            signature=pack_signature(packer, archs=[target.name for target in self.settings.archs]),
            images=[(target, image) for target, _, image, _, _ in images],
            plans=[plan for _, _, _, _, plan in images],
            fatbinary=packer,
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
            signature="\n".join(f"{target.name} {line}" for target, _, _, made in plans for line in self.link_signature(made).splitlines()),
            recipes=[(recipe, plan) for _, _, plan, recipe in plans],
        )
        node = _image(self.env, path, [node for _, node, _, _ in plans], job)
        return self.made(node, path, [(target, decided, plan) for target, decided, plan, _ in plans])

    def made(self, node: Any, path: Path, plans: Sequence[tuple[Target, Any, Path]]) -> ModuleNode:
        """The module's end of the chain."""
        lowered = tuple((target.name, self.lower_options(target)) for target, _, _ in plans)
        texts = tuple((target.name, tuple(self.text(source, target) for source in self.module.sources)) for target, _, _ in plans)
        front = self.front_end.tool if any(source.name.endswith(".cu") for source in self.module.sources) else None
        return ModuleNode(
            module=self.module, node=node, path=path, plans=tuple(plans), lowered=lowered, texts=texts, making=self.making, front=front
        )


def pack_signature(fatbinary: Tool | None, *, archs: Sequence[str]) -> str:
    """All that shapes a fatbin besides its images."""
    return options_text(fatbinary=f"{fatbinary.version} {fatbinary.identity}" if fatbinary else "", archs=list(archs), tool=identity())


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
    node = declare_manifest(env, workspace, base, built, tools=session.toolchain(root.settings, workspace.facts))
    note_looking(workspace)
    if workspace.choices.get(str(base)) or asked.wanted(env.fs, "gpu-dump"):
        dump.declare_dump(env, workspace, base=base)
    return [node, *(entry.node for entry in built if entry.node is not None)]


def _check_stores(root: Module, modules: Sequence[Module]) -> None:
    for module in modules:
        if module.settings.store != root.settings.store:
            msg = f"module {module.name} at {module.place} has another GPU_STORE than {root.name} at {root.place}"
            raise UsageError(msg, hint="a program has one store: set it for the environment that all of its modules come from")


def _module(env: Any, session: Session, workspace: Workspace, module: Module, base: Path) -> ModuleNode:
    if module.bypass or not module.sources:
        return ModuleNode(module=module, node=None, path=None, plans=())
    tools = session.toolchain(module.settings, workspace.facts)
    module = settled(workspace, module, tools)
    check_tools(session, tools, module.settings.archs, choice_for(tools, module.settings, workspace.facts))
    chain = Chain(
        session=session,
        workspace=workspace,
        env=env,
        module=module,
        folder=base / module.name,
        tools=tools,
        place=session.place(str(base), module.name),
    )
    if "CompilationDatabase" in env["BUILDERS"]:
        editor.enter_module(chain)
    return chain.bundle() if module.settings.link == "bundle" else chain.fatbin()

"""Images as nodes: what links, merges or bundles the units of a plan, and what packs and describes the results."""

from __future__ import annotations

import functools
import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, assembling
from scons_gpu.store import sealed
from scons_gpu.store.files import write_atomic
from scons_gpu.store.record import Entry, Record, Resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import scons_gpu.plan as plans
    from scons_gpu.assemble.making import Making
    from scons_gpu.errors import GpuError
    from scons_gpu.link import bundle, bundled, fatbin, image, manifest, ptx, twins, whole
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.plan import Part, Plan
    from scons_gpu.scons import unit_files
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.units import Recipe
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain
else:
    bundle, bundled, fatbin = later("scons_gpu.link.bundle"), later("scons_gpu.link.bundled"), later("scons_gpu.link.fatbin")
    image, manifest, ptx = later("scons_gpu.link.image"), later("scons_gpu.link.manifest"), later("scons_gpu.link.ptx")
    plans, twins, whole = later("scons_gpu.plan"), later("scons_gpu.link.twins"), later("scons_gpu.link.whole")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["BundleJob", "ImageJob", "ManifestJob", "ModuleNode", "PackJob", "PtxJob", "WholeJob"]


@dataclass(kw_only=True)
class Linking(Step):
    """A step whose inputs are units."""

    stage: ClassVar[str] = "link"
    published: ClassVar[bool] = True
    """Whether its units are those that a user gets: `GPU_DUMP` writes them."""
    expanded: bool = field(default=False, init=False)
    error: Exception | None = field(default=None, init=False)

    @abstractmethod
    def decided(self) -> Sequence[tuple[Recipe, Path]]:
        """Recipes with the plans that they are for."""

    def units(self) -> list[Any]:
        """The nodes of all that the store lacks, or that is to be verified. Called when this image is out of date."""
        nodes = []
        for recipe, path in self.decided():
            for part in read_plan(path).parts:
                nodes += [*recipe.missing(part), *recipe.dumped(part)]
        return list(dict.fromkeys(nodes))

    def checks(self) -> list[Any]:
        """The nodes that verify what the store holds, or write it for the user. Called when this image is current."""
        nodes = []
        for recipe, path in self.decided():
            for part in read_plan(path).parts if recipe.verify or recipe.dump else ():
                nodes += [*(recipe.held(part) if recipe.verify else ()), *(recipe.dumped(part) if self.published else ())]
        return list(dict.fromkeys(nodes))

    def makes_nothing(self) -> bool:
        """A module without kernels makes no image."""
        return without_units([path for _, path in self.decided()])

    def raise_kept(self) -> None:
        """What went wrong while the units were looked up."""
        if self.error is not None:
            raise self.error

    def lost(self, recipe: Recipe, part: Part) -> GpuError:
        """Why a part is not there that was to be: it is a candidate's too and cannot be made, or somebody took it away."""
        if (failure := recipe.failure(part)) is not None:
            return failure.at(kernel=part.readable, source=part.source)
        msg = f"{part.readable}: {recipe.result_path(part)} is gone or damaged"
        return DamagedError(msg, source=part.source, hint="build again: what is damaged in the store is made anew")

    def entries(self, recipe: Recipe, plan: Plan) -> dict[str, Entry]:
        """Part → its object (or PTX), checked. Shows again what the tools said of reused units."""
        found = {}
        store, made = self.workspace.store, self.workspace.units
        for part in plan.parts:
            path = recipe.result_path(part)
            entry = store.load(path)
            if entry is None:
                recipe.unlimited(part)
                entry = store.load(path)
            if entry is None:
                raise self.lost(recipe, part)
            found[part.digest] = entry
            if part.role == "unit":
                self.workspace.needed.add(part.digest)
                self.workspace.deferred |= {part.digest} if recipe.deferred else set()
            if path not in made:
                self.workspace.show(f"{part.readable}  {recipe.target.name}", entry.record.output)
        return found


def read_plan(path: Path) -> Plan:
    """The plan in a file. It is asked for often: before the image is there, by the image, for the manifest."""
    stat = path.stat()
    return _read_plan(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _read_plan(path: Path, inode: int, size: int, time: int) -> Plan:  # noqa: ARG001 - they say which file it was
    return plans.from_text(path.read_text(encoding="utf-8"), path=str(path))


def without_units(plans_: Sequence[Path]) -> bool:
    """Whether all of these plans are there, and no unit in any."""
    return all(path.exists() for path in plans_) and not any(read_plan(path).units for path in plans_)


def remove(*paths: Path) -> None:
    """Takes away what an earlier build made and this one rightly does not."""
    for path in paths:
        path.unlink(missing_ok=True)


def linking(recipe: Recipe) -> list[str]:
    """How units are put together, as `scons-gpu link` takes it."""
    if recipe.provider is None:
        return ["--as-ptx"]
    return [*(["--defer"] if recipe.deferred else []), *assembling(recipe.options, recipe.provider)]


@dataclass(kw_only=True)
class OnePlan(Linking):
    """An image of one module for one architecture."""

    recipe: Recipe
    plan: Path

    @property
    def sidecar(self) -> Path:
        """Resources of each kernel, and which object it is in: what the manifest says of this image."""
        return self.plan.with_name(f"{self.arch}.link.json")

    def decided(self) -> Sequence[tuple[Recipe, Path]]:
        """Its one plan."""
        return ((self.recipe, self.plan),)

    def sidecars(self) -> Sequence[Path]:
        """The resources."""
        return (self.sidecar,)

    def is_whole(self) -> bool:
        """Whether the resources are there, and not those of a later link that did not come to its image."""
        try:
            return self.sidecar.stat().st_mtime_ns <= self.target.stat().st_mtime_ns
        except OSError:
            return False

    def command(self) -> list[str]:
        """By hand."""
        return self.gpu("link", str(self.plan), *linking(self.recipe))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Checks every input, then writes image and resources."""
        self.raise_kept()
        plan = read_plan(self.plan)
        if not plan.units:
            remove(self.target, self.sidecar)
            return Outcome(result="empty")
        entries = self.entries(self.recipe, plan)
        outcome, data, resources = self.make(plan, entries)
        self._remove_other()
        write_atomic(self.sidecar, _sidecar(plan, entries, data, resources))
        write_atomic(self.target, data)
        if self.recipe.dump is not None:
            said = unit_files.write_image(self.recipe, self.target)
            outcome = replace(outcome, output="\n".join(text for text in (outcome.output, said) if text))
        return outcome

    def _remove_other(self) -> None:
        """The image of a build with another provider. A file that the user named himself has nothing beside it."""
        if self.target.parent == self.plan.parent:
            remove(self.target.with_suffix(".ptx" if self.target.suffix == ".cubin" else ".cubin"))

    def checks(self) -> list[Any]:
        """The image itself is written for the user too."""
        return [*super().checks(), *(unit_files.image_nodes(self.recipe, self.target) if self.recipe.dump else ())]

    @abstractmethod
    def make(self, plan: Plan, entries: Mapping[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """The image, and what the kernels take that were assembled with it."""


def _sidecar(plan: Plan, entries: Mapping[str, Entry], data: bytes, made: Sequence[Resources]) -> str:
    """What the manifest has to know of an image's parts when the store is gone: each object's name, and what its assembler reported.

    `made`: the same of kernels that the link itself assembled.
    """
    reported = {each.kernel: each for each in made}
    parts = {
        part.digest: {
            "object": entry.path.name if entry.path.suffix != ".ptx" else None,
            "resources": [vars(each) for each in _resources(part, entry, reported)],
        }
        for part in plan.parts
        for entry in (entries[part.digest],)
    }
    return sealed.to_text({"image": hashlib.sha256(data).hexdigest(), "parts": parts})


def _resources(part: Part, entry: Entry, made: Mapping[str, Resources]) -> Sequence[Resources]:
    symbols = [name for kernel in part.kernels for name in (kernel.symbol, image.spelled(kernel.symbol))] if made else []
    return entry.record.resources or [made[name] for name in dict.fromkeys(symbols) if name in made]


def _from_sidecar(plan: Plan, image_path: Path) -> manifest.BuiltArch:
    parts = _told(image_path.with_name(f"{plan.arch}.link.json"), image_path)
    return manifest.BuiltArch(
        plan=plan,
        image=image_path,
        objects={digest: Path(part["object"]) for digest, part in parts.items() if str(part["object"]).endswith(".cubin")},
        records={
            digest: Record(sha256="", bytes=0, key=(), resources=tuple(Resources(**each) for each in part["resources"]))
            for digest, part in parts.items()
        },
    )


def _told(path: Path, image_path: Path) -> dict[str, Any]:
    """The parts in a sidecar. One that is not of this image is taken away, so that the next build links again. Raises DamagedError."""
    try:
        told = sealed.from_text(path.read_bytes())
        if told["image"] == hashlib.sha256(image_path.read_bytes()).hexdigest():
            parts: dict[str, Any] = told["parts"]
            return parts
    except (ValueError, KeyError, TypeError):
        pass
    remove(path)
    msg = f"{path} is not what was written beside {image_path.name}"
    raise DamagedError(msg, hint="build again: the image is linked anew")


@dataclass(kw_only=True)
class ImageJob(OnePlan):
    """Relocatable objects become a cubin."""

    def make(self, plan: Plan, entries: Mapping[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """One flat link."""
        linked = image.link_image(plan, entries, provider=self.recipe.assembler(), options=self.recipe.options)
        if linked is None:
            msg = "there is nothing to link"
            raise LinkError(msg)
        return Outcome(output=linked.output, cpu=linked.cpu, peak_kib=linked.peak_kib), linked.data, linked.resources


@dataclass(kw_only=True)
class PtxJob(OnePlan):
    """The units' PTX becomes the module's."""

    def make(self, plan: Plan, entries: Mapping[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """One merge."""
        said: list[str] = []
        parts = [whole.ptx_part(part, entries[part.digest].data) for part in whole.in_order(plan.parts)]
        text = ptx.merge_ptx(parts, target=self.recipe.target, warn=said.append)
        return Outcome(output="\n".join(said)), text.encode(), ()


@dataclass(kw_only=True)
class WholeJob(OnePlan):
    """The units' PTX becomes a cubin, assembled in one piece."""

    def make(self, plan: Plan, entries: Mapping[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """One merge, one assembly."""
        made = whole.assemble_whole(plan, entries, provider=self.recipe.assembler(), options=self.recipe.options)
        if made is None:
            msg = "there is nothing to assemble"
            raise LinkError(msg)
        resources = [each for found in made.resources.values() for each in found]
        return Outcome(output=made.output, cpu=made.cpu, peak_kib=made.peak_kib), made.data, resources


@dataclass(kw_only=True)
class BundleJob(Linking):
    """Whole objects of all architectures become one archive."""

    recipes: Sequence[tuple[Recipe, Path]]

    def decided(self) -> Sequence[tuple[Recipe, Path]]:
        """One plan an architecture."""
        return self.recipes

    def command(self) -> list[str]:
        """By hand, an architecture at a time."""
        recipe = self.recipes[0][0]
        twins = ["--share-twins"] if recipe.share_twins else []
        real = next((each for each, _ in self.recipes if each.target.real), recipe)
        return self.gpu("link", *(str(path) for _, path in self.recipes), *twins, *linking(real))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Checks every object, then writes the archive."""
        self.raise_kept()
        units = []
        for recipe, path in self.recipes:
            plan = read_plan(path)
            if plan.units:
                shared = {part.kernels[0].symbol: twins.ANONYMOUS for part in plan.units if recipe.twin(part)}
                units.append(bundled.Units(plan=plan, files=self.entries(recipe, plan), entries=shared))
        if not units:
            remove(self.target)
            return Outcome(result="empty")
        archs = [recipe.target.name for recipe, _ in self.recipes]
        remove(self.target.with_name(f"{self.name}.fatbin"))  # of a build with another GPU_LINK: nobody may load it now
        write_atomic(self.target, bundled.link_bundle(self.name, units, archs=archs, folder=self.target.parent))
        return Outcome()


@dataclass(kw_only=True)
class PackJob(Step):
    """A module's images become its fatbin."""

    stage: ClassVar[str] = "pack"
    images: Sequence[tuple[Target, Path]]
    plans: Sequence[Path]
    fatbinary: Tool | None

    def command(self) -> list[str]:
        """By hand."""
        return self.gpu("pack", *(str(path) for _, path in self.images))

    def makes_nothing(self) -> bool:
        """Without images there is no fatbin."""
        return without_units(self.plans)

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """NVIDIA's own packer."""
        present = [(target, path) for target, path in self.images if path.exists()]
        if not present:
            remove(self.target)
            return Outcome(result="empty")
        remove(self.target.with_name(f"{self.name}.gpubundle"))  # of a build with another GPU_LINK: nobody may load it now
        write_atomic(self.target, fatbin.pack(present, fatbinary=self.fatbinary))
        return Outcome()


@dataclass(frozen=True)
class ModuleNode:
    """A module with what it came to in one program."""

    module: Module
    node: Any
    """Its fatbin or bundle; None for a module that has nothing of its own."""
    path: Path | None
    plans: tuple[tuple[Target, Any, Path], ...]
    """Architecture, the plan's node, its file."""
    lowered: tuple[tuple[str, LowerOptions], ...] = ()
    """Architecture → how its units are lowered."""
    texts: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """Architecture → what its sources were split from, in their order."""
    making: Making | None = None
    """What assembled and linked it; None where it ends with PTX."""
    front: Tool | None = None
    """What compiled its `.cu`; None where it has none."""

    def built(self) -> manifest.BuiltModule:
        """What the manifest says of it; in a bundle, all but the tree around it stands inside."""
        module = self.module
        made = self.path is not None and self.path.exists()
        bundled = module.settings.link == "bundle"
        return manifest.BuiltModule(
            name=module.name,
            bypass=module.bypass,
            submodules=tuple(dict.fromkeys(module.submodule_names)),
            archs=tuple(self._archs()) if made and not bundled else (),
            fatbin=self.path if made and not bundled else None,
            bundle=self.path if made and bundled else None,
            inner=self._inner(self.path) if self.path and made and bundled else None,
            options=self.options(),
            ir=dict(self.texts) if made else {},
        )

    def options(self) -> dict[str, Any]:
        """What the module was built with."""
        settings = self.module.settings
        return {
            "link": settings.link,
            "provider": self.making.name if self.making else None,
            "opt": settings.opt,
            "ftz": settings.ftz,
            "fast_math": settings.fast_math,
            "debug": settings.debug,
            "lineinfo": settings.lineinfo,
            "maxrregcount": settings.assemble.maxrregcount,
            "ptxas_flags": list(settings.assemble.flags),
            "ptx": {arch: options.ptx for arch, options in self.lowered},
            "lowered_by": {arch: options.by for arch, options in self.lowered},
        }

    def _inner(self, path: Path) -> manifest.Module:
        text = bundle.read_bundle(path.read_bytes(), path=str(path)).manifest
        return manifest.from_text(text, path=str(path)).modules[self.module.name]

    def _archs(self) -> list[manifest.BuiltArch]:
        found = []
        for target, _, path in self.plans:
            plan = read_plan(path)
            if plan.units:
                found.append(_from_sidecar(plan, path.with_name(f"{target.name}.{'cubin' if target.real and self.making else 'ptx'}")))
        return found


def program_archs(modules: Sequence[Sequence[str]]) -> list[str]:
    """A program's architectures, from those of its modules, root last: the root's as given, then others by name.

    The order in which submodules were listed does not show.
    """
    root = list(modules[-1])
    return [*root, *sorted({arch for module in modules for arch in module} - set(root))]


@dataclass(kw_only=True)
class ManifestJob(Step):
    """All modules' results become the program's manifest."""

    stage: ClassVar[str] = "manifest"
    program: str
    modules: Sequence[ModuleNode]
    tools: Toolchain

    def command(self) -> list[str]:
        """Only a build knows all modules of a program."""
        return ["scons", str(self.target)]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Reads plans, resources and images."""
        built = [entry.built() for entry in self.modules]
        archs = program_archs([[target.name for target in entry.module.settings.archs] for entry in self.modules])
        tools = {name: manifest.ToolFact(version=version, identity=identity) for name, (version, identity) in self.tools_used().items()}
        text = manifest.build_manifest(self.program, archs=archs, modules=built, tools=tools, folder=self.target.parent)
        write_atomic(self.target, text)
        return Outcome()

    def tools_used(self) -> dict[str, tuple[str, str]]:
        """Version and identity of the tools that took part: one more on the machine changes no byte."""
        active = [entry.module for entry in self.modules if entry.node is not None]
        links = {module.settings.link for module in active}
        took_part = {
            "libdevice": True,
            "nvvm": any(options.by == "nvvm" for entry in self.modules for _, options in entry.lowered),
            "fatbinary": bool(links - {"bundle"}),
        }
        found = [self.tools.tool(name) for name, part in took_part.items() if part]
        found += [entry.front for entry in self.modules if entry.node is not None]
        for entry in self.modules:
            if entry.node is not None and entry.making:
                found += [entry.making.compiler, entry.making.linker if entry.module.settings.link == "image" else None]
        version, _, identity = self.tools.llvm.partition(" ")
        return {"llvm": (version, identity), **{tool.name: (tool.version, tool.identity) for tool in found if tool}}

"""Images as nodes: what links, merges or bundles the units of a plan."""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.scons import sidecar
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, assembling
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.errors import GpuError
    from scons_gpu.link import bundle, bundled, fatbin, image, manifest, twins, whole
    from scons_gpu.plan import Part, Plan
    from scons_gpu.scons import libraries, unit_files
    from scons_gpu.scons.libraries import Libraries
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.store.record import Entry, Resources
else:
    bundle, bundled, fatbin = later("scons_gpu.link.bundle"), later("scons_gpu.link.bundled"), later("scons_gpu.link.fatbin")
    image, manifest = later("scons_gpu.link.image"), later("scons_gpu.link.manifest")
    plans, twins, whole = later("scons_gpu.plan"), later("scons_gpu.link.twins"), later("scons_gpu.link.whole")
    libraries, unit_files = later("scons_gpu.scons.libraries"), later("scons_gpu.scons.unit_files")

__all__ = ["BundleJob", "ImageJob", "Linking", "PtxJob", "WholeJob", "makes_nothing", "read_plan", "remove"]


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
        """A module without kernels and state makes no image."""
        return makes_nothing([path for _, path in self.decided()])

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


def makes_nothing(plans_: Sequence[Path]) -> bool:
    """Whether all of these plans are there, and nothing in any that an image is made of."""
    return all(path.exists() for path in plans_) and all(read_plan(path).is_empty for path in plans_)


def remove(*paths: Path) -> None:
    """Takes away what an earlier build made and this one rightly does not."""
    for path in paths:
        path.unlink(missing_ok=True)


def linking(recipe: Recipe) -> list[str]:
    """How units are put together, as `scons-gpu link` takes it."""
    if recipe.provider is None:
        return ["--as-ptx"]
    shared = ["--share-twins"] if recipe.kind == "merge" and recipe.share_twins else []
    return [*shared, *(["--defer"] if recipe.deferred else []), *assembling(recipe.options, recipe.provider)]


@dataclass(kw_only=True)
class OnePlan(Linking):
    """An image of one module for one architecture."""

    recipe: Recipe
    plan: Path
    libraries: Libraries | None = None
    """What is linked besides its units."""
    besides: set[str] = field(default_factory=set, init=False)
    """What the link took of the store that is no part's: the next one wants it too."""
    learned: sidecar.Learned = field(default_factory=sidecar.Learned, init=False)
    """What a merge found out that the next one need not."""

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
        besides = libraries.words(self.libraries) if self.libraries else ()
        return self.gpu("link", str(self.plan), *besides, *linking(self.recipe))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Checks every input, then writes image and resources."""
        self.raise_kept()
        plan = read_plan(self.plan)
        if plan.is_empty:
            remove(self.target, self.sidecar)
            return Outcome(result="empty")
        entries = self.entries(self.recipe, plan)
        outcome, data, resources = self.make(plan, entries)
        self._remove_other()
        told = sidecar.to_text(plan, entries, data, resources, besides=self.besides, learned=self.learned)
        write_atomic(self.sidecar, told)
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
    def make(self, plan: Plan, entries: dict[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """The image, and what the kernels take that were assembled with it. In `entries` stays what is in the image."""


@dataclass(kw_only=True)
class ImageJob(OnePlan):
    """Relocatable objects become a cubin."""

    def make(self, plan: Plan, entries: Mapping[str, Entry]) -> tuple[Outcome, bytes, Sequence[Resources]]:
        """One flat link."""
        besides = libraries.besides(self.libraries) if self.libraries else ()
        linked = image.link_image(plan, entries, provider=self.recipe.assembler(), options=self.recipe.options, besides=besides)
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
        text = whole.merge_module(plan, entries, warn=said.append)
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

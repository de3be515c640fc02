"""What `scons-gpu link` does: takes a plan's objects from the store, as a build does, and makes its image or bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.key import is_twin, options_of, unit_key
from scons_gpu.errors import DamagedError, RefusedError
from scons_gpu.link import image, merged
from scons_gpu.link.bundled import Units, link_bundle
from scons_gpu.link.twins import ANONYMOUS
from scons_gpu.link.whole import assemble_whole, merge_module
from scons_gpu.split import digest
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from scons_gpu.assemble.choose import Choice, Need
    from scons_gpu.assemble.key import Kind
    from scons_gpu.assemble.provider import AssembleOptions
    from scons_gpu.link.library import Library
    from scons_gpu.plan import Part, Plan
    from scons_gpu.store.record import Entry
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["Linker"]


@dataclass
class Linker:
    """Links from one store."""

    store: Path
    tools: Toolchain
    provider: str
    options: AssembleOptions
    as_ptx: bool = False
    """Whether nothing is assembled: an image is the module's PTX, a bundle holds that of its units."""
    defer: bool = False
    """Whether the units are deferred PTX though the provider could make objects of them."""
    share_twins: bool = False
    besides: Sequence[tuple[Path, Library]] = ()
    """Files with device code that are linked too, of an image."""
    output: str = field(default="", init=False)
    """What the linker said."""

    def image(self, plan: Plan, *, whole: bool = False) -> bytes:
        """The image of one plan: machine code, or the module's PTX for a virtual architecture and where that is asked for.

        `whole`: assembled in one piece, as a plan of that link mode is anyway.
        """
        store = Store([self.store])
        if plan.is_empty:
            msg = "there is nothing to link: no source of the module has a kernel or a variable of the device"
            raise RefusedError(msg, module=plan.module, arch=plan.arch)
        if self.as_ptx or not parse(plan.arch)[0].real:
            return merge_module(plan, {part.digest: _ptx(store, plan, part) for part in plan.parts}).encode()
        if whole or plan.link == "whole":
            return self._whole(store, plan)
        if plan.link == "merge":
            return self._merged(store, plan)
        choice = self._choice(plan, ["relocatable", "link"])
        objects = {part.digest: self._object(store, plan, part, choice, "rel") for part in plan.parts}
        linked = image.link_image(plan, objects, provider=choice.provider, options=self.options, besides=self.besides)
        self.output = linked.output if linked else ""
        return linked.data if linked else b""

    def bundle(self, plans: Sequence[Plan], output: Path) -> bytes:
        """The bundle of one module's plans."""
        store = Store([self.store])
        units = [self._units(store, plan) for plan in plans if plan.units]
        return link_bundle(plans[0].module, units, archs=[plan.arch for plan in plans], folder=output.absolute().parent)

    def _units(self, store: Store, plan: Plan) -> Units:
        if self.as_ptx or not parse(plan.arch)[0].real:
            return Units(plan=plan, files={part.digest: _ptx(store, plan, part) for part in plan.parts})
        choice = self._choice(plan, ["compile"])
        return Units(
            plan=plan,
            files={part.digest: self._object(store, plan, part, choice, "whole") for part in plan.parts},
            entries={part.kernels[0].symbol: ANONYMOUS for part in plan.units if is_twin(part, share=self.share_twins)},
        )

    def _whole(self, store: Store, plan: Plan) -> bytes:
        parts = {part.digest: _ptx(store, plan, part) for part in plan.parts}
        made = assemble_whole(plan, parts, provider=self._choice(plan, ["compile"]).provider, options=self.options)
        self.output = made.output if made else ""
        return made.data if made else b""

    def _merged(self, store: Store, plan: Plan) -> bytes:
        choice = self._choice(plan, ["compile"])
        target = parse(plan.arch)[0]

        def together(text: str) -> merged.Together:
            made = choice.provider.compile(text, target=target, options=self.options)
            return merged.Together(made.data, output=made.output, resources=made.resources)

        def twin(part: Part) -> bool:
            return merged.alone(part) and is_twin(part, share=self.share_twins)

        objects = {part.digest: self._object(store, plan, part, choice, "whole") for part in plan.parts if merged.alone(part)}
        made = merged.link_merged(plan, objects, ptx=lambda part: _ptx(store, plan, part), assembler=merged.Forgetful(together), twin=twin)
        self.output = made.output if made else ""
        return made.data if made else b""

    def _choice(self, plan: Plan, needs: Collection[Need]) -> Choice:
        facts, targets = self.store / "tools", parse(plan.arch)
        return choose(self.tools, wanted=self.provider, needs=needs, targets=targets, always_defer=self.defer, facts=facts)

    def _object(self, store: Store, plan: Plan, part: Part, choice: Choice, kind: Kind) -> Entry:
        """The part's object or deferred PTX, under the name that a build gives it."""
        twin = is_twin(part, share=self.share_twins and kind == "whole")
        options = options_of(part, self.options)
        key = unit_key(part, kind=kind, provider=choice.provider, options=options, target=parse(plan.arch)[0], twin=twin)
        deferred = choice.making is not None and choice.making.deferred
        folder, suffix = ("deferred", ".dptx") if deferred else ("object", f".{kind}.cubin")
        return _there(store, plan, part, store.claim(folder, digest.fields(dict(key)), key, suffix=suffix))


def _ptx(store: Store, plan: Plan, part: Part) -> Entry:
    return _there(store, plan, part, store.claim("ptx", part.digest, part.key, suffix=".ptx"))


def _there(store: Store, plan: Plan, part: Part, path: Path) -> Entry:
    entry = store.load(path)
    if entry is None:
        what = path.parts[-3]
        msg = f"its {'PTX' if what == 'ptx' else what} is not in the store ({path})"
        kernel = part.kernels[0].readable if part.kernels else ""
        raise DamagedError(msg, kernel=kernel, module=plan.module, source=part.source, hint="build it first, with the same options")
    return entry

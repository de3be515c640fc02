"""What `scons-gpu link` does: takes a plan's objects from the store, as a build does, and makes its image or bundle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.key import is_twin, unit_key
from scons_gpu.errors import DamagedError, RefusedError
from scons_gpu.link import bundle, image, manifest
from scons_gpu.link.ptx import PtxPart, merge_ptx
from scons_gpu.link.twins import ANONYMOUS
from scons_gpu.split import digest
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.assemble.key import Kind
    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.plan import Part, Plan
    from scons_gpu.store.record import Record
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["Linker"]


@dataclass
class Linker:
    """Links from one store."""

    store: Path
    tools: Toolchain
    provider: str
    options: AssembleOptions
    share_twins: bool = False
    output: str = field(default="", init=False)
    """What the linker said."""

    def image(self, plan: Plan, *, as_ptx: bool = False) -> bytes:
        """The image of one plan: machine code, or the module's PTX for a virtual architecture and where that is asked for."""
        target = parse(plan.arch)[0]
        store = Store([self.store])
        if not plan.units:
            msg = "there is nothing to link: no source of the module has a kernel"
            raise RefusedError(msg, module=plan.module, arch=plan.arch)
        if as_ptx or not target.real:
            parts = [self._ptx_part(store, part) for part in plan.parts]
            return merge_ptx(parts).encode()
        provider = choose(self.tools, wanted=self.provider, needs=["relocatable", "link"], facts=self.store / "tools").provider
        objects = {part.digest: self._object(store, plan, part, provider, "rel")[0] for part in plan.parts}
        linked = image.link_image(plan, objects, check=store.check, provider=provider, options=self.options)
        self.output = linked.output if linked else ""
        return linked.data if linked else b""

    def bundle(self, plans: Sequence[Plan], output: Path) -> bytes:
        """The bundle of one module's plans."""
        store = Store([self.store])
        provider = choose(self.tools, wanted=self.provider, needs=["compile"], facts=self.store / "tools").provider
        built, entries = [], []
        for plan in plans:
            found = {part.digest: self._object(store, plan, part, provider, "whole") for part in plan.parts}
            paths = {name: path for name, (path, _) in found.items()}
            records = {name: record for name, (_, record) in found.items()}
            entry = {part.kernels[0].symbol: ANONYMOUS for part in plan.units if is_twin(part, share=self.share_twins)}
            built.append(manifest.BuiltArch(plan=plan, objects=paths, records=records, entries=entry))
            entries += [
                bundle.Entry(arch=plan.arch, name=bundle.object_name(path) + path.suffix, data=path.read_bytes()) for path in paths.values()
            ]
        module = manifest.BuiltModule(name=plans[0].module, archs=tuple(built))
        archs = [plan.arch for plan in plans]
        inner = manifest.build_manifest(plans[0].module, archs=archs, modules=[module], tools={}, folder=output.absolute().parent)
        return bundle.write_bundle(entries, manifest=inner)

    def _object(self, store: Store, plan: Plan, part: Part, provider: Provider, kind: Kind) -> tuple[Path, Record]:
        """The part's object with its record, under the name that a build gives it."""
        twin = is_twin(part, share=self.share_twins and kind == "whole")
        key = unit_key(part, kind=kind, provider=provider, options=self.options, target=parse(plan.arch)[0], twin=twin)
        path = store.claim("object", digest.fields(dict(key)), key, suffix=f".{kind}.cubin")
        return path, _there(store, path, part, plan.module)

    def _ptx_part(self, store: Store, part: Part) -> PtxPart:
        path = store.claim("ptx", part.digest, part.key, suffix=".ptx")
        _there(store, path, part, "")
        label = part.kernels[0].readable if part.kernels else part.role
        return PtxPart(label=f"{label} of {part.source}", text=path.read_text(encoding="utf-8"), optional=part.role == "table")


def _there(store: Store, path: Path, part: Part, module: str) -> Record:
    record = store.check(path)
    if record is None:
        what = path.parts[-3]
        msg = f"its {'PTX' if what == 'ptx' else what} is not in the store ({path})"
        kernel = part.kernels[0].readable if part.kernels else ""
        raise DamagedError(msg, kernel=kernel, module=module, source=part.source, hint="build it first, with the same options")
    return record

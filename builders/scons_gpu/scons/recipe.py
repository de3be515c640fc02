"""How the units of one module and architecture are made: where each is kept, which nodes make what the store lacks, who does the work."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.key import is_twin, options_of, unit_key
from scons_gpu.errors import (
    DamagedError,
    GpuError,
    ToolError,
    ToolKilledError,
    ToolMissingError,
    ToolSilentError,
    from_json,
)
from scons_gpu.lower.choose import library
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.later import later
from scons_gpu.scons.units import AssembleJob, DeferJob, LowerJob, MakingJob, UnitJob
from scons_gpu.split import digest
from scons_gpu.store import record as records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.assemble.key import Kind
    from scons_gpu.assemble.provider import Assembled, AssembleOptions, Provider
    from scons_gpu.link import merged
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.plan import Part
    from scons_gpu.scons import unit_files, verify
    from scons_gpu.scons.session import Workspace
    from scons_gpu.scons.sources import SplitJob
    from scons_gpu.store import because as causes
    from scons_gpu.store.record import Entry
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain
else:
    plans, verify = later("scons_gpu.plan"), later("scons_gpu.scons.verify")
    causes, merged = later("scons_gpu.store.because"), later("scons_gpu.link.merged")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["Recipe"]

BYTES_PER_SECOND = 100_000.0
"""A guess at how fast slices are lowered and assembled, where no time was recorded. It orders, nothing else."""


@dataclass(frozen=True)
class Recipe:
    """How the units of one module and architecture are made."""

    workspace: Workspace
    env: Any
    module: str
    target: Target
    tools: Toolchain
    lower: LowerOptions
    options: AssembleOptions
    provider: Provider | None
    """None where nobody assembles: the image is PTX."""
    deferred: bool
    """Whether PTX is handed to the link in place of objects."""
    measurer: Provider | None
    """What makes objects of candidates, to be measured: the provider without deferral."""
    kind: str
    """What a unit ends as: `rel`, `whole`, `ptx`; `merge`, whole where it stands alone, else PTX; or `measured`, an object that no image
    takes, for a choice to look at."""
    share_twins: bool
    splits: Sequence[SplitJob]
    """Those of the module's sources, then of its helpers', for slices that the store lost."""
    environment: Mapping[str, str]
    """Variables that tell a command run by hand where the tools are."""
    place: int
    verify: bool
    """Whether what the store holds is compiled again and compared."""
    seconds: float | None = None
    """CPU seconds that a candidate may take; None for no limit."""
    dump: Path | None = None
    """Where what becomes of its units on their way is written, for the user."""
    paths: dict[tuple[str, str], Path] = field(default_factory=dict, init=False)
    """Digest and candidate → object, for those that were asked for."""

    def lower_options(self, part: Part) -> LowerOptions:
        """How the part becomes PTX."""
        return self.lower if part.lower is None else dataclasses.replace(self.lower, **part.lower)

    def assemble_options(self, part: Part) -> AssembleOptions:
        """How the part becomes an object."""
        return options_of(part, self.options)

    def assembler(self) -> Provider:
        """The provider of a recipe for objects."""
        if self.provider is None:
            msg = f"{self.module} ends with PTX for {self.target.name}, so nothing assembles it"
            raise ToolMissingError(msg)
        return self.provider

    def ptx_path(self, part: Part) -> Path:
        """Where the part's PTX is, or is to be."""
        return self.workspace.store.claim("ptx", part.digest, part.key, suffix=".ptx")

    def object_path(self, part: Part) -> Path:
        """Where the part's object is, or is to be."""
        asked = (part.digest, part.candidate)
        if asked not in self.paths:
            key = self.object_fields(part)
            kind, suffix = ("deferred", ".dptx") if self.deferred else ("object", f".{self.object_kind()}.cubin")
            self.paths[asked] = self.workspace.store.claim(kind, digest.fields(dict(key)), key, suffix=suffix)
        return self.paths[asked]

    def object_kind(self) -> Kind:
        """What is measured is a program of its own, as it will be in the image."""
        return "rel" if self.kind == "rel" else "whole"

    @property
    def measured(self) -> Recipe:
        """How candidates are made to be measured: as the link takes them, or as objects where it takes PTX."""
        if self.deferred:
            return dataclasses.replace(self, kind="measured", deferred=False, provider=self.measurer)
        return dataclasses.replace(self, kind="measured") if self.kind in {"ptx", "merge"} and self.provider else self

    def object_fields(self, part: Part) -> tuple[tuple[str, str], ...]:
        """The object's key."""
        return unit_key(
            part,
            kind=self.object_kind(),
            provider=self.assembler(),
            options=self.assemble_options(part),
            target=self.target,
            twin=self.twin(part),
        )

    def twin(self, part: Part) -> bool:
        """Whether the part's object may serve kernels of other names too."""
        shares = self.kind == "whole" or (self.kind == "merge" and merged.alone(part))
        return is_twin(part, share=self.share_twins and shares)

    def completes(self, part: Part) -> bool:
        """Whether the part is measured, and lacks state or tables of the module: they get a place in its object, which nobody links."""
        return self.kind == "measured" and bool(part.uses)

    def result_path(self, part: Part) -> Path:
        """Where what a link takes of the part is, or is to be."""
        return self.ptx_path(part) if self.ends_as_ptx(part) else self.object_path(part)

    def ends_as_ptx(self, part: Part) -> bool:
        """Whether a link takes the part's PTX."""
        return self.kind == "ptx" or (self.kind == "merge" and not merged.alone(part))

    def ptx_entry(self, part: Part) -> Entry | None:
        """The part's PTX, made again here and now where the store lost it."""
        store, path = self.workspace.store, self.ptx_path(part)
        if (entry := store.load(path)) is None:
            with self.workspace.late:
                self.make_now(self._lowered(part), known=())
            entry = store.load(path)
        return entry

    def candidate(self, part: Part, *, limited: bool) -> list[Any]:
        """Like `missing`, for a part that may fail without failing the build: whether it did, `failure` tells afterwards."""
        if self.failure(part) is not None:
            return []
        nodes = self._missing(part)
        for job in _making(nodes):
            job.may_fail, job.limited = True, limited and job.limited is not False
        return nodes

    def unlimited(self, part: Part) -> None:
        """Makes a part here and now that a limit of candidates ended, for somebody who has none."""
        workspace = self.workspace
        with workspace.late:
            paths = {self.failure_path(key) for key in self.keys(part)} & workspace.cut
            if not paths:
                return
            workspace.cut -= paths
            for path in paths:
                workspace.failures.pop(path, None)
            self.make_now(self.missing(part), known=workspace.units)

    def make_now(self, nodes: Sequence[Any], *, known: Collection[Path]) -> None:
        """Makes units in the thread that found out too late that they are needed. SCons knows nothing of those that are not `known`."""
        workspace = self.workspace
        for node in nodes:
            for each in (*node.needs, node):
                job = each.attributes.gpu
                if not workspace.store.check(job.target):
                    job.run(each)
                if job.target not in known:
                    workspace.units.pop(job.target, None)  # who looks it up would have it built once more

    def keys(self, part: Part) -> list[tuple[tuple[str, str], ...]]:
        """Of its PTX, and of its object where it has one."""
        return [part.key] if self.ends_as_ptx(part) else [part.key, self.object_fields(part)]

    def failure_path(self, key: tuple[tuple[str, str], ...]) -> Path:
        """Where it is kept that what this key is of, PTX or an object, cannot be made."""
        return self.workspace.store.claim("failure", digest.fields(dict(key)), key, suffix=".failure")

    def failure(self, part: Part) -> GpuError | None:
        """Why the part cannot be made, where a candidate's node found that out, in this build or an earlier one."""
        for key in self.keys(part):
            path = self.failure_path(key)
            if path in self.workspace.failures:
                return self.workspace.failures[path]
            if (entry := self.workspace.store.load(path)) is not None:
                return from_json(json.loads(entry.data))
        return None

    def keep_failure(self, key: tuple[tuple[str, str], ...], error: GpuError) -> None:
        """What follows from the key is kept in the store. A crash, what took too long, and words that no table knows stay out of it."""
        path = self.failure_path(key)
        with self.workspace.session.lock:
            self.workspace.failures[path] = error
        if type(error) is not ToolError and not isinstance(error, (ToolKilledError, ToolSilentError)):
            data = json.dumps(error.to_json(), sort_keys=True).encode()
            self.workspace.store.save(path, data, records.make(data, key=key))

    def missing(self, part: Part) -> list[Any]:
        """The nodes that make what the store lacks of this part; none where it is all there, or what verifies that."""
        nodes = self._missing(part)
        for job in _making(nodes):
            job.limited = False
        return nodes

    def _missing(self, part: Part) -> list[Any]:
        if self.ends_as_ptx(part):
            return self._lowered(part)
        path = self.object_path(part)
        kind = DeferJob if self.deferred else AssembleJob
        return self._nodes(
            part, path, lambda: (kind(**self._job(part, path), recipe=self, part=part, ptx=self.ptx_path(part)), self._lowered(part))
        )

    def _lowered(self, part: Part) -> list[Any]:
        path = self.ptx_path(part)
        return self._nodes(part, path, lambda: (LowerJob(**self._job(part, path), recipe=self, part=part), []))

    def held(self, part: Part) -> list[Any]:
        """The node that verifies what the store holds of this part; none where it holds nothing, or what this run made."""
        store, units = self.workspace.store, self.workspace.units
        paths = [self.ptx_path(part)] if self.ends_as_ptx(part) else [self.object_path(part), self.ptx_path(part)]
        path = next((path for path in paths if path in units or store.check(path)), None)
        return self._verified(part, path) if path and path not in units else []

    def dumped(self, part: Part) -> list[Any]:
        """The node that writes the files of a part for the user to read, where that is wanted; nothing where the run only looks."""
        if self.dump is None or asked.looking():
            return []
        path, nodes = self.dump / f"{unit_files.file_name(part)}.{self.target.name}", self.workspace.dumped
        if path not in nodes:
            job = unit_files.UnitFilesJob(**self._job(part, path), recipe=self, part=part)
            try:
                nodes[path] = _internals.unit(self.env, path, self.missing(part), job)
            except TypeError as error:  # SCons' word for a file in a folder's place
                msg = f"GPU_DUMP: {error}"
                raise GpuError(msg) from None
        return [nodes[path]]

    def _verified(self, part: Part, path: Path) -> list[Any]:
        """The node that compiles again what is at `path`, and what it was made from. Nothing where the run only looks."""
        if not self.verify or asked.looking():
            return []
        ptx, nodes = self.ptx_path(part), self.workspace.verified
        if (ptx, path) not in nodes:
            job = verify.VerifyJob(**self._job(part, path), recipe=self, part=part, ptx=ptx)
            nodes[ptx, path] = _internals.unit(self.env, path, [], job)
        self._own(nodes[ptx, path])
        return [nodes[ptx, path]]

    def _nodes(self, part: Part, path: Path, describe: Callable[[], tuple[UnitJob, list[Any]]]) -> list[Any]:
        """The node of an entry that the store lacks, whichever module asked for it first. `describe` gives its job and what that needs."""
        store, units = self.workspace.store, self.workspace.units
        if path not in units:
            if store.check(path):
                return self._verified(part, path)
            fault = store.fault(path)
            if not asked.looking():
                store.discard(path)
            job, needs = describe()
            job.because = causes.Because(lost=fault) if fault else None
            units[path] = _internals.unit(self.env, path, needs, job)
        self._own(units[path])
        return [units[path]]

    def _own(self, node: Any) -> None:
        if self.module not in node.attributes.gpu.owners:
            node.attributes.gpu.owners.append(self.module)

    def _job(self, part: Part, path: Path) -> dict[str, Any]:
        return {
            "workspace": self.workspace,
            "name": part.readable,
            "arch": self.target.name,
            "owners": [self.module],
            "place": self.place,
            "environment": self.environment,
            "target": path,
            "weight": self._weight(part),
        }

    def _weight(self, part: Part) -> float:
        """Seconds: as recorded for the kernel, else from the length of its text."""
        return self.workspace.times.get(f"{part.readable} {self.target.name}", part.bytes / BYTES_PER_SECOND)

    def lower_part(self, part: Part, **where: Any) -> dict[str, Any]:
        """Has a worker lower a part, into the store or, without `where`, into its answer. A slice that the store lost is made again."""
        try:
            return self._lower(part, where)
        except DamagedError:
            self._restore(part)
            return self._lower(part, where)

    def slice_text(self, part: Part) -> str:
        """The part's slice, made again where the store lost it."""
        store = self.workspace.store
        try:
            return store.get_text("slice", part.slice)
        except (KeyError, DamagedError):
            self._restore(part)
            return store.get_text("slice", part.slice)

    def _restore(self, part: Part) -> None:
        sources = {part.source, *(joined.source for joined in part.joins)}
        for split in self.splits:
            if split.source.name in sources:  # one file may be in a module twice, with other options
                split.restore()

    def _lower(self, part: Part, where: dict[str, Any]) -> dict[str, Any]:
        libdevice, options = self.tools.libdevice, self.lower_options(part)
        nvvm = library(self.tools, options)
        return self.workspace.session.pool.run(
            "lower",
            slice=part.slice,
            roots=[str(root) for root in self.workspace.store.roots],
            arch=self.target.name,
            options=dataclasses.asdict(options),
            nvvm=nvvm.path if nvvm else "",
            libdevice=libdevice.path if libdevice else "",
            searched="\n".join(f"{look.where}: {look.result}" for look in self.tools.looked if look.what == "libdevice"),
            renames=[list(pair) for pair in part.renames],
            joins=[vars(joined) for joined in part.joins],
            **where,
        )

    def assemble_part(self, part: Part, text: str, *, seconds: float | None = None) -> Assembled:
        """Has the assembler make a part's object of its PTX, within `seconds` of CPU time."""
        if self.twin(part):
            from scons_gpu.link.twins import anonymous  # noqa: PLC0415 - few builds need it

            text = anonymous(text)
        if self.completes(part):
            from scons_gpu.link.measured import complete  # noqa: PLC0415 - the same

            text = complete(text)
        assemble = self.assembler().compile_relocatable if self.object_kind() == "rel" else self.assembler().compile
        options = dataclasses.replace(self.assemble_options(part), seconds=seconds, unit=part.digest)
        return assemble(text, target=self.target, options=options)


def _making(nodes: Sequence[Any]) -> list[MakingJob]:
    """The jobs of these nodes, and of those that they need, which make what the store lacks."""
    jobs = [each.attributes.gpu for node in nodes for each in (node, *node.needs)]
    return [job for job in jobs if isinstance(job, MakingJob)]

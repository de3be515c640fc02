"""Units as nodes: the lowering and the assembling of one unit, made only while something is missing."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import (
    DamagedError,
    GpuError,
    MissingSymbolError,
    RefusedError,
    SourceError,
    ToolError,
    ToolKilledError,
    ToolMissingError,
    ToolStoppedError,
)
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, answered, assembling, lowering
from scons_gpu.split.readable import demangle
from scons_gpu.store import record as records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.plan import Part
    from scons_gpu.scons import unit_files, verify
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.store.record import Resources
else:
    plans, verify = later("scons_gpu.plan"), later("scons_gpu.scons.verify")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["AssembleJob", "DeferJob", "LowerJob", "MakingJob", "UnitJob"]


@dataclass(kw_only=True)
class UnitJob(Step):
    """What lowering and assembling have in common."""

    recipe: Recipe
    part: Part
    weight: float
    resources: Sequence[Resources] = field(default=(), init=False)
    """What its kernels take, where it was assembled."""

    def explain(self, error: GpuError) -> GpuError:
        """Names the kernel, unless the tool said which."""
        kernel = error.kernel or (self.name if self.part.role == "unit" else "")
        return error.at(kernel=demangle(kernel) if kernel else "", module=self.owners[0], source=self.part.source, arch=self.arch)

    def record(self) -> dict[str, Any]:
        """Units are counted by digest."""
        return {
            "unit": self.part.digest,
            "role": self.part.role,
            **({"candidate": self.part.candidate} if self.part.candidate else {}),
            **({"resources": [_short(each) for each in self.resources]} if self.resources else {}),
        }

    def content(self) -> str:
        """Its file is named by what it is made of, and has its hash in the store's record."""
        return ""

    def fields(self) -> dict[str, str]:
        """The PTX's key."""
        return dict(self.part.key)

    def spent(self, seconds: float) -> None:
        """Remembers a time for the next build's order."""
        key = f"{self.name} {self.arch}"
        with self.workspace.session.lock:
            self.workspace.spent[key] = round(self.workspace.spent.get(key, 0.0) + seconds, 4)


@dataclass(kw_only=True)
class MakingJob(UnitJob):
    """A step that makes a unit's file. Where candidates are made of the unit, a failure is a result too, which is kept."""

    may_fail: bool = False
    """Then who needs the unit after all says why it is not there."""
    limited: bool | None = None
    """Whether it may take only so many seconds: where nobody wants it but as a candidate that is not its kernel's first."""

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Makes the file, or keeps why it cannot be made."""
        failures = self.workspace.failures
        if failures and (known := failures.get(self.recipe.failure_path(self.part.key))) is not None:
            return self._failed(known)  # lowering failed, and assembling is asked next
        try:
            return self.make()
        except (SourceError, RefusedError, MissingSymbolError, ToolError) as error:
            if not self.may_fail or isinstance(error, (ToolMissingError, ToolStoppedError)):
                raise
            self.recipe.keep_failure(self.key(), error)
            if self.limited and isinstance(error, ToolKilledError):
                self.workspace.cut.add(self.recipe.failure_path(self.key()))
            return self._failed(error)

    def _failed(self, error: GpuError) -> Outcome:
        if not self.may_fail:
            raise error
        return Outcome(result="refused", output=str(self.explain(error)))

    @abstractmethod
    def key(self) -> tuple[tuple[str, str], ...]:
        """All that shapes the file."""

    @abstractmethod
    def make(self) -> Outcome:
        """Makes the file. Raises GpuError."""

    def limit(self) -> float | None:
        """CPU seconds that it may take."""
        return self.recipe.seconds if self.limited else None


@dataclass(kw_only=True)
class LowerJob(MakingJob):
    """A slice becomes PTX."""

    stage: ClassVar[str] = "lower"

    def command(self) -> list[str]:
        """By hand."""
        renames = [f"--rename={old}={new}" for old, new in self.part.renames]
        joins = [f"--join={json.dumps(vars(joined), sort_keys=True)}" for joined in self.part.joins]
        return self.gpu("lower", self.part.slice, "--arch", self.arch, *lowering(self.recipe.lower_options(self.part)), *renames, *joins)

    def key(self) -> tuple[tuple[str, str], ...]:
        """The PTX's: what is lowered once may be assembled with several options."""
        return self.part.key

    def make(self) -> Outcome:
        """In a worker; a slice that the store lost is made again, and then lowered."""
        if refused := plans.refusal(self.part):
            raise refused
        key = [list(pair) for pair in self.part.key]
        answer = self.recipe.lower_part(self.part, path=str(self.target), key=key, seconds=self.limit())
        self.spent(answer["cpu"])
        return answered(answer)


@dataclass(kw_only=True)
class AssembleJob(MakingJob):
    """PTX becomes an object."""

    stage: ClassVar[str] = "assemble"
    ptx: Path

    def command(self) -> list[str]:
        """By hand."""
        whole = ["--whole"] if self.recipe.object_kind() == "whole" else []
        whole += ["--anonymous"] if self.recipe.twin(self.part) else []
        whole += ["--complete"] if self.recipe.completes(self.part) else []
        whole += [f"--defer={self.part.digest}"] if self.recipe.deferred else []
        options = assembling(self.recipe.assemble_options(self.part), self.recipe.provider)
        return self.gpu("assemble", str(self.ptx), "--arch", self.arch, *whole, *options)

    def key(self) -> tuple[tuple[str, str], ...]:
        """The object's."""
        return self.recipe.object_fields(self.part)

    def fields(self) -> dict[str, str]:
        """The object's key, without that of its PTX, which the digest names."""
        return {name: value for name, value in self.key() if not name.startswith("ptx ")}

    def make(self) -> Outcome:
        """A process of the assembler's."""
        recipe, store = self.recipe, self.workspace.store
        kept = store.load(self.ptx)
        if kept is None:
            msg = f"{self.ptx} is gone or damaged"
            raise DamagedError(msg, hint="build again: what is damaged in the store is made anew")
        made = recipe.assemble_part(self.part, kept.data.decode(), seconds=self.limit())
        # What LLVM said of the unit goes along, so that a link which reuses the object can show it without the PTX.
        said = "\n".join(text.rstrip() for text in (kept.record.output, made.output) if text.strip())
        entry = records.make(made.data, key=recipe.object_fields(self.part), output=said, seconds=made.seconds, resources=made.resources)
        store.save(self.target, made.data, entry)
        self.spent(made.seconds)
        self.resources = entry.resources
        return Outcome(output=made.output, cpu=made.cpu, peak_kib=made.peak_kib)


def _short(resources: Resources) -> dict[str, Any]:
    return {name: value for name, value in vars(resources).items() if value is not None}


@dataclass(kw_only=True)
class DeferJob(AssembleJob):
    """PTX becomes a file of its own kind, which the link finishes."""

    stage: ClassVar[str] = "defer"

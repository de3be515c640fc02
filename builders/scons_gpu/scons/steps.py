"""What the jobs of all nodes have in common (`_internals.Job`), and the job of the plan."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import SCons.Errors
from SCons.Script import GetOption

from scons_gpu.errors import DiffersError, GpuError
from scons_gpu.scons import _internals, asked
from scons_gpu.scons.later import later
from scons_gpu.scons.settings import VARIABLES
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.scons import libraries
    from scons_gpu.scons.libraries import Libraries
    from scons_gpu.scons.session import Workspace
    from scons_gpu.source import clang as compiler
    from scons_gpu.source import nvcc, ptx
    from scons_gpu.split import index as indexes
    from scons_gpu.store import because as causes
    from scons_gpu.store import copies, names
    from scons_gpu.store.because import Because
else:
    causes, copies = later("scons_gpu.store.because"), later("scons_gpu.store.copies")
    names = later("scons_gpu.store.names")
    compiler, indexes, plans = later("scons_gpu.source.clang"), later("scons_gpu.split.index"), later("scons_gpu.plan")
    nvcc, ptx = later("scons_gpu.source.nvcc"), later("scons_gpu.source.ptx")
    libraries = later("scons_gpu.scons.libraries")

__all__ = ["Outcome", "PlanJob", "Step", "read_index"]


@dataclass(frozen=True)
class Outcome:
    """What a step has to tell when it is through."""

    output: str = ""
    cpu: float = 0.0
    peak_kib: int = 0
    worker: int = 0
    result: str = "built"


@dataclass(kw_only=True)
class Step(ABC):
    """What all jobs have in common: the line, the log record, and what becomes of an error."""

    stage: ClassVar[str]

    workspace: Workspace
    name: str
    """What the line says: a readable kernel, a source, a module."""
    arch: str = ""
    owners: Sequence[str] = ()
    place: int = 0
    signature: str = ""
    target: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that tell a command run by hand where the tools are."""
    because: Because | None = field(default=None, init=False)
    """Why it runs."""

    def line(self, env: Any) -> str:
        """The step's line, or the whole command where the variable is emptied."""
        variable = f"GPU_{self.stage.upper()}COMSTR"
        template = self.workspace.session.arguments.get(variable, env.get(variable, VARIABLES[variable][0]))
        if not template:
            return self.by_hand()
        return str(env.subst(template, raw=1, overrides={"GPU_NAME": self.label().replace("$", "$$")}))

    def label(self) -> str:
        """What the line says after the verb."""
        return f"{self.name}  {self.arch}" if self.arch else self.name

    @abstractmethod
    def command(self) -> list[str]:
        """The command that does the same by hand."""

    def by_hand(self) -> str:
        """That command as a shell takes it, in the folder of the SConstruct, tools that variables name included."""
        chosen = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items() if value]
        return " ".join([*chosen, shlex.join(self.command())])

    def gpu(self, *words: str) -> list[str]:
        """A `scons-gpu` command on this build's store."""
        return ["scons-gpu", "--store", str(self.workspace.store.root), *words, "-o", str(self.target)]

    def makes_nothing(self) -> bool:
        """Whether there is rightly no file."""
        return False

    def sidecars(self) -> Sequence[Path]:
        """Files beside the target that must be there."""
        return ()

    def is_whole(self) -> bool:
        """Whether they are."""
        return all(path.exists() for path in self.sidecars())

    @abstractmethod
    def work(self, node: Any) -> Outcome:
        """Makes the file. Raises GpuError."""

    def explain(self, error: GpuError) -> GpuError:
        """Adds what this step knows of its place to an error."""
        return error.at(module=self.owners[0] if self.owners else "", arch=self.arch)

    def record(self) -> dict[str, Any]:
        """Further fields of the log record."""
        return {}

    def fields(self) -> dict[str, str]:
        """All that shapes the file, besides the content of the sources."""
        return _internals.fields(self.signature)

    def content(self) -> str:
        """A hash of what it made, so that who looks into a build sees where a change came to its end; empty where that is no file."""
        try:
            return names.content(self.target.read_bytes())[:16]
        except OSError:
            return ""

    def run(self, node: Any) -> None:
        """Does the work, logs it, and turns an error into SCons'."""
        begun = time.time()
        try:
            self.workspace.begin()
            outcome = self.work(node)
            self._log(begun, outcome)
        except GpuError as error:
            result = "differs" if isinstance(error, DiffersError) else "failed"
            failed = Outcome(result=result, output=str(self.explain(error)))
            with contextlib.suppress(GpuError):  # the log may be what cannot be written
                self._log(begun, failed)
            self.workspace.session.fail(error, self.place)
            raise SCons.Errors.BuildError(node=node, errstr=f"{self.stage} failed", status=2, exitstatus=2) from None
        if outcome.result != "refused":  # why a candidate cannot be made, the choice says
            self.workspace.show(self.label(), outcome.output)

    def _log(self, begun: float, outcome: Outcome) -> None:
        self.workspace.log.write(
            type="action",
            stage=self.stage,
            name=self.name,
            arch=self.arch,
            owners=list(self.owners),
            target=str(self.target),
            key=self.fields(),
            **({"because": causes.to_json(self.because)} if self.because else {}),
            **({"content": content} if outcome.result == "built" and (content := self.content()) else {}),
            result=outcome.result,
            start=round(begun, 6),
            end=round(time.time(), 6),
            worker=outcome.worker or threading.get_ident(),
            peak_kib=outcome.peak_kib,
            cpu=outcome.cpu,
            output=outcome.output,
            **self.record(),
        )


def answered(answer: dict[str, Any]) -> Outcome:
    """What a worker's answer tells."""
    return Outcome(output=answer["output"], cpu=answer["cpu"], peak_kib=answer["peak_kib"], worker=answer["worker"])


@dataclass(kw_only=True)
class PlanJob(Step):
    """Indexes become the plan of one module for one architecture."""

    stage: ClassVar[str] = "plan"
    module: str
    link: str
    indexes: Sequence[Path]
    lower: LowerOptions
    key: Callable[..., tuple[tuple[str, str], ...]]
    libraries: Libraries | None = None
    """What is linked besides, and may define what sources lack."""
    tuned: Callable[[], Sequence[plans.Tuned]] = tuple
    """The candidates, read from their indexes."""
    copy: str = field(default="", init=False)

    def command(self) -> list[str]:
        """By hand."""
        module = ["--module", self.module, "--link", self.link]
        besides = libraries.words(self.libraries) if self.libraries else ()
        return self.gpu("plan", *map(str, self.indexes), "--arch", self.arch, *module, *besides, *lowering(self.lower))

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Pure Python, in SCons' own process. What concerns single units stops the plan, unless the user wants the rest (`-k`)."""
        found = [read_index(path) for path in self.indexes]
        besides = libraries.defined(self.libraries) if self.libraries else {}
        made = plans.plan(found, module=self.module, arch=self.arch, link=self.link, key=self.key, tuned=self.tuned(), libraries=besides)
        if not GetOption("keep_going"):
            refused = [error for part in made.parts if (error := plans.refusal(part))]
            for error in refused[:-1]:
                self.workspace.session.fail(self.explain(error), self.place)
            if refused:
                raise refused[-1]
        self.copy = write_plan(self, made)
        return Outcome(output="\n".join(f"{source}: {text}" for source, text in made.notes))

    def record(self) -> dict[str, Any]:
        """With the plan's copy."""
        return {"plan": self.copy}


def write_plan(step: Step, plan: plans.Plan) -> str:
    """Writes the step's file, and keeps a copy of it in the store, whose name it gives."""
    text = plans.to_text(plan).encode()
    write_atomic(step.target, text)
    return copies.keep(step.workspace.store.root, text)


def read_index(path: Path) -> indexes.Index:
    """The index in a file."""
    return indexes.from_text(path.read_text(encoding="utf-8"), path=str(path))


def switches(options: Any) -> list[str]:
    """The options that are on or off, as `scons-gpu` takes them."""
    return [
        f"--{name.replace('_', '-')}"
        for name in ("fast_math", "ftz", "lineinfo", "debug", "fail_on_spill", "warn_on_spill")
        if getattr(options, name, False)
    ]


def lowering(options: LowerOptions) -> list[str]:
    """How units are lowered, as `scons-gpu` takes it."""
    return ["--opt", str(options.opt), "--ptx", str(options.ptx), "--by", options.by, *switches(options)]


def assembling(options: AssembleOptions, provider: Provider | None) -> list[str]:
    """How units are assembled, and by whom, as `scons-gpu` takes it. ptxas is taken unasked."""
    registers = [] if options.maxrregcount is None else ["--maxrregcount", str(options.maxrregcount)]
    named = [] if provider is None or provider.name == "ptxas" else ["--provider", provider.name]
    return ["--opt", str(options.opt), *registers, *named, *(f"--flag={flag}" for flag in options.flags), *switches(options)]


def options_text(**fields: Any) -> str:
    """A signature: one `name = value` line each, in order of name."""
    return "\n".join(f"{name} = {_JSON.encode(fields[name])}" for name in sorted(fields))


_JSON = json.JSONEncoder(default=str, sort_keys=True)
"""One for all: `json.dumps` makes an encoder a call, and a null build writes ten signatures a module."""


LOOKING_NOTE = "units are decided during the build: -n shows those that the present plans name"


def note_looking(workspace: Workspace) -> None:
    """Says, once, what -n cannot foresee."""
    if asked.looking() and GetOption("no_exec"):
        workspace.session.warn(LOOKING_NOTE)

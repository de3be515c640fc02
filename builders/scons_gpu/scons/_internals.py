"""The only file that leans on SCons' private API. What it leans on, and why it has to.

**The problem.** What an image is made of is known only when its plan is there, and the plan is made during the build. SCons walks its
graph before it builds: the taskmaster looks at the image's node first, asks for its children (the plan), and comes back when the plan
is ready. A scanner is asked once, at the first look, when the plan is missing or stale, and again only if a child was *built*. A plan
that was merely up to date would leave the image with the units of a plan that is gone, and stale objects would be linked in silence.

**What we do.** The image's node is of a class of its own whose `scan()` is asked every time the taskmaster looks at the node
(`Node.children()` calls it each time, and only the stock `scan()` returns early). As soon as every child is done, it asks the image's
job which units are missing, makes their nodes and hangs them under itself as prerequisites: order-only edges, outside the signature,
built in parallel. Then the image needs no scanner, and `--implicit-cache` and `--implicit-deps-unchanged` have nothing to keep. Scans
run one at a time under the taskmaster's lock, so making nodes is safe. The job of an image that is current is asked too, for nodes that
check what it was made from: SCons builds prerequisites of what is current as well, and what fails of them fails the image.

**Folding.** Units are asked for only when the image is out of date, so a build with nothing to do has as many nodes as modules, not
kernels.

**Half-written and foreign targets.** SCons compares what a target was made *from*, never the target. After a SIGKILL, or an edit that
is taken back, a file can be newer than its record and pass as current. `Artefact.is_up_to_date()` therefore also compares the file with
what was recorded when it was made (size and time, else content).

**Nothing to make.** A module without kernels is legal and makes no file, but SCons builds a missing file again each time. An artefact
whose job says that it makes nothing is up to date when its inputs are.

**What is declared late.** Static libraries may be named in a link before anybody declares them, so what a link takes is known when all
SConscripts are read. A `Late` node asks its job what it is made from when the taskmaster looks at it first; nodes that the job declares
then are nodes like others, since nobody asked for them before. The job has the link's own node scanned, which finds the libraries.

**Headers.** The compiler says what it read, after the build. `Compiled.built()` puts that list into the node before SCons records it,
so that the first null build is one. On the way in, SCons' own C scanner finds headers that other builders make, as order-only edges.

**Failures.** Under `-k` the stock taskmaster marks a node whose child had failed before it came to it, and forgets who waits for that
node: at the end it takes those for a dependency cycle, and says so. `Batch.cleanup()` leaves out what waits for a failure.

**Order.** The stock taskmaster goes depth first. `Batch` keeps units back until nothing else is waiting, then gives the longest first,
over all programs of the build.

**Why a step runs.** SCons knows what it compared, and says so only on demand (`--debug=explain`). Before a step runs and its record is
written anew, `Artefact.prepare()` compares once more and gives the job what differs: the log tells it. Units have no record: the store
had them not.

**Units cost little.** `UnitFile` and `UnitExecutor` answer what the taskmaster asks of a node, and leave out what SCons does for its
records, which a unit has none of.

**Sources of ordinary builders.** SCons' object builders hold an action and an emitter for each suffix, in dictionaries that tools fill.
Ours are entered there (`takes()`); the emitter, which runs when a builder is called, gives the target's node its class and its job. Who
entered an action of his own keeps it, and our emitter then does nothing. A call's overrides are found where SCons keeps them.

**An exception in any of these hooks kills a thread of SCons, and the build hangs for good.** Each hook catches everything: a job's own
error is kept and raised when the job runs; a mistake of ours falls back to what SCons would have done.

Each paragraph has its contract test in tests/unit/test_internals.py.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import SCons.Action
import SCons.Builder
import SCons.Defaults
import SCons.Environment
import SCons.Errors
import SCons.Executor
import SCons.Node
import SCons.Node.FS
import SCons.Scanner.C
import SCons.Script.Main
import SCons.Taskmaster
import SCons.Tool
import SCons.Util

from scons_gpu.scons.later import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from scons_gpu.store import because as causes
    from scons_gpu.store.because import Because, Input
else:
    causes = later("scons_gpu.store.because")

__all__ = [
    "Artefact",
    "Batch",
    "Compiled",
    "Image",
    "Job",
    "Late",
    "UnitFile",
    "builder",
    "enter_command",
    "failed",
    "fields",
    "install",
    "overrides",
    "takes",
    "top",
    "unit",
    "version",
]


class Job(Protocol):
    """What a node of ours is made by. It hangs on `node.attributes.gpu`."""

    stage: ClassVar[str]
    signature: str
    """All that shapes the result, besides the content of the sources: one `name = value` line each."""
    because: Because | None
    """Why it runs: set before it does."""

    def line(self, env: Any) -> str:
        """What is printed before the step runs; empty for nothing."""

    def run(self, node: Any) -> None:
        """Makes the node's file. Raises SCons' BuildError."""

    def makes_nothing(self) -> bool:
        """Whether there is rightly no file."""

    def sidecars(self) -> Sequence[Path]:
        """Files that are written beside the target."""

    def is_whole(self) -> bool:
        """Whether they are there and belong to the target."""


class Artefact(SCons.Node.FS.File):  # type: ignore[misc]
    """A file of ours in the build folder."""

    __slots__ = ()

    def exists(self) -> bool:
        """Whether the file is there, or rightly is not: `-q` asks this of what is up to date."""
        return self.is_file() or self.is_rightly_absent()

    def is_file(self) -> bool:
        """Whether the file is there."""
        return bool(super().exists())

    def is_rightly_absent(self) -> bool:
        """Whether the job makes no file."""
        try:
            return bool(self.attributes.gpu.makes_nothing())
        except Exception:  # noqa: BLE001 - a hook: a missing file is what SCons takes it for
            return False

    def is_up_to_date(self) -> bool:
        """As SCons says, and the file is the one that was recorded.

        What was just made is current: a scanner asks before it reads a C++ file of ours, and takes nothing from one that is not.
        """
        try:
            if self.get_state() == SCons.Node.executed:
                return self.is_file()
            if not super().is_up_to_date():
                return False
            if not self.is_file():
                # SCons takes a file beside the source for one below a variant folder without duplicates; our steps read their own.
                return self.is_rightly_absent()
            return self.is_recorded() and bool(self.attributes.gpu.is_whole())
        except Exception:  # noqa: BLE001 - a hook: what cannot be told is made anew
            return False

    def get_size(self) -> int:
        """Of a file that is rightly absent: none."""
        return int(super().get_size()) if self.is_file() else 0

    def get_timestamp(self) -> float:
        """With what the file system has below a second, which SCons leaves out: a file can change twice in one."""
        return float(self.stat().st_mtime) if self.is_file() else 0.0

    def get_max_drift_csig(self) -> str:
        """The recorded content hash of the very file that was recorded. SCons itself reads a file anew for two days.

        Not of a file that was just made: on a file system with coarse times it may look like the one before.
        """
        if self.get_state() < SCons.Node.executing and self.is_unchanged():
            return str(self.get_stored_info().ninfo.csig)
        return str(super().get_max_drift_csig())

    def get_content_hash(self) -> str:
        """Of a file that is rightly absent: that of nothing."""
        return str(super().get_content_hash()) if self.is_file() else str(SCons.Util.hash_signature(""))

    def remove(self) -> Any:
        """What `-c` does: files beside the target go with it."""
        for path in self.attributes.gpu.sidecars():
            path.unlink(missing_ok=True)
        return super().remove() if self.is_file() else None

    def _rmv_existing(self) -> None:
        """SCons takes the old file away before a step runs."""
        if self.is_file():
            super()._rmv_existing()

    def is_recorded(self) -> bool:
        """Whether the file on disk is the one whose making was recorded."""
        try:
            return self.is_unchanged() or bool(self.get_stored_info().ninfo.csig == self.get_content_hash())
        except AttributeError:
            return False

    def is_unchanged(self) -> bool:
        """Whether size and time are the recorded ones."""
        then = self.get_stored_info().ninfo
        try:
            return bool(then.csig) and then.size == self.get_size() and then.timestamp == self.get_timestamp()
        except AttributeError:
            return False

    def scan(self) -> None:
        """All that an artefact is made of is declared: no scanner has anything to find."""
        if self.implicit is None:
            self._forget_implicit()

    def _forget_implicit(self) -> None:
        for name, empty in (("implicit", []), ("implicit_set", set())):
            setattr(self, name, empty)
        self._children_reset()

    def make_ready(self) -> None:
        """SCons would collect here what it records of a node: that is done when there is something to record."""

    def prepare(self) -> None:
        """Tells the job why, while it can be seen. For what is up to date SCons would look once more whether its inputs are there."""
        if self.get_state() != SCons.Node.up_to_date:
            with contextlib.suppress(Exception):  # a hook: then the log does not say why
                self.attributes.gpu.because = reason(self)
            super().prepare()

    def built(self) -> None:
        """Records what was made. A file that is gone again by now is made anew the next time."""
        try:
            self.record()
        except Exception:  # noqa: BLE001 - a hook: what is not recorded is made anew the next time
            return

    def record(self) -> None:
        """What SCons does for a node that was built."""
        super().built()

    def visited(self) -> None:
        """What is up to date and unchanged is recorded already; SCons would write the whole record anew."""
        try:
            if self.get_state() > SCons.Node.up_to_date or not self.is_unchanged():
                super().visited()
                return
            ninfo = self.get_ninfo()
            ninfo.csig, ninfo.timestamp, ninfo.size = self.get_csig(), self.get_timestamp(), self.get_size()
        except Exception:  # noqa: BLE001 - a hook: what is not recorded is made anew the next time
            return

    def release_target_info(self) -> None:
        """There are as many artefacts as modules: memory is no reason to compare each once more before it is let go."""


def reason(node: Artefact) -> Because:
    """What of all that SCons compares is other than when the node was made, and what of the node's own file is."""
    then = node.get_stored_info().binfo
    missing = not node.is_file()
    if then.bactsig is None:
        return causes.Because(first=True)
    old = _recorded_inputs(then)
    new = {str(child): child for child in node.children()}
    inputs = tuple(_changed_inputs(node, old, new))
    return causes.Because(
        missing=missing,
        altered=not missing and not (node.is_recorded() and bool(node.attributes.gpu.is_whole())),
        inputs=inputs,
        key=dict(_changed_fields(fields(str(then.bact)), fields(node.attributes.gpu.signature))),
        order=not inputs and list(old) != list(new),
    )


def _recorded_inputs(then: Any) -> dict[str, Any]:
    """Name, as SCons spells it from the top down, and what was recorded of the content."""
    names = (*then.bsources, *then.bdepends, *then.bimplicit)
    return dict(zip(map(str, names), (*then.bsourcesigs, *then.bdependsigs, *then.bimplicitsigs), strict=True))


def _changed_inputs(node: Artefact, old: dict[str, Any], new: dict[str, Any]) -> Iterable[Input]:
    declared = {str(child) for child in (*node.sources, *node.depends)}
    for name, child in new.items():
        role = "source" if name in declared else "made" if _is_derived(child) else "read"
        if name not in old:
            yield causes.Input(str(child.get_abspath()), "added", role)
        elif SCons.Node._decider_map[child.changed_since_last_build](child, node, old[name], None):  # noqa: SLF001 - what decides
            yield causes.Input(str(child.get_abspath()), "changed", role)
    for name in sorted(old.keys() - new.keys()):
        yield causes.Input(str(node.fs.File(name).get_abspath()), "removed")


def _changed_fields(old: dict[str, str], new: dict[str, str]) -> Iterable[tuple[str, tuple[str, str]]]:
    for name in sorted(old | new):
        if old.get(name) != new.get(name):
            yield name, (old.get(name, ""), new.get(name, ""))


def fields(signature: str) -> dict[str, str]:
    """The `name = value` lines of a signature."""
    return dict(line.split(" = ", 1) for line in signature.splitlines() if " = " in line)


class Compiled(Artefact):
    """IR that a compiler made: its job knows which files the compiler read."""

    __slots__ = ()

    def scan(self) -> None:
        """Adds what the compiler read last time, and headers that are still to be made."""
        first = self.implicit is None
        super().scan()
        if first and self.has_builder():
            self.add_to_implicit([node for node in self._read() if _is_derived(node) or node.exists()])
            if not self._is_current():
                self.add_prerequisite(list(_derived_headers(self)))

    def changed(self, node: Any = None, allowcache: bool = False) -> bool:  # noqa: FBT001, FBT002 - SCons' signature
        """As SCons says. It asks five functions for each of hundreds of headers; that all are as they were is found out in one go."""
        with contextlib.suppress(Exception):  # a hook: then SCons finds it out
            if node is None and "changed" not in self._memo and self._is_as_recorded():
                if allowcache:
                    self._memo["changed"] = False
                return False
        return bool(super().changed(node, allowcache))

    def _is_as_recorded(self) -> bool:
        if not _decides_by_content(self.get_build_env()):
            return False
        then, now = self.get_stored_info().binfo, self.children()
        recorded = then.bsourcesigs + then.bdependsigs + then.bimplicitsigs
        return (
            len(recorded) == len(now)
            and all(
                isinstance(child, SCons.Node.FS.File) and child.get_csig() == old.csig for child, old in zip(now, recorded, strict=True)
            )
            and bool(then.bactsig == SCons.Util.hash_signature(self.get_executor().get_contents()))
        )

    def record(self) -> None:
        """Records what the compiler read this time."""
        self._forget_implicit()
        headers = [node for node in self._read() if node.exists()]
        self.add_to_implicit(headers)
        for node in headers:
            node.get_ninfo().update(node)
        super().record()

    def _read(self) -> list[Any]:
        try:
            return [_file_at(self.dir.fs, path) for path in self.attributes.gpu.dependencies()]
        except Exception:  # noqa: BLE001 - a hook: the node is built, and reads its dependencies anew
            return []

    def _is_current(self) -> bool:
        """Whether headers need not be searched for. What nobody makes does not change meanwhile, so the answer is kept."""
        return not any(_is_derived(child) for child in self._children_get()) and not self.changed(allowcache=True)


@functools.cache
def _file_at(fs: Any, path: str) -> Any:
    """A file that a compiler named. A hundred sources name the same headers, and SCons takes its time over each path."""
    return fs.File(path)


@functools.cache
def _is_derived(node: Any) -> bool:
    """Whether another builder makes the file. Asked while the build runs, when all builders are known, for each source anew."""
    return bool(node.is_derived())


def _decides_by_content(env: Any) -> bool:
    """Whether the user left SCons' decider as it is."""
    default = SCons.Defaults.DefaultEnvironment()
    named = {SCons.Environment.default_decide_source: default.decide_source, SCons.Environment.default_decide_target: default.decide_target}
    return all(named.get(decide, decide) is SCons.Environment.Base._changed_content for decide in (env.decide_source, env.decide_target))  # noqa: SLF001 - the decider itself


def _derived_headers(node: Any) -> Iterable[Any]:
    """Headers that the source names, that can be found, and that another builder makes."""
    try:
        env, scanner = node.get_build_env(), SCons.Scanner.C.CScanner()
        path = scanner.path(env, node.dir)
        found = [header for source in node.sources for header in source.get_implicit_deps(env, scanner, lambda _: path)]
        return [header for header in found if header.is_derived()]
    except Exception:  # noqa: BLE001 - a hook: a header that nobody finds is the compiler's to report
        return []


class Image(Artefact):
    """A file that a plan decides: its units become nodes while the build runs."""

    __slots__ = ()

    def is_up_to_date(self) -> bool:
        """As SCons says, unless its job has an error to raise: it runs only if this is not current."""
        return self.attributes.gpu.error is None and super().is_up_to_date()

    def scan(self) -> None:
        """Hangs missing units, or checks of those that are there, under the node, once, when all that decides them is there."""
        super().scan()
        job = self.attributes.gpu
        if job.expanded or not self._decided():
            return
        job.expanded = True
        try:
            self.changed(allowcache=True)  # all children are done: what is found out now holds until the image is made
            if nodes := job.checks() if self.is_up_to_date() else job.units():
                self.add_prerequisite(nodes)
        except Exception as error:  # noqa: BLE001 - a hook: raised again when the job runs
            job.error = error

    def _decided(self) -> bool:
        states = [child.get_state() for child in self._children_get()]
        return bool(states) and all(SCons.Node.up_to_date <= state < SCons.Node.failed for state in states)


class Late(Artefact):
    """A file whose job knows what it is made from when the build begins, and not before."""

    __slots__ = ()

    def is_up_to_date(self) -> bool:
        """As SCons says, unless its job has an error to raise: it runs only if this is not current."""
        return self.attributes.gpu.error is None and super().is_up_to_date()

    def scan(self) -> None:
        """Asks the job, once, before anybody is told of the children."""
        super().scan()
        job = self.attributes.gpu
        if job.expanded:
            return
        job.expanded = True
        try:
            self.add_dependency(job.needs())
            self.add_prerequisite(list(job.besides))
        except Exception as error:  # noqa: BLE001 - a hook: raised again when the job runs
            job.error = error


class UnitFile(SCons.Node.FS.File):  # type: ignore[misc]
    """A unit's PTX or object in the store. It exists only to be built; SCons keeps no record of it, the store does.

    It is outside of SCons' tree of files, and what SCons does around a step for the sake of its records is left out: a stock node
    takes 1.5 ms, this one 0.3 ms (docs/benchmarks.md).
    """

    __slots__ = ("needs",)

    needs: list[UnitFile]
    """What it is made from."""

    def children(self, scan: int = 1) -> list[Any]:  # noqa: ARG002 - SCons' signature
        """What it is made from."""
        return self.needs

    all_children = children

    def has_builder(self) -> bool:
        """Always."""
        return True

    def is_up_to_date(self) -> bool:
        """A node is made only for what is missing."""
        return False

    def make_ready(self) -> None:
        """There is no record to collect."""

    def prepare(self) -> None:
        """The file is not taken away before the step: another build of the same store may just have made it."""

    def retrieve_from_cache(self) -> bool:
        """The store is the cache."""
        return False

    def push_to_cache(self) -> None:
        """The same."""

    def built(self) -> None:
        """There is nothing to record."""

    visited = release_target_info = built


class UnitExecutor:
    """What SCons asks of a node's executor, for one target that is made by its job."""

    __slots__ = ("env", "node")

    def __init__(self, node: UnitFile, env: Any) -> None:
        self.node = node
        self.env = env

    def get_all_children(self) -> list[Any]:
        """What the unit is made from."""
        return self.node.needs

    get_all_sources = get_all_children

    def get_all_targets(self) -> list[Any]:
        """The unit alone."""
        return [self.node]

    get_action_targets = get_all_targets

    def get_all_prerequisites(self) -> tuple[()]:
        """None."""
        return ()

    get_action_side_effects = get_all_prerequisites

    def get_build_env(self) -> Any:
        """That of the module which asked for the unit first."""
        return self.env

    def prepare(self) -> None:
        """Nothing."""

    cleanup = prepare

    def __call__(self, _target: Any, **kw: Any) -> None:
        """Prints the line and does the step; neither, where SCons was told so."""
        failure = _ACTION(self.get_all_targets(), self.node.needs, self.env, executor=self, **kw)
        if isinstance(failure, SCons.Errors.BuildError):
            raise failure


class Batch(SCons.Taskmaster.Taskmaster):  # type: ignore[misc]
    """The stock taskmaster, with units kept back until all of them are known, then given longest first."""

    begun = False
    """Whether SCons came to build anything: it may be stopped while it reads SConstructs."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        Batch.begun = True
        super().__init__(*args, **kw)
        self.candidates: list[Any]
        self.pending_children: set[Any]
        self.waiting: list[tuple[float, int, Any]] = []
        self.count = itertools.count()

    def find_next_candidate(self) -> Any:
        """The next node to look at."""
        try:
            self._keep_units_back()
            if not self.candidates and self.waiting:
                return heapq.heappop(self.waiting)[2]
        except Exception:  # noqa: BLE001 - a hook: an exception here would hang SCons
            self._give_back()
        return super().find_next_candidate()

    def no_next_candidate(self) -> Any:
        """Stops: what was kept back will not be built either."""
        self._give_back()
        return super().no_next_candidate()

    def cleanup(self) -> Any:
        """Tells of dependency cycles, once what waits for something that failed is left out."""
        with contextlib.suppress(Exception):  # a hook: then SCons tells what it would have told
            known: dict[Any, bool] = {}
            self.pending_children = {node for node in self.pending_children if not _waits_for_failure(node, known)}
        return super().cleanup()

    def _keep_units_back(self) -> None:
        """The candidates are a stack, so a look at its end does: all units come to lie there before anybody takes them."""
        while self.candidates and isinstance(self.candidates[-1], UnitFile):
            node = self.candidates[-1]
            heapq.heappush(self.waiting, (-weight(node), next(self.count), node))
            self.candidates.pop()

    def _give_back(self) -> None:
        self.candidates.extend(entry[2] for entry in self.waiting)
        self.waiting = []


def _waits_for_failure(node: Any, known: dict[Any, bool]) -> bool:
    """Whether a node will not be built because something that it needs failed."""
    if node not in known:
        known[node] = False  # what waits for itself, and for no failure, is a cycle
        needed = (*node.all_children(scan=0), *(node.prerequisites or ()))
        known[node] = node.get_state() == SCons.Node.failed or (
            node.get_state() == SCons.Node.pending and any(_waits_for_failure(one, known) for one in needed)
        )
    return known[node]


def weight(node: Any) -> float:
    """Seconds that a unit is expected to take."""
    return float(node.attributes.gpu.weight)


class StepAction(SCons.Action.FunctionAction):  # type: ignore[misc]
    """The one action: what it does, prints and depends on is its target's job."""

    def __init__(self) -> None:
        super().__init__(_run, {})

    def strfunction(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:  # noqa: ARG002 - SCons' signature
        """The step's line."""
        return str(target[0].attributes.gpu.line(env))

    def get_presig(self, target: Any, source: Any, env: Any, executor: Any = None) -> bytes:  # noqa: ARG002 - SCons' signature
        """The signature: what shapes the result, and not our bytecode."""
        return str(target[0].attributes.gpu.signature).encode()

    def genstring(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:  # noqa: ARG002 - SCons' signature
        """What `--debug=explain` shows as the old and the new action."""
        job = target[0].attributes.gpu
        return f"{job.stage}\n{job.signature}"


def _run(target: Any, source: Any, env: Any) -> None:  # noqa: ARG001 - SCons' signature
    target[0].attributes.gpu.run(target[0])


_ACTION = StepAction()


def takes(env: Any, suffix: str, declare: Callable[[Any, Any, Any, bool], Any]) -> None:
    """Makes `Object` and `SharedObject` of `env`, and so all that links objects, take sources of `suffix`.

    `declare` gets the environment of each call with its overrides, target, source, and whether the object is for a shared library; the
    target's job is there when it returns. A suffix that the user's own tools gave an action, before or after, is left to them.
    """
    for made, shared in zip(SCons.Tool.createObjBuilders(env), (False, True), strict=True):
        if suffix not in made.cmdgen:
            made.add_action(suffix, _ACTION)
            made.add_emitter(suffix, _emitter(made, suffix, declare, shared=shared))


def _emitter(made: Any, suffix: str, declare: Callable[[Any, Any, Any, bool], Any], *, shared: bool) -> Callable[..., Any]:
    marked = SCons.Defaults.SharedObjectEmitter if shared else SCons.Defaults.StaticObjectEmitter

    def emit(target: Any, source: Any, env: Any) -> Any:
        if made.cmdgen[suffix] is _ACTION:
            declare(env, node_at(env.fs, target[0].get_abspath(), Compiled), source[0], shared)
            target[0].nocache = 1
        return marked(target, source, env)

    return emit


def overrides(env: Any) -> dict[str, Any]:
    """What a builder's call says besides its target and sources, the inner call's last."""
    own = env.__dict__.get("overrides")
    return {} if own is None else {**overrides(env.__dict__["__subject"]), **own}


@dataclass(frozen=True)
class _Entry:
    """What the compilation database takes for an action: it asks for the command."""

    command: str

    def strfunction(self, *_: Any) -> str:
        return self.command


def enter_command(env: Any, target: Any, source: Any, command: Callable[[], str]) -> None:
    """Enters how `source` is compiled into SCons' compilation database, where `env` has that tool."""
    if "CompilationDatabase" in env["BUILDERS"]:
        entries = vars(sys.modules["SCons.Tool.compilation_db"])["__COMPILATION_DB_ENTRIES"]
        entries.append((target, source, env, _Entry(command())))


def node_at(fs: Any, path: Any, kind: type) -> Any:
    """The node of `path`, as a node of `kind`; also where the user named it before as a plain file."""
    node = fs._lookup(str(path), None, SCons.Node.FS.File, create=1)  # noqa: SLF001 - what fs.File() itself does
    if type(node) is SCons.Node.FS.File:
        node.__class__ = kind
    return node


def builder(kind: type) -> Callable[[Any, Any, Sequence[Any], Job], Any]:
    """Gives a function (env, target, sources, job) that declares one node of `kind`: what a Builder's call comes to, at half its price."""
    made = SCons.Builder.Builder(action=_ACTION, target_factory=lambda name, **_: name)

    def declare(env: Any, target: Any, sources: Sequence[Any], job: Job) -> Any:
        node = node_at(env.fs, target, kind)
        node.attributes.gpu = job
        if node.has_builder():
            made(env, target=[node], source=list(sources))  # it tells of two builders for one file
        else:
            node.cwd = env.fs.getcwd()
            node.builder_set(made)
            node.env_set(env)
            node.add_source(list(sources))
            node.set_executor(SCons.Executor.Executor(_ACTION, env, [], [node], list(sources)))
            node.set_explicit(made.is_explicit)
        node.nocache = 1
        return node

    return declare


def unit(env: Any, path: Any, needs: Sequence[Any], job: Job) -> Any:
    """A node that makes what the store lacks. `needs`: units that it is made from."""
    folder, _, name = str(path).rpartition("/")
    node = UnitFile(name, _folder_at(env.fs, folder or "."), env.fs)
    node.attributes.gpu = job
    node.needs = list(needs)
    node.set_executor(UnitExecutor(node, env))
    return node


@functools.cache
def _folder_at(fs: Any, path: str) -> Any:
    """A folder of the store. There are 256 for thousands of units."""
    return fs.Dir(path)


def top() -> str:
    """The folder of the SConstruct."""
    return str(SCons.Node.FS.get_default_fs().Top.get_abspath())


def failed() -> bool:
    """Whether SCons will end with an exit status other than 0. True at the end of the process alone."""
    return bool(SCons.Script.Main.exit_status)


def version() -> str:
    """SCons' own."""
    return str(SCons.__version__)


def install() -> None:
    """Puts our taskmaster in the place of the stock one. Harmless when done twice."""
    if SCons.Taskmaster.Taskmaster is not Batch:
        SCons.Taskmaster.Taskmaster = Batch

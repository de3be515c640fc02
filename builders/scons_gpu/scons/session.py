"""One run of SCons: its stores, workers, tools and log, what failed in it, and what is said at the end."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scons_gpu.inspect.summary import summary
from scons_gpu.scons import _internals, asked, counts
from scons_gpu.store.builds import remember
from scons_gpu.store.log import BuildLog
from scons_gpu.store.stats import stats
from scons_gpu.store.store import Store, writable
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.tools import discover
from scons_gpu.workers.pool import Pool, ignore_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.errors import GpuError
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.settings import Settings
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["Session", "Workspace", "session"]


@dataclass
class Workspace:
    """A store with all that this run does in it."""

    session: Session
    store: Store
    log: BuildLog
    plans: dict[str, list[Path]] = field(default_factory=dict)
    """Program → its plans, in order of declaration."""
    units: dict[Path, Any] = field(default_factory=dict)
    """Nodes of the units that are made in this run, by their file."""
    verified: dict[tuple[Path, Path], Any] = field(default_factory=dict)
    """Nodes that verify entries of the store, by PTX and entry."""
    dumped: dict[Path, Any] = field(default_factory=dict)
    """Nodes that write a unit's files for the user, by the files' common name."""
    needed: set[str] = field(default_factory=set)
    """Digests of the units of every image that was due."""
    deferred: set[str] = field(default_factory=set)
    """Those of them that a link was given as PTX."""
    owners: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Digest → modules that name it, in this run."""
    failures: dict[Path, GpuError] = field(default_factory=dict)
    """Why candidates could not be made in this run, by where that is kept, and by the file that is not there."""
    cut: set[Path] = field(default_factory=set)
    """Those of them that only a limit of time ended: who has none makes them after all."""
    decisions: dict[Any, Any] = field(default_factory=dict)
    """What was decided in this run: the same problem with the same candidates is decided once."""
    choices: dict[str, list[tuple[Any, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Program → the choices that it has to make, as jobs and nodes: what a dump is made of."""
    chains: dict[Path, Any] = field(default_factory=dict)
    """Plans that are declared, by their file: helper modules have several users."""
    compiled: dict[Path, tuple[Any, Any]] = field(default_factory=dict)
    """IR that clang makes, by its file: who asked for it, and its node. Two architectures may have one text."""
    halves: dict[Any, Any] = field(default_factory=dict)
    """Device halves of the sources of ordinary objects, by what they are made of: an object and a shared one have one."""
    late: threading.Lock = field(default_factory=threading.Lock)
    """Held while candidates are compiled that a tuning file had made needless."""
    shown: set[tuple[str, str]] = field(default_factory=set)
    unmerged: dict[str, list[str]] = field(default_factory=dict)
    """Why `GPU_LINK=auto` links images, and not merges → modules."""
    spent: dict[str, float] = field(default_factory=dict)
    """Kernel and architecture → seconds that it took in this run."""

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """The same, as earlier runs recorded it."""
        return counts.load_times(self.store.root)

    @property
    def facts(self) -> Path:
        """Where facts of tools are kept."""
        return self.store.root / "tools"

    def begin(self) -> None:
        """Writes the start record, once, before the first action's."""
        with self.session.lock:
            if not self.log.written:
                gc.freeze()  # what SCons has read stays to the end: looking through it for cycles again and again is 0.02 s of an edit
                self.log.write(type="start", argv=sys.argv[1:], looking=asked.looking(), jobs=self.session.jobs, top=_internals.top())

    def ending(self) -> dict[str, Any]:
        """What the end record would say now. Other threads may be at work, so sets are copied first."""
        plans = [path for paths in self.plans.values() for path in paths]
        return {
            "type": "end",
            "build": self.log.build,
            "ok": not self.session.failures,
            "programs": sorted(self.plans),
            "plans": [str(path) for path in plans],
            "units_needed": sorted(self.needed.copy()),
            "units_deferred": sorted(self.deferred.copy()),
            "unmerged": self.unmerged,
            "wall_seconds": round(time.time() - self.session.started, 3),
            **counts.count(plans, self.log).record(),
        }

    def show(self, kernel: str, text: str) -> None:
        """Says what a tool said of a kernel; the same once."""
        if text.strip() and (kernel, text) not in self.shown:
            self.shown.add((kernel, text))
            lines = "\n".join("    " + line for line in text.rstrip().splitlines())
            self.session.warn(f"{kernel}:\n{lines}")


class Session:
    """What one SCons process has of this tool. Making one starts nothing."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.declared: dict[str, list[Module]] = defaultdict(list)
        self.failures: list[tuple[int, GpuError]] = []
        self.lock = threading.RLock()
        self.started = time.time()
        self.build = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(self.started))}-{os.getpid()}"
        self.jobs = 1
        self.order: dict[str, int] = {}
        self._workspaces: dict[tuple[Path, ...], Workspace] = {}
        self._toolchains: dict[tuple[str, ...], Toolchain] = {}
        self._said: set[str] = set()
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        """The workers; the first is started by the first task. Jobs of several threads ask for it at once."""
        with self.lock:
            self._pool = self._pool or Pool()
            return self._pool

    def run(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Has a worker do `op`."""
        return self.pool.run(op, **arguments)

    def workspace(self, roots: Sequence[Path], *, fallback: Path) -> Workspace:
        """The store of these roots. A first root that cannot be written is only read, and `fallback` is written."""
        usable, sentence = writable(list(roots), fallback)
        if sentence:
            self.warn(sentence)
        key = tuple(usable)
        if key not in self._workspaces:
            if not self._workspaces:
                atexit.register(self.finish)
            store = Store(usable)
            self._workspaces[key] = Workspace(session=self, store=store, log=BuildLog(store.root / "log.jsonl", build=self.build))
        return self._workspaces[key]

    def supported(self, settings: Settings) -> tuple[int, ...]:
        """The architectures that the tools of these settings know."""
        return versions.supported(self.toolchain(settings, settings.store[0] / "tools"))

    def toolchain(self, settings: Settings, facts: Path) -> Toolchain:
        """The tools these settings lead to. What is learned of them is kept in `facts`."""
        key = (settings.cuda_path, settings.cuda_headers, settings.clang)
        if key not in self._toolchains:
            self._toolchains[key] = discover(
                environ=os.environ,
                prefix=sys.prefix,
                cuda_path=settings.cuda_path,
                cuda_headers=settings.cuda_headers,
                clang=settings.clang,
                facts=facts,
            )
        return self._toolchains[key]

    def place(self, *names: str) -> int:
        """Where this stands in the order of declaration."""
        return self.order.setdefault("\0".join(names), len(self.order))

    def warn(self, text: str) -> None:
        """Says something on stderr, once."""
        with self.lock:
            if text not in self._said:
                self._said.add(text)
                sys.stdout.flush()
                sys.stderr.write(f"scons-gpu: {text}\n")
                sys.stderr.flush()

    def fail(self, error: GpuError, place: int) -> None:
        """Says an error at once, and keeps it for the end."""
        with self.lock:
            self.failures.append((place, error))
            sys.stdout.flush()
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()

    def finish(self) -> None:
        """Closes the log and says what was done. Runs when SCons is through, whatever came before."""
        ignore_interrupts()
        if self._pool:
            self._pool.close()
        if asked.looking() or not _internals.Batch.begun:
            return
        for workspace in self._workspaces.values():
            self._close_or_say(workspace)
        self._repeat_failures()

    def _close_or_say(self, workspace: Workspace) -> None:
        try:
            self._close(workspace)
        except Exception as error:  # noqa: BLE001 - nobody is left to mend it, and the build's own exit code stands
            self.warn(f"the build's log could not be closed: {error}")

    def _close(self, workspace: Workspace) -> None:
        for warning in workspace.store.drain_warnings():
            self.warn(warning)
        workspace.begin()
        workspace.log.write(**workspace.ending())
        if any(record["type"] == "action" for record in workspace.log.written):
            counts.save_times(workspace.store.root, {**workspace.times, **workspace.spent})
            for program, paths in workspace.plans.items():
                remember(workspace.store.root, self.build, program=program, names=counts.names(paths))
        counted = stats(workspace.log.written, build=self.build)
        # A run that another's mistake ended, in an SConscript or for want of a source, may have come to nothing of ours.
        if not (asked.silent() or (_internals.failed() and counted.did_nothing)):
            for why, modules in {} if counted.did_nothing else workspace.unmerged.items():
                more = f" and {len(modules) - 1} more" if modules[1:] else ""
                self.warn(f"GPU_LINK=auto links the image of {modules[0]}{more}: {why}")
            sys.stdout.write(summary(counted) + "\n")
            sys.stdout.flush()

    def _repeat_failures(self) -> None:
        if len(self.failures) < 2:
            return
        lines = [str(error).splitlines()[0] for _, error in sorted(self.failures, key=lambda item: item[0])]
        sys.stderr.write(f"{len(lines)} steps failed:\n" + "".join(f"  error: {line}\n" for line in lines))


@functools.cache
def session() -> Session:
    """The one session of this process."""
    return Session()

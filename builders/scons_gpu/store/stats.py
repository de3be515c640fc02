"""What a build did, counted from its records: the numbers of `scons-gpu stats --json`."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SCHEMA", "Stats", "by_build", "no_build", "stats"]

SCHEMA = 1
"""A number here, alone among the JSON that is printed: others read it so. Removing or renaming a field raises it."""

_UNIT_STAGES = ("lower", "assemble", "defer", "verify")
_FAILED = ("failed", "differs")
_Record = dict[str, Any]


@dataclass(frozen=True)
class Stats:
    """The counts of one build. State and table objects are no units; a unit is counted once for each architecture."""

    build: str = ""
    """Empty where there was no build."""
    modules: int = 0
    kernels: int = 0
    references: int = 0
    """Units of all plans."""
    unique: int = 0
    """Different digests among them."""
    shared: int = 0
    """References less unique ones."""
    needed: int = 0
    """Units of the images that were due in this build, less failed ones: compiled + reused + deferred."""
    compiled: int = 0
    """Lowered or assembled in this build, and not deferred."""
    reused: int = 0
    """Made by an earlier build."""
    deferred: int = 0
    """Handed to a link as PTX, for it to assemble."""
    failed: int = 0
    """Things that failed: units, sources, images. Units that were verified and differ too."""
    linked: int = 0
    """Images made."""
    hosts: int = 0
    """Objects of programs made, each with the host's half of a `.cu`."""
    twins: int = 0
    candidates: int = 0
    """Units that were compiled to choose from, or could not be, and that no image took."""
    verified: int = 0
    """Compiled again and compared with what the store holds."""
    wall_seconds: float = 0.0
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage, child processes included."""

    @property
    def did_nothing(self) -> bool:
        """Whether no unit was due, verified or compiled to choose from, no image or object of a program was made and nothing failed."""
        return not (self.needed or self.candidates or self.verified or self.failed or self.linked or self.hosts)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def stats(records: Iterable[_Record], *, build: str | None = None) -> Stats:
    """The counts of `build`; of the last one that did not only look, where None. Empty counts where there is no such build."""
    builds, last = by_build(records)
    wanted = last if build is None else build
    return _count(wanted, builds[wanted]) if wanted in builds else Stats()


def by_build(records: Iterable[_Record]) -> tuple[dict[str, list[_Record]], str]:
    """Build → its records, oldest first; and the last that did not only look, empty where there is none."""
    builds: dict[str, list[_Record]] = {}
    last = ""
    for record in records:
        name = str(record.get("build", ""))
        builds.setdefault(name, []).append(record)
        if record.get("type") == "start" and not record.get("looking", False):
            last = name
    return builds, last


def no_build(place: object, build: str | None) -> UsageError:
    """What to tell who asks for a build that the log of the store at `place` does not know."""
    msg = f"there is no build {build} in {place}" if build else f"no build was logged in {place}"
    hint = "name the store before the command, with --store, or its folder with -C"
    return UsageError(msg, hint="the builds are named in its log.jsonl" if build else hint)


def _count(build: str, records: list[_Record]) -> Stats:
    actions = [record for record in records if record.get("type") == "action"]
    end: _Record = next((record for record in records if record.get("type") == "end"), {})
    broken = _units(actions, *_FAILED)
    deferred = set(end.get("units_deferred", ())) - broken
    lost = _candidates(actions) - set(end.get("units_needed", ())) if end else set()
    compiled = _units(actions, "built") - deferred - broken - lost
    needed = (set(end.get("units_needed", ())) | compiled | deferred) - broken
    references, unique = int(end.get("references", 0)), int(end.get("unique", 0))
    return Stats(
        build=build,
        modules=int(end.get("modules", 0)),
        kernels=int(end.get("kernels", 0)),
        references=references,
        unique=unique,
        shared=references - unique,
        needed=len(needed),
        compiled=len(compiled),
        reused=len(needed - compiled - deferred),
        deferred=len(deferred),
        failed=len(broken) + sum(record.get("result") in _FAILED and not _unit(record) for record in actions),
        linked=_built(actions, "link"),
        hosts=_built(actions, "host"),
        twins=int(end.get("twins", 0)),
        candidates=len(lost),
        verified=len(_units(actions, "same", "differs")),
        wall_seconds=float(end.get("wall_seconds", 0.0)),
        cpu_seconds=_cpu(actions),
    )


def _unit(action: _Record) -> str:
    """The digest of the unit that was worked on; empty for state and table objects, and for all that is no work on a unit."""
    is_unit = action.get("stage") in _UNIT_STAGES and action.get("role", "unit") == "unit"
    return str(action.get("unit") or "") if is_unit else ""


def _candidates(actions: list[_Record]) -> set[str]:
    """Units that stand for a candidate, whatever became of them."""
    return {_unit(action) for action in actions if action.get("candidate") and action.get("stage") != "verify"} - {""}


def _units(actions: list[_Record], *results: str) -> set[str]:
    return {_unit(action) for action in actions if action.get("result") in results} - {""}


def _built(actions: list[_Record], stage: str) -> int:
    return sum(action.get("result") == "built" and action.get("stage") == stage for action in actions)


def _cpu(actions: list[_Record]) -> dict[str, float]:
    stages: dict[str, float] = defaultdict(float)
    for action in actions:
        stages[str(action.get("stage", ""))] += float(action.get("cpu") or 0.0)
    return {stage: round(seconds, 6) for stage, seconds in sorted(stages.items())}

"""Units that are taken from the store, compiled again and compared with what it holds: `GPU_VERIFY_REUSE`.

An entry of the store is taken for what its key says. That is right as long as the key names all that shapes the bytes; here this is
tried. What is compiled again is kept nowhere: the store's own entry stays, right or wrong, and another run finds the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.assemble.choose import choose
from scons_gpu.assemble.making import parts
from scons_gpu.errors import DamagedError, DiffersError, GpuError
from scons_gpu.lower.choose import library
from scons_gpu.scons.steps import Outcome
from scons_gpu.scons.units import AssembleJob, LowerJob, UnitJob
from scons_gpu.store import record as records
from scons_gpu.toolchain.libraries import NAMES
from scons_gpu.toolchain.process import private_folder
from scons_gpu.toolchain.tools import discover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.choose import Need
    from scons_gpu.plan import Part
    from scons_gpu.scons.recipe import Recipe
    from scons_gpu.store.record import Entry, Record
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["Difference", "VerifyJob"]

WINDOW = 40
"""Lines of each PTX, around the first that differs, that are compared: all of a large one would take minutes."""
SHOWN = 16
"""Lines of that comparison that are shown."""

_Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Difference:
    """An entry of the store, and what came of compiling it again."""

    what: str
    """`PTX` or `object`."""
    kept: Entry
    data: bytes
    again: Record
    """Of `data`, with the key as it is found now, every tool looked at anew."""

    @property
    def fields(self) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        """The key's fields that are equal, and those that differ, in the store and now."""
        then, now = dict(self.kept.record.key), dict(self.again.key)
        equal = {name: value for name, value in sorted(then.items()) if now.get(name) == value}
        return equal, {name: (then.get(name, ""), now.get(name, "")) for name in sorted(then | now) if name not in equal}

    def text(self) -> str:
        """Both records."""
        equal, differing = self.fields
        lines = [
            f"{self.what} {self.kept.path}",
            f"  in the store:   {_facts(self.kept.record)}",
            f"  compiled again: {_facts(self.again)}",
            f"  the first byte that differs is number {first_difference(self.kept.data, self.data)}, counted from 0",
            *(f"  {line}" for line in (short_diff(self.kept.data.decode(), self.data.decode()) if self.what == "PTX" else ())),
            "  fields of the key that differ:" + ("" if differing else " none"),
            *(f"    {name} = {old or '(empty)'} in the store, {new or '(empty)'} now" for name, (old, new) in differing.items()),
            "  fields of the key that are equal:",
            *(f"    {name} = {value or '(empty)'}" for name, value in equal.items()),
        ]
        return "\n".join(lines)


def _facts(record: Record) -> str:
    """What a record says of its bytes."""
    kernels = [
        f"{each.kernel}: " + ", ".join(f"{value} {name}" for name, value in vars(each).items() if name != "kernel" and value is not None)
        for each in record.resources
    ]
    return "; ".join([f"{record.bytes} bytes, sha256 {record.sha256}", *kernels])


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How long two sequences are equal."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def short_diff(kept: str, again: str) -> list[str]:
    """The first place where two texts differ, as a unified diff shows it."""
    old, new = kept.splitlines(), again.splitlines()
    first = first_difference(old, new)
    start = max(0, first - 2)
    end = start + WINDOW
    lines = list(difflib.unified_diff(old[start:end], new[start:end], lineterm="", n=2))[3:]  # two lines of file names, one of numbers
    hunk = list(itertools.takewhile(lambda line: not line.startswith("@@"), lines))
    return [f"line {first + 1}:", *hunk[:SHOWN], *(["..."] if len(hunk) > SHOWN else [])]


@dataclass(kw_only=True)
class VerifyJob(UnitJob):
    """A slice is compiled again, and compared with what the store holds of it at `target`, and as PTX at `ptx`."""

    stage: ClassVar[str] = "verify"
    ptx: Path

    def command(self) -> list[str]:
        """By hand: the first of the commands."""
        return self._commands()[0]

    def by_hand(self) -> str:
        """The steps again, and what compares the last one's file."""
        chosen = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items() if value]
        return " && ".join(" ".join([*(chosen if words[0] != "cmp" else ()), shlex.join(words)]) for words in self._commands())

    def _commands(self) -> list[list[str]]:
        common = {field.name: getattr(self, field.name) for field in dataclasses.fields(UnitJob) if field.init}
        ptx, made = Path(f"again{self.ptx.suffix}"), Path(f"again{''.join(self.target.suffixes[-2:])}")
        commands = [LowerJob(**{**common, "target": ptx}).command()]
        if self.target == self.ptx:
            return [*commands, ["cmp", str(ptx), str(self.ptx)]]
        return [*commands, AssembleJob(**{**common, "target": made}, ptx=ptx).command(), ["cmp", str(made), str(self.target)]]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """In a worker, and a process of the assembler's; the store is read alone."""
        store, recipe, part = self.workspace.store, self.recipe, self.part
        kept, ptx = store.load(self.target), store.load(self.ptx)
        if kept is None:
            msg = f"{self.target} is gone or damaged"
            raise DamagedError(msg, hint="build again: what is damaged in the store is made anew")
        answer = recipe.lower_part(part)
        cpu, peak = answer["cpu"], answer["peak_kib"]
        found = []
        if ptx is not None and ptx.data != answer["ptx"].encode():
            found.append(self._difference("PTX", ptx, records.make(answer["ptx"].encode(), key=part.key), answer["ptx"].encode()))
        if self.target != self.ptx:
            made = recipe.assemble_part(part, answer["ptx"])
            cpu, peak = cpu + made.cpu, max(peak, made.peak_kib)
            if made.data != kept.data:
                again = records.make(made.data, key=recipe.object_fields(part), resources=made.resources)
                found.append(self._difference("object", kept, again, made.data))
        if found:
            raise self._error(found)
        return Outcome(result="same", cpu=cpu, peak_kib=peak, worker=answer["worker"])

    def _difference(self, what: str, kept: Entry, again: Record, data: bytes) -> Difference:
        now = _key_now(self.recipe, self.part, what, again.key)
        return Difference(what=what, kept=kept, data=data, again=dataclasses.replace(again, key=now))

    def _error(self, found: list[Difference]) -> DiffersError:
        what = " and ".join(f"its {each.what}" for each in found)
        name = "" if self.part.role == "unit" else f"{self.name}: "
        msg = f"{name}compiled again, {what} {'is' if len(found) == 1 else 'are'} not what the store holds"
        return DiffersError(msg, output="\n".join(each.text() for each in found), hint=_hint(found))


def _hint(found: list[Difference]) -> str:
    names = sorted({name for each in found for name in each.fields[1]})
    kept = "the store is left as it is; another GPU_STORE builds without what it holds"
    if names:
        return f"what differs in the key ({', '.join(names)}) changed behind the build's back; {kept}"
    return (
        "every field of the key is equal, so the key lacks a field: a tool reads something that is in neither record, as a variable of the "
        f"environment or a file, or gives another result each time; {kept}"
    )


def _key_now(recipe: Recipe, part: Part, what: str, key: _Key) -> _Key:
    """The key that an entry would have if nothing were believed that is kept of tools. As it was, where they cannot be looked at."""
    try:
        chosen = (recipe.environment.get(name, "") for name in ("GPU_CUDA_PATH", "GPU_CUDA_HEADERS", "GPU_CLANG"))
        tools = _tools_now(*chosen, libraries=_libraries(recipe, part, what))
        nvvm = library(tools, recipe.lower_options(part))
        found = {
            "llvm": tools.llvm,
            "libdevice": tools.libdevice.identity if part.libdevice and tools.libdevice else "",
            "nvvm": f"{nvvm.version} {nvvm.identity}" if nvvm else "",
        }
        now = dataclasses.replace(part, key=tuple((name, found.get(name, value)) for name, value in part.key))
        if what == "PTX":
            return tuple(sorted(now.key))
        needs: tuple[Need, ...] = ("relocatable", "link") if recipe.deferred else ()
        wanted = recipe.assembler().name
        provider = choose(tools, wanted=wanted, needs=needs, always_defer=recipe.deferred, facts=recipe.workspace.facts).provider
        return dataclasses.replace(recipe, provider=provider).object_fields(now)
    except GpuError:
        return key


def _libraries(recipe: Recipe, part: Part, what: str) -> tuple[str, ...]:
    """The libraries that took part."""
    lowered = ("nvvm",) if recipe.lower_options(part).by == "nvvm" else ()
    assembled = parts(recipe.assembler().name) if what == "object" else ()
    return tuple(name for name in (*lowered, *assembled) if name in NAMES)


@functools.cache
def _tools_now(cuda_path: str, cuda_headers: str, clang: str, *, libraries: tuple[str, ...]) -> Toolchain:
    with private_folder() as facts:
        tools = discover(environ=os.environ, prefix=sys.prefix, cuda_path=cuda_path, cuda_headers=cuda_headers, clang=clang, facts=facts)
        for name in libraries:
            tools.library(name)  # while there is a folder for what is learned of it
        return tools

"""A dump: every candidate of a program's problems, ready to be measured on a machine that has a GPU and neither sources nor compilers.

The archive is a plain zip: members stored, sorted, dated 1980-01-01, so that equal candidates make equal bytes. `dump.json` in it says what
there is, `p000/c00.cubin` is the first problem's first candidate (`.ptx` for a virtual architecture), and `bench.py` measures all of it
by `scons-gpu bench`, which must be installed there. The archive can be run itself (`python net.gpudump -o tuning.json`), or unpacked.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, GpuError
from scons_gpu.store.archive import read_zip, write_zip
from scons_gpu.tune.launch import Launch, read_launch
from scons_gpu.tune.model import Problem, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.tune.model import Pairs

__all__ = ["DESCRIPTION", "SCHEMA", "Dump", "DumpedCandidate", "DumpedProblem", "read_dump", "write_dump"]

SCHEMA = "scons-gpu/dump/1"
DESCRIPTION = "dump.json"
_IMAGE = re.compile(r"p\d+/c\d+\.(cubin|ptx)", re.ASCII)
_RUNNER = '''"""Measures what this dump holds: python bench.py -o tuning.json"""

import os
import sys


def main():
    try:
        from scons_gpu.cli import main as scons_gpu
    except ImportError as error:
        sys.exit("error: scons-gpu cannot be loaded by this Python: %s\\n  pip install 'scons-gpu[bench]'" % error)
    sys.argv[1:] = ["bench", os.path.dirname(os.path.abspath(__file__))] + sys.argv[1:]
    scons_gpu()


if __name__ == "__main__":
    main()
'''
_ENTRY = '"""What Python runs when it is given the archive itself."""\n\nimport bench\n\nbench.main()\n'
_FIGURES = tuple(field.name for field in fields(Result) if field.name not in {"values", "failure"})
_PROGRAMS = {"__main__.py": _ENTRY.encode(), "bench.py": _RUNNER.encode()}


@dataclass(frozen=True)
class DumpedCandidate:
    """One candidate, with an image or with a failure."""

    result: Result
    """Its values, and what it came to."""
    image: bytes | None = None
    entry: str = ""
    """Its kernel's symbol in the image."""
    launch: Launch | None = None
    """Where it is another than the problem's."""


@dataclass(frozen=True)
class DumpedProblem:
    """One problem with all that may solve it, in the order of declaration."""

    problem: Problem
    entry: str
    """The kernel's symbol."""
    launch: Launch | None
    """None: nobody said how it is launched, so it cannot be measured."""
    candidates: tuple[DumpedCandidate, ...]


@dataclass(frozen=True)
class Dump:
    """All of it."""

    problems: tuple[DumpedProblem, ...]
    tools: Mapping[str, str]
    """Tool → the version that compiled the candidates."""


def write_dump(problems: Sequence[DumpedProblem], *, tools: Mapping[str, str]) -> bytes:
    """The archive. A problem of several modules may be given several times; raises GpuError where two of one identity differ."""
    different: dict[tuple[str, str, Pairs], DumpedProblem] = {}
    for dumped in problems:
        problem = dumped.problem
        if different.setdefault((problem.kernel, problem.arch, problem.keys), dumped) != dumped:
            msg = f"two problems of the dump are both {problem.text()}, and their candidates differ"
            raise GpuError(msg, hint="give one of them keys that tell it from the other")
    members = dict(_PROGRAMS)
    described = []
    for place, identity in enumerate(sorted(different)):
        described.append(_describe(different[identity], f"p{place:03}", members))
    data = {"schema": SCHEMA, "tools": dict(tools), "problems": described}
    members[DESCRIPTION] = (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return write_zip(members)


def _describe(dumped: DumpedProblem, folder: str, members: dict[str, bytes]) -> dict[str, Any]:
    """A problem as dump.json has it; its images go to `members`."""
    problem, candidates = dumped.problem, []
    for place, candidate in enumerate(dumped.candidates):
        name = None
        if candidate.image is not None:
            name = f"{folder}/c{place:02}.{'ptx' if problem.arch.startswith('compute_') else 'cubin'}"
            members[name] = candidate.image
        candidates.append(
            {
                **vars(candidate.result),
                "values": dict(candidate.result.values),
                "entry": candidate.entry,
                "launch": candidate.launch.to_json() if candidate.launch else None,
                "image": name,
                "sha256": hashlib.sha256(candidate.image).hexdigest() if candidate.image is not None else None,
            }
        )
    return {
        **vars(problem),
        "keys": dict(problem.keys),
        "entry": dumped.entry,
        "launch": dumped.launch.to_json() if dumped.launch else None,
        "candidates": candidates,
    }


def read_dump(path: Path) -> Dump:
    """Reads what `write_dump` wrote, as an archive or as the folder it was unpacked to. Raises DamagedError for anything else."""
    try:
        members = _unpacked(path) if path.is_dir() else read_zip(path.read_bytes())
        data = json.loads(members[DESCRIPTION])
        if data["schema"] != SCHEMA:
            msg = f"{path}: schema {data['schema']!r} is not {SCHEMA!r}"
            raise DamagedError(msg, hint="measure it with the version of scons-gpu that wrote it")
        dump = Dump(problems=tuple(_problem(each, members) for each in data["problems"]), tools=_texts(data["tools"]))
        _complete(data, members)
    except OSError as error:
        msg = f"{path}: cannot be read: {(error.strerror or str(error)).lower()}"
        raise DamagedError(msg) from None
    except KeyError as error:
        raise _damaged(path, f"there is no {error.args[0]} in it") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    except GpuError as error:
        raise error if isinstance(error, DamagedError) else _damaged(path, error.what) from None
    return dump


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{path}: not a whole dump: {why}", hint="copy it once more, or make it anew with `scons gpu-dump`")


def _unpacked(folder: Path) -> dict[str, bytes]:
    """The members that dump.json names; whatever else lies there is not the dump's."""
    if not (folder / DESCRIPTION).is_file():
        return {}
    members = {DESCRIPTION: (folder / DESCRIPTION).read_bytes()}
    for name in _images(json.loads(members[DESCRIPTION])):
        if _IMAGE.fullmatch(name) and (folder / name).is_file():
            members[name] = (folder / name).read_bytes()
    return members | _PROGRAMS


def _images(data: Any) -> list[str]:  # noqa: ANN401 - JSON
    named = [candidate["image"] for problem in data["problems"] for candidate in problem["candidates"]]
    return [str(name) for name in named if name is not None]


def _complete(data: Any, members: Mapping[str, bytes]) -> None:  # noqa: ANN401 - JSON
    """Nothing is in the archive that dump.json does not account for, and the programs are ours: people run them."""
    foreign = sorted(set(members) - {DESCRIPTION, *_PROGRAMS, *_images(data)})
    if foreign:
        msg = f"{foreign[0]} is no part of it"
        raise ValueError(msg)
    missing = sorted(set(_PROGRAMS) - set(members))
    if missing:
        raise KeyError(missing[0])


def _problem(data: Mapping[str, Any], members: Mapping[str, bytes]) -> DumpedProblem:
    return DumpedProblem(
        problem=Problem(kernel=_text(data["kernel"]), arch=_text(data["arch"]), keys=_pairs(data["keys"])),
        entry=_text(data["entry"]),
        launch=_launch(data["launch"]),
        candidates=tuple(_candidate(each, members) for each in data["candidates"]),
    )


def _candidate(data: Mapping[str, Any], members: Mapping[str, bytes]) -> DumpedCandidate:
    image = None
    if data["image"] is not None:
        image = members[data["image"]]
        if not _IMAGE.fullmatch(data["image"]) or hashlib.sha256(image).hexdigest() != data["sha256"]:
            msg = f"{data['image']} is not what was written"
            raise ValueError(msg)
    figures = {name: _count(data[name]) for name in _FIGURES if data[name] is not None}
    return DumpedCandidate(
        result=Result(values=_pairs(data["values"]), failure=_text(data["failure"]), **figures),
        image=image,
        entry=_text(data["entry"]),
        launch=_launch(data["launch"]),
    )


def _launch(data: Any) -> Launch | None:  # noqa: ANN401 - JSON
    return None if data is None else read_launch(data)


def _pairs(data: Mapping[str, Any]) -> Pairs:
    return tuple(sorted(_texts(data).items()))


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in data.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} is no text"
        raise TypeError(msg)
    return value


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    msg = f"{value!r} is no number"
    raise TypeError(msg)

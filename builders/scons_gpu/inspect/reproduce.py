"""Builds a project twice, in surroundings that have only the tools in common, and compares; or once, and compares with a release.

What is otherwise: the folder, the order in which files were put there and are listed, `-j`, time zone, locale, umask, Python's hash seed,
the store, and the time. What is the same: the machine, its tools, and the rest of the environment.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError, GpuError, UsageError
from scons_gpu.inspect import trees
from scons_gpu.inspect.differing import Place, places
from scons_gpu.inspect.origins import Built, Cause, by_provenance, causes
from scons_gpu.inspect.verify import verify
from scons_gpu.link import provenance, release
from scons_gpu.toolchain.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Difference", "Report", "against", "twice"]


@dataclass(frozen=True)
class _Surroundings:
    """What must not matter."""

    folder: str
    order: str
    umask: str
    environ: Mapping[str, str]


_FIRST = _Surroundings("first", "forwards", "022", {"TZ": "UTC0", "LC_ALL": "C", "PYTHONHASHSEED": "1"})
_SECOND = _Surroundings(
    "a-second-place/that-is-longer", "backwards", "077", {"TZ": "XYZ-12:45", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "COLUMNS": "47"}
)
_LEFT_OUT = ("SCONSFLAGS", "SOURCE_DATE_EPOCH")
_LINES = 30


@dataclass(frozen=True)
class Difference:
    """One file that is not the same."""

    file: str
    places: tuple[Place, ...]


@dataclass
class Report:
    """What was compared."""

    compared: int = 0
    differing: list[Difference] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


def twice(top: Path, arguments: Sequence[str], *, store: Path, jobs: int, keep: Path | None = None) -> Report:
    """Two builds of `top`, each of what `arguments` say to SCons. `keep`: where the two folders stay.

    Raises UsageError for what is no project, GpuError where a build fails.
    """
    names = trees.sources(top, store=store)
    with _folder(keep) as folder:
        one = _build(top, names, arguments, folder=folder, at=_FIRST, jobs=1)
        ended = int(time.time())
        while int(time.time()) == ended:  # a time in seconds that gets into a file is another then
            time.sleep(0.05)
        other = _build(top, names[::-1], arguments, folder=folder, at=_SECOND, jobs=jobs)
    report = Report(compared=len(one.files.keys() | other.files.keys()))
    for path in sorted(one.files.keys() | other.files.keys()):
        if one.files.get(path) != other.files.get(path):
            report.differing.append(Difference(path, tuple(_places(one.files.get(path), other.files.get(path)))))
    report.causes = causes(one, other) if report.differing else []
    return report


def against(archive: bytes, file: str, top: Path, arguments: Sequence[str], *, store: Path, jobs: int, keep: Path | None = None) -> Report:  # noqa: PLR0913 - as `twice`
    """One build, and what it made against the release `archive`, which is called `file`.

    Raises DamagedError for an archive that is not whole, UsageError where the project makes none of that name.
    """
    published = verify(archive)
    if published.problems:
        msg = f"{file}: not as it was made: {published.problems[0]}"
        raise DamagedError(msg, hint="scons-gpu verify tells all that is wrong with it")
    names = trees.sources(top, store=store)
    with _folder(keep) as folder:
        built = _build(top, names, arguments, folder=folder, at=_SECOND, jobs=jobs)
    name = f"{published.name}{release.SUFFIX}"
    made = [path for path in built.files if path.rpartition("/")[2] == name]
    if len(made) != 1:
        others = [path for path in built.files if path.endswith(release.SUFFIX)]
        msg = f"{file}: the build makes {len(made) or 'no'} {name}"
        raise UsageError(msg, hint=f"it makes {', '.join(others) or 'no release'}; name the target that makes it")
    return _compared(archive, published.files, built.files[made[0]], made[0])


def _compared(archive: bytes, files: Mapping[str, bytes], other: bytes, path: str) -> Report:
    report = Report(compared=len(files))
    if archive == other:
        return report
    report.differing = [Difference(path, tuple(places(archive, other)))]
    theirs = verify(other).files
    said = [
        provenance.from_text(each[release.PROVENANCE].decode(), path=release.PROVENANCE)
        for each in (files, theirs)
        if release.PROVENANCE in each
    ]
    report.causes = by_provenance(*said) if len(said) == 2 else []
    return report


def _places(one: bytes | None, other: bytes | None) -> list[Place]:
    if one is None or other is None:
        return [Place("", *("there" if each is not None else "not there" for each in (one, other)))]
    return places(one, other)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            yield Path(folder).resolve()
        return
    if keep.exists() and any(keep.iterdir()):
        msg = f"{keep}: not empty"
        raise UsageError(msg, hint="--keep names a folder that is not there yet")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def _build(top: Path, names: Sequence[str], arguments: Sequence[str], *, folder: Path, at: _Surroundings, jobs: int) -> Built:  # noqa: PLR0913 - what a build is
    """A copy of the project, built there with a store of its own."""
    tree = folder / at.folder
    trees.copy(top, names, tree)
    environ = {**{name: value for name, value in os.environ.items() if name not in _LEFT_OUT}, **at.environ}
    scons = [sys.executable, "-m", "scons_gpu.inspect.elsewhere", at.order, at.umask]
    told = [*arguments, "GPU_STORE=#.gpu-store", "--cache-disable", f"-j{jobs}"]
    ended = run([*scons, *told], cwd=tree, environ=environ, together=True)
    if ended.status:
        msg = f"the build in {tree} failed"
        raise GpuError(
            msg, output="\n".join(ended.stdout.splitlines()[-_LINES:]), hint="it has the files that git ls-files lists, if there is git"
        )
    made = trees.made(tree, names)
    if not made:
        msg = "the build made nothing that could be compared"
        raise UsageError(msg, hint="name targets, as for scons")
    return Built(folder=str(tree), files={path: file.read_bytes() for path, file in made.items()})

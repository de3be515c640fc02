"""NVIDIA's compilers as libraries: where each lies, which release it is, and what is made of it before it can be loaded.

A build looks for one only when it is considered, because hashing 100 MB takes its time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import re
import shutil
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError
from scons_gpu.store.files import TEMPORARY, write_atomic
from scons_gpu.store.lock import locked
from scons_gpu.toolchain import fingerprint
from scons_gpu.toolchain.model import Look, Tool
from scons_gpu.toolchain.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scons_gpu.toolchain.facts import Facts
    from scons_gpu.toolchain.places import Place

__all__ = ["NAMES", "Found", "Libraries", "has_any", "libraries"]

FILES: dict[str, tuple[str, ...]] = {
    "nvptxcompiler": ("libnvptxcompiler_static.a",),
    "nvjitlink": ("libnvJitLink.so.13", "libnvJitLink.so.12"),
    "nvrtc": ("libnvrtc.so.13", "libnvrtc.so.12"),
    "nvvm": ("libnvvm.so.4",),
}
"""Library → its files, the newest major first. NVIDIA keeps an ABI within a major version."""
NAMES = (*FILES, "driver")
_COMPANIONS = {"nvrtc": "libnvrtc-builtins*.so*"}
"""Library → the files in its folder that it opens by itself: what makes its PTX is in them too."""
_DRIVER = "libcuda.so.1"
# Every library of the toolkit holds the line that its program prints for --version (11.8, 12.9, 13.5).
_RELEASE = re.compile(rb"Cuda compilation tools, release \d+\.\d+, V(\d+\.\d+\.\d+)")
_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Found:
    """A library, if it was found, and every place that was looked at."""

    tool: Tool | None
    looked: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Libraries:
    """All of them, each looked for once, when it is first asked for."""

    look: Callable[[str], Found] = lambda _: Found(None)
    known: dict[str, Found] = field(default_factory=dict)

    def get(self, name: str) -> Found:
        """The library of that name, one of `NAMES`."""
        if name not in self.known:
            self.known[name] = self.look(name)
        return self.known[name]


def libraries(order: Sequence[Place], *, environ: Mapping[str, str], root: str, facts: Facts) -> Libraries:
    """Looks in these places, first one first. Starts nothing before a library is asked for."""

    def look(name: str) -> Found:
        if name == "driver":
            return _driver(environ, root, facts)
        if name == "nvptxcompiler":
            return _nvptxcompiler(order, environ, facts)
        return _first(name, order, facts)

    return Libraries(look)


def has_any(place: Place) -> bool:
    """Whether one of the toolkit's libraries is there."""
    return any(path.is_file() for files in FILES.values() for path in _paths(place, files))


def _first(name: str, order: Sequence[Place], facts: Facts) -> Found:
    """The first place that has the library."""
    looked: list[Look] = []
    for place in order:
        path = next((str(path) for path in _paths(place, FILES[name]) if path.is_file()), "")
        if path:
            tool = Tool(name=name, path=path, origin=place.origin, **_identity(path, facts, companions=_COMPANIONS.get(name, "")))
            return Found(tool, (*looked, Look(name, path, place.origin, "taken")))
        looked.append(Look(name, ", ".join(map(str, _folders(place))), place.origin, "not there"))
    return Found(None, tuple(looked))


def _folders(place: Place) -> Iterator[Path]:
    """Where an installation keeps libraries: wheels and conda in lib, toolkits in lib64, Debian's package in the machine's own folder."""
    yield from (place.home / below for below in ("lib64", "lib", f"targets/{platform.machine()}-linux/lib", "nvvm/lib64", "nvvm/lib"))
    if (triple := sysconfig.get_config_var("MULTIARCH")) and place.home.name == "usr":
        yield place.home / "lib" / triple


def _paths(place: Place, files: Sequence[str]) -> Iterator[Path]:
    return (folder / file for file in files for folder in _folders(place))


def _identity(path: str, facts: Facts, *, companions: str = "") -> dict[str, str]:
    """Version, "" if the file does not tell, and SHA-256: of the file, or of its hash with those of its companions."""

    def files() -> list[str]:
        # The folders too: a companion that comes later changes them alone.
        folders = sorted({str(Path(path).parent), str(Path(path).resolve().parent)}) if companions else []
        found = {str(each.resolve()) for folder in folders for each in Path(folder).glob(companions)}
        return [path, *folders, *sorted(found, key=lambda each: (Path(each).name, each))]

    def find_out(chain: Sequence[str]) -> dict[str, str]:
        hashes = [fingerprint.file_sha256(each) for each in chain if Path(each).is_file()]
        identity = hashlib.sha256(" ".join(hashes).encode()).hexdigest() if len(hashes) > 1 else hashes[0]
        return {"version": _version(path), "identity": identity}

    return facts.learn(f"library {companions}".rstrip(), path, files=files, find_out=find_out)


def _version(path: str) -> str:
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = _RELEASE.search(data)
            return found[1].decode() if found else ""


def _driver(environ: Mapping[str, str], root: str, facts: Facts) -> Found:
    """Libcuda comes with the driver, so it is looked for where the system keeps libraries. Its file is called after its release."""
    triple = sysconfig.get_config_var("MULTIARCH") or ""
    given = [(Path(folder), "LD_LIBRARY_PATH") for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    system = [(Path(root, folder), "distribution") for folder in (f"usr/lib/{triple}", "usr/lib64", "usr/lib/wsl/lib")]
    looked: list[Look] = []
    for folder, origin in (*given, *system):
        path = folder / _DRIVER
        if path.is_file():
            release = re.search(r"\.so\.(\d+\.[\d.]+)$", str(path.resolve()))
            identity = fingerprint.plain_file(str(path), version=release[1] if release else "", facts=facts)
            tool = Tool(name="driver", path=str(path), version=identity.version, identity=identity.sha256, origin=origin)
            return Found(tool, (*looked, Look("driver", str(path), origin, "taken")))
        looked.append(Look("driver", str(path), origin, "not there"))
    return Found(None, tuple(looked))


def _nvptxcompiler(order: Sequence[Place], environ: Mapping[str, str], facts: Facts) -> Found:
    """NVIDIA ships it as an archive; the C++ compiler makes a library of it, once for all builds of a user. `path` is that library's."""
    found = _first("nvptxcompiler", order, facts)
    archive = found.tool
    if archive is None:
        return found
    name = f"nvptxcompiler-{archive.identity[:16]}.so"
    cached = _cache(environ)
    made = cached / name if cached else None
    if made is not None and _whole(made, facts):
        library, trouble = made, ""  # also from a cache that is read-only
    else:
        library = (cached if cached and _can_be_written(cached) else facts.folder) / name
        trouble = "" if _whole(library, facts) else _make_library(archive.path, library, environ, facts)
    look = Look("nvptxcompiler", archive.path, archive.origin, trouble or "taken")
    tool = None if trouble else Tool("nvptxcompiler", str(library), archive.version, archive.identity, archive.origin)
    return Found(tool, (*found.looked[:-1], look))


def _cache(environ: Mapping[str, str]) -> Path | None:
    """The user's own cache, if the environment names one. What cannot be kept there goes to the store's folder for facts."""
    home = environ.get("XDG_CACHE_HOME", "") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    return Path(home, "scons-gpu") if Path(home).is_absolute() else None


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _seal(library: Path) -> Path:
    """The file beside it that holds its SHA-256."""
    return library.with_suffix(".sha256")


def _whole(library: Path, facts: Facts) -> bool:
    """Whether it is there as it was made. One that lost its end may still load, and what is damaged compiles; so it is not trusted."""
    try:
        expected = _seal(library).read_text(encoding="ascii", errors="replace")
        found = facts.learn(
            "made library", str(library), files=lambda: [str(library)], find_out=lambda _: {"sha256": fingerprint.file_sha256(library)}
        )
    except OSError:
        return False
    return found["sha256"] == expected


def _make_library(archive: str, library: Path, environ: Mapping[str, str], facts: Facts) -> str:
    """Has the C++ compiler make it, with its seal. Gives what went wrong."""
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name, path=environ.get("PATH", "")))), "")
    if not compiler:
        return f"there is no C++ compiler to make a library of it ({', '.join(_COMPILERS)})"
    temporary = library.with_name(f"{TEMPORARY}{os.getpid()}-{library.name}")
    whole = ["-Wl,--no-undefined", "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"]
    try:
        with locked(library.with_suffix(".lock")):
            if _whole(library, facts):  # another build made it meanwhile
                return ""
            for left in library.parent.glob(f"{TEMPORARY}*-{library.name}"):  # by one that was killed: who makes it holds the lock
                left.unlink(missing_ok=True)
            ended = run([compiler, "-shared", "-s", "-o", str(temporary), *whole, "-lpthread", "-lm", "-ldl"], together=True)
            if ended.status == 0 and temporary.is_file():
                write_atomic(_seal(library), fingerprint.file_sha256(temporary))
                temporary.replace(library)
                _whole(library, facts)  # known from now on: who looks next, perhaps with -n, has nothing to find out
                return ""
    except (GpuError, OSError) as error:
        return f"{compiler} cannot make a library of it: {error}"
    finally:
        temporary.unlink(missing_ok=True)
    said = next(iter(ended.stdout.strip().splitlines()), f"exit code {ended.status}")
    return f"{compiler} cannot make a library of it: {said}"

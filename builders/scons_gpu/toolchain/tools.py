"""Finds the tools: which ones there are, where each was looked for, what was taken and what exactly it is.

All of it is a function of the environment, the running Python's prefix, the system's root and the user's choices, so that tests can
give an empty machine. NVIDIA's tools are taken from one place: an assembler and a linker of different releases do not go together.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.toolchain import fingerprint, headers
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.gates import refused
from scons_gpu.toolchain.libraries import NAMES, Libraries, has_any, libraries
from scons_gpu.toolchain.model import Look, Tool
from scons_gpu.toolchain.places import places, site_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.toolchain.places import Place

__all__ = ["Look", "Tool", "Toolchain", "discover"]

_SET = ("ptxas", "nvlink", "fatbinary")  # of one release, from one place
_READERS = ("cuobjdump", "nvdisasm")  # preferably from there, else from the next place
_LATER = "there, but an earlier one is taken"


@dataclass(frozen=True)
class Toolchain:
    """What was found. A tool that was not is None; `looked` tells where it would have been found."""

    ptxas: Tool | None = None
    nvlink: Tool | None = None
    fatbinary: Tool | None = None
    cuobjdump: Tool | None = None
    nvdisasm: Tool | None = None
    clang: Tool | None = None
    libdevice: Tool | None = None
    headers: str = ""
    headers_version: str = ""
    headers_identity: str = ""
    llvm: str = ""
    looked: tuple[Look, ...] = ()
    libraries: Libraries = field(default_factory=Libraries, compare=False, repr=False)

    def __hash__(self) -> int:
        """Choices are remembered by it, and asked for with each module: the places that were looked at need not be gone through."""
        return hash((self.ptxas, self.nvlink, self.clang, self.llvm))

    def library(self, name: str) -> Tool | None:
        """One of NVIDIA's compilers as a library: see `libraries.NAMES`. Looked for when it is first asked for."""
        return self.libraries.get(name).tool

    def tool(self, name: str) -> Tool | None:
        """A program, a file or a library by its name."""
        found: Tool | None = self.library(name) if name in NAMES else getattr(self, name)
        return found

    def where(self, what: str) -> str:
        """For a message about a missing tool: the places where it was looked for, each with what was found wrong there."""
        looks = self.libraries.get(what).looked if what in NAMES else [look for look in self.looked if look.what == what]
        return "looked for in: " + "; ".join(f"{look.where} ({look.origin}: {look.result})" for look in looks) if looks else ""


@dataclass
class _Search:
    """What one call of `discover` carries along."""

    environ: Mapping[str, str]
    facts: Facts
    places: tuple[Place, ...]
    looked: list[Look] = field(default_factory=list)

    def look(self, what: str, where: object, origin: str, result: str) -> None:
        self.looked.append(Look(what=what, where=str(where), origin=origin, result=result))


def discover(  # noqa: PLR0913 - one keyword for each thing that decides
    *,
    environ: Mapping[str, str],
    prefix: str,
    root: str = "/",
    cuda_path: str = "",
    cuda_headers: str = "",
    clang: str = "",
    facts: Path,
) -> Toolchain:
    """The tools of this machine for this user. Raises UsageError where a path that the user gave does not hold what it should.

    `facts` is a folder that keeps versions and hashes: a second call starts no process and hashes nothing.
    """
    found_places = places(environ=environ, prefix=prefix, root=root, cuda_path=cuda_path)
    search = _Search(environ=environ, facts=Facts(facts), places=found_places)
    anchor = _anchor(search)
    order = [*([anchor] if anchor else []), *(place for place in found_places if place is not anchor)]
    found_headers = _headers(search, prefix=prefix, wanted=cuda_headers or environ.get("GPU_CUDA_HEADERS", ""))
    return Toolchain(
        **_nvidia_tools(search, anchor, order),
        clang=_clang(search, prefix=prefix, root=root, wanted=clang or environ.get("GPU_CLANG", "")),
        headers=found_headers.folder if found_headers else "",
        headers_version=found_headers.version if found_headers else "",
        headers_identity=found_headers.identity if found_headers else "",
        llvm=fingerprint.llvm(facts=search.facts),
        looked=tuple(search.looked),
        libraries=libraries([anchor] if anchor and _leads(anchor) else order, environ=environ, root=root, facts=search.facts),
    )


def _nvidia_tools(search: _Search, anchor: Place | None, order: Sequence[Place]) -> dict[str, Tool | None]:
    chosen = {name: _take(search, name, [anchor] if anchor else []) for name in _SET}
    chosen |= {name: _take(search, name, order) for name in _READERS}
    return {**chosen, "libdevice": _libdevice(search, order)}


def _leads(place: Place) -> bool:
    """Whether the compilers that are libraries come from this place too, or not at all: what makes objects is of one release."""
    return place.given or bool(_first(place.bins, "ptxas"))


def _is_toolkit(place: Place) -> bool:
    """Whether it holds anything of CUDA's. A ptxas that cannot be run is a mistake, not one that is missing."""
    if any((folder / "ptxas").is_file() for folder in place.bins):
        return bool(_first(place.bins, "ptxas"))
    return any(_first(place.bins, name) for name in _SET) or has_any(place)


def _anchor(search: _Search) -> Place | None:
    """The place that the set of tools comes from: the user's own, the first with an assembler, the first that can at least pack."""
    anchors = [place for place in search.places if place.given or _first(place.bins, "ptxas")]
    for place in search.places:
        if place.given and not _is_toolkit(place):
            raise _wrong_cuda_path(place)
    for place in search.places:
        there = bool(_first(place.bins, "ptxas"))
        result = "not there" if not there else "taken" if place is anchors[0] else _LATER
        search.look("ptxas", _listed(place.bins), place.origin, result)
    return next(iter(anchors), None) or next((place for place in search.places if _first(place.bins, "fatbinary")), None)


def _wrong_cuda_path(place: Place) -> UsageError:
    msg = f"GPU_CUDA_PATH={place.home}: there is neither a bin/ptxas that can be run nor anything else of CUDA's"
    below = " (the folder above bin is meant)" if (place.home / "ptxas").is_file() else ""
    return UsageError(msg, hint=f"name the folder of a CUDA toolkit{below}, or leave GPU_CUDA_PATH out to have one looked for")


def _take(search: _Search, name: str, order: Sequence[Place]) -> Tool | None:
    """The tool from the first place that has it. The assembler's places are told by `_anchor`."""
    taken: Tool | None = None
    for place in order:
        path = _first(place.bins, name)
        if path and taken is None:
            identity = fingerprint.nvidia_tool(path, facts=search.facts)
            taken = Tool(name=name, path=path, version=identity.version, identity=identity.sha256, origin=place.origin)
            result = "taken"
        else:
            result = _LATER if path else "not there"
        if name != "ptxas":
            search.look(name, path or _listed(place.bins), place.origin, result)
    return taken


def _libdevice(search: _Search, order: Sequence[Place]) -> Tool | None:
    taken: Tool | None = None
    for place in order:
        path = next((str(file) for file in place.libdevice if file.is_file()), "")
        if path and taken is None:
            identity = fingerprint.plain_file(path, version="10", facts=search.facts)
            taken = Tool(name="libdevice", path=path, version=identity.version, identity=identity.sha256, origin=place.origin)
            result = "taken"
        else:
            result = _LATER if path else "not there"
        search.look("libdevice", path or _listed(place.libdevice), place.origin, result)
    return taken


def _first(folders: Iterable[Path], name: str) -> str:
    """The first executable file of that name; "" if there is none."""
    return next((str(path) for path in (folder / name for folder in folders) if path.is_file() and os.access(path, os.X_OK)), "")


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))


def _clang(search: _Search, *, prefix: str, root: str, wanted: str) -> Tool | None:
    if wanted:
        return _given_clang(search, wanted)
    taken: Tool | None = None
    for path, origin in _clang_candidates(search.environ.get("PATH", ""), prefix, root):
        there = path.is_file() and os.access(path, os.X_OK)
        if taken is not None or not there:
            search.look("clang", path, origin, _LATER if there else "not there")
            continue
        tool, trouble = _examine(search, str(path), origin)
        search.look("clang", path, origin, trouble or "taken")
        taken = None if trouble else tool
    return taken


def _clang_candidates(path: str, prefix: str, root: str) -> list[tuple[Path, str]]:
    found = [(Path(prefix, "bin", "clang-22"), "Python wheel")]
    for name in ("clang-22", "clang"):
        on_path = shutil.which(name, path=path) if path else None
        found += [(Path(on_path), "PATH")] if on_path else []
    found.append((Path(root, "usr/lib/llvm-22/bin/clang"), "distribution"))
    return list(dict.fromkeys(found))


def _given_clang(search: _Search, wanted: str) -> Tool:
    """GPU_CLANG: a path, or a name to be found on PATH."""
    path = shutil.which(wanted, path=search.environ.get("PATH", ""))
    if path is None:
        msg = f"GPU_CLANG={wanted}: there is no such program"
        raise UsageError(msg, hint="name clang 22 by its path, or leave GPU_CLANG out to have it looked for")
    path = str(Path(path).absolute())
    tool, trouble = _examine(search, path, "GPU_CLANG")
    search.look("clang", path, "GPU_CLANG", trouble or "taken")
    if trouble:
        msg = f"GPU_CLANG={wanted}: {trouble}"
        raise UsageError(msg, hint="any clang 20 to 22 that knows NVPTX will do; pip install 'scons-gpu[clang]' brings one")
    return tool


def _examine(search: _Search, path: str, origin: str) -> tuple[Tool, str]:
    """The tool, and what is wrong with it if something is."""
    identity = fingerprint.clang(path, environ=search.environ, facts=search.facts)
    tool = Tool(name="clang", path=path, version=identity.version, identity=identity.sha256, origin=origin)
    if identity.trouble:
        return tool, f"cannot compile CUDA for NVPTX: {identity.trouble}"
    if not identity.version:
        return tool, "its version cannot be read"
    why = refused("clang", identity.version)
    return tool, f"version {identity.version}: {why}" if why else ""


def _headers(search: _Search, *, prefix: str, wanted: str) -> headers.Headers | None:
    if wanted:
        found = headers.given(wanted)
        search.look("headers", found.folder, "GPU_CUDA_HEADERS", "taken")
        return found
    taken: headers.Headers | None = None
    sites = [(site / "nvidia", "Python wheel", site) for site in site_packages(prefix)]
    for folder, origin, site in [*sites, *((place.home, place.origin, None) for place in search.places)]:
        if taken is not None:
            break  # linking wheels and reading cuda.h costs a little, and what comes later is never used
        tried = headers.from_wheels(site, facts=search.facts.folder) if site else headers.from_toolkit(folder)
        search.look("headers", folder, origin, tried if isinstance(tried, str) else "taken")
        taken = None if isinstance(tried, str) else tried
    return taken

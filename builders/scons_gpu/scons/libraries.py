"""What a program's link takes besides its own `.cu`: libraries and objects that may hold device code, looked into before the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.scons import _internals
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain import runtime
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scons_gpu.link import elf, library
    from scons_gpu.link.library import Library
    from scons_gpu.scons.program import Chain
    from scons_gpu.toolchain.tools import Tool
else:
    elf, library = later("scons_gpu.link.elf"), later("scons_gpu.link.library")

__all__ = ["Libraries", "LibraryJob", "besides", "declare_libraries", "defined", "foreign", "holding", "linked", "read_libraries", "words"]

_artefact = _internals.builder(_internals.Artefact)
_OF_THE_HOST = (".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".m", ".mm", ".s", ".S", ".asm", ".f", ".f90", ".F", ".F90", ".d")
"""What objects are compiled from that hold no device code."""


@dataclass(frozen=True)
class Libraries:
    """Files that are linked besides, and where is written what they hold."""

    node: Any
    path: Path
    files: tuple[Any, ...]


@dataclass(kw_only=True)
class LibraryJob(Step):
    """Libraries and objects of anybody become a list of what device code they hold."""

    stage: ClassVar[str] = "library"
    cuobjdump: Tool | None

    def command(self) -> list[str]:
        """Only a build knows what a program is linked of."""
        return ["scons", str(self.target)]

    def work(self, node: Any) -> Outcome:
        """In the order of the link."""
        files = [(Path(source.rfile().get_abspath()), str(source)) for source in node.sources]
        found = [library.read(path, name=Path(name).name, cuobjdump=self.cuobjdump) for path, name in files]
        write_atomic(self.target, library.to_text(found))
        return Outcome()


def read_libraries(libraries: Libraries | None) -> tuple[Library, ...]:
    """What the files hold, in their order; nothing where there are none."""
    if libraries is None:
        return ()
    return library.from_text(libraries.path.read_text(encoding="utf-8"), path=str(libraries.path))


def defined(libraries: Libraries | None) -> dict[str, str]:
    """Symbol → the library that defines it."""
    return library.defined(read_libraries(libraries))


def words(libraries: Libraries) -> list[str]:
    """These files, as `scons-gpu plan` and `link` take them."""
    return [f"--library={node.rfile().get_path()}" for node in libraries.files]


def besides(libraries: Libraries) -> tuple[tuple[Path, Library], ...]:
    """Those that hold device code, each with its file."""
    files = [Path(node.rfile().get_abspath()) for node in libraries.files]
    return tuple((path, each) for path, each in zip(files, read_libraries(libraries), strict=True) if each.members)


def linked(libraries: Libraries, images: Sequence[Path]) -> tuple[str, ...]:
    """Identities of the objects whose code is in these images."""
    symbols = {symbol.name for image in images for symbol in elf.read(image.read_bytes(), path=str(image), resources=False).symbols}
    return library.linked(read_libraries(libraries), symbols)


def foreign(env: Any, inputs: Sequence[Any], headers: str) -> list[Any]:
    """Of a link's inputs those that may hold device code which none of our steps made; CUDA's own, where it is named, among them."""
    found = [node for node in inputs if "unknown" in holding(node)]
    named = {str(name) for name in env.Flatten(env.get("LIBS", []))}
    if "cudadevrt" in named and not any(Path(str(node)).name == runtime.DEVICE_LIBRARY for node in found):
        library = runtime.find(headers, runtime.DEVICE_LIBRARY)
        found += [env.fs.File(str(library))] if library else []
    return found


def holding(node: Any) -> set[str]:
    """What of device code an object, or what an archive is made of, may hold: `ours`, to be linked across sources, and `unknown`."""
    return set(_holding(node, set()))


def _holding(node: Any, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if (job := getattr(node.attributes, "gpu", None)) is not None:
        if job.stage == "host" and job.options.relocatable:
            yield "ours"
        return
    sources = node.sources if node.has_builder() else []
    if not sources or any(str(source).endswith((".cu", ".ptx", ".cubin")) for source in sources):
        yield "unknown"
    elif not all(str(source).endswith(_OF_THE_HOST) for source in sources):
        for source in sources:
            yield from _holding(source, seen)


def declare_libraries(chain: Chain, files: Sequence[Any]) -> Libraries | None:
    """The node of what these files hold; None where there are none."""
    if not files:
        return None
    path = chain.folder / "libraries.json"
    tool = chain.tools.cuobjdump
    job = LibraryJob(
        **chain.common(None, chain.module.name, path),
        signature=options_text(cuobjdump=f"{tool.version} {tool.identity}" if tool else "", tool=identity()),
        cuobjdump=tool,
    )
    return Libraries(_artefact(chain.env, path, files, job), path, tuple(files))

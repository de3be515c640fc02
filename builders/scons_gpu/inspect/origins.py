"""From which input the difference of two builds comes: a pure decision over what both made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError
from scons_gpu.inspect.differing import Place, places
from scons_gpu.link import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.link.manifest import Manifest, Module
    from scons_gpu.link.provenance import Provenance

__all__ = ["Built", "Cause", "by_provenance", "causes"]


@dataclass(frozen=True)
class Built:
    """One build."""

    folder: str
    files: Mapping[str, bytes]
    """What it made, by path below its folder."""


@dataclass(frozen=True)
class Cause:
    """One input, and what of it shows."""

    input: str
    """A source, a generated file, a list of sources, a tool."""
    why: str
    place: Place | None = None


@dataclass(frozen=True)
class _Pair:
    """One module of one program in both builds."""

    name: str
    module: Module
    """As the first manifest has it."""
    twin: Module | None
    """As the second has it."""
    below: str
    """Where the manifest lies, with a slash."""
    one: Built
    other: Built

    def differs(self, file: str) -> bool:
        """A file that the manifest names."""
        return self.one.files.get(self.below + file) != self.other.files.get(self.below + file)


def causes(one: Built, other: Built) -> list[Cause]:
    """What the differences of two builds of one tree come from, the earliest in the chain alone."""
    found: dict[Cause, None] = {}
    for path in sorted(one.files.keys() & other.files.keys()):
        if (program := _manifest(path, one)) and (twin := _manifest(path, other)):
            below = path[: path.rfind("/") + 1]
            for name, module in sorted(program.modules.items()):
                pair = _Pair(name, module, twin.modules.get(name), below, one, other)
                found.update(dict.fromkeys(_of_module(pair)))
    return list(found)


def _manifest(path: str, built: Built) -> Manifest | None:
    if not path.endswith(".json") or b"scons-gpu/manifest/" not in built.files[path]:
        return None
    try:
        return manifest.from_text(built.files[path].decode(), path=path)
    except (DamagedError, UnicodeDecodeError):
        return None


def _of_module(pair: _Pair) -> Iterator[Cause]:
    found = [_of_source(pair, text) for text in sorted({text for texts in pair.module.ir.values() for text in texts}) if pair.differs(text)]
    found += [cause for arch in sorted(pair.module.ir) if (cause := _order(pair, arch))]
    yield from found
    if not found and any(pair.differs(file) for file in pair.module.files()):
        yield _of_tools(pair)


def _of_source(pair: _Pair, text: str) -> Cause:
    """The front end made two texts of one source: a generated file that it read, the folder, or what else the source or a flag takes."""
    one, other, path = pair.one, pair.other, pair.below + text
    source = _source(pair.module, text)
    read = one.files.get(f"{path}.d", b"").decode(errors="replace").splitlines()
    for file in (source, *read):
        if file in one.files and one.files[file] != other.files.get(file):
            why = f"a build makes it, and makes it otherwise each time; {source} of module {pair.name} is compiled from it"
            return Cause(file, why, _first(one.files[file], other.files.get(file, b"")))
    if path not in other.files or path not in one.files:
        twins = pair.twin.ir if pair.twin else {}
        options = [each for texts in twins.values() for each in texts if _source(pair.module, each) == source]
        why = (
            "has options of its own (a define, a flag) that are others in each build" if options else "is there in one of the builds alone"
        )
        return Cause(source, f"in module {pair.name} it {why}", Place("its IR", text, ", ".join(options) or "not there"))
    place = _first(one.files[path], other.files[path])
    if place and (one.folder in place.one or other.folder in place.other):
        return Cause(source, f"its code holds the folder that it was built in: a flag or a define of module {pair.name} names that", place)
    why = f"what it is compiled to changes from build to build: a define or flag of module {pair.name} that is a time, a number, a variable"
    return Cause(source, why, place)


def _source(module: Module, text: str) -> str:
    """`kernels/scan.cu` of `net/ops/scan.cu.sm_90.ll`."""
    base = text.rpartition("/")[2]
    named = sorted({kernel.source for kernel in module.kernels.values()}, key=len, reverse=True)
    return next((source for source in named if base.startswith(f"{source.rpartition('/')[2]}.")), base)


def _order(pair: _Pair, arch: str) -> Cause | None:
    """The same sources in another order."""
    mine = list(pair.module.ir[arch])
    theirs = list(pair.twin.ir.get(arch, ())) if pair.twin else mine
    if mine == theirs or sorted(mine) != sorted(theirs):
        return None
    shown = [", ".join(_source(pair.module, each) for each in listed) for listed in (mine, theirs)]
    why = "they are listed as the folder is: sort what os.listdir, os.scandir or glob.glob gives"
    return Cause(f"the sources of module {pair.name}", why, Place("order", shown[0], shown[1]))


def _of_tools(pair: _Pair) -> Cause:
    """All sources came to the same, and the code did not."""
    homes = {image.file.rpartition("/")[0] for image in pair.module.images.values()} | {
        (pair.module.bundle or "").removesuffix(".gpubundle")
    }
    plans = [path for path in sorted(pair.one.files) if path.endswith(".plan.json")]
    for path in (each for each in plans if each.rpartition("/")[0] in {pair.below + home for home in homes}):
        if place := _first(pair.one.files[path], pair.other.files.get(path, b"")):
            return Cause(f"the options of module {pair.name}", f"{path} differs, and the IR of its sources does not", place)
    why = "the same units came out otherwise: flags for the assembler that change, or a tool that is not the same each time"
    return Cause(f"the tools of module {pair.name}", why)


def _first(one: bytes, other: bytes) -> Place | None:
    return next(iter(places(one, other)), None)


def by_provenance(published: Provenance, built: Provenance) -> list[Cause]:
    """Inputs and options that two releases do not have in common, by what they say of themselves."""
    one, other = ({(each.kind, each.name): each for each in said.inputs} for said in (published, built))
    found = []
    for key in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(key), other.get(key)
        if mine != theirs:
            shown = [f"{each.version} {each.sha256}".strip() if each else "not there" for each in (mine, theirs)]
            found.append(Cause(f"{key[0]} {key[1]}", "is another here", Place("", shown[0], shown[1])))
    for name, called in (("external", "what was asked for"), ("internal", "the packing"), ("versions", "scons-gpu or SCons")):
        texts = [json.dumps(getattr(said, name), sort_keys=True, indent=1).encode() for said in (published, built)]
        if texts[0] != texts[1]:
            found.append(Cause(called, "is another here", _first(*texts)))
    return found

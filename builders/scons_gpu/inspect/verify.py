"""Whether a release is as it was made: each file by its checksum, its manifest, its own words, and the archive byte by byte.

What can be made again from the content is made again and compared: checksums, components, the statement's form, the tar file, and, by the
same version of the library, the compressed bytes. So no byte can be another without being found, padding and headers included. Nothing is
written, and nothing is unpacked beyond a limit. Who wrote the archive is not told by anything in it: that is what a signature is for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError, ToolMissingError
from scons_gpu.inspect.held import check_module
from scons_gpu.inspect.problems import Problem, difference, guarded
from scons_gpu.link import manifest, provenance, release, tarball, zstd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.link.provenance import Provenance

__all__ = ["MOST", "Verdict", "unpack", "verify"]

MOST = 1 << 30
_SHOWN = 20


@dataclass
class Verdict:
    """What was found."""

    name: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path below the release's folder."""
    programs: dict[str, manifest.Manifest] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be compared here, and why."""

    @property
    def kernels(self) -> int:
        """How many there are."""
        return sum(len(module.kernels) for program in self.programs.values() for module in program.modules.values())

    @property
    def modules(self) -> int:
        """How many have code."""
        return sum(bool(module.kernels) for program in self.programs.values() for module in program.modules.values())


def unpack(data: bytes, *, most: int = MOST) -> tuple[str, dict[str, bytes], bytes]:
    """Name of a release, its files, and the tar file. Raises ValueError for what is none, or unpacks to more than `most` bytes."""
    tar = zstd.decompress(data, most=most)
    members = tarball.read_tar(tar)
    folders = {name.partition("/")[0] for name in members}
    if len(folders) > 1 or any("/" not in name for name in members):
        msg = f"its members are not all in one folder: {', '.join(sorted(folders)[:5])}"
        raise ValueError(msg)
    name = folders.pop()
    return name, {path.removeprefix(f"{name}/"): content for path, content in members.items()}, tar


def verify(data: bytes, *, most: int = MOST) -> Verdict:
    """Looks at the archive whose bytes are `data`. Raises ToolMissingError where a library is not there; else whatever is wrong is told."""
    found = Verdict()
    try:
        found.name, found.files, tar = unpack(data, most=most)
    except (ValueError, MemoryError) as error:
        found.problems.append(Problem("", "archive", str(error) or "there is no memory to unpack it"))
        return found
    found.problems += guarded(release.SUMS, lambda: _sums(found.files))
    said = _provenance(found)
    _programs(found, said)
    for path, program in found.programs.items():
        found.problems += guarded(path, lambda program=program: _code(program, found.files, most))  # type: ignore[misc]
    if said is not None:
        found.problems += guarded(release.PROVENANCE, lambda: _statement(found, said))
        found.problems += guarded(release.COMPONENTS, lambda: _components(found, said))
    found.problems += guarded("", lambda: _packing(found, said, data, tar))
    found.problems = list(dict.fromkeys(found.problems))
    return found


def _sums(files: Mapping[str, bytes]) -> Iterator[Problem]:
    if release.SUMS not in files:
        yield Problem(release.SUMS, "", "is not there")
        return
    lines = files[release.SUMS].decode().splitlines()
    told = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in sorted({*files, *told} - {release.SUMS}):
        if name not in files:
            yield Problem(name, "", "is in SHA256SUMS, and not there")
        elif name not in told:
            yield Problem(name, "", "is not in SHA256SUMS")
        elif (digest := release.digest(files[name])) != told[name]:
            yield Problem(name, "SHA-256", f"is {digest}, and SHA256SUMS says {told[name][:64]}")
    if files[release.SUMS] != release.sums(files):
        yield Problem(release.SUMS, "", "is not what the files come to, in their order")


def _provenance(found: Verdict) -> Provenance | None:
    if release.PROVENANCE not in found.files:
        found.problems.append(Problem(release.PROVENANCE, "", "is not there"))
        return None
    try:
        return provenance.from_text(found.files[release.PROVENANCE].decode(), path=release.PROVENANCE)
    except (GpuError, UnicodeDecodeError) as error:
        found.problems.append(Problem(release.PROVENANCE, "", str(error).removeprefix(f"{release.PROVENANCE}: ")))
        return None


def _programs(found: Verdict, said: Provenance | None) -> None:
    """Reads the manifests: those that the provenance names, and without it all that look like one."""
    named = said.external.get("programs") if said else None
    paths = sorted(named) if isinstance(named, dict) else [path for path in found.files if path.endswith(".json") and "/" not in path]
    for path in set(paths) - {release.PROVENANCE, release.COMPONENTS}:
        if path not in found.files:
            found.problems.append(Problem(path, "", "is a program of the provenance, and not there"))
            continue
        found.problems += guarded(path, lambda path=path: _manifest(found, path))  # type: ignore[misc]


def _manifest(found: Verdict, path: str) -> Iterator[Problem]:
    text = found.files[path].decode()
    broken = [
        Problem(path, ".".join(map(str, error.absolute_path)), error.message[:300]) for error in _schema().iter_errors(json.loads(text))
    ]
    yield from broken[:_SHOWN]
    if not broken:
        read = manifest.from_text(text, path=path)
        if manifest.to_text(read) != text:
            yield Problem(path, "", "is not written as a build writes it")
        found.programs[path] = read


@cache
def _schema() -> Any:  # noqa: ANN401 - an extra, whose types are not there without it
    try:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "the Python package jsonschema is not installed"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[release]' brings it") from None
    return Draft202012Validator(json.loads(Path(manifest.__file__).with_name("manifest.schema.json").read_text(encoding="utf-8")))


def _code(program: manifest.Manifest, files: Mapping[str, bytes], most: int) -> Iterator[Problem]:
    for name, module in sorted(program.modules.items()):
        absent = [file for file in module.files() if file not in files]
        yield from (Problem(file, "", f"is code of module {name}, and not there") for file in absent)
        if not absent:
            yield from check_module(name, module, files, most=most)


def _statement(found: Verdict, said: Provenance) -> Iterator[Problem]:
    """What the provenance says of the release itself, and of tools, is what the release and its manifests say."""
    if provenance.to_text(said).encode() != found.files[release.PROVENANCE]:
        yield Problem(release.PROVENANCE, "", "is not written as a build writes it")
    held = {path: release.digest(data) for path, data in found.files.items() if path not in (release.SUMS, release.PROVENANCE)}
    parameters = release.externals(
        found.name,
        found.programs,
        release.Options(lineinfo=said.external.get("lineinfo") is True, notes=said.external.get("notes") is True),
    )
    parts: tuple[tuple[str, Any, Any], ...] = (
        ("subject", dict(said.subjects), held),
        ("externalParameters", dict(said.external), parameters),
    )
    for name, told, wanted in parts:
        if other := difference(told, wanted):
            yield Problem(release.PROVENANCE, f"{name}.{other[0]}", other[1])
    tools = {(name, tool.version, tool.identity) for program in found.programs.values() for name, tool in program.tools.items()}
    for tool, version, identity in sorted(tools - {(each.name, each.version, each.sha256) for each in said.inputs if each.kind == "tool"}):
        if len(identity) == 64:
            yield Problem(release.PROVENANCE, f"resolvedDependencies: {tool}", f"is not {version} {identity}, which the manifest names")
    known = {
        *found.programs,
        *(file for program in found.programs.values() for module in program.modules.values() for file in module.files()),
    }
    for path in sorted(held.keys() - known - {release.COMPONENTS}):
        if not path.startswith(f"{release.LICENCES}/"):
            yield Problem(path, "", "belongs to no program")


def _components(found: Verdict, said: Provenance) -> Iterator[Problem]:
    if release.COMPONENTS not in found.files:
        yield Problem(release.COMPONENTS, "", "is not there")
        return
    contents = {path: data for path, data in found.files.items() if path not in (release.SUMS, release.PROVENANCE, release.COMPONENTS)}
    wanted = release.list_components(found.name, contents, found.programs, said.inputs)
    if wanted != found.files[release.COMPONENTS]:
        field_, how = difference(json.loads(found.files[release.COMPONENTS]), json.loads(wanted)) or (
            "",
            "is not written as a build writes it",
        )
        yield Problem(release.COMPONENTS, field_, how)


def _packing(found: Verdict, said: Provenance | None, data: bytes, tar: bytes) -> Iterator[Problem]:
    """The same content, packed again."""
    members = {f"{found.name}/{path}": content for path, content in found.files.items()}
    again = tarball.write_tar(members)
    if again != tar:
        place = next((place for place, (one, other) in enumerate(zip(again, tar, strict=False)) if one != other), min(len(again), len(tar)))
        yield Problem("", f"byte {place} of the tar file", f"is another: {tarball.where(members, place)}")
        return
    compression = said.internal.get("compression") if said else None
    if not isinstance(compression, dict) or compression.get("level") not in zstd.LEVELS:
        yield Problem(release.PROVENANCE, "internalParameters.compression", "does not tell how the archive was compressed")
        return
    level = int(compression["level"])
    if (other := {**compression, **zstd.writer()}) != compression:
        found.notes.append(
            f"compressed by zstandard {compression.get('zstandard')}, and here is {other['zstandard']}: the frame is not compared"
        )
        return
    packed = zstd.compress(tar, level=level)
    if packed != data:
        place = next(
            (place for place, (one, other) in enumerate(zip(packed, data, strict=False)) if one != other), min(len(packed), len(data))
        )
        yield Problem(
            "", f"byte {place} of the archive", "is another than compression gives: the content is as it was made, its frame is not"
        )

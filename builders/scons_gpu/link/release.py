"""A release: programs with their code, licences, and what says what it is, in one archive whose bytes follow from its content.

net-1.0/net.json                 a program's manifest, as its build wrote it
net-1.0/net/ops.fatbin           the code that it names, where it says: fatbins with the images in them, bundles
net-1.0/LICENSES/LICENSE         licence files
net-1.0/components.cdx.json      CycloneDX
net-1.0/provenance.intoto.json   in-toto, SLSA
net-1.0/SHA256SUMS               of all the others
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError, LinkError, UsageError
from scons_gpu.link import components, manifest, provenance, tarball, zstd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scons_gpu.link.provenance import Input

__all__ = [
    "COMPONENTS",
    "LEVEL",
    "LICENCES",
    "PROVENANCE",
    "SUFFIX",
    "SUMS",
    "Options",
    "archive",
    "checked_lines",
    "checked_places",
    "contents",
    "digest",
    "externals",
    "list_components",
    "name_of",
    "read_program",
    "sums",
]

SUFFIX = ".tar.zst"
SUMS, PROVENANCE, COMPONENTS, LICENCES = "SHA256SUMS", "provenance.intoto.json", "components.cdx.json", "LICENSES"
LEVEL = 19


@dataclass(frozen=True)
class Options:
    """What a user says of a release."""

    level: int = LEVEL
    """Of compression, 1 to 19."""
    lineinfo: bool = False
    """Whether code may hold names of sources and line tables."""
    notes: bool = True
    """Whether code tells which tools made it, and with which options."""


def name_of(file: str) -> str:
    """`net-1.0` of `dist/net-1.0.tar.zst`. Raises UsageError for a file that is called otherwise."""
    base = file.rpartition("/")[2]
    name = base.removesuffix(SUFFIX)
    if name == base or tarball.misnamed(name):
        msg = f"a release is a file NAME{SUFFIX}, and this is {base}"
        raise UsageError(msg)
    return name


def digest(data: bytes) -> str:
    """SHA-256, as all files of a release have it."""
    return hashlib.sha256(data).hexdigest()


def read_program(path: Path) -> dict[str, bytes]:
    """A program's manifest and the code that it names, by path below the manifest's folder.

    Raises DamagedError for code that is not what the manifest names, UsageError for code that lies elsewhere.
    """
    text = path.read_bytes()
    found = {path.name: text}
    program = manifest.from_text(text.decode(), path=str(path))
    for name, module in program.modules.items():
        for file in module.files():
            if tarball.misnamed(file):
                msg = f"{path}: {file!r} of module {name} {tarball.misnamed(file)}"
                raise UsageError(msg)
            found[file] = _read(path.parent / file, module=name)
        for image in module.images.values():
            if digest(found[image.file]) != image.sha256:
                msg = f"{path.parent / image.file}: not the image that its manifest names"
                raise DamagedError(msg, module=name, hint="build again")
    return found


def _read(path: Path, *, module: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        msg = f"{path}: cannot be read: {(error.strerror or str(error)).lower()}"
        raise DamagedError(msg, module=module, hint="build again") from None


def checked_lines(program: manifest.Manifest, *, lineinfo: bool) -> None:
    """Raises UsageError for a module with line tables where none are to be shipped."""
    for name, module in program.modules.items():
        lines = [option for option in ("debug", "lineinfo") if module.options.get(option)]
        if lines and module.kernels and not lineinfo:
            msg = f"its code was built with GPU_{lines[0].upper()}, and holds names and lines of sources"
            raise UsageError(msg, module=name, hint="build it without, or say GpuRelease(..., lineinfo=True)")


def checked_places(files: Mapping[str, bytes], folder: Path) -> None:
    """Raises UsageError for a file that names the folder that it was built in: elsewhere it would be another."""
    place = str(folder).encode()
    held = sorted(path for path, data in files.items() if len(folder.parts) > 2 and place in data)
    if held:
        msg = f"{held[0]} holds the folder that it was built in, {folder}"
        raise UsageError(msg, hint="scons-gpu reproduce names the source or flag that it comes from")


def contents(programs: Sequence[Mapping[str, bytes]], licences: Mapping[str, bytes]) -> dict[str, bytes]:
    """All that a release is for, by path. Raises UsageError for two files of one path."""
    held = [*programs, {f"{LICENCES}/{name}": data for name, data in licences.items()}]
    found: dict[str, bytes] = {}
    for files in held:
        for path, data in files.items():
            if path in found or path in (SUMS, PROVENANCE, COMPONENTS):
                msg = f"two files of the release would be {path}"
                raise UsageError(msg, hint="programs of one release need names of their own")
            found[path] = data
    return found


def archive(  # noqa: PLR0913 - what a release is made of
    name: str,
    files: Mapping[str, bytes],
    *,
    programs: Sequence[str],
    inputs: Sequence[Input],
    options: Options,
    versions: Mapping[str, str],
) -> bytes:
    """The archive of release `name`. `files`: its contents; `programs`: which of them are manifests; `versions`: of what ran the build."""
    read = {path: manifest.from_text(files[path].decode(), path=path) for path in programs}
    listed = list_components(name, files, read, inputs)
    whole = {**files, COMPONENTS: listed}
    whole[PROVENANCE] = provenance.to_text(
        provenance.Provenance(
            subjects={path: digest(data) for path, data in whole.items()},
            inputs=inputs,
            external=externals(name, read, options),
            internal={"compression": {"level": options.level, **zstd.writer()}},
            versions=versions,
        )
    ).encode()
    whole[SUMS] = sums(whole)
    return zstd.compress(_tar(name, whole), level=options.level)


def list_components(name: str, files: Mapping[str, bytes], programs: Mapping[str, manifest.Manifest], inputs: Sequence[Input]) -> bytes:
    """The component list. `files`: the contents."""
    hashes = {path: digest(data) for path, data in files.items()}
    tools = sorted({each for each in inputs if each.kind == "tool"})
    return components.to_text(name, files=hashes, programs=programs, tools=tools).encode()


def externals(name: str, programs: Mapping[str, manifest.Manifest], options: Options) -> dict[str, Any]:
    """What the user asked for, as the provenance has it."""
    return {
        "release": name,
        "lineinfo": options.lineinfo,
        "notes": options.notes,
        "programs": {
            path: {
                "archs": list(program.archs),
                "modules": {
                    module: {"bypass": built.bypass, "submodules": list(built.submodules), "options": built.options}
                    for module, built in program.modules.items()
                },
            }
            for path, program in programs.items()
        },
    }


def sums(files: Mapping[str, bytes]) -> bytes:
    """What `sha256sum -c` reads."""
    return "".join(f"{digest(data)}  {path}\n" for path, data in sorted(files.items()) if path != SUMS).encode()


def _tar(name: str, files: Mapping[str, bytes]) -> bytes:
    try:
        return tarball.write_tar({f"{name}/{path}": data for path, data in files.items()})
    except ValueError as error:
        msg = f"release {name}: a tar file cannot hold {error}"
        raise LinkError(msg, hint="shorten the names of modules, or of the program's folder") from None

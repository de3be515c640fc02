"""Where a program's code lies: for each kernel the images, or the members of a bundle, that hold it, as its manifest says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError
from scons_gpu.link import manifest
from scons_gpu.store.archive import read_member
from scons_gpu.toolchain.running import loaded_as

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Code", "images", "kernel_code", "read", "read_manifest"]

_AGAIN = "load the manifest once more if the program was built meanwhile; else build it again"


@dataclass(frozen=True)
class Code:
    """Machine code, or PTX, for one architecture."""

    arch: str
    """What it is to a loader: `compute_90` for all PTX of that kind."""
    file: str
    """The image, or the bundle; relative to the manifest."""
    member: str = ""
    """Its name in the bundle."""
    sha256: str | None = None
    """None: a bundle of a version that did not write it down; its archive has checksums of its own."""

    @property
    def ptx(self) -> bool:
        """Whether the driver has to finish it."""
        return self.arch.startswith("compute_")

    def __str__(self) -> str:
        return f"{self.file}: {self.member}" if self.member else self.file


def read_manifest(path: Path) -> manifest.Manifest:
    """The manifest in a file. Raises DamagedError for what is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read: {_why(error)}"
        raise DamagedError(msg, hint="env.GpuProgram writes it: <stem>.json") from None
    return manifest.from_text(text, path=str(path))


def images(module: manifest.Module) -> dict[str, tuple[str, Code]]:
    """What a loader takes of a module that is no bundle: the code's architecture → that which it was built for, and the code."""
    found: dict[str, tuple[str, Code]] = {}
    for arch, image in sorted(module.images.items()):
        code = Code(arch=loaded_as(arch, ptx=image.file.endswith(".ptx")), file=image.file, sha256=image.sha256)
        found.setdefault(code.arch, (arch, code))  # without an assembler sm_90 and compute_90 are one text
    return found


def kernel_code(module: manifest.Module, symbol: str) -> dict[str, tuple[str, Code]]:
    """A kernel's code by architecture, and under which name it has the kernel."""
    builds = module.kernels[symbol].archs
    if module.bundle is None:
        return {arch: (symbol, code) for arch, (built, code) in images(module).items() if built in builds}
    found: dict[str, tuple[str, Code]] = {}
    for arch, build in sorted(builds.items()):
        name = f"{build.unit}.ptx" if build.object is None else f"{build.object}.cubin"
        taken = loaded_as(arch, ptx=build.object is None)
        found.setdefault(taken, (build.entry, Code(arch=taken, file=module.bundle, member=f"{arch}/{name}", sha256=build.sha256)))
    return found


def read(code: Code, *, folder: Path) -> bytes:
    """The code itself. Raises DamagedError where it is not what the manifest in `folder` names."""
    path = folder / code.file
    try:
        data = read_member(path, code.member) if code.member else path.read_bytes()
    except OSError as error:
        msg = f"{path}: cannot be read: {_why(error)}"
        raise DamagedError(msg, hint="code lies where the manifest says, below its own folder: take both along, or build again") from None
    except (KeyError, ValueError) as error:
        msg = f"{path}: not the bundle that its manifest names: {error.args[0] if error.args else error}"
        raise DamagedError(msg, hint=_AGAIN) from None
    if code.sha256 is not None and hashlib.sha256(data).hexdigest() != code.sha256:
        msg = f"{folder / str(code)}: not the code that its manifest names"
        raise DamagedError(msg, hint=_AGAIN)
    return data


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()

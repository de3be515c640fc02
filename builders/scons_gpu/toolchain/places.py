"""Where CUDA's tools may lie, in the order in which they are looked for."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.toolchain.follow import follow

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Place", "places", "site_packages"]

_LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"


@dataclass(frozen=True)
class Place:
    """One installation: folders of programs and files of libdevice to try, `home` with `include` below it, and who named it."""

    origin: str
    home: Path
    bins: tuple[Path, ...]
    libdevice: tuple[Path, ...]
    given: bool = False  # named by the user for this tool alone: if it is wrong that is an error, not a reason to look elsewhere


def places(*, environ: Mapping[str, str], prefix: str, root: str, cuda_path: str) -> tuple[Place, ...]:
    """All places, first one first. The user's own (`cuda_path`) hides none of the others: disassemblers may come from the next."""
    given = cuda_path or environ.get("GPU_CUDA_PATH", "")
    found = [_installation("GPU_CUDA_PATH", Path(given).absolute(), given=True)] if given else []
    # cu13 alone: the cu12 wheels are here for their headers, and bring a second assembler and libdevice that must not be mixed in.
    found += [_installation("Python wheel", folder / "nvidia" / "cu13") for folder in site_packages(prefix)]
    found += [_installation(name, Path(environ[name])) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    found += _on_path(environ.get("PATH", ""))
    found.append(_installation("/usr/local/cuda", Path(root, "usr/local/cuda")))
    found.append(_debian(Path(root)))
    found.append(_installation("distribution", Path(root, "opt/cuda")))
    return tuple(found)


def site_packages(prefix: str) -> tuple[Path, ...]:
    """Where the wheels of the running Python lie; other versions' folders under the same prefix are not looked at. At least one."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = (f"lib/{version}/site-packages", f"lib64/{version}/site-packages", f"local/lib/{version}/dist-packages")
    found: dict[Path, Path] = {}
    for path in (Path(prefix, folder) for folder in folders):
        if path.is_dir():
            found.setdefault(path.resolve(), path)  # lib64 is often lib by another name
    return tuple(found.values()) or (Path(prefix, folders[0]),)


def _installation(origin: str, home: Path, *, given: bool = False) -> Place:
    """NVIDIA's own layout, which wheels and conda share."""
    return Place(origin=origin, home=home, bins=(home / "bin",), libdevice=(home / _LIBDEVICE,), given=given)


def _on_path(path: str) -> list[Place]:
    """Every `ptxas` on PATH, with what it leads to: its neighbours are taken from beside it, or from beside the binary it starts."""
    found: list[Place] = []
    for folder in map(Path, path.split(os.pathsep)):
        tool = shutil.which("ptxas", path=str(folder)) if folder.is_absolute() else None
        if tool is None:
            continue
        real = follow(tool).real
        bins = tuple(dict.fromkeys([folder, *([Path(real).parent] if real else [])]))
        homes = tuple(dict.fromkeys(each.parent for each in reversed(bins)))
        found.append(Place(origin="PATH", home=homes[0], bins=bins, libdevice=tuple(home / _LIBDEVICE for home in homes)))
    return found


def _debian(root: Path) -> Place:
    """Debian's and Ubuntu's package: programs in /usr/bin or below the package's own folder, headers in /usr/include."""
    own = root / "usr/lib/nvidia-cuda-toolkit"
    libdevice = (own / "libdevice/libdevice.10.bc", root / "usr/lib/cuda" / _LIBDEVICE)
    return Place(origin="distribution", home=root / "usr", bins=(own / "bin", root / "usr/bin"), libdevice=libdevice)

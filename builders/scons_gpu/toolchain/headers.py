"""The CUDA headers that clang reads: a folder the user names, the cu12 wheels linked into one folder, or a toolkit that is old enough.

Clang 22 reads the headers of CUDA 12.9 and older; those of the 13.x wheels, where the assembler comes from, it reads only in part.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.store.files import TEMPORARY, unwritable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Headers", "from_toolkit", "from_wheels", "given", "read_version"]

_NEWEST = (12, 9)
_VERSION = re.compile(rb"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)
# Folders below site-packages/nvidia and the wheels that fill them. Clang's own wrapper includes a header of the random number
# library in every source; an empty one does for sources that do not use it, and saves a wheel of 68 MB.
_NEEDED: Mapping[str, str] = {"cuda_runtime": "cuda_runtime", "cuda_nvcc": "cuda_nvcc", "cuda_cccl": "cuda_cccl"}
_OPTIONAL: Mapping[str, str] = {"curand": "curand", "cublas": "cublas", "cufft": "cufft", "cusparse": "cusparse", "cusolver": "cusolver"}
_CURAND = "curand_mtgp32_kernel.h"


@dataclass(frozen=True)
class Headers:
    """A folder for clang's --cuda-path, the CUDA version that its cuda.h tells, and the identity: versions, never a path."""

    folder: str
    version: str
    identity: str


def read_version(home: Path) -> tuple[int, int] | None:
    """(12, 9) from `include/cuda.h`; None if there are no headers."""
    try:
        found = _VERSION.search((home / "include" / "cuda.h").read_bytes())
    except OSError:
        return None
    return (int(found[1]) // 1000, int(found[1]) % 1000 // 10) if found else None


def given(folder: str) -> Headers:
    """The user's own choice (GPU_CUDA_HEADERS): taken as it is, or refused in words."""
    home = Path(folder).absolute()
    version = read_version(home)
    if version is None or not (home / "include" / "cuda_runtime.h").is_file():
        msg = f"GPU_CUDA_HEADERS={folder}: there is no include/cuda_runtime.h with its cuda.h"
        above = " (the folder above include is meant)" if (home / "cuda_runtime.h").is_file() else ""
        raise UsageError(msg, hint=f"name a CUDA toolkit of 12.9 or older{above}")
    return _toolkit(home, version)


def from_toolkit(home: Path) -> Headers | str:
    """A toolkit's own headers, or why they are not taken."""
    version = read_version(home)
    if version is None or not (home / "include" / "cuda_runtime.h").is_file():
        return "no headers there"
    if version > _NEWEST:
        return f"headers of CUDA {version[0]}.{version[1]}, of which clang 22 reads only a part"
    return _toolkit(home, version)


def _toolkit(home: Path, version: tuple[int, int]) -> Headers:
    text = f"{version[0]}.{version[1]}"
    return Headers(folder=str(home), version=text, identity=f"cuda-{text}")


def from_wheels(site: Path, *, facts: Path) -> Headers | str:
    """The cu12 wheels below `site`, linked into one folder under `facts`; or why they are not taken.

    The folder's name is made of the wheels' versions, so it does not tell where they lie. One that is damaged, or whose wheels
    have moved, is made again.
    """
    nvidia = site / "nvidia"
    missing = [wheel for folder, wheel in _NEEDED.items() if not (nvidia / folder / "include").is_dir()]
    if missing:
        return "no " + ", ".join(f"nvidia-{wheel.replace('_', '-')}-cu12" for wheel in missing)
    folders = [folder for folder in (*_NEEDED, *_OPTIONAL) if (nvidia / folder / "include").is_dir()]
    versions = _wheel_versions(site, folders)
    key = hashlib.sha256("\n".join(versions).encode()).hexdigest()[:12]
    home = facts / f"cuda-headers-{key}"
    _link(home, [nvidia / folder / "include" for folder in folders])
    version = read_version(home)
    if version is None:
        return "the wheels hold no cuda.h"
    if version > _NEWEST:
        return f"headers of CUDA {version[0]}.{version[1]}, of which clang 22 reads only a part"
    return Headers(folder=str(home), version=f"{version[0]}.{version[1]}", identity=f"cuda-{version[0]}.{version[1]}-{key}")


def _wheel_versions(site: Path, folders: Iterable[str]) -> list[str]:
    """As `cuda_runtime 12.9.79`, from the names of the .dist-info folders; a wheel without one is told by its cuda.h alone."""
    names = {**_NEEDED, **_OPTIONAL}
    infos = {path.name.partition("-")[0]: path.name for path in sorted(site.glob("nvidia_*.dist-info"))}
    found = {folder: infos.get(f"nvidia_{names[folder]}_cu12", "") for folder in folders}
    return [f"{folder} {info.removesuffix('.dist-info').partition('-')[2]}" for folder, info in found.items()]


def _link(home: Path, sources: Sequence[Path]) -> None:
    """Makes `home/include` a folder of links to all that the sources hold, and what else clang wants of a toolkit."""
    entries = {entry.name: entry for source in reversed(sources) for entry in sorted(source.iterdir()) if _is_header(entry)}
    include = home / "include"
    if (home / "bin").is_dir() and all((include / name).exists() for name in [*entries, _CURAND]):
        return
    fresh = home.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        (fresh / "include").mkdir(parents=True)
        (fresh / "bin").mkdir()  # without it clang does not take the folder for a toolkit
        for name, entry in entries.items():
            (fresh / "include" / name).symlink_to(entry.absolute())
        if _CURAND not in entries:
            (fresh / "include" / _CURAND).touch()
        _put_in_place(fresh, home)
    except OSError as error:
        raise unwritable(home, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_header(entry: Path) -> bool:
    return entry.suffix not in {".py", ".pyc"} and entry.name != "__pycache__"


def _put_in_place(fresh: Path, home: Path) -> None:
    """Renaming over a folder works only if that is empty, so what is there is moved out of the way first."""
    old = fresh.with_name(fresh.name + "-old")
    with contextlib.suppress(FileNotFoundError):
        home.rename(old)
    try:
        fresh.rename(home)
    except OSError:
        if not home.is_dir():  # else another build was faster, and made the same
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)

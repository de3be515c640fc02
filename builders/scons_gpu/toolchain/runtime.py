"""CUDA's runtime for programs: the static library that belongs to the headers which their host code was compiled with."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["DEVICE_LIBRARY", "LIBRARY", "find", "folders"]

LIBRARY = "libcudart_static.a"
DEVICE_LIBRARY = "libcudadevrt.a"


def folders(headers: str) -> tuple[Path, ...]:
    """Where the library of these headers may lie. Wheels' headers are linked into one folder; the library is beside their real place."""
    home = Path(headers, "include", "cuda_runtime.h").resolve().parent.parent
    machine = platform.machine()
    names = ("lib64", "lib", f"targets/{machine}-linux/lib", f"lib/{machine}-linux-gnu", "targets/sbsa-linux/lib")
    return tuple(home / name for name in names)


def find(headers: str, name: str = LIBRARY) -> Path | None:
    """The library; None where it is in none of the folders."""
    return next((folder / name for folder in folders(headers) if (folder / name).is_file()), None)

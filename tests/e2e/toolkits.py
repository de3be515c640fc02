"""Toolkits for tests: the real tools behind wrappers that count their calls, or that fail when told to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["Toolkit"]

TOOLS = ("ptxas", "nvlink", "fatbinary")


class Toolkit:
    """A folder for `GPU_CUDA_PATH` whose tools are wrappers of the real ones. A call that does work appends a line to `calls`."""

    def __init__(self, toolchain: Toolchain, root: Path) -> None:
        assert toolchain.ptxas is not None
        assert toolchain.clang is not None
        assert toolchain.libdevice is not None
        self.root = root
        self.calls = root / "calls"
        self.clang = root / "clang-22"
        self.binaries = binaries = Path(toolchain.ptxas.path).parent
        (root / "bin").mkdir(parents=True)
        (root / "nvvm/libdevice").mkdir(parents=True)
        (root / "nvvm/libdevice/libdevice.10.bc").symlink_to(toolchain.libdevice.path)
        for name in TOOLS:
            self.wrap(name, binaries / name)
        write(self.clang, self._script("clang", Path(toolchain.clang.path), works="*-MD*"))

    def wrap(self, name: str, real: Path, *, before: str = "") -> None:
        """Puts a wrapper into the toolkit. `before` is shell that runs ahead of each call that does work."""
        write(self.root / "bin" / name, self._script(name, real, before=before))

    def _script(self, name: str, real: Path, *, works: str = "*-o*|*--options-file*|*--create*", before: str = "") -> str:
        return f'#!/bin/sh\ncase "$*" in {works}) echo "{name} $*" >> {self.calls}\n{before}\n;; esac\nexec {real} "$@"\n'

    def counts(self) -> dict[str, int]:
        """Tool → how often it was called to do work. Reading takes the lines away."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return {name: number for name in (*TOOLS, "clang") if (number := sum(line.split()[0] == name for line in lines))}


def write(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)

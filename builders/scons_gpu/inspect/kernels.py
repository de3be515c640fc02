"""The kernels of a program, as its manifest lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scons_gpu.inspect.tables import Cell
    from scons_gpu.link.manifest import Manifest

__all__ = ["COLUMNS", "rows", "to_json"]

COLUMNS = ("module", "kernel", "source", "arch", "registers", "spills", "shared", "constant", "stack", "threads", "unit")
SCHEMA = "scons-gpu/kernels/1"
_FIELDS = ("registers", "spill_bytes", "shared_bytes", "constant_bytes", "stack_bytes", "max_threads")


def rows(manifest: Manifest) -> list[tuple[Cell, ...]]:
    """One row for each kernel and architecture; bytes and threads per block."""
    return [
        (one["module"], one["readable"], one["source"], one["arch"], *(one[name] for name in _FIELDS), one["unit"][:12])
        for one in _kernels(manifest)
    ]


def to_json(manifest: Manifest) -> dict[str, Any]:
    """What `--json` prints."""
    return {"schema": SCHEMA, "program": manifest.program, "kernels": _kernels(manifest)}


def _kernels(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {
            "module": name,
            "symbol": symbol,
            "readable": kernel.readable,
            "source": kernel.source,
            "arch": arch,
            "unit": build.unit,
            **{field: getattr(build, field) for field in _FIELDS},
        }
        for name, module in sorted(manifest.modules.items())
        for symbol, kernel in sorted(module.kernels.items())
        for arch, build in sorted(kernel.archs.items())
    ]

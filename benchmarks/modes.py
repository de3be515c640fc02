"""The ways that real_projects.py builds each file in, and what the files that a build made hold in each."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Any

from scons_gpu.link import elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["MODES", "add", "cpu", "held"]

MODES: dict[str, dict[str, str]] = {
    "image": {},
    "bundle": {"GPU_LINK": "bundle"},
    "whole": {"GPU_LINK": "whole"},
    "uncloned": {"GPU_PTXASFLAGS": "-enable-func-clone-sc=false"},
    "nvjitlink": {"GPU_PROVIDER": "nvjitlink"},
    "deferred": {"GPU_PROVIDER": "nvjitlink", "GPU_DEFER": "always"},
    "nvptxcompiler": {"GPU_PROVIDER": "nvptxcompiler+nvlink"},
    "none": {"GPU_PROVIDER": "none"},
}
"""Name → what is set for the module. `uncloned` is an image of an assembler that cannot clone functions: the last value counts."""

_ENTRY = re.compile(r"^\s*(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_FINISHING = ("assemble", "link", "pack")
_FIGURES = ("registers", "stack_bytes", "shared_bytes", "code_bytes")


def held(manifest: Path, module: str, arch: str) -> dict[str, dict[str, int | None]]:
    """Kernel → registers, bytes of stack, static shared memory and code, of every kernel that the module's files really hold.

    In PTX they are not known. Raises AssertionError where the manifest tells of other kernels than there are.
    """
    data = json.loads(manifest.read_text())["modules"][module]
    found = dict(_bundled(manifest.parent / data["bundle"], data["kernels"], arch) if data["bundle"] else _imaged(manifest, data, arch))
    lacking = set(data["kernels"]) ^ set(found)
    if lacking:
        msg = f"{manifest}: the manifest and what was built differ in {', '.join(sorted(lacking))}"
        raise AssertionError(msg)
    return found


def _imaged(manifest: Path, data: dict[str, Any], arch: str) -> Iterator[tuple[str, dict[str, int | None]]]:
    if arch not in data["images"]:
        return
    path = manifest.parent / data["images"][arch]["file"]
    if path.suffix == ".ptx":
        yield from ((name, {}) for name in _ENTRY.findall(path.read_text()))
    else:
        yield from _figures(path.read_bytes(), path.name)


def _bundled(path: Path, kernels: dict[str, Any], arch: str) -> Iterator[tuple[str, dict[str, int | None]]]:
    with zipfile.ZipFile(path) as bundle:
        for key in sorted({kernel["archs"][arch]["object"].removesuffix(".cubin") for kernel in kernels.values()}):
            yield from _figures(bundle.read(f"{arch}/{key}.cubin"), key)


def _figures(data: bytes, name: str) -> Iterator[tuple[str, dict[str, int | None]]]:
    for kernel in elf.read(data, path=name).kernels:
        yield kernel.symbol, {figure: getattr(kernel, figure) for figure in _FIGURES}


def cpu(records: Iterable[dict[str, Any]], module: str) -> float:
    """CPU seconds of assembling, linking and packing for this module. What an earlier one had made of the same is not in it."""
    mine = [one for one in records if one["type"] == "action" and one["stage"] in _FINISHING and module in one["owners"]]
    return round(sum(one.get("cpu") or 0.0 for one in mine), 3)


def add(rows: Iterable[dict[str, Any]], mode: str, *, to: str = "whole") -> dict[str, Any]:
    """The figures of one mode over all rows, and how many kernels have other registers than in mode `to`."""
    total: Counter[str] = Counter()
    for row in rows:
        mine, theirs = ((row["modes"].get(name) or {}).get("held") or {} for name in (mode, to))
        total["files"] += bool(mine)
        total["refused"] += "failed" in (row["modes"].get(mode) or {})
        total["cpu"] += (row["modes"].get(mode) or {}).get("cpu", 0)
        for kernel, figures in mine.items():
            total["kernels"] += 1
            total.update({name: value or 0 for name, value in figures.items()})
            before, after = theirs.get(kernel, {}).get("registers"), figures.get("registers")
            if before is not None and after is not None:
                total["more registers"] += after > before
                total["fewer registers"] += after < before
    return dict(total)

"""The list of a release's components, as CycloneDX 1.6 in JSON: files with checksums, what was linked into them, and the tools.

Written by hand: it is one JSON object, and the library for it brings six packages and a serial number of its own; tests hold it against the
published schema. No serial number and no time stamp, which are optional: equal releases have equal lists.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.link.manifest import Manifest
    from scons_gpu.link.provenance import Input

__all__ = ["to_text"]

_VERSIONED = re.compile(r"(.+?)[-_]v?(\d[\w.+-]*)")
_LINKED = ("libdevice",)
"""Tools of which parts end up in machine code."""


def to_text(name: str, *, files: Mapping[str, str], programs: Mapping[str, Manifest], tools: Sequence[Input]) -> str:
    """The list of release `name`. `files`: path → SHA-256; `programs`: path of the manifest → what it says."""
    linked = [each for each in tools if each.name in _LINKED]
    components = [_program(path, manifest, files) for path, manifest in sorted(programs.items())]
    owned = {file for path, manifest in programs.items() for file in (path, *_files(manifest))}
    components += [_file(path, files[path]) for path in sorted(files) if path not in owned]
    components += [_tool(each, "library") for each in linked]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "release", **_named(name)},
            "tools": {"components": [_tool(each, "application") for each in tools if each not in linked]},
        },
        "components": components,
        "dependencies": _dependencies(programs, linked),
    }
    return json.dumps(bom, sort_keys=True, ensure_ascii=False, indent=1) + "\n"


def _named(name: str) -> dict[str, str]:
    """`net-1.0` is version 1.0 of net."""
    found = _VERSIONED.fullmatch(name)
    return {"name": found[1], "version": found[2]} if found else {"name": name}


def _program(path: str, manifest: Manifest, files: Mapping[str, str]) -> dict[str, Any]:
    """A program with its files inside."""
    held = [_file(file, files[file]) for file in sorted({path, *_files(manifest)})]
    return {"type": "library", "bom-ref": f"program:{manifest.program}", "name": manifest.program, "components": held}


def _files(manifest: Manifest) -> list[str]:
    return [file for module in manifest.modules.values() for file in module.files()]


def _file(path: str, sha256: str) -> dict[str, Any]:
    return {"type": "file", "bom-ref": f"file:{path}", "name": path, "hashes": _hashes(sha256)}


def _tool(tool: Input, kind: str) -> dict[str, Any]:
    version = {"version": tool.version} if tool.version else {}
    hashes = {"hashes": _hashes(tool.sha256)} if len(tool.sha256) == 64 else {}
    return {"type": kind, "bom-ref": f"tool:{tool.name}", "name": tool.name, **version, **hashes}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _dependencies(programs: Mapping[str, Manifest], linked: Sequence[Input]) -> list[dict[str, Any]]:
    """The release holds programs, programs what was linked into them."""
    names = sorted(f"program:{manifest.program}" for manifest in programs.values())
    held = sorted(f"tool:{each.name}" for each in linked)
    return [{"ref": "release", "dependsOn": names}, *({"ref": name, "dependsOn": held} for name in names)]

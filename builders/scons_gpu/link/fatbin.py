"""A module's images, one per architecture, become its fatbin.

NVIDIA's `fatbinary` is called as nvcc calls it, but for one thing: every image gets a fixed name in a folder of its own, because the tool
cannot read a path with a comma. The container keeps no name, so paths leave no trace. Its defaults are kept: machine code as it is, PTX
without comments and compressed, by 13.5 with Zstandard, which a driver that reads PTX of that release unpacks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin
from scons_gpu.assemble.failures import classify, silent
from scons_gpu.errors import LinkError, ToolMissingError
from scons_gpu.link.fatbin_ptx import pack_ptx
from scons_gpu.source.ptx_reader import target_named
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scons_gpu.toolchain.tools import Tool

__all__ = ["pack", "target_of"]

_OUTPUT = "out.fatbin"


def pack(images: Sequence[tuple[Target, Path]], *, fatbinary: Tool | None) -> bytes:
    """The fatbin of `images`, whatever their order. An image is machine code, or PTX that the driver finishes when it loads.

    A virtual architecture's image is PTX; a real one's may be. Without `fatbinary` PTX alone can be packed.
    Raises LinkError for images that cannot be right, else a ToolError.
    """
    entries = sorted(_entries(images))
    if not entries:
        msg = "nothing to pack: a fatbin needs at least one image"
        raise LinkError(msg)
    if fatbinary is None:
        return _without_tool(entries)
    with private_folder() as folder:
        options = ["-64", f"--create={_OUTPUT}"]
        for place, (kind, arch, data) in enumerate(entries):
            (folder / f"image-{place}").write_bytes(data)
            options.append(f"--image3=kind={kind},sm={arch},file=image-{place}")
        ended = run([fatbinary.path, *options], cwd=folder, together=True)
        output = re.sub(r"image-(\d+)", lambda found: _named(*entries[int(found[1])][:2]), ended.stdout)
        if ended.status:
            raise classify(ended.status, output, tool="fatbinary", arch="", peak_kib=ended.peak_kib)
        data = (folder / _OUTPUT).read_bytes() if (folder / _OUTPUT).exists() else b""
    if not data:
        raise silent(tool="fatbinary", arch="", output=output)
    return data


def _without_tool(entries: Sequence[tuple[str, str, bytes]]) -> bytes:
    code = [arch for kind, arch, _ in entries if kind != "ptx"]
    if code:
        msg = f"fatbinary was not found, and without it the image for sm_{code[0]} cannot be packed"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[toolkit]' brings it; GPU_CUDA_PATH names a CUDA toolkit")
    return pack_ptx((arch, data.decode()) for _, arch, data in entries)


def target_of(path: Path) -> Target:
    """What an image is for, as the image itself says; PTX is for a virtual architecture. Raises LinkError where it does not say."""
    data = path.read_bytes()
    if data.startswith(b"\x7fELF"):
        head = cubin.head(data)
        wrong = head if isinstance(head, str) else "" if head.arch or head.number else "names no architecture"
        name = "" if isinstance(head, str) else head.arch or f"sm_{head.number}"
    else:
        name = target_named(data.decode(errors="replace")).replace("sm_", "compute_")
        wrong = "" if name else "neither machine code nor PTX that names its architecture"
    if wrong:
        msg = f"image {path.name}: {wrong}"
        raise LinkError(msg)
    return parse(name)[0]


def _entries(images: Sequence[tuple[Target, Path]]) -> Iterator[tuple[str, str, bytes]]:
    """(kind, architecture, content) of each image. A loader takes one of two for one architecture, and nobody knows which."""
    met: dict[tuple[str, str], bytes] = {}
    names: set[str] = set()
    for target, path in images:
        data = path.read_bytes()
        arch = target.cpu.removeprefix("sm_")
        kind = "elf" if data.startswith(b"\x7fELF") else "ptx"
        if wrong := _wrong(data, target, kind):
            msg = f"image {path.name} for {target.name}: {wrong}"
            raise LinkError(msg)
        known = met.get((kind, arch))
        # Without an assembler sm_90 and compute_90 are the same PTX, and once is enough.
        if target.name in names or known not in (None, data):
            msg = f"two images for {target.name}"
            raise LinkError(msg, hint="a loader would take one of them: name each architecture once")
        names.add(target.name)
        met[kind, arch] = data
        if known is None:
            yield kind, arch, data


def _wrong(data: bytes, target: Target, kind: str) -> str:
    """What is wrong with one image. fatbinary compares machine code's number with the one it is told, and looks at PTX not at all."""
    if kind == "elf":
        head = cubin.head(data)
        if isinstance(head, str):
            return head
        if not target.real:
            return "machine code, and a virtual architecture takes PTX"
        return f"it is made for {head.arch}" if head.arch not in ("", target.name) else ""
    found = target_named(data[:65536].decode(errors="replace"))
    if not found:
        return "neither machine code nor PTX"
    return f"its PTX is for {found}" if found != target.cpu else ""


def _named(kind: str, arch: str) -> str:
    return f"the image for sm_{arch}" if kind == "elf" else f"the PTX for compute_{arch}"

"""One flat nvlink: checks each input first, because nvlink drops what it does not like and returns 0."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin, failures
from scons_gpu.assemble.provider import AssembleOptions, Linked, LinkInput
from scons_gpu.errors import LinkError
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["link"]

_IMAGE, _OPTIONS = "image.cubin", "link.options"


def link(nvlink: Tool, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
    """An image of `inputs`, in their order: another order gives other bytes. Raises LinkError, MissingSymbolError or a ToolError.

    The inputs are linked under names made of their position, because with -g nvlink writes the names it was given into the image;
    everything goes through an options file, so that thousands of inputs meet no limit of the command line.
    """
    _refuse(inputs, target=target)
    names = {f"part-{position:06d}.cubin": part.label for position, part in enumerate(inputs)}
    with private_folder() as folder:
        for name, part in zip(names, inputs, strict=True):
            (folder / name).symlink_to(part.path.absolute())
        given = [f"-arch={target.name}", *(["-g"] if options.debug else []), "-o", _IMAGE, *names]
        (folder / _OPTIONS).write_text("\n".join(given) + "\n", encoding="utf-8")
        ended = run([nvlink.path, "--options-file", _OPTIONS], cwd=folder, together=True)
        image = folder / _IMAGE
        data = image.read_bytes() if image.exists() else b""
    output = _name_parts(ended.stdout, names)
    if ended.status:
        raise failures.classify(ended.status, output, tool="nvlink", arch=target.name, peak_kib=ended.peak_kib)
    if not data:
        raise failures.silent(tool="nvlink", arch=target.name, output=output)
    return Linked(data=data, output=output, seconds=ended.seconds, cpu=ended.cpu, peak_kib=ended.peak_kib)


def _refuse(inputs: Sequence[LinkInput], *, target: Target) -> None:
    """What nvlink would drop or merge in silence. Raises LinkError naming the input by its label."""
    if not inputs:
        msg = "nothing to link: an image needs at least one object"
        raise LinkError(msg, arch=target.name)
    met: dict[tuple[int, int], int] = {}
    for position, part in enumerate(inputs):
        try:
            with part.path.open("rb") as file:
                stat, head = os.fstat(file.fileno()), cubin.head(file.read())
        except OSError as error:
            msg = f"{part.label}: cannot be read: {error.strerror or error}"
            raise LinkError(msg, arch=target.name) from error
        first = met.setdefault((stat.st_dev, stat.st_ino), position)
        wrong = _wrong(head, arch=target.name)
        if first != position:
            wrong = f"the same object as {inputs[first].label}; an object can be linked once"
        if wrong:
            msg = f"{part.label}: {wrong}"
            raise LinkError(msg, arch=target.name)


def _wrong(head: cubin.Head | str, *, arch: str) -> str:
    if isinstance(head, str):
        return head
    if not head.relocatable:
        return "not a relocatable object (assembled without -c); nvlink would drop it and say nothing"
    if head.arch and head.arch != arch:
        return f"assembled for {head.arch}, and this image is for {arch}"
    return ""


def _name_parts(output: str, names: dict[str, str]) -> str:
    return re.sub(r"part-\d{6,}\.cubin", lambda found: names.get(found.group(), found.group()), output)

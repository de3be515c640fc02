"""One flat nvlink, and the provider that is nvlink alone: what something else assembled can be linked by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from scons_gpu.assemble import failures
from scons_gpu.assemble.identity import identity
from scons_gpu.assemble.inputs import label_parts, part_name, read
from scons_gpu.assemble.provider import AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.errors import ToolMissingError
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.assemble.inputs import Input
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["NvlinkProvider", "link"]

_IMAGE, _OPTIONS = "image.cubin", "link.options"
_PLAIN = re.compile(r"[\w.-]+/\w[\w.-]*\.cubin", re.ASCII)


class NvlinkProvider:
    """The linking half of a pair."""

    name = "nvlink"
    capabilities = Capabilities(compile=False, relocatable=False, link=True, clones_functions=False)

    def __init__(self, *, nvlink: Tool) -> None:
        self._nvlink = nvlink
        self.identity = self.link_identity = identity(nvlink)

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:  # noqa: ARG002 - the interface's
        """It makes no objects."""
        return ()

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> NoReturn:  # noqa: ARG002 - the same
        """It cannot."""
        raise _cannot(target)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> NoReturn:  # noqa: ARG002 - the same
        """It cannot."""
        raise _cannot(target)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """One flat nvlink over `inputs`."""
        return link(self._nvlink, inputs, target=target, options=options)


def link(nvlink: Tool, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
    """An image of `inputs`, in their order: another order gives other bytes. Raises LinkError, MissingSymbolError or a ToolError.

    Everything goes through an options file, so that thousands of inputs meet no limit of the command line.
    """
    objects, libraries = [each for each in inputs if not each.library], [each for each in inputs if each.library]
    taken = read(objects, target=target, linker="nvlink")
    with private_folder() as folder:
        names = _objects(folder, taken, debug=options.debug or options.lineinfo)
        # It goes by the suffix, and knows nothing of `.os`.
        others = {f"library-{place:06d}.{'a' if each.path.suffix == '.a' else 'o'}": each for place, each in enumerate(libraries)}
        for name, part in others.items():
            (folder / name).symlink_to(part.path.absolute())
        given = [f"-arch={target.name}", *(["-g"] if options.debug else []), "-o", _IMAGE, *names, *others]
        (folder / _OPTIONS).write_text("\n".join(given) + "\n", encoding="utf-8")
        ended = run([nvlink.path, "--options-file", _OPTIONS], cwd=folder, together=True)
        image = folder / _IMAGE
        data = image.read_bytes() if image.exists() else b""
    output = label_parts(ended.stdout, taken)
    for name, part in (*zip(names, objects, strict=True), *others.items()) if output else ():
        output = output.replace(name, part.label)
    if ended.status:
        raise failures.classify(ended.status, output, tool="nvlink", arch=target.name, peak_kib=ended.peak_kib)
    if not data:
        raise failures.silent(tool="nvlink", arch=target.name, output=output)
    return Linked(data=data, output=output, seconds=ended.seconds, cpu=ended.cpu, peak_kib=ended.peak_kib)


def _objects(folder: Path, taken: Sequence[Input], *, debug: bool) -> list[str]:
    """What nvlink is to call its inputs, below `folder`.

    One link to the folder of all objects stands for those of a store: three hundred of their own took longer than nvlink. With `-g` it
    writes names into the image, which are then of the position alone. It reads neither spaces nor commas in names.
    """
    tops: dict[Path, str] = {}
    names = []
    for position, each in enumerate(taken):
        path = each.part.path.absolute()
        if debug or not _PLAIN.fullmatch(f"{path.parent.name}/{path.name}"):
            names.append(part_name(position, each))
            (folder / names[-1]).symlink_to(path)
            continue
        top = path.parent.parent
        if top not in tops:
            tops[top] = f"objects-{len(tops)}"
            (folder / tops[top]).symlink_to(top)
        names.append(f"{tops[top]}/{path.parent.name}/{path.name}")
    return names


def _cannot(target: Target) -> ToolMissingError:
    msg = "nvlink makes no objects: it is the linking half of a pair"
    return ToolMissingError(msg, arch=target.name, hint="GPU_PROVIDER=nvptxcompiler+nvlink names both halves")

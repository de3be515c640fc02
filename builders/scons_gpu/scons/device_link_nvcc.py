"""`GPU_RDC` with `GPU_HOST=nvcc`: nvcc links the device code of the objects that one link takes, as it does in a Makefile."""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.errors import UsageError
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scons_gpu.host import nvcc as host
    from scons_gpu.host.nvcc import NvccOptions
    from scons_gpu.scons.host_nvcc import NvccObjectJob
    from scons_gpu.toolchain.tools import Tool
else:
    host = later("scons_gpu.host.nvcc")

__all__ = ["NvccLink", "nvcc_link"]


@dataclass(frozen=True)
class NvccLink:
    """One device link."""

    tool: Tool
    options: NvccOptions
    inputs: tuple[str, ...]
    """Objects and static libraries, in the order of the program's link, from the top."""
    top: str
    target: Path

    @property
    def signature(self) -> str:
        """All that shapes the object besides the content of its inputs."""
        options = {name: [arch.name for arch in value] if name == "archs" else value for name, value in vars(self.options).items()}
        return options_text(nvcc=f"{self.tool.version} {self.tool.identity}", tool=identity(), inputs=list(self.inputs), **options)

    def by_hand(self) -> str:
        """The command of a Makefile."""
        return shlex.join(host.link_command(self.tool, self.inputs, options=self.options, output=str(self.target)))

    def work(self) -> Outcome:
        """Runs nvcc. Raises LinkError with its words, a ToolError."""
        data, output, done = host.link_objects(self.tool, self.inputs, options=self.options, top=self.top)
        write_atomic(self.target, data)
        return Outcome(output=output, cpu=done.cpu, peak_kib=done.peak_kib)


def nvcc_link(objects: Sequence[NvccObjectJob], inputs: Sequence[str], *, target: Path) -> NvccLink:
    """What links these objects' device code. Raises UsageError, with both objects, where they are not for the same architectures."""
    first, *others = objects
    for other in others:
        if other.options.archs != first.options.archs:
            here, there = (os.path.relpath(job.target, job.top) for job in (first, other))
            shown = [",".join(arch.name for arch in job.options.archs) for job in (first, other)]
            msg = f"{here} has GPU_ARCHS={shown[0]}, and {there} has GPU_ARCHS={shown[1]}"
            raise UsageError(msg, hint="device code that is linked to one has one value of it: set it for the environment of both")
    options = dataclasses.replace(first.options, shared=True, cpppath=(), defines=())
    return NvccLink(tool=first.tool, options=options, inputs=tuple(inputs), top=first.top, target=target)

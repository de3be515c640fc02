"""The provider of the CUDA driver: cuLink, for the architecture of the GPU that is in this machine."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble.identity import identity
from scons_gpu.assemble.provider import Capabilities
from scons_gpu.errors import ToolError, ToolMissingError, UnsupportedArchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.driver_library import DriverLibrary
    from scons_gpu.assemble.library import Answer
    from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, LinkInput
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["DriverProvider"]

_TOOL = "the CUDA driver"


class DriverProvider:
    """It assembles only as part of a link, so it makes no relocatable objects. Making one starts nothing; the first question does."""

    name = "driver"

    def __init__(self, *, driver: Tool, api: Any = None) -> None:  # noqa: ANN401 - cuda.bindings.driver, or what stands for it in a test
        self._api = api
        self.identity = self.link_identity = identity(driver)

    @cached_property
    def capabilities(self) -> Capabilities:
        """Without a driver, or a GPU, nothing: `lacking` says why."""
        there = not self.lacking
        return Capabilities(compile=there, relocatable=False, link=there, clones_functions=False, link_ptx=there)

    @cached_property
    def lacking(self) -> str:
        """Why it can do nothing here; empty where it can."""
        try:
            return "" if self.arch else "it tells no architecture"
        except ToolError as error:
            return error.what

    @cached_property
    def arch(self) -> str:
        """The one architecture that it links for: the first device's. Raises ToolMissingError without a driver or a device."""
        return self._library.arch()

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:  # noqa: ARG002 - it knows one way
        """As the options of its interface are called."""
        given = [f"CU_JIT_TARGET={target.name}"]
        if options.maxrregcount is not None:
            given.append(f"CU_JIT_MAX_REGISTERS={options.maxrregcount}")
        if options.opt != 3:
            given.append(f"CU_JIT_OPTIMIZATION_LEVEL={options.opt}")
        if options.debug:
            given.append("CU_JIT_GENERATE_DEBUG_INFO=1")
        if options.lineinfo:
            given.append("CU_JIT_GENERATE_LINE_INFO=1")
        return (*given, *options.flags)  # refused when it comes to a call, and until then they make another key

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A link of this PTX alone."""
        from scons_gpu.assemble import library  # noqa: PLC0415 - a build with nothing to do makes providers and calls none

        answer = self._link([(library.UNIT, ptx.encode())], target=target, options=options)
        return library.assembled(answer, ptx=ptx, tool=_TOOL, target=target, options=options)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:  # noqa: ARG002 - the interface's
        """It cannot."""
        msg = f"{_TOOL} makes no relocatable objects"
        raise ToolMissingError(msg, arch=target.name, hint="GPU_DEFER=auto defers to its link")

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """An image of objects and deferred PTX, in the order given."""
        from scons_gpu.assemble import library  # noqa: PLC0415 - as in `compile`
        from scons_gpu.assemble.inputs import read  # noqa: PLC0415 - the same

        taken = read(inputs, target=target, linker=_TOOL, ptx=True)
        answer = self._link(library.given(taken), target=target, options=options)
        return library.linked(answer, taken, tool=_TOOL, target=target, options=options)

    def _link(self, inputs: Sequence[tuple[str, bytes]], *, target: Target, options: AssembleOptions) -> Answer:
        if options.flags:
            msg = f"GPU_PTXASFLAGS={' '.join(options.flags)}: {_TOOL} takes no options of ptxas"
            raise UsageError(msg, hint="GPU_PROVIDER names one that does: ptxas, nvptxcompiler, nvjitlink")
        if target.name != self.arch:
            msg = f"{_TOOL} links for the GPU of this machine, {self.arch}, and not for {target.name}"
            raise UnsupportedArchError(msg, arch=target.name, hint="every other provider links for any architecture")
        return self._library.link(inputs, options=options)

    @cached_property
    def _library(self) -> DriverLibrary:
        from scons_gpu.assemble.driver_library import DriverLibrary, bindings  # noqa: PLC0415 - as in `compile`

        return DriverLibrary(self._api if self._api is not None else bindings())

"""Two providers as one: the first makes objects, the second links them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from scons_gpu.assemble.provider import Capabilities
from scons_gpu.errors import UsageError
from scons_gpu.toolchain.versions import check_pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, LinkInput, Provider
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["PairProvider"]


class PairProvider:
    """`nvptxcompiler+nvjitlink`, say. What each half can do besides is not used."""

    def __init__(self, compiler: Provider, linker: Provider, *, compiled_by: Tool, linked_by: Tool) -> None:
        """The tools are those of the halves. Raises ToolMissingError where the linker is of an older release than the compiler."""
        self._compiler = compiler
        self._linker = linker
        self.name = f"{compiler.name}+{linker.name}"
        check_pair(compiled_by, linked_by)
        if compiler.name == linker.name:
            msg = f"GPU_PROVIDER={self.name}: a pair has two different halves"
            raise UsageError(msg, hint=f"GPU_PROVIDER={compiler.name} means it alone")

    @property
    def identity(self) -> str:
        """The compiler's."""
        return self._compiler.identity

    @property
    def link_identity(self) -> str:
        """The linker's."""
        return self._linker.link_identity

    @cached_property
    def capabilities(self) -> Capabilities:
        """Objects as the first makes them, images as the second does."""
        first, second = self._compiler.capabilities, self._linker.capabilities
        return Capabilities(
            compile=first.compile,
            relocatable=first.relocatable,
            link=second.link,
            clones_functions=first.clones_functions,
            link_ptx=second.link_ptx,
        )

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """The compiler's."""
        return self._compiler.spelling(target=target, options=options, relocatable=relocatable)

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """By the compiler."""
        return self._compiler.compile(ptx, target=target, options=options)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """By the compiler."""
        return self._compiler.compile_relocatable(ptx, target=target, options=options)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """By the linker."""
        return self._linker.link(inputs, target=target, options=options)

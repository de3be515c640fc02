"""A provider whose libraries run in workers, behind the same three operations: a compiler that dies takes a worker along, not the build."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from scons_gpu.assemble.making import LIBRARIES, Making, make, parts
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Capabilities, Linked, LinkInput
from scons_gpu.store.record import Resources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target

__all__ = ["Isolated", "isolated"]


class Run(Protocol):
    """`Pool.run`."""

    def __call__(self, op: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON can hold
        """Has a worker do `op`."""


def isolated(making: Making, run: Run) -> Provider:
    """The provider, which has its work done by `run` where it is a library; itself where all that it does is to start programs."""
    return Isolated(making, run) if LIBRARIES.intersection(parts(making.name)) else make(making)


@dataclass(frozen=True)
class Isolated:
    """Three operations by message. What starts a program is done here: a worker would only wait for it."""

    making: Making
    run: Run

    @property
    def _inner(self) -> Provider:
        return make(self.making)

    @property
    def name(self) -> str:
        """The provider's."""
        return self._inner.name

    @property
    def identity(self) -> str:
        """The provider's."""
        return self._inner.identity

    @property
    def link_identity(self) -> str:
        """The provider's."""
        return self._inner.link_identity

    @property
    def capabilities(self) -> Capabilities:
        """The provider's."""
        return self._inner.capabilities

    def spelling(self, *, target: Target, options: AssembleOptions, relocatable: bool) -> tuple[str, ...]:
        """The provider's."""
        return self._inner.spelling(target=target, options=options, relocatable=relocatable)

    def compile(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A whole object."""
        if parts(self.making.name)[0] not in LIBRARIES:
            return self._inner.compile(ptx, target=target, options=options)
        return self._assemble(ptx, target=target, options=options, relocatable=False)

    def compile_relocatable(self, ptx: str, *, target: Target, options: AssembleOptions) -> Assembled:
        """A relocatable object. What is put off to the link is no work."""
        if self.making.deferred or parts(self.making.name)[0] not in LIBRARIES:
            return self._inner.compile_relocatable(ptx, target=target, options=options)
        return self._assemble(ptx, target=target, options=options, relocatable=True)

    def link(self, inputs: Sequence[LinkInput], *, target: Target, options: AssembleOptions) -> Linked:
        """An image of all inputs, in the order given. Deferred PTX may need the compiler."""
        works = parts(self.making.name) if self.making.deferred else parts(self.making.name)[-1:]
        if not LIBRARIES.intersection(works):
            return self._inner.link(inputs, target=target, options=options)
        answer = self.run(
            "link",
            provider=self.making.to_json(),
            inputs=[{**asdict(part), "path": str(part.path)} for part in inputs],
            arch=target.name,
            options=asdict(options),
        )
        return Linked(**_told(answer))

    def _assemble(self, ptx: str, *, target: Target, options: AssembleOptions, relocatable: bool) -> Assembled:
        answer = self.run(
            "assemble", provider=self.making.to_json(), ptx=ptx, arch=target.name, options=asdict(options), relocatable=relocatable
        )
        return Assembled(**_told(answer))


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": base64.b64decode(answer["data"]),
        "output": answer["told"],
        "resources": tuple(Resources(**each) for each in answer["resources"]),
        "seconds": answer["seconds"],
        "cpu": answer["cpu"],
        "peak_kib": answer["peak_kib"],
    }

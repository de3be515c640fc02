"""Whether an assembler lays out its files as merging knows it: tried with the very tool, before its objects are merged.

A set of small units, one for each thing that changes a file, is assembled unit by unit and in one piece, and the merged bytes are compared
with the assembler's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError, ToolStoppedError
from scons_gpu.link.merge import Input, merge_objects
from scons_gpu.link.merged import FIRST, with_first
from scons_gpu.link.proof_ptx import BOUND, CLUSTER, DECLARED, SINGLE, STATE, TOGETHER, unit
from scons_gpu.toolchain.versions import least_ptx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.toolchain.arch import Target

__all__ = ["prove"]


def prove(target: Target, compile_: Callable[[str], bytes]) -> str:
    """What differs; empty where every image is the assembler's own. `compile_` makes a whole object of PTX.

    Raises ToolStoppedError where the assembler was ended from outside.
    """
    version = max(least_ptx(target), _LEAST)
    tried = _Tried(head=f"{version // 10}.{version % 10}", target=target, compile=compile_)
    single = {**SINGLE, **(CLUSTER if target.number >= _CLUSTERS else {})}
    for name, kernels in {
        "units that stand alone": [name for name in single if name != BOUND],
        "units beside an undefined shared array": list(single),
        "units that share memory": [*TOGETHER, *single],
        "units among those that share memory": sorted([*TOGETHER, *single]),
    }.items():
        if why := tried.differs({**single, **TOGETHER}, kernels):
            return f"{name} {why}"
    return ""


_CLUSTERS, _LEAST = 90, 70  # sm_90; PTX 7.0


class _Tried:
    def __init__(self, *, head: str, target: Target, compile: Callable[[str], bytes]) -> None:  # noqa: A002 - what it does
        self._head, self._target, self._compile = head, target, compile

    def differs(self, units: Mapping[str, str], kernels: Sequence[str]) -> str:
        """Why merging does not give the bytes of one piece; empty where it does."""
        try:
            return "" if self._same(units, kernels) else "give other bytes than in one piece"
        except ToolStoppedError:  # it says nothing of what the assembler makes: to be tried again
            raise
        except GpuError as error:
            return f"do not merge: {error.what}"

    def _same(self, units: Mapping[str, str], kernels: Sequence[str]) -> bool:
        together = [name for name in kernels if name in TOGETHER]
        whole = self._text([STATE] if together else [], [units[name] for name in kernels])
        objects = [Input(name, self._compile(self._text([], [units[name]]))) for name in kernels if name not in TOGETHER]
        if together:
            text = self._text([STATE], [TOGETHER[name] for name in together])
            text += "" if kernels[-1] in together else with_first("")
            objects.append(Input("what shares memory", self._compile(text)))
        places = {name: place for place, name in enumerate(kernels)}
        return merge_objects(objects, places=places, without=FIRST, dynamic=16 if BOUND in kernels else 0) == self._compile(whole)

    def _text(self, first: Sequence[str], bodies: Sequence[str]) -> str:
        """One file: what a unit declares of the module's memory stands there already."""
        text = "".join((*first, *bodies))
        for line in DECLARED if first else ():
            text = text.replace(line, "")
        return unit(text, self._target, self._head)

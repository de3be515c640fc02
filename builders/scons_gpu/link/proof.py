"""Whether an assembler lays out its files as merging knows it: tried with the very tool, before its objects are merged.

A set of small units, one for each thing that changes a file, is assembled unit by unit and in one piece, and the merged bytes are compared
with the assembler's own.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from scons_gpu.errors import GpuError, ToolStoppedError
from scons_gpu.link import graft, stubs
from scons_gpu.link.merge import Input, merge_objects, understood
from scons_gpu.link.merged import FIRST, with_first
from scons_gpu.link.proof_ptx import BOUND, CLUSTER, DECLARED, SINGLE, STATE, TOGETHER, unit
from scons_gpu.source.ptx_reader import read
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
    single = {**SINGLE, **(CLUSTER if target.number >= _CLUSTERS else {})}
    files = _Files(head=f"{version // 10}.{version % 10}", target=target, units={**single, **TOGETHER})
    asked = {
        "units that stand alone": [name for name in single if name != BOUND],
        "units beside an undefined shared array": list(single),
        "units that share memory": [*TOGETHER, *single],
        "units among those that share memory": sorted([*TOGETHER, *single]),
    }
    texts = {text for kernels in asked.values() for text in (files.whole(kernels), *files.parts(kernels).values())}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        made = {text: pool.submit(compile_, text) for text in sorted(texts)}
    compiled = {text: each.result for text, each in made.items()}
    tried = {name: partial(_same, files, kernels, compiled) for name, kernels in asked.items()}
    tried["kernels out of an earlier object"] = partial(_grafted, files.parts([*TOGETHER, *single])[_SHARED], compiled, compile_)
    return next((f"{name} {why}" for name, same in tried.items() if (why := _why(same))), "")


def _why(same: Callable[[], bool]) -> str:
    try:
        return "" if same() else "give other bytes than in one piece"
    except ToolStoppedError:  # it says nothing of what the assembler makes: to be tried again
        raise
    except GpuError as error:
        return f"do not merge: {error.what}"


_SHARED = "what shares memory"
_CLUSTERS, _LEAST = 90, 70  # sm_90; PTX 7.0


def _same(files: _Files, kernels: Sequence[str], compiled: Mapping[str, Callable[[], bytes]]) -> bool:
    objects = [Input(name, compiled[text]()) for name, text in files.parts(kernels).items()]
    places = {name: place for place, name in enumerate(kernels)}
    merged = merge_objects(objects, places=places, without=FIRST, dynamic=16 if BOUND in kernels else 0)
    return merged == compiled[files.whole(kernels)]()


def _grafted(text: str, compiled: Mapping[str, Callable[[], bytes]], compile_: Callable[[str], bytes]) -> bool:
    """Whether each of the kernels that share memory, assembled among stubs, makes the file that all of them make."""
    whole, module = compiled[text](), read(text, label=_SHARED)
    for kernel in TOGETHER if module else ():
        donor = understood(whole, label=_SHARED)
        others = {piece.name: False for piece in donor.pieces if piece.name not in {kernel, FIRST}}
        found = graft.traces(donor, others)
        stubbed = stubs.stubbed(text, module, found) if module and found is not None else None
        if stubbed is None:
            return False
        made = understood(compile_(stubbed), label=_SHARED)
        if not graft.fits(made, donor) or merge_objects([Input("", b"", grafted=graft.graft(made, donor, others))]) != whole:
            return False
    return True


@dataclass(frozen=True)
class _Files:
    """What is assembled."""

    head: str
    """PTX version."""
    target: Target
    units: Mapping[str, str]

    def whole(self, kernels: Sequence[str]) -> str:
        """One piece."""
        shares = any(name in TOGETHER for name in kernels)
        return self._text([STATE] if shares else [], [self.units[name] for name in kernels])

    def parts(self, kernels: Sequence[str]) -> dict[str, str]:
        """Label → PTX, of what is merged."""
        found = {name: self._text([], [self.units[name]]) for name in kernels if name not in TOGETHER}
        together = [TOGETHER[name] for name in kernels if name in TOGETHER]
        if together:
            last = "" if kernels[-1] in TOGETHER else with_first("")
            found[_SHARED] = self._text([STATE], together) + last
        return found

    def _text(self, first: Sequence[str], bodies: Sequence[str]) -> str:
        """One file: what a unit declares of the module's memory stands there already."""
        text = "".join((*first, *bodies))
        for line in DECLARED if first else ():
            text = text.replace(line, "")
        return unit(text, self.target, self.head)

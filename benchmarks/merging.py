#!/usr/bin/env python3
"""Merges the units of plans and compares the images with what the assembler makes of the same PTX in one piece.

The table of docs/link-modes.md.

    merging.py PLAN... --store DIR [--arch sm_90]... [--ptxas FILE] [--json FILE]

PLAN is what a build with GPU_LINK=whole or merge left: `<arch>.plan.json` of a module; DIR is its store, which has the PTX. `--arch` may
name other architectures than the plans': the PTX is assembled for them as it is. One core is used.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "builders"))

from scons_gpu.assemble.provider import AssembleOptions
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.errors import GpuError
from scons_gpu.inspect.cubin import Cubin
from scons_gpu.link.merged import Forgetful, Together, alone, link_merged
from scons_gpu.link.whole import assemble_whole
from scons_gpu.plan import from_text
from scons_gpu.store import record as records
from scons_gpu.store.record import Entry
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import discover
from scons_gpu.toolchain.versions import require

if TYPE_CHECKING:
    from scons_gpu.plan import Part, Plan


class Bench:
    """One assembler and one architecture."""

    def __init__(self, provider: PtxasProvider, target: Target, store: Store) -> None:
        self._provider, self._target, self._store = provider, target, store
        self.kernels = self.together = 0
        self.merging = 0.0

    def row(self, plan: Plan) -> str:
        """What one module comes to."""
        plan = dataclasses.replace(plan, arch=self._target.name)
        ptx = {part.digest: self._ptx(part) for part in plan.parts}
        try:
            whole = assemble_whole(plan, ptx, provider=self._provider, options=AssembleOptions())
        except GpuError:
            return "refused in one piece"
        if whole is None:
            return "no kernels"
        spent = 0.0

        def assemble(text: str) -> Together:
            nonlocal spent
            begun = time.process_time()
            data = self._compile(text)
            spent += time.process_time() - begun
            return Together(data)

        try:
            objects = {part.digest: self._entry(self._compile(ptx[part.digest].data.decode())) for part in plan.parts if alone(part)}
            begun = time.process_time()
            made = link_merged(plan, objects, ptx=lambda part: ptx[part.digest], assembler=Forgetful(assemble))
            self.merging += time.process_time() - begun - spent
        except GpuError as error:
            return f"not merged: {error.what.partition(': ')[2] or error.what}"
        if made is None:
            return "no kernels"
        self.kernels += len(plan.kernels)
        self.together += sum(len(part.kernels) for part in plan.parts if part.digest in made.together)
        if made.data == whole.data:
            return "equal"
        # Names of functions that one unit alone has carry no suffix in its own object.
        return "equal but for names" if _contents(made.data) == _contents(whole.data) else "other bytes"

    def _compile(self, text: str) -> bytes:
        text = re.sub(r"(\.target\s+)sm_\d+", rf"\g<1>{self._target.name}", text, count=1)
        return self._provider.compile(text, target=self._target, options=AssembleOptions()).data

    def _ptx(self, part: Part) -> Entry:
        entry = self._store.load(self._store.claim("ptx", part.digest, part.key, suffix=".ptx"))
        if entry is None:
            sys.exit(f"the store has no PTX of {part.readable}: build it with GPU_LINK=whole")
        return self._entry(re.sub(rb"(\.target\s+)sm_\d+", rb"\g<1>" + self._target.name.encode(), entry.data, count=1))

    @staticmethod
    def _entry(data: bytes) -> Entry:
        return Entry(path=Path("object"), data=data, record=records.make(data, key=()))


def _contents(data: bytes) -> dict[str, bytes]:
    """Every section but names and symbols."""
    return {name: content for name, content in Cubin(data).sections.items() if name not in {".shstrtab", ".strtab", ".symtab"}}


def main() -> int:
    """Runs, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+", metavar="PLAN")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("--ptxas", type=Path, default=None, help="another assembler than the one that is found")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    facts = arguments.store / "tools"
    tool = require(discover(environ=dict(os.environ), prefix=sys.prefix, facts=facts), "ptxas")
    if arguments.ptxas:
        tool = dataclasses.replace(tool, path=str(arguments.ptxas), version="", identity=str(arguments.ptxas))
    provider = PtxasProvider(ptxas=tool, nvlink=None, facts=facts)
    plans = [from_text(path.read_text(), path=str(path)) for path in arguments.plans]
    found = {}
    for name in arguments.arch or sorted({plan.arch for plan in plans}):
        bench = Bench(provider, parse(name)[0], Store([arguments.store]))
        rows = {str(path): bench.row(plan) for path, plan in zip(arguments.plans, plans, strict=True)}
        found[name] = {"rows": rows, "kernels": bench.kernels, "together": bench.together, "merging": round(bench.merging, 3)}
        told = ", ".join(f"{count} {what}" for what, count in Counter(rows.values()).most_common())
        print(f"{name:8} {told}; {bench.kernels} kernels, {bench.together} assembled together; merging {bench.merging:.3f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())

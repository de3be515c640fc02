"""A cubin's functions as instructions. nvdisasm is asked only where bytes do not tell, and never twice about the same function."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scons_gpu.inspect.cubin import Cubin, Place

__all__ = ["Code", "Instruction", "Program"]

_BYTES = 16  # an instruction's, since sm_70
_NOP, _LOCAL = 0x918, frozenset((0x983, 0x387))
"""The lowest 12 bits of NOP, LDL and STL, from sm_75 to sm_121: the tests hold them against nvdisasm."""


@dataclass(frozen=True)
class Instruction:
    """One, as it is read and as it is."""

    predicate: str
    opcode: str
    operands: str
    raw: bytes
    flow: bool
    links: tuple[tuple[int, Place], ...]
    """What a linker or loader puts into it."""

    @property
    def text(self) -> str:
        """As `nvdisasm` prints it, without hints of register reuse."""
        return f"{self.predicate} {self.opcode} {self.operands}".strip().replace(".reuse", "")


@dataclass(frozen=True)
class Code:
    """One function of one cubin."""

    name: str
    raw: bytes
    literals: bytes
    links: Mapping[int, tuple[tuple[int, Place], ...]]
    """By offset, what a linker or loader puts there."""
    _program: Program

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Disassembled. Raises ToolError where the disassembler does not read the cubin."""
        return self._program.read(self)

    @cached_property
    def length(self) -> int:
        """Instructions without the padding behind the last."""
        return sum(opcode != _NOP for opcode in self.opcodes)

    @cached_property
    def local(self) -> int:
        """Loads and stores of local memory: spills, and arrays that did not fit into registers."""
        return sum(opcode in _LOCAL for opcode in self.opcodes)

    @cached_property
    def opcodes(self) -> list[int]:
        """The lowest 12 bits of each instruction."""
        return [(self.raw[place] | self.raw[place + 1] << 8) & 0xFFF for place in range(0, len(self.raw), _BYTES)]


class Program:
    """A cubin and its functions."""

    def __init__(self, cubin: Cubin, *, nvdisasm: str) -> None:
        self.cubin = cubin
        self._nvdisasm = nvdisasm
        self.functions: Mapping[str, Code] = {name: self._code(name) for name in cubin.functions}

    def _code(self, name: str) -> Code:
        cubin = self.cubin
        return Code(name=name, raw=cubin.text(name), literals=cubin.literals(name), links=cubin.relocations(name), _program=self)

    def read(self, code: Code) -> tuple[Instruction, ...]:
        """What nvdisasm says of a function. It takes most of a second to start, and reads the whole cubin when it does."""
        key = self._key(code)
        if key not in _READ:
            listed = self._listed()
            _READ.update((self._key(one), listed[one.name]) for one in self.functions.values() if one.name in listed)
        instructions = _READ.get(key, {}).get("sass-instructions", [])
        if not isinstance(instructions, list) or len(instructions) * _BYTES != len(code.raw):
            msg = f"nvdisasm shows something else of {code.name} than its {len(code.raw)} bytes"
            raise ToolError(msg)
        return tuple(_instruction(one, index * _BYTES, code) for index, one in enumerate(instructions))

    def _key(self, code: Code) -> str:
        arch = self.cubin.data[48:52]  # e_flags
        put_in = [(place, [(kind, to.name, to.bytes) for kind, to in code.links[place]]) for place in sorted(code.links)]
        return repr((self._nvdisasm, arch, code.name, hashlib.sha256(code.raw).hexdigest(), put_in))

    def _listed(self) -> dict[str, dict[str, object]]:
        with tempfile.TemporaryDirectory(prefix="scons-gpu-") as folder:
            path = Path(folder, "image.cubin")
            path.write_bytes(self.cubin.data)
            done = subprocess.run([self._nvdisasm, "-json", "-c", str(path)], capture_output=True, text=True, check=False)
        try:
            listed = {str(one["function-name"]): one for one in json.loads(done.stdout)[1]}
        except (ValueError, LookupError, TypeError):
            msg = f"nvdisasm does not read {self.cubin.label}"
            raise ToolError(msg, output=done.stderr) from None
        return listed


_READ: dict[str, dict[str, object]] = {}
"""What nvdisasm said of a function, by all that its words depend on."""


def _instruction(data: dict[str, object], offset: int, code: Code) -> Instruction:
    attributes = data.get("other-attributes")
    return Instruction(
        predicate=str(data.get("predicate", "")),
        opcode=str(data["opcode"]),
        operands=str(data.get("operands", "")),
        raw=code.raw[offset : offset + _BYTES],
        flow=isinstance(attributes, dict) and "control-flow" in attributes,
        links=code.links.get(offset, ()),
    )

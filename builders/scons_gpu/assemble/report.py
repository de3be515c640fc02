"""Reading what `ptxas -v` prints: resources per function, apart from what else it says.

The format is ptxas' own and undocumented; 12.9, 13.0 and 13.5 were read, also of the ptxas inside nvJitLink 13.5, which puts its name
before each line. Every figure is optional: 13.5 prints no `cmem[0]` for sm_90.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scons_gpu.store.record import Resources

__all__ = ["FunctionReport", "Report", "parse"]


@dataclass
class FunctionReport:
    """What was printed for one function. Bytes, but for registers and barriers; None: not printed."""

    symbol: str
    kernel: bool = False
    registers: int | None = None
    barriers: int | None = None
    stack_bytes: int | None = None
    cumulative_stack_bytes: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    shared_bytes: int | None = None
    local_bytes: int | None = None
    constants: tuple[tuple[int, int], ...] = ()
    """(bank, bytes)."""
    compile_ms: float | None = None

    def resources(self) -> Resources:
        """As a record keeps it. A `-v` that prints no smem for a compiled kernel means none."""
        return Resources(
            kernel=self.symbol,
            registers=self.registers,
            spill_stores=self.spill_stores,
            spill_loads=self.spill_loads,
            shared_bytes=self.shared_bytes if self.shared_bytes is not None else None if self.registers is None else 0,
            stack_bytes=self.cumulative_stack_bytes if self.cumulative_stack_bytes is not None else self.stack_bytes,
            constant_bytes=sum(size for _, size in self.constants) if self.constants else None,
        )


@dataclass(frozen=True)
class Report:
    """All of it."""

    functions: tuple[FunctionReport, ...]
    """In the order first met."""
    global_bytes: int | None
    said: str
    """The lines that are no report: warnings, advice, errors."""

    @property
    def kernels(self) -> tuple[FunctionReport, ...]:
        """Entry functions, sorted by symbol."""
        return tuple(sorted((each for each in self.functions if each.kernel), key=lambda each: each.symbol))

    @property
    def spilling(self) -> tuple[FunctionReport, ...]:
        """Functions that spill, kernels first, then what they call."""
        spilling = [each for each in self.functions if each.spill_stores or each.spill_loads]
        return tuple(sorted(spilling, key=lambda each: (not each.kernel, each.symbol)))


_INFO = re.compile(r"^ptxas info\s*: (.*)$")
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_PROPERTIES = re.compile(r"Function properties for '?([^']+?)'?$")
_FRAME = re.compile(r"^(?:ptxas\s+\.)?\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads$")
_USED = re.compile(r"Used (\d+) registers\b")
_TIME = re.compile(r"Compile time = ([\d.]+) ms")
_MODULE = re.compile(r"(\d+) bytes gmem\b")
_FIGURE = re.compile(r"(?:used (\d+) barriers|(\d+) bytes (cumulative stack size|smem|lmem|cmem\[(\d+)\]))")
_OPTION = re.compile(r"Overriding maximum register limit \d+ for ")  # only says again what -maxrregcount was given


class _Reader:
    def __init__(self) -> None:
        self.functions: dict[str, FunctionReport] = {}
        self.current: FunctionReport | None = None
        self.global_bytes: int | None = None

    def takes(self, line: str) -> bool:
        """Whether `line` belongs to the report; what it says is noted."""
        if frame := _FRAME.match(line):
            if self.current:
                self.current.stack_bytes, self.current.spill_stores, self.current.spill_loads = (int(n) for n in frame.groups())
            return True
        info = _INFO.match(line)
        return bool(info) and self._info(info.group(1) if info else "")

    def _info(self, text: str) -> bool:
        if named := _ENTRY.match(text) or _PROPERTIES.match(text):
            self.current = self.functions.setdefault(named.group(1), FunctionReport(named.group(1)))
            self.current.kernel |= named.re is _ENTRY
        elif used := _USED.match(text):
            self._used(int(used.group(1)), text)
        elif spent := _TIME.match(text):
            if self.current:
                self.current.compile_ms = float(spent.group(1))
        elif size := _MODULE.match(text):
            self.global_bytes = int(size.group(1))
        else:
            return bool(_OPTION.match(text))
        return True

    def _used(self, registers: int, text: str) -> None:
        if self.current is None:
            return
        self.current.registers = registers
        for barriers, size, name, bank in _FIGURE.findall(text):
            if barriers:
                self.current.barriers = int(barriers)
            elif bank:
                self.current.constants += ((int(bank), int(size)),)
            elif name == "smem":
                self.current.shared_bytes = int(size)
            elif name == "lmem":
                self.current.local_bytes = int(size)
            else:
                self.current.cumulative_stack_bytes = int(size)


def parse(text: str) -> Report:
    """Reads ptxas' output; what is not understood stays in `said`, so nothing gets lost."""
    reader = _Reader()
    said = [line for line in text.splitlines() if not reader.takes(line)]
    return Report(functions=tuple(reader.functions.values()), global_bytes=reader.global_bytes, said="".join(line + "\n" for line in said))

"""A linker that is a library in this process: how one call of it ended, and what becomes of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.assemble import failures, report
from scons_gpu.assemble.inputs import blame, label_parts, named_in, part_name
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.inputs import Input
    from scons_gpu.assemble.report import Report
    from scons_gpu.errors import GpuError
    from scons_gpu.store.record import Resources
    from scons_gpu.toolchain.arch import Target

__all__ = ["UNIT", "Answer", "assembled", "given", "linked"]

UNIT = "unit.ptx"
"""What PTX that is linked alone is called."""
_LINE = "application ptx input, line "  # how the ptxas in a library calls the PTX that it was given (nvJitLink 13.5)


@dataclass(frozen=True)
class Answer:
    """How one call ended."""

    code: int
    """0 is success."""
    result: str
    """What was being done, and what the library calls the code."""
    image: bytes = b""
    errors: str = ""
    info: str = ""
    """The assembler's report and its warnings."""
    failed_at: int | None = None
    """Position of the input that was refused when it was added."""
    seconds: float = 0.0
    cpu: float = 0.0


def given(taken: Sequence[Input]) -> list[tuple[str, bytes]]:
    """(name, bytes) of each input, as a library takes them."""
    return [(part_name(position, each), each.deferred.ptx.encode() if each.deferred else each.data) for position, each in enumerate(taken)]


def assembled(answer: Answer, *, ptx: str, tool: str, target: Target, options: AssembleOptions) -> Assembled:
    """The object that a link of `ptx` alone made. Raises what it means that it made none."""
    read = report.parse(answer.info)
    said = _said(read, answer)
    if answer.code:
        raise failures.classify(answer.code, said, tool=tool, arch=target.name, ptx=ptx, result=answer.result)
    _check(answer, said, tool=tool, target=target)
    if options.fail_on_spill and (spills := failures.spilled(read, arch=target.name)):
        raise spills
    output = f"{answer.info}\n" if options.verbose and answer.info else said
    output += failures.spills_told(read) if options.warn_on_spill else ""
    return Assembled(data=answer.image, output=output, resources=_resources(read), seconds=answer.seconds, cpu=answer.cpu)


def linked(answer: Answer, taken: Sequence[Input], *, tool: str, target: Target, options: AssembleOptions) -> Linked:
    """The image. Raises what it means that there is none, with the kernel and source of the input that is to blame."""
    read = report.parse(answer.info)
    said = _said(read, answer)
    if answer.code:
        raise _failed(answer, said, taken, tool=tool, target=target)
    _check(answer, said, tool=tool, target=target)
    if options.fail_on_spill:
        _check_spills(read, taken, target=target)
    said += failures.spills_told(read) if options.warn_on_spill else ""
    return Linked(data=answer.image, output=label_parts(said, taken), seconds=answer.seconds, cpu=answer.cpu, resources=_resources(read))


def _said(read: Report, answer: Answer) -> str:
    """All that was said besides the report. A position in PTX that has no file of its own is told by its line."""
    said = "".join(f"{line}\n" for line in (read.said + answer.errors).splitlines())
    return said.replace(_LINE, "PTX line ").replace(f"'{UNIT}'", "the PTX").replace(f"({UNIT})", "(the PTX)")


def _check(answer: Answer, said: str, *, tool: str, target: Target) -> None:
    if not answer.image:
        raise failures.silent(tool=tool, arch=target.name, output=said)


def _resources(read: Report) -> tuple[Resources, ...]:
    return tuple(kernel.resources() for kernel in read.kernels)


def _failed(answer: Answer, said: str, taken: Sequence[Input], *, tool: str, target: Target) -> GpuError:
    culprit = taken[answer.failed_at] if answer.failed_at is not None else None
    ptx = culprit.deferred.ptx if culprit and culprit.deferred else ""
    error = failures.classify(answer.code, label_parts(said, taken), tool=tool, arch=target.name, ptx=ptx, result=answer.result)
    if culprit:
        return blame(error, culprit.part)
    part = named_in(said, taken)
    return error.at(kernel=part.kernel, source=part.source) if part else error


def _check_spills(read: Report, taken: Sequence[Input], *, target: Target) -> None:
    error = failures.spilled(read, arch=target.name)
    if error is None:
        return
    symbols = {each.symbol for each in read.spilling}
    guilty = next((each.part for each in taken if each.deferred and symbols.intersection(each.deferred.kernels)), None)
    raise blame(error, guilty) if guilty else error

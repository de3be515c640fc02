"""Which provider does the work: a pure function of what was found, of what the user wants and of what the build needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from scons_gpu.assemble.making import Making, make, parts
from scons_gpu.errors import GpuError, ToolMissingError, ToolStoppedError, UsageError
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.bindings import bindings, lacking

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.model import Tool
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["ALONE", "COMPILERS", "LINKERS", "NONE", "Choice", "Need", "choose", "known"]

Need = Literal["compile", "relocatable", "link"]
NONE = "none"
COMPILERS = ("ptxas", "nvptxcompiler", "nvjitlink")
LINKERS = ("nvlink", "nvjitlink", "driver")
ALONE = (*COMPILERS, "driver", NONE)
"""What `GPU_PROVIDER` names alone. A pair is one of `COMPILERS`, a plus, and one of `LINKERS`."""
AUTO = (
    "ptxas",
    "nvptxcompiler+nvlink",
    "nvptxcompiler",
    "ptxas+nvjitlink",
    "nvptxcompiler+nvjitlink",
    "nvjitlink",
    "ptxas+driver",
    "nvptxcompiler+driver",
    "driver",
)
"""The first that fits is taken: what makes objects before what defers, a program before a library, what needs no GPU before what does."""
_BINDINGS = ("nvjitlink", "driver")
"""What is called through cuda.bindings."""
_WRONG_OBJECTS = ("nvjitlink",)
"""What makes relocatable objects that are not all right (`assemble/nvjitlink.py` says which): where it can, PTX is put off to the link."""
_HINT = "install scons-gpu[toolkit], or set GPU_CUDA_PATH"


@dataclass(frozen=True)
class Choice:
    """What was taken, and why."""

    making: Making | None
    """None for `none`: the module ends with PTX."""
    log: tuple[str, ...]
    """One line a decision; `scons-gpu doctor` prints them."""

    @property
    def name(self) -> str:
        """As `GPU_PROVIDER` spells it."""
        return self.making.name if self.making else NONE

    @property
    def provider(self) -> Provider:
        """It. Raises ToolMissingError for `none`."""
        if self.making is None:
            msg = "there is no assembler"
            raise ToolMissingError(msg, output="\n".join(self.log), hint=_HINT)
        return make(self.making)


@dataclass(frozen=True)
class _Wanted:
    """What a build asks for."""

    toolchain: Toolchain
    needs: Collection[Need]
    targets: Sequence[Target]
    always: bool
    facts: Path
    told: set[str] = field(default_factory=set)
    """What was said already to be missing: where it was looked for is said once."""


def known(name: str) -> bool:
    """Whether `GPU_PROVIDER` can name it."""
    compiler, plus, linker = name.partition("+")
    return name in ("auto", *ALONE) or (bool(plus) and compiler in COMPILERS and linker in LINKERS and compiler != linker)


def choose(  # noqa: PLR0913 - one keyword for each thing that decides
    toolchain: Toolchain,
    *,
    wanted: str = "auto",
    needs: Collection[Need],
    facts: Path,
    targets: Sequence[Target] = (),
    always_defer: bool = False,
) -> Choice:
    """The provider for a build of `targets` that needs `needs`. Starts nothing but probes whose answers `facts` does not hold yet.

    `always_defer`: relocatable assembly counts as absent. Only what is missing or too old for an architecture passes on to the next;
    with "auto" and nothing that makes or links anything, the answer is `none`. Raises UsageError for a name that is not known;
    ToolMissingError, with every decision, where the one wanted was not found or cannot do what is needed.
    """
    if not known(wanted):
        msg = f"GPU_PROVIDER={wanted}: no such provider"
        pairs = "or a pair such as nvptxcompiler+nvjitlink"
        raise UsageError(msg, hint=f"known: auto, {', '.join(ALONE)}, {pairs}")
    if wanted == NONE:
        return Choice(None, (f"{NONE}: taken: nothing assembles, modules end with PTX",))
    asked = _Wanted(toolchain, needs, targets, always_defer, facts)
    log: list[str] = []
    old: list[Choice] = []
    for name in AUTO if wanted == "auto" else (wanted,):
        making, refused = _fit(name, asked)
        if making is not None and (why := _too_old(making, targets)):
            log.append(f"{name}: {why}")
            old.append(Choice(making, tuple(log)))
            continue
        log.append(f"{name}: {refused or _taken(making)}")
        if making is not None:
            return Choice(making, tuple(log))
    if old:
        return old[0]  # nothing knows all architectures: the first is asked, and what it lacks is told
    if wanted == "auto" and not _any(toolchain):
        why = f"nothing that assembles was found{_uncalled(toolchain)}"
        found = f"{why}, modules end with PTX; {_HINT} (scons-gpu doctor shows where was looked)"
        return Choice(None, (*log, f"{NONE}: taken: {found}"))
    what = "no assembler fits" if wanted == "auto" else f"GPU_PROVIDER={wanted} does not fit"
    msg = f"{what}: this build needs to {_needed(needs)}"
    raise ToolMissingError(msg, output="\n".join(log), hint=_HINT)


def _any(toolchain: Toolchain) -> bool:
    """Whether there is anything that could assemble. What cannot be called is as good as missing."""
    callable_ = [name for name in _BINDINGS if bindings(name)]
    return any(toolchain.tool(name) for name in ("ptxas", "nvptxcompiler", *callable_))


def _uncalled(toolchain: Toolchain) -> str:
    """What there is that cannot be called, for want of cuda-python."""
    names = [name for name in _BINDINGS if toolchain.tool(name) and not bindings(name)]
    return f" ({' and '.join(names)} cannot be called without cuda-python)" if names else ""


def _fit(name: str, asked: _Wanted) -> tuple[Making | None, str]:
    """How the provider of that name is made for this build, or why it is not taken."""
    toolchain = asked.toolchain
    tools: dict[str, Tool] = {}
    for part in parts(name):
        tool = toolchain.tool(part)
        if tool is None:
            return None, _missing(name, part, asked)
        if part in _BINDINGS and not bindings(part):
            return None, f"{'' if part == name else part + ' '}found at {tool.path}, but {lacking()}"
        tools[part] = tool
    if name == "ptxas" and toolchain.nvlink:
        tools["nvlink"] = toolchain.nvlink
    return _capable(Making(name=name, tools=tuple(sorted(tools.items())), facts=str(asked.facts)), asked)


def _missing(name: str, part: str, asked: _Wanted) -> str:
    where = "" if part in asked.told else asked.toolchain.where(part)
    asked.told.add(part)
    return f"{'' if part == name else part + ' '}not found; {where}".rstrip("; ")


def _capable(making: Making, asked: _Wanted) -> tuple[Making | None, str]:
    """With deferral, where the provider lacks what can be put off, or where that is wanted."""
    try:
        can = make(making).capabilities
    except ToolStoppedError:
        raise  # it says nothing of the provider
    except GpuError as error:
        return None, str(error).splitlines()[0]
    better = making.compiler.name in _WRONG_OBJECTS and can.link_ptx and "link" in asked.needs
    put_off = "relocatable" in asked.needs and (asked.always or better or not can.relocatable)
    if "compile" in asked.needs and not can.compile:
        return None, "cannot make whole objects"
    if ("link" in asked.needs or put_off) and not can.link:
        return None, _cannot_link(making, asked.toolchain)
    if put_off and not (can.relocatable or can.link_ptx):
        return None, "cannot make relocatable objects, and its link takes no PTX"
    return replace(making, deferred=put_off), ""


def _cannot_link(making: Making, toolchain: Toolchain) -> str:
    if making.name == "ptxas":
        return f"{making.compiler.path} has no nvlink beside it, so it cannot link; {toolchain.where('nvlink')}".rstrip("; ")
    return "cannot link; name what does, as in nvptxcompiler+nvlink"


def _too_old(making: Making, targets: Sequence[Target]) -> str:
    """The architectures that its compiler does not know; empty where it knows all."""
    names = versions.known_to(making.compiler)
    unknown = [target.name for target in targets if target.real and target.cpu.removeprefix("sm_") not in names]
    return f"{making.compiler.name} {making.compiler.version} does not know {', '.join(unknown)}" if unknown else ""


def _taken(making: Making | None) -> str:
    tools = [making.compiler, making.linker] if making else []
    named = [f"{tool.name} {tool.version} ({tool.path})" for tool in dict.fromkeys(tools) if tool]
    return f"taken{', PTX is put off to its link' if making and making.deferred else ''}: {', '.join(named)}"


def _needed(needs: Collection[Need]) -> str:
    words = {"compile": "assemble whole objects", "relocatable": "assemble relocatable objects", "link": "link"}
    return " and ".join(words[need] for need in words if need in needs)

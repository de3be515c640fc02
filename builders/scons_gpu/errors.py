"""Every error this tool raises on purpose, and how one reads.

A message says what failed, for which kernel of which module and source, what the tool said (indented), and what to do next.
Rooms raise the class that fits with what they know; whoever knows more (the module, the source) adds it with `at()`.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "LLVM_ERRORS",
    "AllFailedError",
    "BudgetError",
    "DamagedError",
    "DiffersError",
    "GpuError",
    "LaunchError",
    "LinkError",
    "MissingSymbolError",
    "PtxSyntaxError",
    "RefusedError",
    "RegisterError",
    "SourceError",
    "SpillError",
    "ToolError",
    "ToolKilledError",
    "ToolMissingError",
    "ToolSilentError",
    "ToolStoppedError",
    "UnsupportedArchError",
    "UsageError",
    "from_json",
    "llvm_words",
]

LLVM_ERRORS = (RuntimeError, UnicodeDecodeError)
"""What llvmlite raises where LLVM refuses something. The second: LLVM cuts the line that it shows by bytes, in the middle of a letter."""

_CONTEXT = ("kernel", "module", "source", "arch", "output", "hint")


class GpuError(Exception):
    """The one base class. `str()` is the whole message without the leading `error: `."""

    kind: ClassVar[str] = "error"

    def __init__(  # noqa: PLR0913 - one keyword per part of a message
        self,
        what: str,
        *,
        kernel: str = "",
        module: str = "",
        source: str = "",
        arch: str = "",
        output: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.kernel = kernel
        self.module = module
        self.source = source
        self.arch = arch
        self.output = output
        self.hint = hint

    def at(self, *, kernel: str = "", module: str = "", source: str = "", arch: str = "") -> GpuError:
        """Fills in context that is not known yet; what is known stays. Returns the error itself, to be raised."""
        self.kernel = self.kernel or kernel
        self.module = self.module or module
        self.source = self.source or source
        self.arch = self.arch or arch
        return self

    def _where(self) -> str:
        # A source below the top says where it is; one beside the SConstruct is told by its module. One that is a module of its own bears
        # its name already.
        own = bool(self.source) and self.source.rpartition("/")[2] == self.module
        far = "/" in self.source and bool(self.module) and not own
        place = self.source if far or own else "/".join(part for part in (self.module, self.source) if part)
        if self.kernel:
            subject = f"kernel {self.kernel} of {place}" if place else f"kernel {self.kernel}"
        elif self.source:
            subject = place
        else:
            subject = f"module {place}" if place else ""
        inside = ", ".join(part for part in (f"module {self.module}" if far else "", self.arch) if part)
        if not subject:
            return inside
        return f"{subject} ({inside})" if inside else subject

    def __str__(self) -> str:
        where = self._where()
        lines = [f"{where}: {self.what}" if where else self.what]
        lines += ["    " + line for line in self.output.rstrip().splitlines()]
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, str]:
        """What crosses a process boundary or goes into the build log."""
        return {"kind": self.kind, "what": self.what, **{name: getattr(self, name) for name in _CONTEXT if getattr(self, name)}}


class UsageError(GpuError):
    """A wrong variable, option, name or argument: the user's to mend, before anything is built. Exit code 2."""

    kind = "usage"


class SourceError(GpuError):
    """A source that does not read: broken IR, truncated bitcode, a compiler's diagnostics, an unreadable file."""

    kind = "source"


class RefusedError(GpuError):
    """Legal IR that cannot become units rightly: kernel aliases, constructors, clashing names, full constant banks."""

    kind = "refused"


class MissingSymbolError(GpuError):
    """A name that nobody defines."""

    kind = "missing-symbol"


class DamagedError(GpuError):
    """A file whose bytes are not what its record says."""

    kind = "damaged"


class DiffersError(GpuError):
    """What was compiled again is not what the store holds."""

    kind = "differs"


class BudgetError(GpuError):
    """Kernels that take more than their budget; the output is the table of them."""

    kind = "budget"


class LinkError(GpuError):
    """A link that cannot be right: mixed options, a dropped input, an image that lacks what the plan names."""

    kind = "link"


class LaunchError(GpuError):
    """A kernel that a GPU does not load or does not run to its end."""

    kind = "launch"


class AllFailedError(GpuError):
    """A kernel of whose candidates none has an object; the output says why for each."""

    kind = "all-failed"


class ToolError(GpuError):
    """A tool ended with an error that fits no class below."""

    kind = "tool"


class ToolMissingError(ToolError):
    """No such tool was found; the hint lists where it was looked for."""

    kind = "tool-missing"


class UnsupportedArchError(ToolError):
    """The tool at hand is too old for the architecture, or has never heard of it."""

    kind = "unsupported-arch"


class RegisterError(ToolError):
    """The assembler could not fit a kernel into its register limit."""

    kind = "registers"


class SpillError(ToolError):
    """A kernel spills and the user asked to fail on that."""

    kind = "spills"


class PtxSyntaxError(ToolError):
    """The assembler does not read the PTX it was given."""

    kind = "syntax"


class ToolKilledError(ToolError):
    """The tool was ended by a signal."""

    kind = "tool-killed"


class ToolStoppedError(ToolKilledError):
    """The tool was ended from outside, by a user or for want of memory: that says nothing of its input."""

    kind = "tool-stopped"


class ToolSilentError(ToolError):
    """The tool said that it succeeded and made nothing."""

    kind = "tool-silent"


def from_json(data: dict[str, Any]) -> GpuError:
    """The error that `to_json` described. Kinds and fields of a later version are passed over."""
    context = {name: str(data[name]) for name in _CONTEXT if name in data}
    return _BY_KIND.get(data.get("kind", ""), GpuError)(str(data.get("what", "")), **context)


def _kinds(base: type[GpuError]) -> list[type[GpuError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]


_BY_KIND: dict[str, type[GpuError]] = {cls.kind: cls for cls in _kinds(GpuError)}


def llvm_words(error: Exception) -> str:
    """What LLVM said, of one of `LLVM_ERRORS`."""
    return error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)

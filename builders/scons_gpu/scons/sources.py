"""What becomes of a source, up to its index: through a front end, or as it is, and split. Each is a job of `_internals.Job`."""

from __future__ import annotations

import threading
from abc import abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.errors import GpuError
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step, answered, switches
from scons_gpu.source.shadows import asked_for, folders, named_files, shadows
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.scons.modules import Source
    from scons_gpu.source import clang as compiler
    from scons_gpu.source import nvcc, ptx
    from scons_gpu.source.options import ClangOptions
    from scons_gpu.split import index as indexes
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool
else:
    compiler, indexes, plans = later("scons_gpu.source.clang"), later("scons_gpu.split.index"), later("scons_gpu.plan")
    nvcc, ptx = later("scons_gpu.source.nvcc"), later("scons_gpu.source.ptx")

__all__ = ["Compiling", "CudaJob", "IrJob", "NvccJob", "NvrtcJob", "PtxSourceJob", "SameIrJob", "SplitJob"]


@dataclass(kw_only=True)
class OfSource(Step):
    """A step that knows its source."""

    source: Source

    def explain(self, error: GpuError) -> GpuError:
        """Names the source too."""
        return error.at(module=self.owners[0], source=self.source.name, arch=self.arch)


@dataclass(kw_only=True)
class FromSource(OfSource):
    """A step of one source for one architecture."""

    targeted: Target


@dataclass(kw_only=True)
class IrJob(FromSource):
    """`.ll` or `.bc` becomes LLVM's printed text, verified."""

    stage: ClassVar[str] = "source"

    def command(self) -> list[str]:
        """By hand."""
        return self.gpu("source", str(self.source.node.rfile().get_path()), "--arch", self.arch)

    def dependencies(self) -> Sequence[str]:
        """IR includes nothing."""
        return ()

    def work(self, node: Any) -> Outcome:
        """In a worker."""
        path = str(node.sources[0].rfile().get_abspath())
        try:
            answer = self.workspace.session.pool.run("source", path=path, arch=self.arch, output=str(self.target), **self.more())
        except GpuError as error:
            error.source = error.source.replace(path, self.source.name, 1)
            raise
        return answered(answer)

    def more(self) -> dict[str, Any]:
        """What else the worker is told."""
        return {}


@dataclass(kw_only=True)
class SameIrJob(IrJob):
    """IR of an architecture that clang knows by the name of another one of the module's: it is compiled once."""

    ir: Path

    def command(self) -> list[str]:
        """By hand."""
        return ["cp", str(self.ir), str(self.target)]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """The same text in a file of its own name."""
        write_atomic(self.target, self.ir.read_bytes())
        return Outcome()


@dataclass(kw_only=True)
class PtxSourceJob(IrJob):
    """`.ptx` is read, held against architecture and assembler, and kept as it is."""

    assembler: tuple[str, int] | None
    """What assembles it, and the newest PTX version that it reads."""

    def more(self) -> dict[str, Any]:
        """The assembler, so that one that is too old is told before anything is assembled."""
        return {"name": self.source.name, "assembler": self.assembler}


@dataclass(kw_only=True)
class Compiling(OfSource):
    """A compiler reads a `.cu`, and tells what else it read."""

    tool: Tool
    headers: str
    top: str

    @property
    def depfile(self) -> Path:
        """What it read, a path a line, and behind a question mark what it was asked to look for."""
        return self.target.with_name(self.target.name + ".d")

    @property
    @abstractmethod
    def cpppath(self) -> Sequence[str]:
        """Where it looks for headers, before what its flags say."""

    @abstractmethod
    def flags(self) -> Sequence[str]:
        """The user's flags for the compiler."""

    @abstractmethod
    def compile(self, path: str) -> compiler.Compiled:
        """One source, by its path below the top."""

    def sidecars(self) -> Sequence[Path]:
        """The list of what was read."""
        return (self.depfile,)

    def dependencies(self) -> Sequence[str]:
        """What the compiler read the last time, and what has come since that would be found before it."""
        try:
            lines = [line for line in self.depfile.read_text(encoding="utf-8").splitlines() if line]
        except OSError:
            return ()
        read = [line for line in lines if line[0] != "?"]
        asked = [line[1:] for line in lines if line[0] == "?"]
        search = folders(self.cpppath, self.flags())
        named = [path for path in named_files(self.flags()) if path not in read]
        return [*read, *named, *shadows(str(self.source.node.rfile().get_path()), read, asked, search=search)]

    def work(self, node: Any) -> Outcome:
        """Compiles, and keeps the list."""
        compiled = self.compile(str(node.sources[0].rfile().get_path()))
        own = {str(node.sources[0].rfile().get_path()), str(node.sources[0].rfile().get_abspath())}
        read = [path for path in compiled.dependencies if path not in own]
        asked = (*asked_for([str(node.sources[0].rfile().get_path()), *read], top=self.top), *compiled.missing)
        write_atomic(self.depfile, "".join(f"{line}\n" for line in (*read, *(f"?{name}" for name in asked))))
        result = "refused" if compiled.failed else "built"
        return Outcome(output=compiled.output, cpu=compiled.cpu, peak_kib=compiled.peak_kib, result=result)


@dataclass(kw_only=True)
class CudaJob(Compiling, FromSource):
    """`.cu` becomes IR through clang."""

    stage: ClassVar[str] = "source"
    options: ClangOptions
    may_fail: bool = False
    """Whether it is for candidates alone: what clang says against it is their result."""

    @property
    def cpppath(self) -> Sequence[str]:
        """The source's own."""
        return self.options.cpppath

    def command(self) -> list[str]:
        """By hand."""
        parts = [f"-I{path}" for path in self.options.cpppath] + [f"-D{define}" for define in self.options.defines]
        parts += self.more() + [f"--flag={flag}" for flag in self.options.flags] + switches(self.options)
        return self.gpu("source", str(self.source.node.rfile().get_path()), "--arch", self.arch, *parts)

    def work(self, node: Any) -> Outcome:
        """Clang runs as a process of its own. What splits its IR loads LLVM meanwhile."""
        self.workspace.session.pool.prepare()
        return super().work(node)

    def more(self) -> list[str]:
        """Further words of the command by hand, before the user's own."""
        apart = [f"--relocatable={self.options.relocatable}"] if self.options.relocatable else []
        return [*apart, *(f"--flag={flag}" for flag in self.options.from_nvcc)]

    def flags(self) -> Sequence[str]:
        """The user's flags for clang."""
        return (*self.options.from_nvcc, *self.options.flags)

    def compile(self, path: str) -> compiler.Compiled:
        """One source, by its path below the top."""
        return compiler.compile_cuda(
            self.tool,
            path,
            target=self.targeted,
            options=self.options,
            headers=self.headers,
            output=self.target,
            top=self.top,
            tolerant=self.may_fail,
        )


@dataclass(kw_only=True)
class NvccJob(CudaJob):
    """`.cu` becomes PTX through nvcc."""

    assembler: tuple[str, int] | None
    """What assembles it, and the newest PTX version that it reads."""

    def more(self) -> list[str]:
        """Which front end."""
        return [f"--frontend={self.tool.name}", *(f"--nvcc-flag={flag}" for flag in self.options.nvcc_flags)]

    def flags(self) -> Sequence[str]:
        """GPU_NVCCFLAGS."""
        return self.options.nvcc_flags

    def compile(self, path: str) -> compiler.Compiled:
        """One source; PTX that the assembler does not read is told before anything is assembled."""
        compiled = self.made(path)
        if not compiled.failed and self.assembler is not None:
            ptx.check_version(self.target, name=self.source.name, assembler=ptx.Assembler(*self.assembler))
        return compiled

    def made(self, path: str) -> compiler.Compiled:
        """The PTX; nvcc is a process of its own."""
        return nvcc.compile_cuda(
            self.tool,
            path,
            target=self.targeted,
            options=self.options,
            output=self.target,
            top=self.top,
            tolerant=self.may_fail,
        )


@dataclass(kw_only=True)
class NvrtcJob(NvccJob):
    """`.cu` becomes PTX through NVRTC."""

    def made(self, path: str) -> compiler.Compiled:
        """NVRTC runs in a worker."""
        answer = self.workspace.session.pool.run(
            "nvrtc",
            library=self.tool.path,
            source=path,
            arch=self.arch,
            options=asdict(self.options),
            output=str(self.target),
            top=self.top,
            tolerant=self.may_fail,
        )
        return compiler.Compiled(
            dependencies=tuple(answer["dependencies"]),
            output=answer["output"],
            cpu=answer["cpu"],
            peak_kib=answer["peak_kib"],
            failed=answer["failed"],
            missing=tuple(answer["missing"]),
        )


@dataclass(kw_only=True)
class SplitJob(FromSource):
    """IR or PTX becomes an index, and slices in the store."""

    stage: ClassVar[str] = "split"
    ir: Path
    form: str
    lines: bool = False
    """Whether PTX keeps its line information."""
    exports: bool = False
    """Whether the module has other sources, which may need what this one defines."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def command(self) -> list[str]:
        """By hand."""
        more = ["--lineinfo"] if self.lines else []
        more += ["--exports"] if self.exports else []
        return self.gpu("split", str(self.ir), "--arch", self.arch, "--form", self.form, "--source", self.source.name, *more)

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """In a worker."""
        return answered(self._split(self.target))

    def restore(self) -> None:
        """Puts slices that the store lost back into it."""
        with self.lock:
            again = self.target.with_name(f".{self.target.name}.again")
            self._split(again)
            again.unlink()

    def _split(self, output: Path) -> dict[str, Any]:
        roots = [str(root) for root in self.workspace.store.roots]
        return self.workspace.session.pool.run(
            "split",
            path=str(self.ir),
            source=self.source.name,
            arch=self.arch,
            form=self.form,
            roots=roots,
            output=str(output),
            known="verified" if self.source.name.endswith(".cu") else "printed",
            lines=self.lines,
            exports=self.exports,
        )

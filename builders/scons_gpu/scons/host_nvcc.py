"""A `.cu` in an ordinary builder that nvcc compiles as it always did: one object of both halves, and no units."""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.host.nvcc import NvccOptions
from scons_gpu.scons import settings
from scons_gpu.scons.later import later
from scons_gpu.scons.modules import declare_module
from scons_gpu.scons.sources import Compiling
from scons_gpu.scons.steps import options_text
from scons_gpu.source import nvidia
from scons_gpu.toolchain import frontends
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.assemble.provider import AssembleOptions
    from scons_gpu.host import nvcc as host
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.session import Session
    from scons_gpu.source import clang as compiler
else:
    host = later("scons_gpu.host.nvcc")

__all__ = ["NvccObjectJob", "object_job"]

_TOLD = (
    "nvcc compiles the .cu of programs in one piece (GPU_HOST=nvcc): a change of one kernel compiles its whole source, for all "
    "architectures, and equal kernels are compiled each time. GPU_HOST=clang has each compiled by itself"
)


@dataclass(kw_only=True)
class NvccObjectJob(Compiling):
    """A `.cu` becomes an object through nvcc."""

    stage: ClassVar[str] = "host"
    options: NvccOptions

    @property
    def cpppath(self) -> Sequence[str]:
        """The source's own."""
        return self.options.cpppath

    def flags(self) -> Sequence[str]:
        """All that the user gave."""
        return (*self.options.nvcc_flags, *self.options.flags, *self.options.host_flags)

    def command(self) -> list[str]:
        """By hand: nvcc's own."""
        path = str(self.source.node.rfile().get_path())
        return host.command(self.tool, path, options=self.options, output=str(self.target), depfile=str(self.depfile), top=self.top)

    def by_hand(self) -> str:
        """No variable is needed to find anything."""
        return shlex.join(self.command())

    def compile(self, path: str) -> compiler.Compiled:
        """By a process of its own."""
        return host.compile_object(self.tool, path, options=self.options, output=self.target, top=self.top)


def object_job(  # noqa: PLR0913 - what an object is made of
    env: Any, session: Session, target: Any, source: Any, *, own: Mapping[str, Any], passed: Sequence[str], shared: bool
) -> tuple[NvccObjectJob, Module]:
    """What makes the object, and its source as a module; `passed` are flags for nvcc as they are. Raises ToolMissingError."""
    path = Path(target.get_abspath())
    module = declare_module(env, session, Path(source.get_path()).name, [source], **own)
    workspace = session.workspace(module.settings.store, fallback=path.with_name(".gpu-store"))
    tools = session.toolchain(module.settings, workspace.facts)
    nvcc = frontends.choose(tools, wanted="nvcc", environ=os.environ, facts=workspace.facts).tool
    session.warn(_TOLD)
    if said := nvidia.left_out(module.sources[0].options):
        session.warn(said)
    options = dataclasses.replace(_options(env, session, module, own, shared=shared), nvcc_flags=tuple(passed))
    signature = options_text(
        nvcc=f"{nvcc.version} {nvcc.identity}",
        assembler=tools.ptxas.identity if tools.ptxas else "",
        tool=identity(),
        **{name: [arch.name for arch in value] if name == "archs" else value for name, value in vars(options).items()},
    )
    job = NvccObjectJob(
        workspace=workspace,
        name=module.sources[0].name,
        owners=[module.name],
        place=session.place(str(path)),
        target=path,
        environment=module.settings.environment,
        source=module.sources[0],
        signature=signature,
        tool=nvcc,
        headers=str(Path(nvcc.path).resolve().parent.parent),
        top=str(env.fs.Top.get_abspath()),
        options=options,
    )
    return job, module


def _options(env: Any, session: Session, module: Module, own: Mapping[str, Any], *, shared: bool) -> NvccOptions:
    front = module.sources[0].options
    flags, host_flags = settings.host_flags(env, session.arguments, own, shared=shared)
    return NvccOptions(
        archs=module.settings.archs,
        cpppath=front.cpppath,
        defines=front.defines,
        code=(*nvidia.code_flags(nvidia.undefined(front)), *_assembling(module.settings.assemble)),
        flags=flags,
        host_flags=host_flags,
        compiler=str(env.WhereIs(env.subst("$CXX")) or ""),
        relocatable=settings.relocatable(env, session.arguments, own),
        shared=shared or env.get("STATIC_AND_SHARED_OBJECTS_ARE_THE_SAME") in {1, "1"},
    )


def _assembling(options: AssembleOptions) -> list[str]:
    """What the assembler is told, in nvcc's spelling. Of the level nothing where it is the default, or where -G sets it."""
    limit = [f"-maxrregcount={options.maxrregcount}"] if options.maxrregcount is not None else []
    level = [f"-O{options.opt}"] if options.opt != 3 and not options.debug else []
    spills = ["-warn-spills"] if options.fail_on_spill or options.warn_on_spill else []
    spills += ["-Werror"] if options.fail_on_spill else []
    return [*limit, *(word for flag in (*level, *spills, *options.flags) for word in ("-Xptxas", flag))]

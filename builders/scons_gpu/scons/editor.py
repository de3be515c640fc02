"""What editors are told of a `.cu`: entries of SCons' own compilation database."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from scons_gpu.host.clang import HostOptions, editor_command
from scons_gpu.host.flags import arch_list
from scons_gpu.scons import _internals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scons_gpu.scons.host_nvcc import NvccObjectJob
    from scons_gpu.scons.modules import Module, Source
    from scons_gpu.scons.program import Chain
    from scons_gpu.scons.session import Session
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool

__all__ = ["enter", "enter_module", "enter_nvcc"]


def enter(chain: Chain, source: Source, *, target: Any, options: HostOptions) -> None:
    """One source that clang compiles, for its module's first real architecture."""
    _enter(
        chain.env, source, lambda: (chain.clang(source), chain.tools.headers), archs=chain.settings.archs, target=target, options=options
    )


def enter_nvcc(env: Any, session: Session, job: NvccObjectJob, module: Module) -> None:
    """One source that nvcc compiles, as clang would be told to: where there is one, which editors do not ask for."""
    tools = session.toolchain(module.settings, job.workspace.facts)
    if tools.clang is None or not tools.headers:
        return
    clang, front = tools.clang, job.source.options
    options = HostOptions(
        cpppath=job.options.cpppath,
        defines=job.options.defines,
        clang_flags=(*arch_list(job.options.archs), *front.from_nvcc, *front.flags),
        flags=job.options.flags,
        host_flags=job.options.host_flags,
    )
    target = env.File(str(job.target))
    _enter(env, job.source, lambda: (clang, tools.headers), archs=job.options.archs, target=target, options=options)


def _enter(  # noqa: PLR0913 - one keyword for each thing that decides
    env: Any, source: Source, found: Callable[[], tuple[Tool, str]], *, archs: Sequence[Target], target: Any, options: HostOptions
) -> None:
    arch = next((arch for arch in archs if arch.real), archs[0])
    top, path = str(env.fs.Top.get_abspath()), str(source.node.rfile().get_path())

    def command() -> str:
        clang, headers = found()
        return shlex.join(editor_command(clang, path, options=options, headers=headers, target=arch, output=target.get_path(), top=top))

    _internals.enter_command(env, target, source.node, command)


def enter_module(chain: Chain) -> None:
    """The CUDA sources of a module, where clang is what compiles them."""
    for source in chain.module.sources:
        if source.name.endswith(".cu") and chain.front_end.divides:
            flags = (*arch_list(chain.settings.archs), *source.options.from_nvcc, *source.options.flags)
            options = HostOptions(cpppath=source.options.cpppath, defines=source.options.defines, clang_flags=flags)
            made = chain.text(source, chain.settings.archs[0])
            enter(chain, source, target=chain.env.File(str(made)), options=options)

"""What editors are told of a `.cu`: entries of SCons' own compilation database."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from scons_gpu.host.clang import HostOptions, editor_command
from scons_gpu.host.flags import arch_list
from scons_gpu.scons import _internals

if TYPE_CHECKING:
    from scons_gpu.scons.modules import Source
    from scons_gpu.scons.program import Chain

__all__ = ["enter", "enter_module"]


def enter(chain: Chain, source: Source, *, target: Any, options: HostOptions) -> None:
    """One source that clang compiles, for its module's first real architecture."""
    archs = chain.settings.archs
    arch = next((arch for arch in archs if arch.real), archs[0])
    top, path = str(chain.env.fs.Top.get_abspath()), str(source.node.rfile().get_path())

    def command() -> str:
        clang, headers = chain.clang(source), chain.tools.headers
        return shlex.join(editor_command(clang, path, options=options, headers=headers, target=arch, output=target.get_path(), top=top))

    _internals.enter_command(chain.env, target, source.node, command)


def enter_module(chain: Chain) -> None:
    """The CUDA sources of a module, where clang is what compiles them."""
    for source in chain.module.sources:
        if source.name.endswith(".cu") and chain.front_end.divides:
            flags = (*arch_list(chain.settings.archs), *source.options.from_nvcc, *source.options.flags)
            options = HostOptions(cpppath=source.options.cpppath, defines=source.options.defines, clang_flags=flags)
            made = chain.text(source, chain.settings.archs[0])
            enter(chain, source, target=chain.env.File(str(made)), options=options)

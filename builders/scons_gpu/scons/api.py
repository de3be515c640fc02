"""The methods that an environment gets, and how a mistake of the user's reads there."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import GpuError
from scons_gpu.scons import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["add_to"]


def add_to(env: Any) -> None:
    """Adds methods and defaults. The command line's GPU_ variables are checked here, before anything is declared."""
    from SCons.Script import ARGUMENTS  # noqa: PLC0415 - filled when SConstructs are read

    from scons_gpu.scons import objects  # noqa: PLC0415 - it imports SCons

    _said(settings.check_names)(ARGUMENTS)
    settings.set_defaults(env)
    for method in (
        GpuSource,
        GpuModule,
        GpuProgram,
        Ptx,
        Cubin,
        Fatbin,
        DeviceLink,
        GpuEmbed,
        GpuHeader,
        GpuRelease,
        GpuBudget,
        GpuReport,
    ):
        env.AddMethod(_said(method))
    objects.add_builders(env, _said(_declare_object), _said(_declare_link))


def _said(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's mistake in a SConstruct is one message and exit code 2, not a traceback."""

    @functools.wraps(function)
    def call(*args: Any, **kw: Any) -> Any:
        try:
            return function(*args, **kw)
        except GpuError as error:
            sys.stdout.flush()
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)

    return call


def GpuSource(env: Any, path: Any, **overrides: Any) -> Any:  # noqa: N802 - SCons' spelling
    """One source with front-end options of its own: CPPDEFINES, CPPPATH, GPU_CLANGFLAGS, GPU_FAST_MATH, GPU_FTZ."""
    from scons_gpu.scons.modules import declare_source  # noqa: PLC0415 - a build without modules pays nothing

    return declare_source(env, path, **overrides)


def GpuModule(env: Any, name: str, sources: Sequence[Any], **kw: Any) -> Any:  # noqa: N802 - SCons' spelling
    """A module: declares, builds nothing. `submodules`, `bypass`, and any variable for this module alone."""
    from scons_gpu.scons.modules import declare_module  # noqa: PLC0415 - a build without modules pays nothing

    current = _session()
    module = declare_module(env, current, name, sources, **kw)
    current.declared[name].append(module)
    return module


def GpuProgram(env: Any, stem: str, root: Any) -> Any:  # noqa: N802 - SCons' spelling
    """A program: the root module and all it reaches. Gives the manifest's node, then each module's fatbin or bundle."""
    from scons_gpu.scons.program import declare_program  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_program(env, _session(), stem, root))


def Ptx(env: Any, target: Any, sources: Sequence[Any], **kw: Any) -> Any:  # noqa: N802 - SCons' spelling
    """Sources to one PTX file, for the one architecture of GPU_ARCHS."""
    from scons_gpu.scons.builders import declare_ptx  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_ptx(env, _session(), target, sources, **kw))


def Cubin(env: Any, target: Any, sources: Sequence[Any], **kw: Any) -> Any:  # noqa: N802 - SCons' spelling
    """Sources to one cubin, for the one architecture of GPU_ARCHS."""
    from scons_gpu.scons.builders import declare_cubin  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_cubin(env, _session(), target, sources, **kw))


def Fatbin(env: Any, target: Any, images: Sequence[Any], **kw: Any) -> Any:  # noqa: N802 - SCons' spelling
    """Cubins and PTX files to one fatbin."""
    from scons_gpu.scons.builders import declare_fatbin  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_fatbin(env, _session(), target, images, **kw))


def DeviceLink(env: Any, target: Any, objects: Sequence[Any], **kw: Any) -> Any:  # noqa: N802 - SCons' spelling
    """Relocatable cubins to one cubin."""
    from scons_gpu.scons.builders import declare_device_link  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_device_link(env, _session(), target, objects, **kw))


def GpuEmbed(env: Any, target: Any, program: Any) -> Any:  # noqa: N802 - SCons' spelling
    """An object that holds a program's code, for a C++ program that finds kernels with scons_gpu.hpp."""
    from scons_gpu.scons.embed import declare_embed  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_embed(env, _session(), target, program))


def GpuHeader(env: Any, target: Any, program: Any) -> Any:  # noqa: N802 - SCons' spelling
    """A C++ header with a typed function for each kernel of a program whose parameters are known."""
    from scons_gpu.scons.embed import declare_header  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_header(env, _session(), target, program))


def GpuRelease(env: Any, target: Any, programs: Any, **options: Any) -> Any:  # noqa: N802 - SCons' spelling
    """An archive of programs to ship, with checksums, provenance and a component list. `licenses`, `lineinfo`, `notes`, `level`."""
    from scons_gpu.scons.release import declare_release  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_release(env, _session(), target, programs, **options))


def GpuBudget(env: Any, target: Any, program: Any, budget: Any) -> Any:  # noqa: N802 - SCons' spelling
    """A step that fails where a kernel of a program takes more than the budget, a TOML file, allows."""
    from scons_gpu.scons.budget import declare_budget  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_budget(env, _session(), target, program, budget))


def GpuReport(env: Any, target: Any, programs: Any) -> Any:  # noqa: N802 - SCons' spelling
    """One HTML page that shows what this build made of one program or several, why, and what took the time."""
    from scons_gpu.scons.report import declare_report  # noqa: PLC0415 - a build without modules pays nothing

    return _nodes(declare_report(env, _session(), target, programs))


def _declare_object(env: Any, target: Any, source: Any, shared: bool) -> None:  # noqa: FBT001 - `_internals.takes` calls it
    from scons_gpu.scons.host import declare_object  # noqa: PLC0415 - a build without modules pays nothing

    declare_object(env, _session(), target, source, shared=shared)


def _declare_link(env: Any, program: Any, find: Callable[[], Any]) -> None:
    """What `GPU_RDC` adds to a link. Others, of C++ alone too, pay for one look at a variable."""
    from SCons.Script import ARGUMENTS  # noqa: PLC0415 - filled when SConstructs are read

    if ARGUMENTS.get("GPU_RDC", env.get("GPU_RDC")) or ARGUMENTS.get("GPU_NVCCFLAGS", env.get("GPU_NVCCFLAGS")):
        from scons_gpu.scons.device_link import declare_link  # noqa: PLC0415 - a build without such links pays nothing

        declare_link(env, _session(), program, find)


def _nodes(nodes: list[Any]) -> Any:
    from SCons.Node import NodeList  # noqa: PLC0415 - SCons is there when this runs

    return NodeList(nodes)


def _session() -> Any:
    """The session of this process, with what the command line says and our taskmaster in place."""
    from SCons.Script import ARGUMENTS, GetOption  # noqa: PLC0415 - filled when SConstructs are read

    from scons_gpu.scons import _internals  # noqa: PLC0415 - a build without modules pays nothing
    from scons_gpu.scons.session import session  # noqa: PLC0415 - a build without modules pays nothing

    _internals.install()
    current = session()
    current.arguments = {name: value for name, value in ARGUMENTS.items() if name.startswith("GPU_")}
    current.jobs = GetOption("num_jobs")
    return current

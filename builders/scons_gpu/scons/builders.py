"""Step builders, for one step alone: PTX, a cubin, a fatbin, a device link."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.assemble.provider import LinkInput
from scons_gpu.errors import LinkError, UsageError
from scons_gpu.link import fatbin
from scons_gpu.scons import _internals, settings
from scons_gpu.scons.merging import settled
from scons_gpu.scons.modules import declare_module
from scons_gpu.scons.program import Chain, pack_signature
from scons_gpu.scons.providers import check_tools, choice_for
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain import versions
from scons_gpu.toolchain.ourselves import identity
from scons_gpu.workers.isolated import isolated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scons_gpu.assemble.provider import AssembleOptions, Provider
    from scons_gpu.scons.session import Session
    from scons_gpu.scons.settings import Settings
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain

__all__ = ["declare_cubin", "declare_device_link", "declare_fatbin", "declare_ptx"]

_artefact = _internals.builder(_internals.Artefact)


def declare_ptx(env: Any, session: Session, target: Any, sources: Sequence[Any], **overrides: Any) -> list[Any]:
    """Sources to one PTX file. Their units are lowered one by one and merged."""
    return _whole_chain(env, session, target, sources, ptx=True, overrides=overrides)


def declare_cubin(env: Any, session: Session, target: Any, sources: Sequence[Any], **overrides: Any) -> list[Any]:
    """Sources to one linked cubin."""
    return _whole_chain(env, session, target, sources, ptx=False, overrides=overrides)


def _whole_chain(  # noqa: PLR0913 - a builder's arguments
    env: Any, session: Session, target: Any, sources: Any, *, ptx: bool, overrides: dict[str, Any]
) -> list[Any]:
    path = Path(env.File(target).get_abspath())
    module = declare_module(env, session, path.name, sources, **overrides)
    # A file of its own is no bundle; and PTX is merged as for one assembly, so nothing has to link.
    link = "whole" if ptx else "image" if module.settings.link == "bundle" else module.settings.link
    module = dataclasses.replace(module, settings=dataclasses.replace(module.settings, link=link))
    arch = _one_arch(module.settings, path.name)
    if not ptx and not arch.real:
        msg = f"{path.name}: {arch.name} has no machine code"
        raise UsageError(msg, hint="name a real architecture, as sm_90, or use env.Ptx")
    workspace = session.workspace(module.settings.store, fallback=path.parent / ".gpu-store")
    tools = _tools(session, workspace, module.settings)
    module = settled(workspace, module, tools)
    folder = path.with_name(f"{path.name}.parts") / module.name
    place = session.place(str(path))
    chain = Chain(session=session, workspace=workspace, env=env, module=module, folder=folder, tools=tools, place=place)
    node, _, _, _ = chain.image(arch, path=path, ptx=ptx)
    return [node]


def _one_arch(found: Settings, name: str) -> Target:
    if len(found.archs) != 1:
        msg = f"{name} is for one architecture, and GPU_ARCHS names {', '.join(target.name for target in found.archs)}"
        raise UsageError(msg, hint='name one, as in env.Cubin("k.cubin", ["k.cu"], GPU_ARCHS="sm_90")')
    return found.archs[0]


def _tools(session: Session, workspace: Any, found: Settings) -> Toolchain:
    tools = session.toolchain(found, workspace.facts)
    check_tools(session, tools, found.archs, choice_for(tools, found, workspace.facts))
    return tools


@dataclass(kw_only=True)
class FatbinJob(Step):
    """Images that anybody made become a fatbin."""

    stage: ClassVar[str] = "pack"
    fatbinary: Tool
    images: Sequence[Any]

    def command(self) -> list[str]:
        """By hand."""
        return self.gpu("pack", *(str(node.rfile().get_path()) for node in self.images))

    def work(self, node: Any) -> Outcome:
        """What each image is for stands in the image."""
        images = [Path(source.rfile().get_abspath()) for source in node.sources]
        data = fatbin.pack([(fatbin.target_of(path), path) for path in images], fatbinary=self.fatbinary)
        write_atomic(self.target, data)
        return Outcome()


def declare_fatbin(env: Any, session: Session, target: Any, images: Any, **overrides: Any) -> list[Any]:
    """Cubins and PTX files to one fatbin."""
    path, found, workspace = _place(env, session, target, overrides)
    fatbinary = versions.require(session.toolchain(found, workspace.facts), "fatbinary")
    nodes = env.arg2nodes(env.Flatten([images]), env.fs.File)
    signature = pack_signature(fatbinary, archs=[])
    job = FatbinJob(
        workspace=workspace,
        name=path.name,
        target=path,
        environment=found.environment,
        place=session.place(str(path)),
        signature=signature,
        fatbinary=fatbinary,
        images=nodes,
    )
    return [_artefact(env, path, nodes, job)]


@dataclass(kw_only=True)
class DeviceLinkJob(Step):
    """Relocatable cubins that anybody made become one."""

    stage: ClassVar[str] = "link"
    targeted: Target
    provider: Provider
    options: AssembleOptions
    linker: Tool
    objects: Sequence[Any]

    def command(self) -> list[str]:
        """By hand: the linker's own."""
        if self.linker.name != "nvlink":
            return ["scons", str(self.target)]
        debug = ["-g"] if self.options.debug else []
        objects = [str(node.rfile().get_path()) for node in self.objects]
        return [self.linker.path, f"-arch={self.arch}", *debug, *objects, "-o", str(self.target)]

    def work(self, node: Any) -> Outcome:
        """One flat link, in the order given."""
        inputs = [LinkInput(path=Path(source.rfile().get_abspath()), label=str(source)) for source in node.sources]
        linked = self.provider.link(inputs, target=self.targeted, options=self.options)
        if not linked.data:
            msg = "the linker made nothing"
            raise LinkError(msg)
        write_atomic(self.target, linked.data)
        return Outcome(output=linked.output, cpu=linked.cpu, peak_kib=linked.peak_kib)


def declare_device_link(env: Any, session: Session, target: Any, objects: Any, **overrides: Any) -> list[Any]:
    """Relocatable cubins to one cubin."""
    path, found, workspace = _place(env, session, target, overrides)
    arch = _one_arch(found, path.name)
    tools = _tools(session, workspace, found)
    choice = choice_for(tools, found, workspace.facts, needs=("link",))
    if choice is None or choice.making is None or choice.making.linker is None:
        msg = f"{path.name}: nothing here links for {arch.name}"
        raise UsageError(msg, hint="objects are linked for a real architecture, by nvlink, nvJitLink or the driver")
    provider = isolated(choice.making, session.run)
    nodes = env.arg2nodes(env.Flatten([objects]), env.fs.File)
    signature = options_text(linker=provider.link_identity, arch=arch.name, debug=found.debug, tool=identity())
    job = DeviceLinkJob(
        workspace=workspace,
        name=os.path.relpath(path, env.fs.Top.get_abspath()),
        arch=arch.name,
        target=path,
        place=session.place(str(path)),
        signature=signature,
        targeted=arch,
        provider=provider,
        options=found.assemble,
        linker=choice.making.linker,
        objects=nodes,
    )
    return [_artefact(env, path, nodes, job)]


def _place(env: Any, session: Session, target: Any, overrides: dict[str, Any]) -> tuple[Path, Settings, Any]:
    path = Path(env.File(target).get_abspath())
    found = settings.read(env, session.arguments, overrides, supported=session.supported)
    for sentence in settings.remarks(env, session.arguments, overrides):
        session.warn(sentence)
    return path, found, session.workspace(found.store, fallback=path.parent / ".gpu-store")

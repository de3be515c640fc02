"""A `.cu` in an ordinary builder: a module of its own, whose fatbin goes into the object of its host's half."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from scons_gpu.errors import UsageError
from scons_gpu.host.clang import HostOptions
from scons_gpu.host.flags import arch_list, reading
from scons_gpu.scons import _internals, settings
from scons_gpu.scons.images import makes_nothing, read_plan
from scons_gpu.scons.later import later
from scons_gpu.scons.manifests import declare_manifest
from scons_gpu.scons.merging import settled
from scons_gpu.scons.modules import declare_module
from scons_gpu.scons.program import Chain
from scons_gpu.scons.providers import check_tools, choice_for
from scons_gpu.scons.sources import Compiling
from scons_gpu.scons.steps import options_text
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.host import check, registered
    from scons_gpu.host import clang as host
    from scons_gpu.scons import device_link, editor, host_nvcc
    from scons_gpu.scons.device_link import SourceChain
    from scons_gpu.scons.modules import Module
    from scons_gpu.scons.packing import ModuleNode
    from scons_gpu.scons.session import Session, Workspace
    from scons_gpu.source import clang as compiler
else:
    device_link, editor, host_nvcc = (later(f"scons_gpu.scons.{name}") for name in ("device_link", "editor", "host_nvcc"))
    check, host, registered = later("scons_gpu.host.check"), later("scons_gpu.host.clang"), later("scons_gpu.host.registered")

__all__ = ["HostJob", "declare_object"]


@dataclass(kw_only=True)
class HostJob(Compiling):
    """The host's half of a `.cu` becomes an object, with the device's half in it."""

    stage: ClassVar[str] = "host"
    options: HostOptions
    device: ModuleNode

    @property
    def cpppath(self) -> Sequence[str]:
        """The source's own."""
        return self.options.cpppath

    def flags(self) -> Sequence[str]:
        """All that the user gave, in clang's order."""
        return (*self.options.clang_flags, *self.options.flags, *self.options.host_flags)

    @property
    def fatbin(self) -> Path | None:
        """The device's half; None for a source without device code."""
        return None if makes_nothing([path for _, _, path in self.device.plans]) else self.device.path

    def command(self) -> list[str]:
        """By hand: clang's own, as for a source with device code where that is not known yet."""
        path, target, depfile = str(self.source.node.rfile().get_path()), str(self.target), str(self.depfile)
        fatbin = str(self.fatbin or "")
        return host.command(
            self.tool, path, options=self.options, headers=self.headers, fatbin=fatbin, output=target, depfile=depfile, top=self.top
        )

    def by_hand(self) -> str:
        """Clang needs no variable to find anything."""
        return shlex.join(self.command())

    def compile(self, path: str) -> compiler.Compiled:
        """Clang as a process of its own, then a look at what its object registers."""
        said: list[str] = []
        compiled = host.compile_host(
            self.tool,
            path,
            options=self.options,
            headers=self.headers,
            fatbin=self.fatbin,
            output=self.target,
            top=self.top,
            check=lambda data: said.append(self.checked(data)),
        )
        return dataclasses.replace(compiled, output="\n".join(text for text in (compiled.output, *said[-1:]) if text))

    def checked(self, data: bytes) -> str:
        """What is to be told of an object, from what it registers."""
        plans = {target.name: read_plan(plan) for target, _, plan in self.device.plans}
        return check.check(registered.read(data, path=str(self.target)), plans)


def declare_object(env: Any, session: Session, target: Any, source: Any, *, shared: bool) -> None:
    """Gives the object's node its job, and what it depends on. Raises UsageError for one that is declared twice, in two ways."""
    path = Path(target.get_abspath())
    own = {name: value for name, value in _internals.overrides(env).items() if name.startswith("GPU_") or name in settings.PER_SOURCE}
    if (passed := settings.nvcc_host(env, session.arguments, own)) is not None:
        made, module = host_nvcc.object_job(env, session, target, source, own=own, passed=passed, shared=shared)
        if _attach(target, made, None) and "CompilationDatabase" in env["BUILDERS"]:
            editor.enter_nvcc(env, session, made, module)
        return
    flags, host_flags = settings.host_flags(env, session.arguments, own, shared=shared)
    module = _module(env, session, source, own, reading=reading(flags), relocatable=settings.relocatable(env, session.arguments, own))
    workspace = session.workspace(module.settings.store, fallback=path.with_name(".gpu-store"))
    device, chain, manifest = _device(env, session, workspace, module, base=path.with_name(f"{path.name}.gpu"))
    front = module.sources[0]
    options = HostOptions(
        cpppath=front.options.cpppath,
        defines=front.options.defines,
        clang_flags=(
            *arch_list(module.settings.archs),
            *front.options.from_nvcc,
            *settings.front_end(env, session.arguments, own).flags,
        ),
        flags=flags,
        host_flags=host_flags,
        shared=shared or env.get("STATIC_AND_SHARED_OBJECTS_ARE_THE_SAME") in {1, "1"},
        relocatable=front.options.relocatable,
    )
    clang = chain.clang(front)
    signature = options_text(
        clang=f"{clang.version} {clang.identity}",
        tool=identity(),
        headers=chain.tools.headers_identity,
        **vars(options),
    )
    kind = functools.partial(device_link.RelocatableJob, chain=cast("SourceChain", chain)) if options.relocatable else HostJob
    job = kind(
        **chain.common(None, front.name, path),
        source=front,
        signature=signature,
        tool=clang,
        headers=chain.tools.headers,
        top=str(env.fs.Top.get_abspath()),
        options=options,
        device=device,
    )
    if _attach(target, job, device):
        # Nobody names it, and nothing of the object depends on it.
        target.add_prerequisite(manifest)
        editor.enter(chain, front, target=target, options=options)


def _attach(target: Any, job: Compiling, device: ModuleNode | None) -> bool:
    """Whether the node has its job from now on, and had none before."""
    known = getattr(target.attributes, "gpu", None)
    if known is not None and (known.signature, getattr(known, "device", None)) != (job.signature, device):
        msg = f"{target} is declared twice, with different options"
        raise UsageError(msg, hint='give each object a name of its own, as in env.Object("k_fast.o", "k.cu", CPPDEFINES=["FAST"])')
    if known is None:
        target.attributes.gpu = job
        target.add_dependency([device.node] if device and device.node else [])
    return known is None


def _module(  # noqa: PLR0913 - what a module is
    env: Any, session: Session, source: Any, own: Mapping[str, Any], *, reading: Sequence[str], relocatable: bool
) -> Module:
    """The source as a module of its own, called like it. Flags of the project's that decide how a source is read are for both halves."""
    module = declare_module(env, session, Path(source.get_path()).name, [source], **own)
    [front] = module.sources
    options = dataclasses.replace(front.options, flags=(*reading, *front.options.flags))
    # By what it is compiled to: one file may be in a program twice. Of architectures nothing, since adding one concerns no other; nor of
    # where the tree lies.
    told = f"{front.name}\0{options}".replace(f"{env.fs.Top.get_abspath()}/", "")
    apart = hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16] if relocatable else ""
    options = dataclasses.replace(options, flags=(*arch_list(module.settings.archs), *options.flags), relocatable=apart)
    front = dataclasses.replace(front, options=options)
    # A program has its kernels in fatbins.
    link = "image" if module.settings.link == "bundle" else module.settings.link
    return dataclasses.replace(module, sources=(front,), settings=dataclasses.replace(module.settings, link=link))


def _device(env: Any, session: Session, workspace: Workspace, module: Module, *, base: Path) -> tuple[ModuleNode, Chain, list[Any]]:
    """The device half and its manifest (none where a link has it), as the first object has them that asks for this very half."""
    key = (module.sources[0].node, module.sources[0].options, module.settings)
    if key not in workspace.halves:
        tools = session.toolchain(module.settings, workspace.facts)
        module = settled(workspace, module, tools)
        check_tools(session, tools, module.settings.archs, choice_for(tools, module.settings, workspace.facts))
        kind = device_link.SourceChain if module.sources[0].options.relocatable else Chain
        chain = kind(
            session=session,
            workspace=workspace,
            env=env,
            module=module,
            folder=base / module.name,
            tools=tools,
            place=session.place(str(base), module.name),
        )
        chain.clang(module.sources[0])  # before anything is declared: the host's half needs it, whatever the device's front end is
        made = chain.end()
        manifest = [declare_manifest(env, workspace, base, [made], tools=tools)] if made.node is not None else []
        workspace.halves[key] = made, chain, manifest
    found: tuple[ModuleNode, Chain, list[Any]] = workspace.halves[key]
    return found

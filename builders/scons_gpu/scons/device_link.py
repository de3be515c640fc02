"""`GPU_RDC`: the `.cu` objects that one link takes form one module, whose code is registered by an object of the link's own.

Which objects these are is known when all SConscripts are read: static libraries may be named before they are declared. So front end and
split are nodes of each object, whoever links it; what depends on all of them is declared when the build looks at the link first.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import SCons.Errors

from scons_gpu.errors import GpuError, RefusedError, UsageError
from scons_gpu.scons import _internals, settings
from scons_gpu.scons.host import HostJob
from scons_gpu.scons.images import makes_nothing, read_plan, remove
from scons_gpu.scons.later import later
from scons_gpu.scons.manifests import declare_manifest
from scons_gpu.scons.packing import ModuleNode
from scons_gpu.scons.program import Chain
from scons_gpu.scons.steps import Outcome, Step, options_text
from scons_gpu.split.readable import demangle
from scons_gpu.store.files import write_atomic
from scons_gpu.toolchain.ourselves import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scons_gpu.host import check, entries, registration
    from scons_gpu.host.entries import Entries
    from scons_gpu.plan import Plan
    from scons_gpu.scons import device_link_nvcc, libraries
    from scons_gpu.scons.device_link_nvcc import NvccLink
    from scons_gpu.scons.host_nvcc import NvccObjectJob
    from scons_gpu.scons.libraries import Libraries
    from scons_gpu.scons.modules import Source
    from scons_gpu.scons.session import Session
    from scons_gpu.scons.settings import Settings
    from scons_gpu.scons.sources import SplitJob
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool
else:
    check, entries, registration = (later(f"scons_gpu.host.{name}") for name in ("check", "entries", "registration"))
    device_link_nvcc, libraries = later("scons_gpu.scons.device_link_nvcc"), later("scons_gpu.scons.libraries")

__all__ = ["RelocatableJob", "SourceChain", "declare_link"]

_late = _internals.builder(_internals.Late)

_AGREED = {
    "archs": "GPU_ARCHS",
    "link": "GPU_LINK",
    "lower": "GPU_LOWER",
    "provider": "GPU_PROVIDER",
    "defer": "GPU_DEFER",
    "ftz": "GPU_FTZ",
    "fast_math": "GPU_FAST_MATH",
    "cuda_path": "GPU_CUDA_PATH",
    "store": "GPU_STORE",
    **settings.ASSEMBLING,
}
"""Fields of a module's settings, and of how its units are assembled → the variables that set them: all that a link has one of."""


@dataclass(frozen=True)
class SourceChain(Chain):
    """The way of one `.cu` of a program up to its index, whichever programs are linked of it."""

    known: dict[str, tuple[Any, SplitJob]] = field(default_factory=dict)
    """Architecture → its index, declared once."""

    @property
    def exports(self) -> bool:
        """Other sources of a program may ask for anything: which, nobody knows yet."""
        return True

    def end(self) -> ModuleNode:
        """Declares what is one object's. Raises UsageError where clang is not its front end."""
        [source] = self.module.sources
        if not self.front_end.divides:
            msg = f"{source.name}: device code is linked across sources through clang's IR, and {self.front_end.name} makes PTX"
            raise UsageError(msg, hint="leave GPU_FRONTEND at clang; GPU_HOST=nvcc has nvcc compile and link all of it")
        for target in self.settings.archs:
            self.index(source, target)
        return ModuleNode(module=self.module, node=None, path=None, plans=())

    def index(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, SplitJob]:
        """As any chain's, once."""
        if target.name not in self.known:
            self.known[target.name] = super().index(source, target, may_fail=may_fail)
        return self.known[target.name]


@dataclass(frozen=True)
class LinkChain(Chain):
    """The way of one program's device code from its sources' indexes."""

    parts: tuple[SourceChain, ...] = ()
    files: tuple[Any, ...] = ()
    """What is linked besides."""

    @functools.cached_property
    def libraries(self) -> Libraries | None:
        """Declared once, for all architectures."""
        return libraries.declare_libraries(self, self.files)

    def _of(self, source: Source) -> SourceChain:
        return next(part for part in self.parts if part.module.sources[0] is source)

    def index(self, source: Source, target: Target, *, may_fail: bool = False) -> tuple[Any, SplitJob]:
        """The one that the source's own object declared."""
        return self._of(source).index(source, target, may_fail=may_fail)

    def text(self, source: Source, target: Target) -> Path:
        """What that was split from."""
        return self._of(source).text(source, target)


@dataclass(kw_only=True)
class RelocatableJob(HostJob):
    """The host's half of a `.cu` becomes an object; the device's half goes into what it is linked to."""

    chain: SourceChain

    def checked(self, data: bytes) -> str:
        """What it leaves to be registered is held against the plans where it is linked."""
        entries.read(data, path=str(self.target))
        return ""


@dataclass(kw_only=True)
class RegisterJob(Step):
    """The device code of a program, or of a shared library, becomes an object of its link."""

    stage: ClassVar[str] = "register"
    program: Any
    """The node of what is linked."""
    env: Any
    find: Callable[[], Iterable[Any]]
    """Gives the nodes of all objects of `.cu` that the link takes."""
    expanded: bool = field(default=False, init=False)
    error: Exception | None = field(default=None, init=False)
    objects: tuple[RelocatableJob, ...] = field(default=(), init=False)
    device: ModuleNode | None = field(default=None, init=False)
    tool: Tool | None = field(default=None, init=False)
    nvcc: NvccLink | None = field(default=None, init=False)
    libraries: Libraries | None = field(default=None, init=False)
    besides: tuple[Any, ...] = field(default=(), init=False)
    """The manifest: made with the object, and nothing that the object depends on."""

    def needs(self) -> list[Any]:
        """Declares the device code of the link. Called once, when the build looks at the object first. Raises GpuError."""
        self.program.scan()  # then libraries of LIBS are found, those that are given by name among them
        nodes = [node for node in self.find() if node.attributes.gpu.options.relocatable]
        by_nvcc = [node for node in nodes if not isinstance(node.attributes.gpu, RelocatableJob)]
        if by_nvcc:
            return self._by_nvcc(nodes, by_nvcc)
        nodes.sort(key=lambda node: (node.attributes.gpu.source.name, str(node.attributes.gpu.target)))
        self.objects = tuple(node.attributes.gpu for node in nodes)
        if not self.objects:
            return []
        first = self.objects[0]
        self.workspace, self.environment = first.workspace, first.environment
        self.owners = [self.name]
        _check_agreed(self.objects)
        chain = self._chain(tuple({id(job.chain): job.chain for job in self.objects}.values()))
        self.tool = first.tool
        self.signature = options_text(clang=f"{first.tool.version} {first.tool.identity}", tool=identity())
        self.device, self.libraries = chain.fatbin(), chain.libraries
        self.besides = (declare_manifest(self.env, self.workspace, self.target.parent, [self.device], tools=chain.tools),)
        return [self.device.node, *(plan for _, plan, _ in self.device.plans), *nodes]

    def _by_nvcc(self, nodes: Sequence[Any], by_nvcc: Sequence[Any]) -> list[Any]:
        first: NvccObjectJob = by_nvcc[0].attributes.gpu
        self.workspace, self.environment, self.owners = first.workspace, first.environment, [self.name]
        if len(by_nvcc) != len(nodes):
            others = [node for node in nodes if node not in by_nvcc]
            msg = f"{by_nvcc[0]} is nvcc's (GPU_HOST=nvcc), and {others[0]} is clang's"
            raise UsageError(msg, hint="device code that is linked to one comes from one of them: set GPU_HOST for the environment of both")
        inputs = [node for node in self.inputs() if libraries.holding(node)]
        jobs = [node.attributes.gpu for node in by_nvcc]
        self.nvcc = device_link_nvcc.nvcc_link(jobs, [str(node.rfile().get_path()) for node in inputs], target=self.target)
        self.signature = self.nvcc.signature
        return inputs

    def inputs(self) -> list[Any]:
        """Objects and static libraries of the link, in its order."""
        ends = tuple(str(self.env.subst(f"${name}")) for name in ("OBJSUFFIX", "SHOBJSUFFIX", "LIBSUFFIX"))
        found = [*self.program.sources, *(self.program.implicit or ())]
        return [node for node in dict.fromkeys(found) if str(node).endswith(ends)]

    def _chain(self, parts: tuple[SourceChain, ...]) -> LinkChain:
        first = parts[0]
        name = Path(self.program.get_path()).name
        files = tuple(libraries.foreign(self.env, self.inputs(), self.objects[0].headers))
        # Code of others goes in by a linker.
        link = "image" if files and first.settings.auto else first.settings.link
        module = dataclasses.replace(
            first.module,
            name=name,
            sources=tuple(part.module.sources[0] for part in parts),
            settings=dataclasses.replace(first.settings, link=link),
        )
        base = self.target.parent
        return LinkChain(
            session=self.workspace.session,
            workspace=self.workspace,
            env=self.env,
            module=module,
            folder=base / name,
            tools=first.tools,
            place=self.workspace.session.place(str(base), name),
            parts=parts,
            files=files,
        )

    def line(self, env: Any) -> str:
        """Of a link without device code nothing is told."""
        return super().line(env) if self.objects or self.nvcc or self.error else ""

    def command(self) -> list[str]:
        """Only a build knows what a program is linked of."""
        return ["scons", str(self.target)]

    def by_hand(self) -> str:
        """That of nvcc, where it is what links."""
        return self.nvcc.by_hand() if self.nvcc else super().by_hand()

    def makes_nothing(self) -> bool:
        """A link that takes no object of this kind."""
        return not self.objects and self.nvcc is None

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Holds what all objects register against the plans, and has clang make the object."""
        if self.error is not None:
            raise self.error
        if self.nvcc is not None:
            return self.nvcc.work()
        if self.device is None or self.tool is None:
            remove(self.target)
            return Outcome(result="empty")
        plans = {target.name: read_plan(path) for target, _, path in self.device.plans}
        found = [(job.source.name, entries.read(job.target.read_bytes(), path=str(job.target))) for job in self.objects]
        _check_twice(found)
        said = [_checked(source, read, plans) for source, read in found]
        fatbin = None if makes_nothing([path for _, _, path in self.device.plans]) else self.device.path
        kinds = frozenset(kind for _, read in found for kind in read.kinds)
        write_atomic(self.target, registration.compile_registration(self.tool, fatbin, kinds=kinds, linked=self._linked(fatbin)))
        return Outcome(output="\n".join(dict.fromkeys(text for text in said if text)))

    def _linked(self, fatbin: Path | None) -> tuple[str, ...]:
        """Identities of the objects of others that are in the code."""
        if self.libraries is None or self.device is None or fatbin is None:
            return ()
        images = [path.with_name(f"{target.name}.cubin") for target, _, path in self.device.plans if target.real]
        return libraries.linked(self.libraries, [image for image in images if image.exists()])


def _checked(source: str, read: Entries, plans: Mapping[str, Plan]) -> str:
    """What is to be told of one object. Raises RefusedError, with its source."""
    try:
        return check.check(read.registered, plans)
    except GpuError as error:
        raise error.at(source=source) from None


def _check_agreed(objects: Sequence[RelocatableJob]) -> None:
    """Raises UsageError, with both objects, where what a link has one of differs between them."""
    first, *others = objects
    for other in others:
        for name, variable in _AGREED.items():
            values = [_value(job.chain.settings, name) for job in (first, other)]
            if values[0] != values[1]:
                here, there = (os.path.relpath(job.target, job.top) for job in (first, other))
                msg = f"{here} has {_shown(variable, values[0])}, and {there} has {_shown(variable, values[1])}"
                raise UsageError(msg, hint="device code that is linked to one has one value of it: set it for the environment of both")


def _value(found: Settings, name: str) -> Any:
    return getattr(found.assemble, name) if name in settings.ASSEMBLING else getattr(found, name)


def _shown(variable: str, value: Any) -> str:
    if value in (None, "", ()):
        return f"no {variable}"
    if isinstance(value, tuple):
        return f"{variable}={','.join(getattr(each, 'name', str(each)) for each in value)}"
    return f"{variable}={int(value) if isinstance(value, bool) else value}"


def _check_twice(found: Sequence[tuple[str, Entries]]) -> None:
    """Raises RefusedError for a kernel of two objects that neither may replace."""
    owners: dict[str, str] = {}
    for source, read in found:
        for kernel in read.own:
            other = owners.setdefault(kernel, source)
            if other != source:
                msg = f"kernel {demangle(kernel)} is defined in {other} and in {source}"
                raise RefusedError(msg, hint="define it in one of them, or make it static")


def refused(program: Any, job: HostJob) -> Any:
    """SCons' error for a link that takes such an object and has nothing that would register its code."""
    taken, name = os.path.relpath(job.target, job.top), os.path.relpath(program.get_abspath(), job.top)
    msg = f"{name} takes {taken}, whose device code is linked with that of others (GPU_RDC=1), and is linked without GPU_RDC"
    error = UsageError(msg, hint=f"set GPU_RDC=1 for the environment, or for the call, that links {name}")
    if not hasattr(program.attributes, "gpu_refused"):  # a command is spelled more than once
        program.attributes.gpu_refused = True
        job.workspace.session.fail(error, job.place)
    return SCons.Errors.BuildError(node=program, errstr="link refused", status=2, exitstatus=2)


def declare_link(env: Any, session: Session, program: Any, find: Callable[[], Iterable[Any]]) -> None:
    """Gives what is linked the object that registers its device code; `find` gives the objects of `.cu` that it takes."""
    own = {name: value for name, value in _internals.overrides(env).items() if name.startswith("GPU_")}
    if not settings.relocatable(env, session.arguments, own):
        return
    path = Path(program.get_abspath())
    base = path.with_name(f"{path.name}.gpu")
    target = base / f"{path.name}.o"
    job = RegisterJob(
        workspace=session.workspace(settings.stores(env, session.arguments, own), fallback=path.with_name(".gpu-store")),
        name=os.path.relpath(path, env.fs.Top.get_abspath()),
        place=session.place(str(base)),
        target=target,
        program=program,
        env=env,
        find=find,
    )
    program.add_dependency([_late(env, target, [], job)])

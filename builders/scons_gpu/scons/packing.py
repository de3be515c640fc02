"""What a module's images and a program's modules come to: fatbins, and the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scons_gpu.scons import sidecar
from scons_gpu.scons.images import makes_nothing, read_plan, remove
from scons_gpu.scons.later import later
from scons_gpu.scons.steps import Outcome, Step
from scons_gpu.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import scons_gpu.plan as plans
    from scons_gpu.assemble.making import Making
    from scons_gpu.link import bundle, bundled, fatbin, image, manifest, ptx, twins, whole
    from scons_gpu.lower.options import LowerOptions
    from scons_gpu.scons import unit_files
    from scons_gpu.scons.modules import Module
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Tool, Toolchain
else:
    bundle, bundled, fatbin = later("scons_gpu.link.bundle"), later("scons_gpu.link.bundled"), later("scons_gpu.link.fatbin")
    image, manifest, ptx = later("scons_gpu.link.image"), later("scons_gpu.link.manifest"), later("scons_gpu.link.ptx")
    plans, twins, whole = later("scons_gpu.plan"), later("scons_gpu.link.twins"), later("scons_gpu.link.whole")
    unit_files = later("scons_gpu.scons.unit_files")

__all__ = ["ManifestJob", "ModuleNode", "PackJob", "program_archs"]


@dataclass(kw_only=True)
class PackJob(Step):
    """A module's images become its fatbin."""

    stage: ClassVar[str] = "pack"
    images: Sequence[tuple[Target, Path]]
    plans: Sequence[Path]
    fatbinary: Tool | None

    def command(self) -> list[str]:
        """By hand."""
        return self.gpu("pack", *(str(path) for _, path in self.images))

    def makes_nothing(self) -> bool:
        """Without images there is no fatbin."""
        return makes_nothing(self.plans)

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """NVIDIA's own packer."""
        present = [(target, path) for target, path in self.images if path.exists()]
        if not present:
            remove(self.target)
            return Outcome(result="empty")
        remove(self.target.with_name(f"{self.name}.gpubundle"))  # of a build with another GPU_LINK: nobody may load it now
        write_atomic(self.target, fatbin.pack(present, fatbinary=self.fatbinary))
        return Outcome()


@dataclass(frozen=True)
class ModuleNode:
    """A module with what it came to in one program."""

    module: Module
    node: Any
    """Its fatbin or bundle; None for a module that has nothing of its own."""
    path: Path | None
    plans: tuple[tuple[Target, Any, Path], ...]
    """Architecture, the plan's node, its file."""
    lowered: tuple[tuple[str, LowerOptions], ...] = ()
    """Architecture → how its units are lowered."""
    texts: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """Architecture → what its sources were split from, in their order."""
    making: Making | None = None
    """What assembled and linked it; None where it ends with PTX."""
    front: Tool | None = None
    """What compiled its `.cu`; None where it has none."""

    def built(self) -> manifest.BuiltModule:
        """What the manifest says of it; in a bundle, all but the tree around it stands inside."""
        module = self.module
        made = self.path is not None and self.path.exists()
        bundled = module.settings.link == "bundle"
        return manifest.BuiltModule(
            name=module.name,
            bypass=module.bypass,
            submodules=tuple(dict.fromkeys(module.submodule_names)),
            archs=tuple(self._archs()) if made and not bundled else (),
            fatbin=self.path if made and not bundled else None,
            bundle=self.path if made and bundled else None,
            inner=self._inner(self.path) if self.path and made and bundled else None,
            options=self.options(),
            ir=dict(self.texts) if made else {},
        )

    def options(self) -> dict[str, Any]:
        """What the module was built with."""
        settings = self.module.settings
        return {
            "link": settings.link,
            "provider": self.making.name if self.making else None,
            "opt": settings.opt,
            "ftz": settings.ftz,
            "fast_math": settings.fast_math,
            "debug": settings.debug,
            "lineinfo": settings.lineinfo,
            "maxrregcount": settings.assemble.maxrregcount,
            "ptxas_flags": list(settings.assemble.flags),
            "ptx": {arch: options.ptx for arch, options in self.lowered},
            "lowered_by": {arch: options.by for arch, options in self.lowered},
        }

    def _inner(self, path: Path) -> manifest.Module:
        text = bundle.read_bundle(path.read_bytes(), path=str(path)).manifest
        return manifest.from_text(text, path=str(path)).modules[self.module.name]

    def _archs(self) -> list[manifest.BuiltArch]:
        found = []
        for target, _, path in self.plans:
            plan = read_plan(path)
            if not plan.is_empty:
                found.append(sidecar.read(plan, path.with_name(f"{target.name}.{'cubin' if target.real and self.making else 'ptx'}")))
        return found


def program_archs(modules: Sequence[Sequence[str]]) -> list[str]:
    """A program's architectures, from those of its modules, root last: the root's as given, then others by name.

    The order in which submodules were listed does not show.
    """
    root = list(modules[-1])
    return [*root, *sorted({arch for module in modules for arch in module} - set(root))]


@dataclass(kw_only=True)
class ManifestJob(Step):
    """All modules' results become the program's manifest."""

    stage: ClassVar[str] = "manifest"
    program: str
    modules: Sequence[ModuleNode]
    tools: Toolchain

    def command(self) -> list[str]:
        """Only a build knows all modules of a program."""
        return ["scons", str(self.target)]

    def work(self, node: Any) -> Outcome:  # noqa: ARG002 - a job's signature
        """Reads plans, resources and images."""
        built = [entry.built() for entry in self.modules]
        archs = program_archs([[target.name for target in entry.module.settings.archs] for entry in self.modules])
        tools = {name: manifest.ToolFact(version=version, identity=identity) for name, (version, identity) in self.tools_used().items()}
        text = manifest.build_manifest(self.program, archs=archs, modules=built, tools=tools, folder=self.target.parent)
        write_atomic(self.target, text)
        return Outcome()

    def tools_used(self) -> dict[str, tuple[str, str]]:
        """Version and identity of the tools that took part: one more on the machine changes no byte."""
        active = [entry.module for entry in self.modules if entry.node is not None]
        links = {module.settings.link for module in active}
        took_part = {
            "libdevice": True,
            "nvvm": any(options.by == "nvvm" for entry in self.modules for _, options in entry.lowered),
            "fatbinary": bool(links - {"bundle"}),
        }
        found = [self.tools.tool(name) for name, part in took_part.items() if part]
        found += [entry.front for entry in self.modules if entry.node is not None]
        for entry in self.modules:
            if entry.node is not None and entry.making:
                found += [entry.making.compiler, entry.making.linker if entry.module.settings.link == "image" else None]
        version, _, identity = self.tools.llvm.partition(" ")
        return {"llvm": (version, identity), **{tool.name: (tool.version, tool.identity) for tool in found if tool}}

"""Every provider that runs without a GPU, PTX for them, and inputs of links."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.assemble import dptx
from scons_gpu.assemble.defer import defer
from scons_gpu.assemble.driver import DriverProvider
from scons_gpu.assemble.nvjitlink import NvJitLinkProvider
from scons_gpu.assemble.nvlink import NvlinkProvider
from scons_gpu.assemble.nvptxcompiler import NvPtxCompilerProvider
from scons_gpu.assemble.pair import PairProvider
from scons_gpu.assemble.provider import Assembled, AssembleOptions, Linked, LinkInput
from scons_gpu.assemble.ptxas import PtxasProvider
from scons_gpu.link import elf
from scons_gpu.toolchain.arch import Target, parse
from scons_gpu.toolchain.tools import Tool, discover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driver_stub import DriverStub

    from scons_gpu.assemble.provider import Provider

HOME = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
SM_80, SM_90, SM_90A = parse(["sm_80", "sm_90", "sm_90a"])
UNKNOWN = Target(name="sm_33", real=True)
PLAIN = AssembleOptions()

HEAD = ".version 7.8\n.target sm_75\n.address_size 64\n"
WANTS = ".extern .func (.param .b32 r) ext(.param .b32 a);\n"
CALL = "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), ext, (a); ld.param.b32 %r1, [b]; }"


def kernel(name: str, body: str = "", *, regs: str = "", head: str = HEAD) -> str:
    return (
        f"{head}.visible .entry {name}(.param .u64 p)\n{{\n.reg .b64 %rd<4>; .reg .b32 %r<4>;{regs}\nld.param.u64 %rd1, [p];\n"
        f"mov.u32 %r1, %tid.x;\n{body}\nst.global.b32 [%rd1], %r1;\nret;\n}}\n"
    )


CALLER = kernel("caller", CALL, head=HEAD + WANTS)
CALLEE = (
    HEAD + ".visible .func (.param .b32 r) ext(.param .b32 a)\n{ .reg .b32 %r<4>; ld.param.b32 %r1, [a]; st.param.b32 [r], %r1; ret; }\n"
)
SPILLS = kernel(
    "_Z5heavyPf",
    "\n".join(f"ld.volatile.global.b32 %s{n}, [%rd1+{4 * n}];" for n in range(80))
    + "\n".join(f"st.volatile.global.b32 [%rd1+{4 * n}], %s{n * 37 % 80};" for n in range(80)),
    regs=" .reg .b32 %s<80>;",
)
BROKEN = kernel("fine") + kernel("broken", "frobnicate;", head="")
NARROW = AssembleOptions(maxrregcount=32)


def tool(name: str) -> Tool:
    path = HOME / "lib" / "libnvJitLink.so.13" if name == "nvjitlink" else HOME / "bin" / name
    return Tool(name=name, path=str(path), version="13.5.37", identity=name * 10, origin="wheel")


def every_provider(facts: Path, stub: DriverStub) -> dict[str, Provider]:
    """By name; `deferred on driver` is the driver over its stub."""
    ptxas = PtxasProvider(ptxas=tool("ptxas"), nvlink=tool("nvlink"), facts=facts)
    nvjitlink = NvJitLinkProvider(nvjitlink=tool("nvjitlink"), facts=facts)
    library = discover(environ=dict(os.environ), prefix=sys.prefix, facts=facts).library("nvptxcompiler")
    assert library is not None
    nvptxcompiler = NvPtxCompilerProvider(library, facts=facts)
    nvlink = NvlinkProvider(nvlink=tool("nvlink"))
    by_driver = DriverProvider(driver=replace(tool("driver"), version="13.0"), api=stub)
    return {
        "ptxas": ptxas,
        "nvjitlink": nvjitlink,
        "deferred on nvjitlink": defer(nvjitlink, always=True),
        "deferred on ptxas": defer(ptxas, always=True),
        "ptxas+nvjitlink": PairProvider(ptxas, nvjitlink, compiled_by=tool("ptxas"), linked_by=tool("nvjitlink")),
        "nvjitlink+nvlink": PairProvider(nvjitlink, nvlink, compiled_by=tool("nvjitlink"), linked_by=tool("nvlink")),
        "nvptxcompiler+nvlink": PairProvider(nvptxcompiler, nvlink, compiled_by=library, linked_by=tool("nvlink")),
        "nvptxcompiler+nvjitlink": PairProvider(nvptxcompiler, nvjitlink, compiled_by=library, linked_by=tool("nvjitlink")),
        "deferred on driver": defer(by_driver),
    }


MAKE_OBJECTS = ("ptxas", "nvjitlink", "ptxas+nvjitlink", "nvjitlink+nvlink", "nvptxcompiler+nvlink", "nvptxcompiler+nvjitlink")
NAMES = (*MAKE_OBJECTS, "deferred on nvjitlink", "deferred on ptxas", "deferred on driver")
TAKE_PTX = ("nvjitlink", "ptxas+nvjitlink", "nvptxcompiler+nvjitlink", "deferred on nvjitlink", "deferred on ptxas", "deferred on driver")


@dataclass
class Parts:
    """Inputs of links, each with its kernel and source."""

    folder: Path
    objects: Provider
    made: int = 0

    def save(self, data: bytes, name: str, suffix: str = ".cubin") -> LinkInput:
        self.made += 1
        path = self.folder / f"{self.made}{suffix}"
        path.write_bytes(data)
        return LinkInput(path=path, label=f"kernel {name} of net/{name}.cu", kernel=name, source=f"{name}.cu")

    def object(self, ptx: str, name: str = "k", *, target: Target = SM_90) -> LinkInput:
        return self.save(self.objects.compile_relocatable(ptx, target=target, options=PLAIN).data, name)

    def deferred(
        self, provider: Provider, ptx: str, name: str = "k", *, target: Target = SM_90, options: AssembleOptions = PLAIN
    ) -> LinkInput:
        spelled = tuple(
            word for word in provider.spelling(target=target, options=options, relocatable=True) if word not in {"deferred", dptx.FORMAT}
        )
        return self.save(dptx.write(ptx, arch=target.name, spelled=spelled, options=options), name, ".dptx")


def symbols(image: bytes) -> list[str]:
    return [each.symbol for each in elf.read(image).kernels]


def text_of(made: Assembled | Linked) -> list[bytes]:
    return [made.data[each.offset : each.offset + each.size] for each in sections(made.data) if each.name.startswith(".text.")]


def sections(data: bytes) -> Sequence[Any]:
    head = elf.cubin.head(data)
    assert not isinstance(head, str)
    return elf._sections(data, head.sections)

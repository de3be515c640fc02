"""The files of a build that never ran: log, plans, manifest, and what stands beside images, as the package's own writers write them.

What looks into a build reads these alone. A cold build of 10,000 kernels takes a quarter of an hour on two cores; this, seconds.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.link import manifest
from scons_gpu.plan import model
from scons_gpu.store import copies, sealed
from scons_gpu.store.log import BuildLog

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Built", "lay_out"]

ARCH = "sm_90"
BEGAN = 1_790_000_000.0
KEY = (("arch", ARCH), ("debug", "none"), ("fast-math", "0"), ("format", "scons-gpu/ptx/1"), ("ftz", "0"), ("libdevice", ""))
LLVM = "22.1.0 977e27481b9c4c94dfc5bfe62541b02533524ab243c66d9bbc0f67098ea37160"
OPTIONS = '["-v", "-arch=sm_90", "-c", "-enable-func-clone-sc", "true"]'


@dataclass(frozen=True)
class Built:
    """What a build looks like."""

    modules: int = 4
    kernels: int = 5
    """Of each module."""
    same: int = 1
    """Those of them that stand in all modules."""
    twins: int = 0
    """Those of them that differ from their neighbour by name alone."""
    headers: int = 3
    """That each source reads."""
    builds: int = 1
    """How often all was built."""
    ended: bool = True
    """Whether the last build came to its end."""


def lay_out(folder: Path, shape: Built) -> None:
    """Writes `.gpu-store` and `build` in a folder; the program is `build/net`, its root module `net` reaches all others."""
    store = folder / ".gpu-store"
    plans = [_plan(shape, module) for module in range(shape.modules)]
    for plan in plans:
        _beside(folder, shape, plan)
    (folder / "build/net.json").write_text(manifest.to_text(_manifest(plans)), encoding="utf-8")
    for number in range(shape.builds):
        last = number == shape.builds - 1
        _log(folder, BuildLog(store / "log.jsonl", build=f"build-{number}"), plans, ended=shape.ended or not last)


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plan(shape: Built, module: int) -> model.Plan:
    name = f"m{module}"
    parts = sorted((_part(shape, module, number) for number in range(shape.kernels)), key=lambda part: part.kernels[0].symbol)
    return model.Plan(module=name, arch=ARCH, link="image", parts=tuple(parts))


def _part(shape: Built, module: int, number: int) -> model.Part:
    common = number < shape.same
    name = f"common_{number}" if common else f"scale_m{module}_k{number}"
    twin = shape.same <= number < shape.same + shape.twins
    source = "src/common.cu" if common else f"src/m{module}.cu"
    kernel = model.PlannedKernel(f"_Z{len(name)}{name}PKfPf", f"{name}(float const*, float*)", source, max_threads=256)
    key = (*KEY, ("llvm", LLVM), ("lowered-by", "llvm"), ("nvvm", ""), ("opt", "3"), ("ptx", "90"), ("slice", _hex(f"slice {name}")))
    body = _hex("twins" if twin else f"body {name}")
    return model.Part(
        digest=_hex(name), key=key, slice=_hex(f"slice {name}"), role="unit", source=source, bytes=2000, body=body, kernels=(kernel,)
    )


def _object(part: model.Part) -> str:
    return f"{_hex(f'object {part.digest}')}.rel.cubin"


def _beside(folder: Path, shape: Built, plan: model.Plan) -> None:
    """The plan, what the link keeps, and what the front end read."""
    module = folder / "build/net" / plan.module
    module.mkdir(parents=True)
    (module / f"{ARCH}.plan.json").write_text(model.to_text(plan), encoding="utf-8")
    kept = {part.digest: {"object": _object(part), "resources": []} for part in plan.parts}
    (module / f"{ARCH}.link.json").write_text(sealed.to_text({"image": "", "parts": kept}), encoding="utf-8")
    for source in {part.source for part in plan.parts}:
        lines = [f"include/h{number}.h\n" for number in range(shape.headers)]
        read = ["/usr/include/math.h\n", *lines, "?missing.h\n"]
        (module / f"{Path(source).name}.{ARCH}.ll.d").write_text("".join(read), encoding="utf-8")


def _manifest(plans: list[model.Plan]) -> manifest.Manifest:
    tools = {name: manifest.ToolFact(version, "") for name, version in (("clang", "22.1.8"), ("llvm", "22.1.0"), ("ptxas", "13.5.37"))}
    modules = {plan.module: _module(plan) for plan in plans}
    modules["net"] = manifest.Module(bypass=False, submodules=tuple(sorted(modules)))
    more = {"nvlink": manifest.ToolFact("13.5.37", ""), "fatbinary": manifest.ToolFact("13.5.37", "")}
    return manifest.Manifest(program="net", archs=(ARCH,), tools={**tools, **more}, modules=modules)


def _module(plan: model.Plan) -> manifest.Module:
    kernels = {}
    for part in plan.parts:
        (kernel,) = part.kernels
        build = manifest.Build(part.digest, "llvm", _object(part).partition(".")[0], kernel.symbol, 32, 0, 0, 380, 0, 256)
        kernels[kernel.symbol] = manifest.Kernel(kernel.readable, kernel.source, {ARCH: build})
    return manifest.Module(
        bypass=False,
        fatbin=f"net/{plan.module}.fatbin",
        images={ARCH: manifest.Image(f"net/{plan.module}/{ARCH}.cubin", "")},
        kernels=kernels,
        options={"link": "image", "provider": "ptxas"},
        ir={ARCH: [f"net/{plan.module}/{plan.module}.cu.{ARCH}.ll"]},
    )


def _log(folder: Path, log: BuildLog, plans: list[model.Plan], *, ended: bool) -> None:
    log.write(type="start", argv=["-j2"], looking=False, jobs=2, top=str(folder))
    for record in _steps(folder, log.path.parent, plans):
        log.write(type="action", result="built", peak_kib=90_000, output="", **record)
    digests = sorted({part.digest for plan in plans for part in plan.parts})
    if ended:
        stem = folder / "build/net"
        log.write(
            type="end",
            ok=True,
            programs=[str(stem)],
            plans=[str(stem / plan.module / f"{ARCH}.plan.json") for plan in plans],
            units_needed=digests,
            units_deferred=[],
            wall_seconds=1.0,
            modules=len(plans),
            kernels=sum(len(plan.parts) for plan in plans),
            references=sum(len(plan.parts) for plan in plans),
            unique=len(digests),
            twins=0,
        )


def _steps(folder: Path, store: Path, plans: list[model.Plan]) -> Iterator[dict[str, object]]:
    """In the order in which two workers would end them, each of a hundredth of a second."""
    clock = iter(range(1 << 30))
    stem = folder / "build/net"

    def step(stage: str, name: str, target: Path, **more: object) -> dict[str, object]:
        turn = next(clock)
        start = BEGAN + 0.005 * turn
        times = {"start": round(start, 6), "end": round(start + 0.01, 6), "worker": os.getpid() + turn % 2, "cpu": 0.009}
        return {"stage": stage, "name": name, "arch": ARCH, "target": str(target), **times, **more}

    for plan in plans:
        base, owners = stem / plan.module, [plan.module]
        source = f"src/{plan.module}.cu"
        key = {"clang": f'"{LLVM}"', "flags": "[]", "defines": "[]", "cpppath": "[]"}
        yield step("source", source, base / f"{plan.module}.cu.{ARCH}.ll", owners=owners, key=key, because={"first": True})
        yield step("split", source, base / f"{plan.module}.cu.{ARCH}.index.json", owners=owners, key={"llvm": LLVM})
        kept = copies.keep(store, model.to_text(plan).encode())
        yield step("plan", plan.module, base / f"{ARCH}.plan.json", owners=owners, key={"link": '"image"'}, plan=kept)
    done: set[str] = set()
    for plan in plans:
        for part in (part for part in plan.parts if part.digest not in done):
            done.add(part.digest)
            unit = {"owners": [plan.module], "unit": part.digest, "role": "unit"}
            ptx = store / "ptx" / part.digest[:2] / f"{part.digest}.ptx"
            yield step("lower", part.readable, ptx, key=dict(part.key), **unit)
            made = store / "object" / _object(part)[:2] / _object(part)
            yield step("assemble", part.readable, made, key={"digest": part.digest, "kind": "rel", "options": OPTIONS}, **unit)
    for plan in plans:
        yield step("link", plan.module, stem / plan.module / f"{ARCH}.cubin", owners=[plan.module], key={"options": OPTIONS})
        yield step("pack", plan.module, stem / f"{plan.module}.fatbin", owners=[plan.module], key={})
    yield step("manifest", "build/net.json", folder / "build/net.json", owners=[], key={})

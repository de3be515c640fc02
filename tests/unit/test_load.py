"""Kernels from Python: which code is taken, and what is said where none can be. The GPU is a stand-in; tests/gpu has a real one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cuda_world import Status, World

import scons_gpu
from scons_gpu.errors import DamagedError, LaunchError, ToolMissingError, UsageError
from scons_gpu.link.bundle import Entry, write_bundle
from scons_gpu.link.manifest import Build, Image, Kernel, Manifest, Module, State, to_text
from scons_gpu.toolchain import cuda_driver

if TYPE_CHECKING:
    from collections.abc import Callable

RELU, SOFTMAX, SOFTMAX_D = "_Z4reluPfi", "_Z7softmaxILi256EEvPf", "_Z7softmaxILi256EEvPd"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def build(arch: str, *, key: str | None = None, entry: str = "", code: bytes | None = None) -> Build:
    return Build(
        unit=f"unit{arch}",
        lowered_by="llvm",
        object=key,
        entry=entry,
        registers=8,
        spill_bytes=0,
        shared_bytes=0,
        constant_bytes=None,
        stack_bytes=None,
        max_threads=1024,
        sha256=sha(code) if code is not None else None,
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An image module for three architectures, where two kernels are only in one; a bundle; a module without kernels."""
    images = {}
    for arch, suffix in {"sm_80": "cubin", "sm_90": "cubin", "compute_80": "ptx"}.items():
        path = tmp_path / "net" / "then" / f"{arch}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(arch.encode())
        images[arch] = Image(file=f"net/then/{arch}.{suffix}", sha256=sha(arch.encode()))
    archs = {arch: build(arch, entry="not the image's") for arch in images}
    then = Module(
        bypass=False,
        images=images,
        state=(State(symbol="counter", bytes=4, space="global"),),
        kernels={
            RELU: Kernel(readable="relu(float*, int)", source="relu.cu", archs=archs),
            SOFTMAX: Kernel(readable="softmax<256>(float*)", source="softmax.cu", archs=archs),
            SOFTMAX_D: Kernel(readable="softmax<256>(double*)", source="softmax.cu", archs={"sm_80": archs["sm_80"]}),
        },
    )
    objects = [Entry("sm_90", "k1.cubin", b"twins"), Entry("sm_80", "k2.cubin", b"old"), Entry("compute_90", "unitcompute_90.ptx", b"text")]
    made = {"sm_90": build("sm_90", key="k1", entry="body", code=b"twins"), "sm_80": build("sm_80", key="k2", entry="one", code=b"old")}
    made["compute_90"] = build("compute_90", entry="one", code=b"text")
    apart = Module(
        bypass=False,
        bundle="net/apart.gpubundle",
        state=(State(symbol="memo", bytes=8, space="constant"),),
        kernels={"one": Kernel(readable="one", source="a.ll", archs=made)},
    )
    (tmp_path / "net" / "apart.gpubundle").write_bytes(write_bundle(objects, manifest="{}"))
    manifest = Manifest(program="net", archs=tuple(images), tools={}, modules={"then": then, "apart": apart, "none": Module(bypass=True)})
    (tmp_path / "net.json").write_text(to_text(manifest))
    return tmp_path / "net.json"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(
        cuda_driver, "packages", lambda extra: cuda_driver.Packages(made.core(), made.driver()) if extra == "load" else None
    )
    return made


def loads(world: World) -> list[str]:
    return [line for line in world.log if not line.startswith("device")]


def test_what_there_is_is_listed_without_cuda_or_scons(program: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["cuda", "cuda.core", "cuda.bindings", "numpy", "SCons", "llvmlite"]))
import scons_gpu
net = scons_gpu.load({str(program)!r})
print(list(net), len(net), "then" in net, "else" in net)
print(list(net["then"]), net["then"].kernels["{RELU}"].archs["sm_90"].registers, "relu" in net["then"], "softmax" in net["then"])
print(net["then"].archs, net["apart"].archs, net["none"].archs, dict(net["then"].state))
print(net["apart"], net, [name for name in sys.modules if name.partition(".")[0] in ("cuda", "numpy") and sys.modules[name]])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(scons_gpu.__file__).parents[1]
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "['apart', 'none', 'then'] 3 True False",
        f"['{RELU}', '{SOFTMAX_D}', '{SOFTMAX}'] 8 True False",
        "('sm_90', 'sm_80', 'compute_80') ('sm_90', 'sm_80', 'compute_90') () {'counter': State(symbol='counter', bytes=4, space='global')}",
        "<module apart: one> <program net: apart, none, then> []",
    ]


@pytest.mark.parametrize(
    ("capability", "then", "apart"),
    [
        ((8, 0), "cubin sm_80", "cubin old one"),
        ((8, 9), "cubin sm_80", "cubin old one"),
        ((8, 7), "ptx compute_80", None),
        ((9, 0), "cubin sm_90", "cubin twins body"),  # one object for two names
        ((12, 0), "ptx compute_80", "ptx text one"),
    ],
)
def test_a_device_gets_its_image_its_object_or_ptx(
    program: Path, world: World, capability: tuple[int, int], then: str, apart: str | None
) -> None:
    world.capability = capability
    net = scons_gpu.load(program)
    assert world.log == []
    assert net["then"]["relu"].what == f"{then} {RELU}"
    if apart:
        assert net["apart"]["one"].what == apart
    else:
        with pytest.raises(LaunchError):
            net["apart"]["one"]


def test_a_kernel_has_three_names(program: Path, world: World) -> None:
    then = scons_gpu.load(program)["then"]
    assert then["relu"] is then["relu(float*, int)"] is then[RELU]
    assert then.symbol("softmax<256>(float*)") == SOFTMAX
    assert loads(world) == [f"cubin sm_90 {RELU}"]
    for name, said in {
        "softmax<256>": "softmax<256> may be each of 2 kernels of module then\n  name one in full: softmax<256>(double*), softmax<256>(float*)",
        "rellu": "module then has no kernel rellu\n  is relu(float*, int) meant?",
        "zzz": "module then has no kernel zzz\n  it has relu(float*, int), softmax<256>(double*), softmax<256>(float*)",
    }.items():
        with pytest.raises(UsageError) as caught:
            then[name]
        assert str(caught.value) == said
    for ask, said in {
        lambda: scons_gpu.load(program)["thn"]: f"{program} has no module thn\n  is then meant?",
        lambda: scons_gpu.load(program)["none"]["relu"]: "module none has no kernel relu\n  it has no kernels",
        lambda: then.variable("countr"): "module then has no variable countr\n  is counter meant?",
    }.items():
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value) == said


def test_where_no_code_runs_the_device_is_told_what_there_is(program: Path, world: World) -> None:
    world.capability = (7, 5)
    net = scons_gpu.load(program)
    with pytest.raises(LaunchError) as caught:
        net["then"]["relu"]
    assert str(caught.value) == (
        "kernel relu(float*, int) of then/relu.cu: nothing that was built runs on NVIDIA H200, which is 7.5; there is code for "
        "sm_90, sm_80, compute_80\n  add sm_75 to GPU_ARCHS, or compute_75 for all from there on"
    )
    with pytest.raises(LaunchError, match=r"module then: variable counter: nothing that was built runs"):
        net["then"].variable("counter")
    world.capability = (9, 0)
    with pytest.raises(LaunchError, match="takes the module's code for sm_90, which lacks the kernel; it is in that for sm_80"):
        net["then"]["softmax<256>(double*)"]  # from another image it would have other variables
    assert loads(world) == []


@pytest.mark.usefixtures("world")
def test_an_image_is_loaded_once_for_all_its_kernels_and_threads(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    code = cuda_driver.code
    monkeypatch.setattr(cuda_driver, "code", lambda core, image, *, ptx: made.append(image) or code(core, image, ptx=ptx))
    then = scons_gpu.load(program)["then"]
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda place: then[RELU if place % 2 else SOFTMAX], range(16)))
    assert len({id(kernel) for kernel in kernels}) == 2
    then.variable("counter")
    assert made == [b"sm_90"]


def test_g1_a_variable_has_an_address_in_the_library_of_its_kernels(program: Path, world: World) -> None:
    net = scons_gpu.load(program)
    found = net["then"].variable("counter")
    assert (found.symbol, found.address, found.bytes, found.space) == ("counter", 0x7000, 4, "global")
    with pytest.raises(UsageError, match=r'a bundle, in which each kernel has variables of its own\n  name a kernel .* kernel="..."'):
        net["apart"].variable("memo")
    assert net["apart"].variable("memo", kernel="one").space == "constant"
    assert loads(world) == ["cubin sm_90 counter", "cubin twins memo"]
    world.found = Status("CUDA_ERROR_INVALID_CONTEXT", 201)
    with pytest.raises(LaunchError) as caught:
        net["then"].variable("counter")
    assert str(caught.value) == (
        "module then: variable counter: the driver says CUDA_ERROR_INVALID_CONTEXT\n  make a device current: cuda.core.Device().set_current()"
    )


def test_what_the_driver_refuses_names_the_kernel(program: Path, world: World) -> None:
    world.fails[f"cubin sm_90 {RELU}"] = RuntimeError("CUDA_ERROR_INVALID_IMAGE:\n  no image")
    with pytest.raises(
        LaunchError, match=r"kernel relu\(float\*, int\) of then/relu.cu: it does not load: CUDA_ERROR_INVALID_IMAGE: no image"
    ):
        scons_gpu.load(program)["then"]["relu"]
    world.fails["device current"] = RuntimeError("CUDA_ERROR_DEVICE_UNAVAILABLE")
    with pytest.raises(LaunchError, match="the current device cannot be used: CUDA_ERROR_DEVICE_UNAVAILABLE"):
        scons_gpu.load(program)["then"]["relu"]


def test_without_driver_device_or_package_one_line_says_so(program: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.devices = 0
    with pytest.raises(ToolMissingError) as caught:
        scons_gpu.load(program)["then"]["relu"]
    assert str(caught.value) == (
        "there is a CUDA driver on this machine, and no device\n  kernels are loaded on a machine with an NVIDIA GPU; they can be listed on any"
    )
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ToolMissingError, match=r"cuda\.core cannot be loaded by this Python: .*\n  pip install 'scons-gpu\[load\]'"):
        scons_gpu.load(program)["then"]["relu"]


def moved(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(path.read_text().replace("scons-gpu/manifest/1", text))


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (
            "net.json",
            moved("scons-gpu/manifest/9"),
            "schema 'scons-gpu/manifest/9' is not 'scons-gpu/manifest/1'\n  read it with the version",
        ),
        ("net.json", lambda path: path.write_text("{}"), "net.json: not a manifest: 'schema'\n  build the program again"),
        ("net.json", lambda path: path.write_bytes(b"\xff"), "net.json: cannot be read: .*\n  env.GpuProgram writes it"),
        ("net.json", Path.unlink, "net.json: cannot be read: no such file or directory"),
    ],
)
def test_what_is_no_manifest_is_named(program: Path, name: str, damage: Callable[[Path], None], said: str) -> None:
    damage(program.parent / name)
    with pytest.raises(DamagedError, match=said):
        scons_gpu.load(program)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (
            "net/then/sm_90.cubin",
            lambda path: path.write_bytes(b"sm_9x"),
            "net/then/sm_90.cubin: not the code that its manifest names\n  load",
        ),
        ("net/then/sm_90.cubin", Path.unlink, "net/then/sm_90.cubin: cannot be read: no such file or directory\n  code lies where"),
        ("net/apart.gpubundle", Path.unlink, "net/apart.gpubundle: cannot be read: no such file"),
        ("net/apart.gpubundle", lambda path: path.write_bytes(b"PK"), "net/apart.gpubundle: not the bundle that its manifest names: "),
        (
            "net/apart.gpubundle",
            lambda path: path.write_bytes(write_bundle([], manifest="{}")),
            r"net/apart.gpubundle: not the bundle that its manifest names: .*sm_90/k1\.cubin",
        ),
        (
            "net/apart.gpubundle",
            lambda path: path.write_bytes(write_bundle([Entry("sm_90", "k1.cubin", b"other")], manifest="{}")),
            r"net/apart.gpubundle: sm_90/k1\.cubin: not the code that its manifest names",
        ),
    ],
)
def test_l8_code_that_is_not_what_was_built_is_not_loaded(program: Path, name: str, damage: Callable[[Path], None], said: str) -> None:
    net = scons_gpu.load(program)
    damage(program.parent / name)
    with pytest.raises(DamagedError, match=said):
        _ = net["then"]["relu"], net["apart"]["one"]


def test_without_an_assembler_an_image_is_ptx_for_all_that_is_newer(program: Path, world: World) -> None:
    text = b"// ptx"
    (program.parent / "k.ptx").write_bytes(text)
    images = {arch: Image(file="k.ptx", sha256=sha(text)) for arch in ("compute_90", "sm_90")}
    kernels = {"k": Kernel(readable="k", source="k.ll", archs={arch: build(arch) for arch in images})}
    manifest = Manifest(program="net", archs=tuple(images), tools={}, modules={"net": Module(bypass=False, images=images, kernels=kernels)})
    program.write_text(to_text(manifest))
    world.capability = (12, 0)
    net = scons_gpu.load(str(program))["net"]
    assert (net.archs, net["k"].what) == (("compute_90",), "ptx // ptx k")

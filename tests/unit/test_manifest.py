from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from scons_gpu.errors import DamagedError, LinkError
from scons_gpu.link.bundle import Entry, read_bundle, write_bundle
from scons_gpu.link.manifest import (
    SCHEMA,
    BuiltArch,
    BuiltModule,
    Manifest,
    ToolFact,
    build_manifest,
    from_text,
    to_text,
)
from scons_gpu.plan.model import Part, Plan, PlannedKernel, PlannedState
from scons_gpu.store.record import Record, Resources

ROOT = Path(__file__).parents[2]
BIN = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/bin"))
HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"
TOOLS = {"ptxas": ToolFact(version="13.5.37", identity="ab" * 32), "llvm": ToolFact(version="22.1.0", identity="cd" * 32)}
# 600 bytes of shared memory, launch bounds, a stack frame.
BOUNDED = """.visible .entry bounded(.param .u64 p, .param .u32 i)
.maxntid 64, 2
{
	.shared .align 4 .b8 tile[600];
	.local .align 4 .b8 frame[64];
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [p];
	ld.param.u32 %r1, [i];
	mov.u64 %rd2, frame;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd2, %rd3;
	st.local.u32 [frame+8], %r1;
	st.local.u32 [frame+60], 7;
	st.local.u32 [%rd4], %r1;
	mov.u32 %r4, %tid.x;
	mul.wide.u32 %rd3, %r4, 4;
	add.s64 %rd4, %rd2, %rd3;
	ld.local.u32 %r2, [%rd4];
	st.shared.u32 [tile+16], %r2;
	bar.sync 0;
	ld.shared.u32 %r3, [tile+400];
	st.global.u32 [%rd1], %r3;
	ret;
}
"""
PLAIN = ".visible .entry plain(.param .u64 p)\n{\n\tret;\n}\n"


def assemble(text: str, path: Path, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".in").write_text(HEAD + text)
    subprocess.run([BIN / "ptxas", "-arch=sm_90", *options, path.with_suffix(".in").name, "-o", path.name], cwd=path.parent, check=True)
    path.with_suffix(".in").unlink()
    return path


def part(symbol: str, digest: str, **fields: object) -> Part:
    kernel = PlannedKernel(symbol=symbol, readable=f"{symbol}(float*)", source="a.cu", shared_bytes=600, **fields)
    return Part(digest=digest * 32, key=(("lowered-by", "llvm"),), slice="", role="unit", source="a.cu", bytes=0, kernels=(kernel,))


CHOSEN = {"by": "resources", "candidate": "TILE=64", "why": "it spills 0 bytes", "of": 3, "failed": 1}
PARTS = (part("bounded", "a", max_threads=128), part("plain", "b"))
STATE = (PlannedState(symbol="memo.0123456789abcdef", bytes=4, space="global", source="a.cu"),)


def record(kernel: str) -> Record:
    reported = Resources(kernel=kernel, registers=99, spill_stores=8, spill_loads=16, shared_bytes=0, stack_bytes=0, constant_bytes=0)
    return Record(sha256="", bytes=0, key=(), resources=(reported,))


def image_module(folder: Path) -> BuiltModule:
    """As an image build leaves it: one image, and PTX for GPUs to come."""
    image = assemble(BOUNDED + PLAIN, folder / "net" / "net" / "sm_90.cubin")
    ptx = folder / "net" / "net" / "compute_90.ptx"
    ptx.write_text(HEAD + BOUNDED + PLAIN)
    objects = {each.digest: folder / "store" / f"{each.digest[:8]}.rel.cubin" for each in PARTS}
    plan = Plan(module="net", arch="sm_90", link="image", parts=PARTS, state=STATE)
    real = BuiltArch(plan=plan, image=image, objects=objects, records={PARTS[0].digest: record("bounded")})
    virtual = BuiltArch(plan=dataclasses.replace(plan, arch="compute_90"), image=ptx)
    return BuiltModule(
        name="net", submodules=("then", "else"), archs=(real, virtual), fatbin=folder / "net" / "net.fatbin", options={"opt": 3}
    )


def build(folder: Path, *modules: BuiltModule) -> str:
    return build_manifest("build/net", archs=["sm_90", "compute_90"], modules=modules, tools=TOOLS, folder=folder)


def valid(text: str) -> dict[str, object]:
    data = json.loads(text)
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, schema, cls=jsonschema.Draft202012Validator)
    return data


def cuobjdump(path: Path) -> dict[str, dict[str, int]]:
    shown = subprocess.run([BIN / "cuobjdump", "-res-usage", path.name], cwd=path.parent, capture_output=True, text=True, check=True).stdout
    usage = re.findall(r"Function (\w+):\n\s*(.*)", shown)
    return {name: {key: int(value) for key, value in re.findall(r"([\w\[\]]+):(\d+)", line)} for name, line in usage}


def test_m1_what_an_image_holds(tmp_path: Path) -> None:
    module = image_module(tmp_path)
    data = valid(build(tmp_path, module))
    image = tmp_path / "net/net/sm_90.cubin"
    assert (data["schema"], data["program"], data["archs"]) == (SCHEMA, "build/net", ["sm_90", "compute_90"])
    assert data["tools"]["ptxas"] == {"version": "13.5.37", "identity": "ab" * 32}
    net = data["modules"]["net"]
    assert net["images"]["sm_90"] == {"file": "net/net/sm_90.cubin", "sha256": hashlib.sha256(image.read_bytes()).hexdigest()}
    assert net["images"]["compute_90"]["file"] == "net/net/compute_90.ptx"
    assert (net["fatbin"], net["bundle"], net["submodules"], net["bypass"]) == ("net/net.fatbin", None, ["else", "then"], False)
    assert net["options"] == {"opt": 3}
    assert net["state"] == [{"symbol": "memo_$_0123456789abcdef", "bytes": 4, "space": "global"}]
    bounded = net["kernels"]["bounded"]
    assert (bounded["readable"], bounded["source"], sorted(bounded["archs"])) == ("bounded(float*)", "a.cu", ["compute_90", "sm_90"])


def test_resources_are_those_of_the_image_and_spills_the_assemblers(tmp_path: Path) -> None:
    data = valid(build(tmp_path, image_module(tmp_path)))
    shown = cuobjdump(tmp_path / "net/net/sm_90.cubin")
    for symbol, kernel in data["modules"]["net"]["kernels"].items():
        made = kernel["archs"]["sm_90"]
        assert made["registers"] == shown[symbol]["REG"]
        assert made["stack_bytes"] == shown[symbol]["STACK"]
    bounded = data["modules"]["net"]["kernels"]["bounded"]["archs"]["sm_90"]
    assert 600 <= bounded["shared_bytes"] <= 608
    assert bounded["stack_bytes"] == 64
    assert (bounded["spill_bytes"], bounded["max_threads"]) == (24, 128)
    assert (bounded["unit"], bounded["object"], bounded["entry"], bounded["lowered_by"]) == ("a" * 32, "a" * 8, "bounded", "llvm")
    plain = data["modules"]["net"]["kernels"]["plain"]["archs"]["sm_90"]
    assert (plain["spill_bytes"], plain["max_threads"], plain["shared_bytes"]) == (None, 1024, 0)
    assert plain["constant_bytes"] > 0


def test_a1_of_ptx_only_the_plan_is_known(tmp_path: Path) -> None:
    made = valid(build(tmp_path, image_module(tmp_path)))["modules"]["net"]["kernels"]["bounded"]["archs"]["compute_90"]
    unknown = {name for name, value in made.items() if value is None}
    assert unknown == {"object", "registers", "spill_bytes", "constant_bytes", "stack_bytes"}
    assert (made["shared_bytes"], made["max_threads"], made["entry"]) == (600, 128, "bounded")
    assert "chosen" not in made


def test_m3_m4_modules_without_images(tmp_path: Path) -> None:
    data = valid(build(tmp_path, BuiltModule(name="off", bypass=True, submodules=("net",)), BuiltModule(name="empty")))
    nothing = {"fatbin": None, "bundle": None, "images": {}, "state": [], "kernels": {}, "options": {}, "ir": {}}
    assert data["modules"] == {
        "off": {"bypass": True, "submodules": ["net"], **nothing},
        "empty": {"bypass": False, "submodules": [], **nothing},
    }


def test_m7_t10_neither_order_nor_place_changes_a_byte(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "quite" / "elsewhere"
    one = build(here, image_module(here), BuiltModule(name="empty"))
    moved = image_module(there)
    other = build(there, BuiltModule(name="empty"), dataclasses.replace(moved, submodules=moved.submodules[::-1], archs=moved.archs[::-1]))
    assert one == other
    assert str(tmp_path) not in one


def test_d1_twins_of_a_bundle_share_an_object(tmp_path: Path) -> None:
    shared = assemble(PLAIN, tmp_path / "store" / "0123.cubin")
    twins = (part("plain", "a"), part("twin", "b"))
    plan = Plan(module="net", arch="sm_90", link="bundle", parts=twins)
    objects = {each.digest: shared for each in twins}
    records = {each.digest: record("plain") for each in twins}
    contents = {digest: path.read_bytes() for digest, path in objects.items()}
    built = BuiltArch(plan=plan, objects=objects, contents=contents, records=records, entries={"twin": "plain"})
    text = build(tmp_path, BuiltModule(name="net", archs=(built,), bundle=tmp_path / "net.gpubundle"))
    module = valid(text)["modules"]["net"]
    assert (module["bundle"], module["images"]) == ("net.gpubundle", {})
    made = [module["kernels"][name]["archs"]["sm_90"] for name in ("plain", "twin")]
    assert [(each["unit"][0], each["object"], each["entry"], each["spill_bytes"]) for each in made] == [
        ("a", "0123", "plain", 24),
        ("b", "0123", "plain", 24),
    ]
    assert made[0]["registers"] == made[1]["registers"] == cuobjdump(shared)["plain"]["REG"]
    entries = [Entry("sm_90", f"{each['object']}.cubin", shared.read_bytes()) for each in made]
    bundle = read_bundle(write_bundle(entries, manifest=text))
    for each in made:
        assert bundle.objects[f"sm_90/{each['object']}.cubin"] == shared.read_bytes()
    assert from_text(bundle.manifest).modules["net"].kernels["twin"].archs["sm_90"].entry == "plain"


def test_l8_an_image_that_lacks_a_kernel_or_does_not_read_is_refused(tmp_path: Path) -> None:
    module = image_module(tmp_path)
    image = assemble(PLAIN, tmp_path / "net" / "net" / "sm_90.cubin")
    with pytest.raises(LinkError, match=r"net/a\.cu: kernel bounded\(float\*\) is not in what was built for sm_90"):
        build(tmp_path, module)
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(DamagedError, match=r"sm_90\.cubin"):
        build(tmp_path, module)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    text = build(tmp_path, image_module(tmp_path))
    manifest = from_text(text)
    assert to_text(manifest) == text
    kernel = manifest.modules["net"].kernels["bounded"]
    assert (kernel.readable, kernel.archs["sm_90"].spill_bytes, manifest.archs) == ("bounded(float*)", 24, ("sm_90", "compute_90"))
    chosen = dataclasses.replace(kernel.archs["sm_90"], chosen=CHOSEN)
    kernel.archs["sm_90"] = chosen
    assert valid(to_text(manifest))["modules"]["net"]["kernels"]["bounded"]["archs"]["sm_90"]["chosen"] == CHOSEN
    assert from_text(to_text(manifest)) == manifest


def test_fields_that_a_later_version_added_are_passed_over(tmp_path: Path) -> None:
    text = build(tmp_path, image_module(tmp_path))
    data = json.loads(text)
    data["new"] = data["modules"]["net"]["new"] = data["modules"]["net"]["kernels"]["plain"]["archs"]["sm_90"]["new"] = 1
    valid(json.dumps(data))
    assert from_text(json.dumps(data)) == from_text(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "net.json: not a manifest"),
        ("[]", "net.json: not a manifest"),
        ("{}", "net.json: not a manifest: 'schema'"),
        ('{"schema": "scons-gpu/manifest/2"}', "net.json: schema 'scons-gpu/manifest/2' is not 'scons-gpu/manifest/1'"),
        ('{"schema": "scons-gpu/manifest/1", "program": "p", "archs": [], "tools": {}, "modules": {"m": {}}}', "net.json: not a manifest"),
        ('{"schema": "scons-gpu/manifest/1", "program": "p", "archs": 1, "tools": {}, "modules": {}}', "net.json: not a manifest"),
    ],
)
def test_what_is_no_manifest_is_named(text: str, said: str) -> None:
    with pytest.raises(DamagedError, match=re.escape(said)):
        from_text(text, path="net.json")


def test_the_schema_refuses_what_the_design_does_not_name(tmp_path: Path) -> None:
    text = build(tmp_path, image_module(tmp_path))
    for old, new in (
        ('"lowered_by": "llvm"', '"lowered_by": "gcc"'),
        ('"space": "global"', '"space": "shared"'),
        ('"file": "net/', '"file": "/abs/net/'),
        ('"max_threads": 128', '"max_threads": null'),
        ('"registers"', '"register"'),
    ):
        assert old in text
        with pytest.raises(jsonschema.ValidationError):
            valid(text.replace(old, new))


def test_every_field_is_in_the_schema() -> None:
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
    assert set(schema["properties"]) == {"schema", *(field.name for field in dataclasses.fields(Manifest))}
    for name in ("module", "kernel", "build"):
        kind = getattr(sys.modules["scons_gpu.link.manifest"], name.title())
        assert set(schema["$defs"][name]["properties"]) == {field.name for field in dataclasses.fields(kind)}


def test_what_lowered_is_in_the_manifest(tmp_path: Path) -> None:
    """By kernel, and null for what came as PTX."""
    module = image_module(tmp_path)
    keys = {"bounded": (("lowered-by", "nvvm"),), "plain": ()}
    archs = [
        dataclasses.replace(
            built,
            plan=dataclasses.replace(
                built.plan, parts=tuple(dataclasses.replace(part, key=keys[part.kernels[0].symbol]) for part in built.plan.parts)
            ),
        )
        for built in module.archs
    ]
    data = valid(build(tmp_path, dataclasses.replace(module, archs=tuple(archs))))
    kernels = data["modules"]["net"]["kernels"]
    assert {symbol: one["archs"]["sm_90"]["lowered_by"] for symbol, one in kernels.items()} == {"bounded": "nvvm", "plain": None}

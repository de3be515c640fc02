from __future__ import annotations

from dataclasses import replace

from scons_gpu.inspect.differing import Place
from scons_gpu.inspect.origins import Built, Cause, by_provenance, causes
from scons_gpu.link.manifest import Image, Kernel, Manifest, Module, to_text
from scons_gpu.link.provenance import Input, Provenance

IR, PLAN, IMAGE = "b/net/m/k.cu.sm_90.ll", "b/net/m/sm_90.plan.json", "b/net/m/sm_90.cubin"
MODULE = Module(
    bypass=False,
    images={"sm_90": Image(file="net/m/sm_90.cubin", sha256="0" * 64)},
    kernels={"k": Kernel(readable="k", source="src/k.cu")},
    ir={"sm_90": ["net/m/k.cu.sm_90.ll"]},
)


def built(folder: str = "/one", module: Module = MODULE, **files: bytes) -> Built:
    text = to_text(Manifest(program="net", archs=("sm_90",), tools={}, modules={"m": module}))
    return Built(folder, {"b/net.json": text.encode(), IR: b"ir", PLAN: b"plan", IMAGE: b"image", **files})


def test_equal_builds_have_no_cause() -> None:
    assert causes(built(), built("/two")) == []


def test_the_earliest_of_a_chain_is_named_alone() -> None:
    found = causes(built(**{IR: b"at /one", PLAN: b"1", IMAGE: b"1"}), built("/two", **{IR: b"at /two", PLAN: b"2", IMAGE: b"2"}))
    assert [(cause.input, cause.place) for cause in found] == [("src/k.cu", Place("line 1", "at /one", "at /two"))]
    assert "the folder that it was built in" in found[0].why
    assert "a time, a number" in causes(built(**{IR: b"1"}), built("/two", **{IR: b"2"}))[0].why


def test_what_a_compiler_read_is_named_before_the_source() -> None:
    one, other = (built(**{IR: data, f"{IR}.d": b"gen/h.h\n?absent.h\n", "gen/h.h": data}) for data in (b"1", b"2"))
    assert [cause.input for cause in causes(one, other)] == ["gen/h.h"]


def test_with_equal_ir_it_is_options_or_tools() -> None:
    assert [cause.input for cause in causes(built(**{PLAN: b"1", IMAGE: b"1"}), built("/two"))] == ["the options of module m"]
    assert [cause.input for cause in causes(built(**{IMAGE: b"1"}), built("/two"))] == ["the tools of module m"]


def test_a_source_of_one_build_alone_is_told() -> None:
    other = replace(MODULE, ir={"sm_90": []})
    found = causes(built(), Built("/two", {name: data for name, data in built(module=other).files.items() if name != IR}))
    assert [(cause.input, "in one of the builds alone" in cause.why) for cause in found] == [("src/k.cu", True)]


def test_releases_are_told_apart_by_what_they_say_of_themselves() -> None:
    one = Provenance({}, [Input("source", "k.cu", "1" * 64), Input("tool", "ptxas", "2" * 64, "13.5")], {}, {"compression": {"level": 19}})
    other = Provenance({}, [Input("source", "k.cu", "1" * 64), Input("tool", "ptxas", "3" * 64, "13.6")], {}, {"compression": {"level": 3}})
    assert by_provenance(one, one) == []
    assert by_provenance(one, other)[0] == Cause("tool ptxas", "is another here", Place("", f"13.5 {'2' * 64}", f"13.6 {'3' * 64}"))
    assert by_provenance(one, other)[1].input == "the packing"

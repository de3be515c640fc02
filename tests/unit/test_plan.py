from __future__ import annotations

import pytest

from scons_gpu.errors import DamagedError, MissingSymbolError, RefusedError
from scons_gpu.plan import Joined, Plan, from_text, plan, refusal, to_text
from scons_gpu.split import index as indexes
from scons_gpu.split.index import Export, Index, Kernel, Offer, State, Table, Type, Unit


def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return (("libdevice", str(libdevice)), ("renames", repr(renames)), ("slice", slice_name))


def unit(name: str, text: str = "", **fields: object) -> Unit:
    return Unit(kernels=(Kernel(symbol=name, readable=name),), slice=text or f"slice-{name}", bytes=10, body="b", **fields)


def index(source: str, *units: Unit, **fields: object) -> Index:
    return Index(source=source, arch="sm_90", form="apart", units=units, **fields)


def state(name: str, *, private: bool = False, weak: bool = False, content: str = "c", size: int = 4, space: str = "global") -> State:
    return State(symbol=name, name=name, bytes=size, space=space, private=private, weak=weak, content=content)


def planned(*found: Index, link: str = "image") -> Plan:
    return plan(found, module="m", arch="sm_90", link=link, key=key)


def test_units_stand_in_order_of_their_kernels() -> None:
    made = planned(index("b.ll", unit("z"), unit("a")), index("a.ll", unit("k")))
    assert [part.kernels[0].symbol for part in made.parts] == ["a", "k", "z"]


def test_s2_an_equal_kernel_of_two_sources_is_one_unit() -> None:
    made = planned(index("a.ll", unit("k")), index("b.ll", unit("k")))
    assert [part.source for part in made.units] == ["a.ll"]


def test_s2_a_different_kernel_of_one_name_names_both_sources() -> None:
    with pytest.raises(RefusedError, match=r"a\.ll and in b\.ll") as error:
        planned(index("a.ll", unit("k", "one")), index("b.ll", unit("k", "two")))
    assert "two modules" in str(error.value)
    assert error.value.module == "m"


def test_d6_a_visible_variable_of_two_sources_names_both() -> None:
    with pytest.raises(RefusedError, match=r"variable x is defined in a\.cu and in b\.cu"):
        planned(index("a.cu", state=(state("x"),), state_slice="s"), index("b.cu", state=(state("x"),), state_slice="s"))


def test_d6_in_a_bundle_each_source_keeps_its_own() -> None:
    made = planned(index("a.cu", unit("f"), state=(state("x"),)), index("b.cu", unit("g"), state=(state("x", size=8),)), link="bundle")
    assert [(found.symbol, found.source) for found in made.state] == [("x", "a.cu")]
    assert all(not part.renames and not part.refused for part in made.parts)


def test_d6_a_private_variable_of_two_sources_is_two() -> None:
    private = state("memo$0123456789abcdef", private=True)
    made = planned(
        index("a.cu", unit("f", state=(private.symbol,)), state=(private,), state_slice="s"),
        index("b.cu", unit("g", state=(private.symbol,)), state=(private,), state_slice="s"),
    )
    assert [found.symbol for found in made.state] == [private.symbol, f"{private.symbol}$2"]
    first, second = made.units
    assert first.renames == ()
    assert second.renames == ((private.symbol, f"{private.symbol}$2"),)
    assert second.uses == (f"{private.symbol}$2",)
    states = [part for part in made.parts if part.role == "state"]
    assert sorted(part.defines for part in states) == [(private.symbol,), (f"{private.symbol}$2",)]


def test_r2_state_that_calls_libdevice_has_it_in_its_key() -> None:
    (part,) = planned(index("a.cu", state=(state("x"),), state_slice="s", state_libdevice=True)).parts
    assert dict(part.key)["libdevice"] == "True"


def test_equal_weak_variables_of_two_sources_are_one() -> None:
    weak = state("x", weak=True)
    made = planned(index("a.cu", state=(weak,), state_slice="s"), index("b.cu", state=(weak,), state_slice="s"))
    assert [found.symbol for found in made.state] == ["x"]


def test_different_weak_variables_of_two_sources_clash() -> None:
    with pytest.raises(RefusedError):
        planned(
            index("a.cu", state=(state("x", weak=True, content="1"),), state_slice="s"),
            index("b.cu", state=(state("x", weak=True, content="2"),), state_slice="t"),
        )


def test_s8_an_undefined_function_concerns_its_unit_alone() -> None:
    made = planned(index("a.ll", unit("k", needs=(("nobody", "k"),)), unit("fine")))
    fine, broken = made.units
    assert refusal(fine) is None
    error = refusal(broken)
    assert isinstance(error, MissingSymbolError)
    assert "k uses nobody, which nobody defines" in str(error)


def test_s8_a_host_function_has_a_hint() -> None:
    (part,) = planned(index("a.ll", unit("k", needs=(("printf", "k"),)))).units
    assert "vprintf" in str(refusal(part))


@pytest.mark.parametrize(
    ("callee", "said", "hint"),
    [
        ("_Z4lossdi", "uses loss(double, int), which nobody defines", "define it"),
        ("__cxa_pure_virtual", "uses __cxa_pure_virtual", "give the class's pure virtual functions a body"),
        ("_ZdlPvm", "uses operator delete(void*, unsigned long)", "#include <new>"),
    ],
)
def test_s8_what_is_missing_is_told_in_the_source_s_words(callee: str, said: str, hint: str) -> None:
    """Met in real projects: functions of other files, virtual destructors and abstract classes."""
    (part,) = planned(index("a.ll", unit("k", needs=((callee, "_Z6kernelPKdPd"),)))).units
    told = str(refusal(part))
    assert f"kernel(double const*, double*) {said}" in told
    assert hint in told


def offer(slice_name: str, **fields: object) -> Offer:
    return Offer(slice=slice_name, bytes=5, type=Type("i32 (i32)"), **fields)  # type: ignore[arg-type]


def test_s12_a_function_of_another_source_joins_the_unit() -> None:
    made = planned(index("a.ll", unit("k", needs=(("f", "k"),))), index("b.ll", exports=(Export("f", weak=False, offer=offer("of-f")),)))
    (part,) = made.units
    assert not part.refused
    assert part.joins == (Joined(source="b.ll", slices=("of-f",)),)
    assert part.bytes == 15
    assert dict(part.key)["joins"] == '[[false,["of-f"],[],[]]]'


def test_s12_what_no_split_offers_names_both() -> None:
    made = planned(index("a.ll", unit("k", needs=(("f", "k"),))), index("b.ll", exports=(Export("f", weak=False),)))
    error = refusal(made.units[0])
    assert isinstance(error, RefusedError)
    assert "k uses f, which b.ll defines" in str(error)
    assert "a.ll" in str(error)


def test_g1_a_variable_of_another_source_is_the_links_to_find_in_an_image_only() -> None:
    found = index("a.cu", unit("k", needs=(("x", "k"),))), index("b.cu", state=(state("x"),), state_slice="s")
    (fine,) = planned(*found).units
    (alone,) = planned(found[0]).units
    (bundled,) = planned(*found, link="bundle").units
    assert not fine.refused
    assert isinstance(refusal(alone), MissingSymbolError)
    assert "which b.cu defines" in str(refusal(bundled))
    # What one module refuses and another does not is not one node of the graph.
    assert len({part.digest for part in (fine, alone, bundled)}) == 3


def test_g4_state_whose_initial_value_names_what_nobody_defines_is_refused() -> None:
    found = index("a.cu", unit("k"), state=(state("p"),), state_slice="s", state_needs=(("x", "p"),))
    fine, lost = planned(found).parts
    assert (fine.role, lost.role, refusal(fine)) == ("unit", "state", None)
    assert str(refusal(lost)).startswith("a.cu: p uses x, which nobody defines")
    assert not any(part.refused for part in planned(found, index("b.cu", state=(state("x"),), state_slice="t")).parts)


def test_a_private_variable_is_nobody_elses() -> None:
    made = planned(index("a.cu", unit("k", needs=(("x", "k"),))), index("b.cu", state=(state("x", private=True),), state_slice="s"))
    assert isinstance(refusal(made.units[0]), MissingSymbolError)


@pytest.mark.parametrize("weak", [(False, False), (True, True), (False, True), (True, False)])
def test_s12_a_strong_function_beside_an_inline_one_names_both(weak: tuple[bool, bool]) -> None:
    found = [index(source, exports=(Export("f", weak=each),)) for source, each in zip(("a.ll", "b.ll"), weak, strict=True)]
    if weak == (True, True):
        planned(*found)
        return
    first, other = ("b.ll", "and inline in a.ll") if weak[0] else ("a.ll", "and inline in b.ll" if weak[1] else "and in b.ll")
    with pytest.raises(RefusedError, match=f"function f is defined in {first},? {other}"):
        planned(*found)


def test_tables_that_no_unit_sees_are_left_out() -> None:
    tables = (Table("t1", "slice-1", 512, "global"), Table("t2", "slice-2", 512, "global"))
    made = planned(index("a.ll", unit("k", tables=("t1",)), tables=tables))
    assert [part.defines for part in made.parts if part.role == "table"] == [("t1",)]


def test_a_table_of_two_sources_is_one_part() -> None:
    table = Table("t", "slice-t", 512, "global")
    made = planned(index("a.ll", unit("f", tables=("t",)), tables=(table,)), index("b.ll", unit("g", tables=("t",)), tables=(table,)))
    assert len([part for part in made.parts if part.role == "table"]) == 1


@pytest.mark.parametrize(("size", "refused"), [(64 * 1024, False), (64 * 1024 + 1, True)])
def test_g7_constants_are_summed_with_the_largest_named(size: int, *, refused: bool) -> None:
    found = index(
        "a.cu", state=(state("small", size=1024, space="constant"), state("large", size=size - 1024, space="constant")), state_slice="s"
    )
    planned(found, link="bundle")  # its programs have a bank each
    if not refused:
        planned(found)
        return
    with pytest.raises(RefusedError, match="65537 bytes") as error:
        planned(found)
    assert error.value.output.splitlines()[0].endswith("large of a.cu")


def test_d7_parts_of_one_digest_and_different_keys_keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCONS_GPU_TEST_HASH_BITS", "1")
    made = planned(index("a.ll", *(unit(f"k{number}") for number in range(8))))
    assert len({part.digest for part in made.units}) == 8
    assert len({part.digest.partition(".")[0] for part in made.units}) == 2


def test_plan_and_index_files_read_back() -> None:
    found = index(
        "a.ll",
        unit("k", state=("x",), needs=(("f", "k"),), shared=(indexes.Shared("s", 4),)),
        state=(state("x"),),
        state_slice="s",
        tables=(Table("t", "u", 1, "global"),),
        exports=(Export("e", weak=True), Export("f", weak=False, offer=offer("of-f"))),
        declared=(("f", Type("i32 (i32)")),),
        notes=("said",),
    )
    assert indexes.from_text(indexes.to_text(found)) == found
    made = planned(found)
    assert from_text(to_text(made)) == made
    assert made.notes == (("a.ll", "said"),)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', '{"format": "scons-gpu/plan/1", "parts": 3}'])
def test_a_damaged_plan_or_index_is_named(text: str) -> None:
    with pytest.raises(DamagedError, match=r"x\.json"):
        from_text(text, path="x.json")
    with pytest.raises(DamagedError, match=r"x\.json"):
        indexes.from_text(text, path="x.json")

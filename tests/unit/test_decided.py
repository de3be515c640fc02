"""The plan after the choice: what helpers bring, and what may not be there twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scons_gpu.errors import RefusedError, SourceError
from scons_gpu.plan import (
    Part,
    Plan,
    PlannedCandidate,
    PlannedKernel,
    PlannedProblem,
    PlannedState,
    Tuned,
    Variant,
    decided,
    plan,
)
from scons_gpu.plan.candidates import short
from scons_gpu.split.index import Index, Kernel, Unit


def part(name: str, digest: str, *, role: str = "unit", source: str = "own.cu", **more: Any) -> Part:
    kernels = (PlannedKernel(symbol=name, readable=name, source=source),) if role == "unit" else ()
    defines = () if role == "unit" else (name,)
    key = (("slice", f"{name} of {source}"),)
    return Part(digest=digest, key=key, slice="", role=role, source=source, bytes=1, kernels=kernels, defines=defines, **more)


def helper(*parts: Part, module: str = "fills", state: tuple[PlannedState, ...] = ()) -> Plan:
    return Plan(module=module, arch="sm_90", link="image", parts=parts, state=state)


def decide(helpers: list[Plan], *others: Part, state: tuple[PlannedState, ...] = (), needs: tuple[str, ...] = ("fill",)) -> Plan:
    """`gemm`, whose only candidate asks for `fill`."""
    candidate = PlannedCandidate(values={}, part=part("gemm", "d0"), needs=needs)
    problem = PlannedProblem(kernel=PlannedKernel(symbol="gemm", readable="gemm", source="own.cu"), keys={}, candidates=(candidate,))
    undecided = Plan(module="own", arch="sm_90", link="image", parts=others, state=state, problems=(problem,))
    return decided(undecided, {"gemm": (candidate, {}, {})}, helpers)


def variable(name: str, source: str) -> PlannedState:
    return PlannedState(symbol=name, bytes=4, space="global", source=source)


@pytest.mark.parametrize("name", ["memo", "memo$0123456789abcdef"])
def test_d6_a_variable_of_the_module_and_of_a_helper_is_not_merged(name: str) -> None:
    """Not even where both come from one header, and their parts are one: they are two variables."""
    theirs = helper(
        part("fill", "d1", source="fill.cu", uses=(name,)),
        part(name, "d2", role="state", source="fill.cu"),
        state=(variable(name, "fill.cu"),),
    )
    own = replace(part(name, "d2", role="state"), key=theirs.parts[1].key)
    with pytest.raises(RefusedError, match=r"variable memo is defined in own\.cu and in fill\.cu, whose kernel"):
        decide([theirs], own, state=(variable(name, "own.cu"),))
    assert [each.symbol for each in decide([theirs]).state] == [name]


def test_d7_a_helper_whose_digest_is_taken_gets_another() -> None:
    made = decide([helper(part("fill", "d0", source="fill.cu"))])
    assert [(each.kernels[0].symbol, each.digest) for each in made.units] == [("fill", "d0.2"), ("gemm", "d0")]


def test_a_table_that_two_modules_lower_differently_is_there_once() -> None:
    table = part("lut$1", "d3", role="table")
    theirs = helper(part("fill", "d1", source="fill.cu", uses=("lut$1",)), replace(table, digest="d4", key=(("opt", "1"),)))
    made = decide([theirs], part("plain", "d5", uses=("lut$1",)), table)
    assert [each.digest for each in made.parts if each.role == "table"] == ["d3"]


def parts(plan: Plan) -> list[tuple[str, str]]:
    return [(each.readable, each.digest) for each in plan.parts]


def test_m14_of_a_helper_comes_what_is_asked_for_with_all_that_it_uses_and_no_more() -> None:
    """Two that share a variable bring it once; the table that it starts with comes too."""
    theirs = helper(
        part("copy", "d1", source="fill.cu", uses=("memo",)),
        part("fill", "d2", source="fill.cu", uses=("memo",)),
        part("zero", "d3", source="fill.cu", uses=("other",)),
        part("memo", "d4", role="state", source="fill.cu", uses=("lut$1",)),
        part("other", "d5", role="state", source="zero.cu"),
        part("lut$1", "d6", role="table", source="fill.cu"),
        part("lut$2", "d7", role="table", source="fill.cu"),
        state=(variable("memo", "fill.cu"), variable("other", "zero.cu")),
    )
    made = decide([theirs], part("lut$3", "d8", role="table"), needs=("fill", "copy", "fill"))
    assert parts(made) == [("copy", "d1"), ("fill", "d2"), ("gemm", "d0"), ("state of fill.cu", "d4"), ("table lut$1", "d6")]
    assert [each.symbol for each in made.state] == ["memo"]


def test_m14_a_helper_that_is_called_as_a_kernel_of_the_module_is_refused() -> None:
    theirs = helper(part("fill", "d1", source="fill.cu"))
    for own in (part("fill", "d5"), part("fill", "d1", source="fill.cu")):  # nor one that is the same
        with pytest.raises(RefusedError, match=rf"^kernel gemm of own: .* asks for fill, and {own.source} has a fill too\n  rename"):
            decide([theirs], own)
    joined = replace(part("fill", "d1"), kernels=tuple(part(name, "").kernels[0] for name in ("fill", "gemm")))
    with pytest.raises(RefusedError, match=r"asks for fill, and own\.cu has a gemm too"):
        decide([helper(joined)])


def test_m14_a_kernel_that_two_helpers_have_is_one_where_it_is_the_same() -> None:
    one, other = part("fill", "d1", source="fill.cu"), part("fill", "d2", source="other.cu")
    assert parts(decide([helper(one, module="a"), helper(one, module="b")])) == [("fill", "d1"), ("gemm", "d0")]
    for differs in (other, replace(one, assemble={"maxrregcount": 24})):
        with pytest.raises(RefusedError, match=r"^kernel gemm of own: .* asks for fill, which is fill of a and fill of b\n  ask for one"):
            decide([helper(one, module="a"), helper(differs, module="b")])
    overloaded = [replace(other, kernels=(replace(one.kernels[0], symbol=f"_Z4fill{kind}", readable="fill(...)"),)) for kind in "di"]
    with pytest.raises(RefusedError, match=r"asks for fill, which is _Z4filld of fills and _Z4filli of fills"):
        decide([helper(*overloaded)])
    assert decide([helper(*overloaded)], needs=("_Z4filli",)).units[0].kernels[0].symbol == "_Z4filli"


def test_m14_two_helpers_that_bring_one_kernel_besides_what_is_asked_for_are_refused() -> None:
    """As in a bundle, where kernels may be one unit."""
    both = [
        helper(
            replace(
                part(name, f"d{place}", source=f"{name}.cu"), kernels=part(name, "").kernels + part("x", "", source=f"{name}.cu").kernels
            )
        )
        for place, name in enumerate(("copy", "fill"), 1)
    ]
    with pytest.raises(RefusedError, match=r"asks for fill, and copy\.cu has a x too"):
        decide(both, needs=("fill", "copy"))
    assert len(decide(both[:1], needs=("copy", "x")).units) == 2, "one unit, asked for twice"


def test_d7_helpers_whose_digests_collide_are_both_there() -> None:
    made = decide([helper(part("copy", "d1"), module="a"), helper(part("fill", "d1"), module="b")], needs=("fill", "copy"))
    assert parts(made) == [("copy", "d1"), ("fill", "d1.2"), ("gemm", "d0")]


@pytest.mark.parametrize(
    ("helpers", "hint"), [([], "name the modules"), ([helper(part("zero", "d1"), part("copy", "d2"))], "the helpers have copy, zero")]
)
def test_m14_a_helper_that_nobody_has_is_told_with_those_that_are_there(helpers: list[Plan], hint: str) -> None:
    with pytest.raises(RefusedError, match=rf"^kernel gemm of own: .* asks for fill, which no helper has\n  {hint}"):
        decide(helpers)


# What has candidates.


def index(*units: Unit, failure: dict[str, str] | None = None) -> Index:
    return Index(source="own.cu", arch="sm_90", form="closed", units=units, failure=failure)


def unit(*names: str) -> Unit:
    kernels = tuple(Kernel(symbol=name, readable=name) for name in names)
    return Unit(kernels=kernels, slice=f"slice of {names}", bytes=1, body="b", joined="indirect-call" if len(names) > 1 else "")


def tuned(base: Index, pattern: str, *variants: Index) -> Plan:
    """A module of which each pattern's candidates are these indexes."""

    def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return (("libdevice", str(libdevice)), ("renames", repr(renames)), ("slice", slice_name))

    given = [
        Tuned(
            pattern=each,
            source="own.cu",
            variants=tuple(Variant(values={"V": str(place)}, label=f"V={place}", index=one, key=key) for place, one in enumerate(variants)),
        )
        for each in pattern.split()
    ]
    return plan([base], module="own", arch="sm_90", link="bundle", key=key, tuned=given)


def test_m11_a_kernel_that_two_patterns_name_is_refused_with_both() -> None:
    base = index(unit("gemm"), unit("gelu"))
    assert [each.kernel.symbol for each in tuned(base, "gemm gelu", base).problems] == ["gelu", "gemm"]
    with pytest.raises(RefusedError, match=r"kernel gemm has candidates twice: g\* and gemm both name it"):
        tuned(base, "g* gemm", base)


def test_m11_a_kernel_with_candidates_is_a_unit_alone() -> None:
    with pytest.raises(RefusedError, match=r"kernel gemm has candidates, and is one unit with gelu \(indirect-call\)"):
        tuned(index(unit("gelu", "gemm")), "gemm", index(unit("gemm")))
    (problem,) = tuned(index(unit("gemm")), "gemm", index(unit("gemm")), index(unit("gelu", "gemm"))).problems
    assert problem.candidates[0].part is not None
    assert problem.candidates[1].part is None
    assert problem.candidates[1].failure is not None
    assert problem.candidates[1].failure["what"] == "it is one unit with gelu (indirect-call)"


def test_m11_where_no_candidate_compiles_and_no_kernel_is_known_each_says_why() -> None:
    """The source as it is has no such kernel, so whether the pattern names one is not known."""
    failed = [index(failure=SourceError(what).to_json()) for what in ("too large", "too small")]
    with pytest.raises(RefusedError) as caught:
        tuned(index(unit("other")), "gemm", *failed)
    assert str(caught.value) == "own/own.cu (sm_90): no candidate of gemm compiles\n    V=0: too large\n    V=1: too small"
    with pytest.raises(RefusedError, match="candidates are given for gemm, and no kernel is called that\n  it has other"):
        tuned(index(unit("other")), "gemm", failed[0], index(unit("other")))


@pytest.mark.parametrize(
    ("readable", "name"),
    [
        ("void gemm<64>(float const*)", "gemm<64>"),
        ("(anonymous namespace)::k(float*)", "(anonymous namespace)::k"),
        ("void ns::(anonymous namespace)::k<(int)3, a::b<c> >(float*)", "ns::(anonymous namespace)::k<(int)3, a::b<c> >"),
        ("k(float (*)(int))", "k"),
        ("k", "k"),
    ],
)
def test_a_kernel_is_called_without_what_it_returns_and_takes(readable: str, name: str) -> None:
    assert short(readable) == name

"""The plan after the choice: what helpers bring, and what may not be there twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scons_gpu.errors import RefusedError
from scons_gpu.plan import Part, Plan, PlannedCandidate, PlannedKernel, PlannedProblem, PlannedState, decided
from scons_gpu.plan.candidates import short


def part(name: str, digest: str, *, role: str = "unit", source: str = "own.cu", **more: Any) -> Part:
    kernels = (PlannedKernel(symbol=name, readable=name, source=source),) if role == "unit" else ()
    defines = () if role == "unit" else (name,)
    key = (("slice", f"{name} of {source}"),)
    return Part(digest=digest, key=key, slice="", role=role, source=source, bytes=1, kernels=kernels, defines=defines, **more)


def helper(*parts: Part, state: tuple[PlannedState, ...] = ()) -> Plan:
    return Plan(module="fills", arch="sm_90", link="image", parts=parts, state=state)


def decide(helpers: list[Plan], *others: Part, state: tuple[PlannedState, ...] = ()) -> Plan:
    """`gemm`, whose only candidate asks for `fill`."""
    candidate = PlannedCandidate(values={}, part=part("gemm", "d0"), needs=("fill",))
    problem = PlannedProblem(kernel=PlannedKernel(symbol="gemm", readable="gemm", source="own.cu"), keys={}, candidates=(candidate,))
    plan = Plan(module="own", arch="sm_90", link="image", parts=others, state=state, problems=(problem,))
    return decided(plan, {"gemm": (candidate, {}, {})}, helpers)


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

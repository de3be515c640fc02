from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.errors import AllFailedError, UsageError, from_json
from scons_gpu.tune.choose import choose, known
from scons_gpu.tune.model import Decision, Problem, Result, label, pairs
from scons_gpu.tune.tuning import Device, Solution, Tuning

GEMM = Problem(kernel="gemm(float const*, float*)", arch="sm_90", keys=pairs({"n": 4096}))
TOOLS = {"ptxas": "13.5.37", "llvm": "22.1.0"}


def result(tile: int, **figures: Any) -> Result:
    whole = {"registers": 32, "spill_bytes": 0, "shared_bytes": 0, "max_threads": 256, "instructions": 100}
    return Result(values=pairs({"TILE": tile}), **{**whole, **figures})


def broken(tile: int, failure: str = "ptxas failed") -> Result:
    return Result(values=pairs({"TILE": tile}), failure=failure)


def solution(tile: int, *, problem: Problem = GEMM, capability: str = "9.0", tools: dict[str, str] = TOOLS) -> Solution:
    return Solution(
        problem=problem,
        values=pairs({"TILE": tile}),
        time_us=12.5,
        spread=0.01,
        candidates=3,
        device=Device(name="NVIDIA H200", capability=capability, driver="580.1"),
        tools=pairs(tools),
    )


def file(*solutions: Solution, name: str = "tuning.json") -> Tuning:
    return Tuning(file=name, solutions=solutions)


def chosen(*results: Result, tuning: tuple[Tuning, ...] = (), problem: Problem = GEMM) -> Decision:
    return choose(problem, results, tuning, tools=TOOLS)


def tile(decision: Decision) -> int:
    return int(dict(decision.values)["TILE"])


# Words.


def test_a_problem_and_a_candidate_in_words() -> None:
    assert GEMM.text() == "gemm(float const*, float*) sm_90 n=4096"
    assert Problem("gemm", "sm_90").text() == "gemm sm_90"
    assert Result(values=pairs({"TILE": 64, "GPU_MAXRREGCOUNT": 128})).label == "GPU_MAXRREGCOUNT=128 TILE=64"
    assert label(pairs({"MODE": "a b", "FAST": None, "ON": True, "OFF": False, "X": 1.5})) == 'FAST MODE="a b" OFF=0 ON=1 X=1.5'
    assert label(()) == "as written"


def test_values_are_one_whatever_their_order_and_type() -> None:
    assert pairs({"a": 1, "b": "2"}) == pairs({"b": 2, "a": "1"}) == (("a", "1"), ("b", "2"))


@pytest.mark.parametrize("values", [{"": 1}, {"a b": 1}, {"a=b": 1}, {1: 1}, {"a": [1]}, {"a": {}}, {"a": "x\ny"}, {"a\0": 1}])
def test_what_is_no_set_of_values(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r'^candidates of "gemm": .* is no') as caught:
        pairs(values, what='candidates of "gemm"')
    assert caught.value.hint


# Resources, in the order of the criteria.


@pytest.mark.parametrize(
    ("first", "second", "taken", "why"),
    [
        ({"spill_bytes": 4}, {"registers": 255, "instructions": 900}, 2, "it spills 0 bytes, and TILE=1, the next best, 4"),
        ({"spill_bytes": 8, "instructions": 1}, {"spill_bytes": 4, "registers": 128}, 2, "it spills 4 bytes, and TILE=1, the next best, 8"),
        (
            {"registers": 64, "instructions": 10},
            {"registers": 40, "instructions": 900},
            2,
            "it fills 48 of 64 warps, and TILE=1, the next best, 32",
        ),
        ({"shared_bytes": 60_000}, {"instructions": 900}, 2, "it fills 64 of 64 warps, and TILE=1, the next best, 24"),
        ({"max_threads": 1024, "registers": 40}, {}, 2, "it fills 64 of 64 warps, and TILE=1, the next best, 32"),
        ({"instructions": 101}, {}, 2, "it has 100 instructions, and TILE=1, the next best, 101"),
        ({}, {}, 1, "TILE=2, declared later, is its equal in spills, occupancy and instructions"),
        ({"stack_bytes": 64}, {"stack_bytes": 0}, 1, "TILE=2, declared later, is its equal in spills, occupancy and instructions"),
    ],
)
def test_m13_the_order_of_what_decides(first: dict[str, Any], second: dict[str, Any], taken: int, why: str) -> None:
    decision = chosen(result(1, **first), result(2, **second))
    assert (decision.by, tile(decision), decision.why, decision.file) == ("resources", taken, why, "")
    if taken == 2:
        assert tile(chosen(result(2, **second), result(1, **first))) == 2


def test_the_next_best_is_the_second() -> None:
    assert chosen(result(1, spill_bytes=9), result(2), result(3, spill_bytes=4)).why == "it spills 0 bytes, and TILE=3, the next best, 4"


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        ("spill_bytes", "it spills 0 bytes, and TILE=1, the next best, an unknown number"),
        ("registers", "it fills 64 of 64 warps, and TILE=1, the next best, an unknown number"),
        ("shared_bytes", "it fills 64 of 64 warps, and TILE=1, the next best, an unknown number"),
        ("instructions", "it has 100 instructions, and TILE=1, the next best, an unknown number"),
    ],
)
def test_what_is_not_known_is_worse_than_anything_known(lacking: str, why: str) -> None:
    decision = chosen(result(1, **{lacking: None}), result(2))
    assert (tile(decision), decision.why) == (2, why)


def test_ptx_of_which_nothing_is_known_goes_by_declaration() -> None:
    nothing = [Result(values=pairs({"TILE": number})) for number in (3, 1, 2)]
    decision = chosen(*nothing, problem=Problem("gemm", "compute_90"))
    assert (decision.by, tile(decision)) == ("resources", 3)


def test_the_launch_says_more_than_launch_bounds() -> None:
    bounds = result(1, registers=40, max_threads=1024)
    assert tile(chosen(result(2, registers=40, max_threads=768), bounds, problem=Problem("k", "sm_86"))) == 2
    launched = result(1, registers=40, max_threads=1024, block_threads=768)
    assert tile(chosen(launched, result(2, registers=40, max_threads=768), problem=Problem("k", "sm_86"))) == 1
    assert tile(chosen(result(1, dynamic_bytes=100_000), result(2, shared_bytes=50_000))) == 2


def test_without_launch_bounds_the_best_size_of_block_counts() -> None:
    free = result(1, registers=40, max_threads=None)
    assert tile(chosen(result(2, registers=40, max_threads=1024), free, problem=Problem("k", "sm_86"))) == 1


def test_borrowed_limits_are_said() -> None:
    two = result(1, registers=64), result(2)
    assert "warps by the limits of 10.3, and" in chosen(*two, problem=Problem("gemm", "sm_107")).why
    assert " by the limits " not in chosen(*two, problem=Problem("gemm", "sm_103a")).why


def test_one_that_is_left_is_the_only_one() -> None:
    assert chosen(result(1)) == Decision(by="only", values=pairs({"TILE": 1}), why="the only candidate")
    decision = chosen(broken(1), result(2), broken(3))
    assert (decision.by, tile(decision), decision.why) == ("only", 2, "the only one of 3 candidates that can be compiled")
    assert chosen(result(1), result(1)).by == "only", "one candidate declared twice"


def test_m11_when_all_fail_each_says_why() -> None:
    with pytest.raises(AllFailedError) as caught:
        chosen(broken(64, "ptxas: too much shared memory\n  0x20000 bytes"), broken(128, "expected ';'\n"))
    text = (
        "kernel gemm(float const*, float*) (sm_90): none of its 2 candidates can be compiled (n=4096)\n"
        "    TILE=64: ptxas: too much shared memory\n"
        "          0x20000 bytes\n"
        "    TILE=128: expected ';'\n"
        "  mend one of them, or add one that can be compiled for sm_90"
    )
    assert str(caught.value) == text
    again = from_json(json.loads(json.dumps(caught.value.to_json())))
    assert (type(again), str(again)) == (AllFailedError, text)
    assert caught.value.to_json()["kind"] == "all-failed"
    with pytest.raises(AllFailedError, match=r"kernel k \(sm_90\): its only candidate cannot be compiled\n    TILE=1: no"):
        chosen(broken(1, "no"), problem=Problem("k", "sm_90"))


def test_a_problem_without_candidates() -> None:
    with pytest.raises(UsageError, match="has no candidates") as caught:
        chosen()
    assert "candidates=" in caught.value.hint


# Tuning files.


def test_m13_a_tuning_file_decides_before_resources_do() -> None:
    decision = chosen(result(1), result(2, spill_bytes=400), tuning=(file(solution(2)),))
    assert decision == Decision(
        by="tuning", values=pairs({"TILE": 2}), why="measured on NVIDIA H200 (9.0), the fastest of 3", file="tuning.json"
    )


def test_the_first_file_that_knows_wins() -> None:
    other = Problem("other", "sm_90")
    files = file(solution(3, problem=other), name="a"), file(solution(2), name="b"), file(solution(1), name="c")
    decision = chosen(result(1), result(2), result(3), tuning=files)
    assert (tile(decision), decision.file) == (2, "b")


@pytest.mark.parametrize(
    "problem", [Problem(GEMM.kernel, "sm_90"), Problem(GEMM.kernel, "sm_90", pairs({"n": 1})), Problem("f", "sm_90", GEMM.keys)]
)
def test_another_problem_is_another_problem(problem: Problem) -> None:
    decision = chosen(result(1), result(2), tuning=(file(solution(2, problem=problem)),))
    assert (decision.by, tile(decision)) == ("resources", 1)
    assert "measured" not in decision.why


def test_an_entry_counts_for_its_own_architecture_alone() -> None:
    elsewhere = [Problem(GEMM.kernel, arch, GEMM.keys) for arch in ("sm_90a", "sm_100", "sm_80", "compute_90")]
    files = file(*(solution(2, problem=problem, capability="10.0") for problem in elsewhere[:2])), file(solution(2, problem=elsewhere[2]))
    decision = chosen(result(1), result(2), tuning=files)
    assert (decision.by, tile(decision)) == ("resources", 1)
    assert decision.why.endswith("; it was measured as sm_80, sm_90a, sm_100 only")
    assert known(GEMM, files) is None


def test_an_entry_of_a_device_that_cannot_run_the_code_is_passed_over() -> None:
    decision = chosen(result(1), result(2), tuning=(file(solution(2, capability="8.9")),))
    assert (decision.by, tile(decision)) == ("resources", 1)
    assert decision.why.endswith(
        "; TILE=2, which was measured, is passed over: NVIDIA H200 (8.9), which is said to have measured it, cannot run code for sm_90"
    )


def test_an_entry_by_other_tools_counts_and_is_said() -> None:
    old = solution(2, tools={"ptxas": "12.8.61", "llvm": "22.1.0", "nvcc": "12.8"})
    decision = chosen(result(1), result(2), tuning=(file(old),))
    assert (decision.by, tile(decision)) == ("tuning", 2)
    assert decision.why == "measured on NVIDIA H200 (9.0), the fastest of 3, with other tools: ptxas 12.8.61, here 13.5.37"


def test_an_entry_that_is_no_candidate_any_more_is_passed_over() -> None:
    files = file(solution(7), name="a"), file(solution(2), name="b")
    decision = chosen(result(1), result(2), tuning=files)
    assert (decision.by, tile(decision), decision.file) == ("tuning", 2, "b")
    assert decision.why.endswith("; TILE=7, which was measured, is passed over: it is no candidate any more")
    decision = chosen(result(1), result(2), tuning=files[:1])
    assert (decision.by, tile(decision)) == ("resources", 1)
    assert decision.why.endswith("; TILE=7, which was measured, is passed over: it is no candidate any more")


def test_an_entry_that_cannot_be_compiled_is_passed_over() -> None:
    decision = chosen(result(1), broken(2), tuning=(file(solution(2)),))
    assert (decision.by, tile(decision)) == ("only", 1)
    assert decision.why == (
        "the only one of 2 candidates that can be compiled; TILE=2, which was measured, is passed over: it cannot be compiled"
    )


def test_a_candidate_without_values_can_be_the_measured_one() -> None:
    plain = Solution(**{**vars(solution(1)), "values": ()})
    decision = chosen(Result(values=()), result(1), tuning=(file(plain),))
    assert (decision.by, decision.label) == ("tuning", "as written")


def test_m12_the_winner_is_known_before_anything_is_compiled() -> None:
    files = file(solution(7), name="a"), file(solution(3, capability="8.0"), name="b"), file(solution(2), name="c")
    candidates = [one.values for one in (result(1), result(2), result(3))]
    found = known(GEMM, files, candidates=candidates)
    assert found is not None
    assert found.label == "TILE=2"
    decision = chosen(result(2), tuning=files)
    assert (decision.by, decision.file, decision.values) == ("tuning", "c", found.values)
    first = known(GEMM, files)
    assert first is not None
    assert first.label == "TILE=7", "nobody said what the candidates are"
    assert known(GEMM, files[:2], candidates=candidates) is None
    assert known(GEMM, ()) is None


# Determinism.

FILLING = (32, 64, 128, 255)
"""Registers that fill an SM to different parts."""
figure = st.one_of(st.none(), st.integers(0, 3))


@given(st.lists(st.tuples(figure, figure, figure), min_size=2, max_size=4))
def test_the_order_of_declaration_decides_among_equals_alone(figures: list[tuple[int | None, int | None, int | None]]) -> None:
    """The winner's figures do not depend on the order; among those that have them, the first one wins."""
    many = [
        result(number, spill_bytes=spills, registers=None if blocks is None else FILLING[blocks], instructions=count)
        for number, (spills, blocks, count) in enumerate(figures)
    ]
    taken = {figures[tile(chosen(*order))] for order in itertools.permutations(many)}
    assert len(taken) == 1
    assert tile(chosen(*many)) == figures.index(taken.pop())


def test_m13_the_order_of_names_decides_nothing() -> None:
    values, keys = {"A": 1, "B": 2, "C": 3}, {"n": 1, "m": 2}
    decisions = set()
    for names, key_names in itertools.product(itertools.permutations(values), itertools.permutations(keys)):
        problem = Problem("k", "sm_90", pairs({name: keys[name] for name in key_names}))
        measured = Solution(**{**vars(solution(1, problem=problem)), "values": pairs({name: values[name] for name in names})})
        results = [Result(values=pairs({name: values[name] for name in reversed(names)})), result(1)]
        tools = {name: TOOLS[name] for name in sorted(TOOLS, reverse=names[0] == "A")}
        decisions.add(choose(problem, results, (file(measured),), tools=tools))
    assert len(decisions) == 1
    assert decisions.pop().by == "tuning"

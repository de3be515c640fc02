from __future__ import annotations

import json
from typing import Any

import pytest

from scons_gpu.inspect.causes import Cause, Via, merged, sentence
from scons_gpu.inspect.fields import of_key, of_own, of_unit


def told(stage: str, field: str, then: Any, now: Any, **key: Any) -> list[str]:
    values = (json.dumps(then), json.dumps(now))
    return [sentence(cause) for cause in of_key(stage, {field: values}, {name: json.dumps(value) for name, value in key.items()})]


A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("stage", "field", "then", "now", "causes"),
    [
        ("source", "defines", ["N=4", "A"], ["A", "N=8", "B=1"], ["define N: 4 -> 8", "define B: (none) -> 1"]),
        ("source", "defines", ["A"], [], ["define A: defined -> (none)"]),
        ("source", "flags", ["-x", "-y"], ["-y", "-z"], ["flag GPU_CLANGFLAGS -x removed", "flag GPU_CLANGFLAGS -z added"]),
        ("source", "flags", ["-x", "-y"], ["-y", "-x"], ["flag GPU_CLANGFLAGS: -x -y -> -y -x"]),
        ("host", "flags", [], ["-O2"], ["flag CXXFLAGS -O2 added"]),
        ("source", "cpppath", ["a"], ["b"], ["folder a removed", "folder b added"]),
        ("source", "clang", f"22.1.8 {A}", f"22.2.0 {B}", ["tool clang: 22.1.8 (aaaaaaaaaaaa) -> 22.2.0 (bbbbbbbbbbbb)"]),
        ("source", "fast_math", False, True, ["option GPU_FAST_MATH: 0 -> 1"]),
        ("source", "arch", "sm_90", "sm_90a", ["architecture : sm_90 -> sm_90a"]),
        ("split", "form", "apart", "closed", ["option GPU_LINK: image or whole -> bundle"]),
        ("plan", "opt", 3, 2, ["option GPU_OPT: 3 -> 2"]),
        ("plan", "ptx", 90, 95, ["tool PTX version: 9.0 -> 9.5"]),
        ("plan", "libdevice", A, B, ["tool libdevice: aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        ("plan", "tool", "0.1.0 abc", "0.1.0 def", ["scons-gpu itself: 0.1.0 (abc) -> 0.1.0 (def)"]),
        ("link", "options", ["-v", "-arch=sm_90", "-c"], ["-v", "-arch=sm_90", "-O2", "-c"], ["option GPU_OPT: 3 -> 2"]),
        ("link", "options", ["-g", "-maxrregcount=32"], ["-lineinfo"], ["option GPU_MAXRREGCOUNT: 32 -> (none)", "option GPU_DEBUG: 1 -> 0", "option GPU_LINEINFO: 0 -> 1"]),
        ("link", "options", ["-Xptxas=-v"], ["-Xptxas=-v", "-r", "-Xptxas=--warn"], ["flag GPU_PTXASFLAGS -Xptxas=--warn added"]),
        ("link", "options", ["CU_JIT_MAX_REGISTERS=32"], ["CU_JIT_MAX_REGISTERS=64"], ["option GPU_MAXRREGCOUNT: 32 -> 64"]),
        ("link", "spills", [False, False], [True, False], ["option GPU_FAIL_ON_SPILL: 0 -> 1"]),
        ("link", "provider", f"ptxas {A} {B}", f"nvjitlink {C} {C}", ["option GPU_PROVIDER: ptxas -> nvjitlink"]),
        ("pack", "archs", ["sm_90"], ["sm_80", "sm_90"], ["architecture GPU_ARCHS: sm_90 -> sm_80 sm_90"]),
        ("manifest", "modules", [["a", False, []]], [["a", True, []], ["b", False, []]], ["module a changed", "module b added"]),
        ("manifest", "options", {"a": {"opt": 3, "ptx": {"sm_90": 90}}}, {"a": {"opt": 2, "ptx": {"sm_90": 90}}}, ["option GPU_OPT: 3 -> 2"]),
        ("manifest", "tools", {"llvm": ["1", A]}, {"llvm": ["2", B], "nvvm": ["3", C]}, ["tool LLVM: 1 (aaaaaaaaaaaa) -> 2 (bbbbbbbbbbbb)", "tool libNVVM: (none) -> 3 (cccccccccccc)"]),
        ("choose", "link", 'kind = "rel"\noptions = []', 'kind = "rel"\noptions = ["-g"]', ["option GPU_DEBUG: 0 -> 1"]),
        ("plan", "strange", 1, 2, ["setting strange: 1 -> 2"]),
    ],
)  # fmt: skip
def test_a_field_is_told_by_what_a_user_sets(stage: str, field: str, then: Any, now: Any, causes: list[str]) -> None:
    assert told(stage, field, then, now) == causes


def test_a_provider_is_told_by_the_tool_that_is_another() -> None:
    versions = {"ptxas": "13.5.37", "nvlink": "13.5.37"}
    assert told("link", "provider", f"ptxas {A} {B}", f"ptxas {A} {C}", versions=versions) == [
        "tool nvlink: 13.5.37 (bbbbbbbbbbbb) -> 13.5.37 (cccccccccccc)"
    ]
    differing = {
        "sm_90 provider": (json.dumps(f"ptxas {A} {B}"), json.dumps(f"ptxas {C} {B}")),
        "sm_90 versions": (json.dumps(versions), json.dumps({**versions, "ptxas": "14.0"})),
    }
    assert [sentence(cause) for cause in of_key("link", differing, {})] == ["tool ptxas: 13.5.37 (aaaaaaaaaaaa) -> 14.0 (cccccccccccc)"]


def test_that_nobody_assembles_says_all() -> None:
    differing = {
        "provider": (json.dumps(f"ptxas {A} {B}"), json.dumps("")),
        "options": (json.dumps(["-v", "-arch=sm_90"]), json.dumps([])),
        "kind": (json.dumps("rel"), json.dumps("ptx")),
        "versions": (json.dumps({"ptxas": "13.5.37"}), json.dumps({})),
    }
    assert [sentence(cause) for cause in of_key("link", differing, {})] == ["option GPU_PROVIDER: ptxas -> (none)"]


def test_a_unit_knows_debug_and_lines_as_one_field() -> None:
    assert [sentence(cause) for cause in of_unit({"debug": ("none", "lines")})] == ["option GPU_LINEINFO: 0 -> 1"]
    assert [sentence(cause) for cause in of_unit({"debug": ("lines", "full")})] == ["option GPU_DEBUG: 0 -> 1"]


def test_options_of_a_candidate() -> None:
    assert [sentence(cause) for cause in of_own("", '{"maxrregcount": 32, "flags": []}')] == ["option GPU_MAXRREGCOUNT: (none) -> 32"]


def via(name: str) -> Via:
    return Via("split", name, f"/t/{name}", "b1")


def test_one_cause_that_comes_by_two_ways_is_one() -> None:
    found = merged([Cause("source", "a.ll").through(via("x")), Cause("source", "a.ll").through(via("y")), Cause("source", "b.ll")])
    assert [(cause.name, [[each.name for each in route] for route in cause.routes]) for cause in found] == [
        ("a.ll", [["x"], ["y"]]),
        ("b.ll", [[]]),
    ]


def test_what_only_follows_is_left_out() -> None:
    exact, derived = Cause("option", "GPU_LINK", then="image", now="bundle"), Cause("option", "GPU_LINK", then="rel", now="x", derived=True)
    assert merged([derived.through(via("x")), exact]) == (
        Cause("option", "GPU_LINK", then="image", now="bundle", routes=((), (via("x"),))),
    )
    assert merged([derived])[0].then == "rel"
    debug, level = Cause("option", "GPU_DEBUG", then="0", now="1"), Cause("option", "GPU_OPT", then="3", now="0")
    assert merged([level, debug]) == (debug,)
    assert merged([level]) == (level,)
    other = Cause("option", "GPU_OPT", then="3", now="2")
    assert merged([other, debug]) == (other, debug)
    assert merged([Cause("first", "x"), debug]) == (debug,)
    assert merged([Cause("first", "x")]) == (Cause("first", "x"),)

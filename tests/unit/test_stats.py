from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.store.log import BuildLog, read
from scons_gpu.store.stats import Stats, stats

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = [
    "schema", "build", "modules", "kernels", "references", "unique", "shared", "needed", "compiled", "reused", "deferred", "failed",
    "linked", "hosts", "twins", "candidates", "verified", "wall_seconds", "cpu_seconds",
]  # fmt: skip


def start(build: str = "b", *, looking: bool = False) -> dict[str, Any]:
    return {"build": build, "type": "start", "argv": ["scons"], "looking": looking, "jobs": 2}


def action(stage: str, unit: str | None = None, result: str = "built", **fields: Any) -> dict[str, Any]:
    return {"build": "b", "type": "action", "stage": stage, "unit": unit, "name": unit or stage, "result": result, "cpu": 0.5, **fields}


def end(build: str = "b", **fields: Any) -> dict[str, Any]:
    counts = {"modules": 3, "kernels": 4, "references": 4, "unique": 3, "twins": 1, "wall_seconds": 1.5, "units_needed": []}
    return {"build": build, "type": "end", "ok": True, **counts, **fields}


def parts(found: Stats) -> tuple[int, int, int, int, int]:
    return found.needed, found.compiled, found.reused, found.deferred, found.failed


def test_a_cold_build() -> None:
    units = ["u1", "u2", "u3"]
    actions = [action(stage, unit) for unit in units for stage in ("lower", "assemble")]
    found = stats([start(), *actions, action("link"), action("link", result="built"), end(units_needed=units)])
    assert found == Stats(
        build="b", modules=3, kernels=4, references=4, unique=3, shared=1, needed=3, compiled=3, reused=0, deferred=0, failed=0,
        linked=2, twins=1, wall_seconds=1.5, cpu_seconds={"assemble": 1.5, "link": 1.0, "lower": 1.5},
    )  # fmt: skip


def test_json_has_the_fields_that_others_rely_on() -> None:
    found = stats([start(), end()]).to_json()
    assert list(found) == FIELDS
    assert found["schema"] == 1
    json.dumps(found)


def test_nothing_to_do() -> None:
    found = stats([start(), end(wall_seconds=0.2)])
    assert parts(found) == (0, 0, 0, 0, 0)
    assert (found.linked, found.references, found.unique, found.shared) == (0, 4, 3, 1)


def test_one_unit_edited() -> None:
    found = stats([start(), action("lower", "u1"), action("assemble", "u1"), action("link"), end(units_needed=["u1", "u2", "u3"])])
    assert parts(found) == (3, 1, 2, 0, 0)


def test_assembled_only_counts_as_compiled() -> None:
    found = stats([start(), action("assemble", "u1"), action("link"), end(units_needed=["u1", "u2"])])
    assert parts(found) == (2, 1, 1, 0, 0)


def test_state_and_tables_are_no_units() -> None:
    found = stats(
        [start(), action("lower", "s", role="state"), action("assemble", "t", role="table"), action("link"), end(units_needed=["u1"])]
    )
    assert parts(found) == (1, 0, 1, 0, 0)


def test_failures() -> None:
    records = [
        action("lower", "u1"),
        action("assemble", "u1", "failed"),
        action("lower", "u2", "failed"),
        action("lower", "u3"),
        action("lower", "s", "failed", role="state"),
        action("source", result="failed"),
        action("link", result="failed"),
    ]
    found = stats([start(), *records, end(units_needed=["u1", "u2", "u3", "u4"])])
    assert parts(found) == (2, 1, 1, 0, 5)
    assert found.linked == 0


def test_verified_units_are_counted_once_and_what_differs_failed() -> None:
    records = [
        action("verify", "u1", "same"),
        action("verify", "u1", "same"),
        action("verify", "u2", "differs"),
        action("verify", "u3", "failed"),
        action("verify", "s", "differs", role="state"),
        action("verify", "t", "same", role="table"),
    ]
    found = stats([start(), *records, end()])
    assert (found.verified, found.did_nothing) == (2, False)
    assert parts(found) == (0, 0, 0, 0, 3)
    assert not stats([start(), action("verify", "u1", "same"), end()]).did_nothing


def test_deferred_units_are_counted_once() -> None:
    found = stats([start(), action("lower", "u1"), action("link"), end(units_needed=["u1", "u2", "u3"], units_deferred=["u1", "u2"])])
    assert parts(found) == (3, 0, 1, 2, 0)


def test_candidates_that_were_not_taken_are_counted_apart() -> None:
    made = {"u1": "built", "u2": "built", "u3": "refused"}
    lower = [action("lower", unit, result, candidate=f"TILE={unit}") for unit, result in made.items()]
    found = stats([start(), *lower, action("lower", "u4"), action("link"), end(units_needed=["u1", "u4"])])
    assert parts(found) == (2, 2, 0, 0, 0)
    assert found.candidates == 2
    assert parts(stats([start(), *lower])) == (2, 2, 0, 0, 0)  # killed: nobody knows what would have been taken


def test_looking_is_not_the_last_build() -> None:
    records = [start("one"), end("one"), start("two"), end("two", modules=9), start("look", looking=True), end("look", modules=7)]
    assert stats(records).build == "two"
    assert stats(records).modules == 9
    assert stats(records, build="one").modules == 3
    assert stats(records, build="look").modules == 7


def test_builds_at_once_are_told_apart() -> None:
    records = [start("b"), start("c"), action("lower", "u1"), {**action("lower", "u2"), "build": "c"}, end("c"), end("b")]
    assert stats(records, build="b").compiled == 1
    assert stats(records).build == "c"


def test_a_killed_build_counts_what_it_did() -> None:
    found = stats([start(), action("lower", "u1"), action("lower", "u1", "reused")])
    assert parts(found) == (1, 1, 0, 0, 0)
    assert found.wall_seconds == 0


@pytest.mark.parametrize("build", [None, "other"])
def test_no_such_build(build: str | None) -> None:
    assert stats([start("look", looking=True)], build=build) == Stats()
    assert stats([], build=build) == Stats()


def test_unknown_records_and_fields_do_not_matter() -> None:
    records = [{"type": "later"}, {}, {**start(), "later": 1}, {"build": "b", "type": "later"}, {"build": "b", "type": "action"}, end()]
    assert stats(records).modules == 3


def test_from_a_log(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "log.jsonl", build="b")
    for record in (start(), action("lower", "u1"), end(units_needed=["u1", "u2"])):
        log.write(**{name: value for name, value in record.items() if name != "build"})
    assert stats(read(tmp_path / "log.jsonl")) == stats(log.written, build="b")
    assert parts(stats(log.written)) == (2, 1, 1, 0, 0)


UNITS = st.sampled_from(["u1", "u2", "u3", "u4", "u5"])
ACTIONS = st.builds(
    action,
    st.sampled_from(["source", "lower", "assemble", "link"]),
    UNITS | st.none(),
    st.sampled_from(["built", "reused", "failed"]),
    role=st.sampled_from(["unit", "state", "table"]),
)


@given(st.lists(ACTIONS), st.lists(UNITS, unique=True), st.data())
def test_needed_is_the_sum_of_its_parts(actions: list[dict[str, Any]], needed: list[str], data: st.DataObject) -> None:
    deferred = data.draw(st.lists(st.sampled_from(needed), unique=True)) if needed else []
    found = stats([start(), *actions, end(units_needed=needed, units_deferred=deferred)])
    assert found.needed == found.compiled + found.reused + found.deferred
    assert min(parts(found)) >= 0
    assert found.reused <= len(needed)


def test_a_build_of_candidates_alone_did_something() -> None:
    """As a dump asks for them, with no image."""
    found = stats([start(), action("lower", "u1", candidate="TILE=4"), end()])
    assert (found.candidates, found.needed, found.did_nothing) == (1, 0, False)


def test_the_candidate_of_a_current_image_that_is_verified_is_no_other_one() -> None:
    found = stats([start(), action("verify", "u1", "same", candidate="TILE=4"), end()])
    assert (found.candidates, found.verified) == (0, 1)

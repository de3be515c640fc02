from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect import builds
from scons_gpu.store.because import NOTHING, Because, Input, from_json, to_json
from scons_gpu.store.log import BuildLog

if TYPE_CHECKING:
    from pathlib import Path


def start(build: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"build": build, "time": time, "type": "start", "argv": ["-j2"], "looking": False, "jobs": 2, **fields}


def action(build: str, time: float, **fields: Any) -> dict[str, Any]:
    return {"build": build, "time": time, "type": "action", "stage": "link", "name": "then", "result": "built", **fields}


RECORDS = [
    start("b1", 1),
    action("b1", 2, stage="source", name="k.ll", target="/t/k.ll.sm_90.ll", arch="sm_90", owners=["then"], key={"llvm": "22"}),
    action("b1", 3, stage="lower", name="k", unit="d1", owners=["then"], cpu=0.5, start=1.0, end=2.5, resources=[{"kernel": "k"}]),
    {"build": "b1", "time": 4, "type": "end", "ok": True, "plans": ["/t/p"], "units_needed": ["d1"], "kernels": 1, "wall_seconds": 3},
    start("b2", 5),
    action("b2", 6, stage="lower", name="k", unit="d2", owners=["then"]),
    start("b3", 6.5),
    action("b3", 7, stage="source", name="k.ll", target="/t/k.ll.sm_90.ll", because={"missing": True, "key": {"opt": ["2", "3"]}}),
    action("b2", 8, stage="lower", name="k", unit="d1", owners=["then"]),
    start("b4", 9, looking=True),
]


def test_builds_come_with_what_they_did() -> None:
    found = builds.history(RECORDS)
    assert [build.id for build in found.builds] == ["b1", "b2", "b3", "b4"]
    first = found.build("b1")
    assert (first.argv, first.jobs, first.looking) == (("-j2",), 2, False)
    assert [each.stage for each in first.actions] == ["source", "lower"]
    assert first.by_target["/t/k.ll.sm_90.ll"][0].key == {"llvm": "22"}
    assert first.end is not None
    assert (first.end.needed, first.end.counts["kernels"], first.end.plans) == ({"d1"}, 1, ("/t/p",))
    assert found.build("b2").end is None, "it was killed, or still runs"
    lowered = first.actions[1]
    assert (lowered.seconds, lowered.cpu, lowered.role, lowered.resources) == (1.5, 0.5, "unit", ({"kernel": "k"},))


def test_the_build_without_a_name_is_the_last_that_did_not_only_look() -> None:
    found = builds.history(RECORDS, place="/store")
    assert found.build().id == "b3"
    assert found.build("b4").looking
    with pytest.raises(UsageError, match="there is no build b9 in /store"):
        found.build("b9")
    with pytest.raises(UsageError, match="no build was logged in /store"):
        builds.history([], place="/store").build()
    with pytest.raises(UsageError, match="no build was logged"):
        builds.history([start("b", 1, looking=True)]).build()


def test_the_previous_action_is_of_the_same_node_and_another_build() -> None:
    found = builds.history(RECORDS)
    again = found.build("b3").actions[0]
    assert found.previous(again) == found.build("b1").actions[0]
    assert found.previous(found.build("b1").actions[0]) is None
    late = found.build("b2").actions[1]
    assert found.previous(late) == found.build("b1").actions[1], "not the other one of its own build"
    assert [each.build for each in found.by_unit["d1"]] == ["b1", "b2"]
    assert [each.build for each in found.by_target["/t/k.ll.sm_90.ll"]] == ["b1", "b3"]


def test_actions_of_two_builds_at_once_stand_in_the_order_of_time() -> None:
    assert [(each.build, each.stage) for each in builds.history(RECORDS).actions] == [
        ("b1", "source"),
        ("b1", "lower"),
        ("b2", "lower"),
        ("b3", "source"),
        ("b2", "lower"),
    ]


def test_a_log_is_read_from_its_store(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "log.jsonl", build="b1")
    log.write(type="start", argv=[], looking=False, jobs=1)
    log.write(type="action", stage="plan", name="then", result="built", plan="abc", because={"first": True})
    found = builds.read(tmp_path).build()
    assert (found.actions[0].plan, found.actions[0].because) == ("abc", Because(first=True))


def test_a_record_that_does_not_read_is_told() -> None:
    with pytest.raises(DamagedError, match="is no record of this version"):
        builds.history([start("b", 1), action("b", 2, owners=3)])


def test_a_cause_comes_back_from_json() -> None:
    because = Because(
        first=True,
        missing=True,
        altered=True,
        inputs=(Input("a.h", "changed", "read"), Input("k.cu", "added")),
        key={"opt": ("3", "2")},
        order=True,
        lost="its checksum is not the recorded one",
    )
    assert from_json(json.loads(json.dumps(to_json(because)))) == because
    assert to_json(NOTHING) == {}
    assert from_json(None) == NOTHING
    assert not NOTHING
    assert all(map(bool, (because, Because(order=True), Because(key={"a": ("", "b")}))))

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from laid_out import ARCH, Built, lay_out

from scons_gpu.cli import program as command
from scons_gpu.errors import UsageError
from scons_gpu.inspect.builds import Action, Build, End, of
from scons_gpu.inspect.chain import chain, needs
from scons_gpu.inspect.timeline import levels, slowest, timeline
from scons_gpu.inspect.trace import trace
from scons_gpu.store.log import BuildLog, read_build, rotated

if TYPE_CHECKING:
    from pathlib import Path

THREAD = 140_228_935_841_472
BASE = "/t/build/net"


def step(stage: str, name: str, start: float, seconds: float, *, worker: int = THREAD, **fields: Any) -> Action:
    end = start + seconds
    given = {"result": "built", "arch": "sm_90", "owners": ("m",), "target": f"/t/{stage}-{name}", "worker": worker, **fields}
    return Action(build="b", time=end, stage=stage, name=name, start=start, end=end, **given)


def build(*actions: Action, wall: float = 0.0) -> Build:
    return Build(id="b", time=10.0, jobs=2, argv=("-j2",), actions=actions, end=End(ok=True, wall_seconds=wall) if wall else None)


def test_a_worker_has_a_lane_and_does_one_thing_at_a_time() -> None:
    found = timeline(
        build(
            step("lower", "b", 11, 2, worker=42, peak_kib=300),
            step("source", "a", 10.5, 1, peak_kib=100),
            step("lower", "c", 12, 2, worker=42, peak_kib=50),
            step("lower", "d", 13, 1, worker=42),
            step("link", "e", 14, 1),
            step("source", "old", 0, 0),
        )
    )
    assert [lane.name for lane in found.lanes] == ["SCons thread 1", "worker 42", "worker 42 (2)"]
    assert [(each.action.name, each.lane, each.start, each.seconds) for each in found.steps] == [
        ("a", 0, 0.5, 1),
        ("b", 1, 1, 2),
        ("c", 2, 2, 2),
        ("d", 1, 3, 1),
        ("e", 0, 4, 1),
    ]
    assert (found.wall_seconds, found.span) == (5, 4.5)
    running = [(level.at, level.running, level.peak_kib) for level in levels(found)]
    assert running == [(0.5, 1, 100), (1, 2, 400), (1.5, 1, 300), (2, 2, 350), (3, 2, 50), (4, 1, 0), (5, 0, 0)]
    assert [each.action.name for each in slowest(found, 3)] == ["b", "c", "a"]


def test_a_build_without_steps_is_no_mistake() -> None:
    found = timeline(build(wall=0.5))
    assert (found.steps, found.lanes, found.wall_seconds, found.span) == ((), (), 0.5, 0.0)
    way = chain(found, {})
    assert (way.links, way.bound, way.gain) == ((), 0.5, 1.0)
    assert json.loads(trace(found))["traceEvents"][0]["ph"] == "M"


CHAIN = (
    step("source", "k.cu", 10.1, 1.0, target=f"{BASE}/m/k.cu.sm_90.ll"),
    step("source", "k.cu", 10.2, 5.0, target=f"{BASE}/m/k.cu.sm_80.ll", arch="sm_80", owners=("other",)),
    step("split", "k.cu", 11.2, 0.5, target=f"{BASE}/m/k.cu.sm_90.index.json"),
    step("plan", "m", 12.0, 0.1, target=f"{BASE}/m/sm_90.plan.json"),
    step("lower", "one", 12.2, 1.0, unit="d1", role="unit", worker=1),
    step("lower", "two", 12.3, 3.0, unit="d2", role="unit", worker=2),
    step("assemble", "one", 13.3, 0.5, unit="d1", role="unit"),
    step("assemble", "two", 16.0, 0.5, unit="d2", role="unit"),
    step("link", "m", 17.0, 0.2, target=f"{BASE}/m/sm_90.cubin"),
    step("pack", "m", 17.3, 0.1, target=f"{BASE}/m.fatbin", arch=""),
    step("manifest", "net.json", 17.5, 0.1, target=f"{BASE}.json", arch="", owners=()),
)
UNITS = {f"{BASE}/m/sm_90.plan.json": ("d1", "d2", "reused")}


def test_the_chain_is_the_longest_way_by_what_a_step_reads() -> None:
    way = chain(timeline(build(*CHAIN, wall=8.0)), UNITS)
    assert [(link.step.action.stage, link.step.action.name) for link in way.links] == [
        ("source", "k.cu"),
        ("split", "k.cu"),
        ("plan", "m"),
        ("lower", "two"),
        ("assemble", "two"),
        ("link", "m"),
        ("pack", "m"),
        ("manifest", "net.json"),
    ]
    assert [round(link.waited, 6) for link in way.links] == [0, 0.1, 0.3, 0.2, 0.7, 0.5, 0.1, 0.1]
    assert way.seconds == pytest.approx(5.5)
    assert way.bound == pytest.approx(8.0 - 7.5 + 5.5)
    assert way.gain == pytest.approx(8 / 6)
    alone = chain(timeline(build(*CHAIN[:2], wall=8.0)), {})
    assert [link.step.action.arch for link in alone.links] == ["sm_80"], "what nothing waits for may be the whole chain"


def test_a_log_that_names_no_files_has_no_chain() -> None:
    with pytest.raises(UsageError, match="does not tell which files its steps made"):
        chain(timeline(build(*(replace(each, target="") for each in CHAIN), wall=8.0)), UNITS)
    assert len(chain(timeline(build(*CHAIN[4:6], wall=8.0)), UNITS).links) == 1, "units alone are told by their digests"


def named(actions: tuple[Action, ...], units: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(f"{actions[a].stage} {actions[a].name}", f"{actions[b].stage} {actions[b].name}") for a, b in needs(actions, units)}


def test_candidates_bundles_ptx_and_objects_of_programs() -> None:
    actions = (
        step("plan", "tuned", 1, 1, target=f"{BASE}/tuned/sm_90.candidates.json", owners=("tuned",)),
        step("lower", "k [N=1]", 3, 1, unit="c1", role="unit", candidate="N=1", owners=("tuned",)),
        step("assemble", "k [N=1]", 4, 1, unit="c1", role="unit", candidate="N=1", owners=("tuned",)),
        step("choose", "tuned", 6, 1, target=f"{BASE}/tuned/sm_90.plan.json", owners=("tuned",)),
        step("split", "p.ptx", 6, 1, target=f"{BASE}/bun/p.ptx.sm_90.index.json"),
        step("plan", "bun", 7, 1, target=f"{BASE}/bun/sm_90.plan.json"),
        step("assemble", "p", 8, 1, unit="d1", role="unit"),
        step("link", "bun", 9, 1, target=f"{BASE}/bun.gpubundle", arch=""),
        step("pack", "a.cu", 10, 1, target="/t/a.o.gpu/a.cu.fatbin", arch=""),
        step("host", "a.cu", 11, 1, target="/t/a.o", arch=""),
    )
    units = {f"{BASE}/tuned/sm_90.plan.json": ("c1",), f"{BASE}/bun/sm_90.plan.json": ("d1",)}
    assert named(actions, units) == {
        ("plan tuned", "lower k [N=1]"),
        ("lower k [N=1]", "assemble k [N=1]"),
        ("plan tuned", "choose tuned"),
        ("lower k [N=1]", "choose tuned"),
        ("assemble k [N=1]", "choose tuned"),
        ("split p.ptx", "plan bun"),
        ("plan bun", "assemble p"),
        ("assemble p", "link bun"),
        ("plan bun", "link bun"),
        ("pack a.cu", "host a.cu"),
    }


def test_a_shared_unit_waits_for_the_first_of_its_plans() -> None:
    actions = (
        step("plan", "late", 1, 5, target=f"{BASE}/late/sm_90.plan.json"),
        step("plan", "early", 2, 1, target=f"{BASE}/early/sm_90.plan.json"),
        step("lower", "k", 7, 1, unit="d"),
    )
    units = {f"{BASE}/{name}/sm_90.plan.json": ("d",) for name in ("late", "early")}
    assert named(actions, units) == {("plan early", "lower k")}


def test_an_image_waits_for_objects_of_its_kind_alone() -> None:
    actions = (
        step("lower", "k", 1, 1, unit="d"),
        step("assemble", "k rel", 2, 1, unit="d", key={"kind": "rel"}),
        step("assemble", "k whole", 3, 1, unit="d", key={"kind": "whole"}),
        step("link", "image", 5, 1, target=f"{BASE}/m/sm_90.cubin", key={"kind": '"rel"'}),
        step("link", "bundle", 5, 1, target=f"{BASE}/n.gpubundle", key={"sm_90 kind": '"whole"'}),
    )
    units = {f"{BASE}/{name}/sm_90.plan.json": ("d",) for name in "mn"}
    assert {pair for pair in named(actions, units) if pair[1].startswith("link")} == {
        ("lower k", "link image"),
        ("lower k", "link bundle"),
        ("assemble k rel", "link image"),
        ("assemble k whole", "link bundle"),
    }


def test_a_trace_is_what_the_format_says() -> None:
    failed = step("lower", 'bad "k"\n', 17.4, 0.1, result="failed", output="x" * 1000, unit="d3", role="unit", worker=1)
    found = json.loads(trace(timeline(build(*CHAIN, failed, wall=8))))
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    events, lanes = found["traceEvents"], defaultdict(list)
    for event in events:
        check(event)
        if event["ph"] == "X":
            lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(named) == set(lanes)
    assert sum(map(len, lanes.values())) == len(CHAIN) + 1
    for spans in lanes.values():
        assert all(one[1] <= other[0] for one, other in zip(sorted(spans), sorted(spans)[1:], strict=False)), "one thing at a time"
    (bad,) = (event for event in events if event.get("cname") == "terrible")
    assert (bad["args"]["kernel"], bad["args"]["result"], len(bad["args"]["output"])) == ('bad "k"\n', "failed", 400)
    counted = [event["args"]["steps"] for event in events if event["name"] == "running steps"]
    assert (max(counted), counted[-1]) == (3, 0)


FIELDS = {
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "C": {"ph", "pid", "tid", "name", "ts", "args"},
}


def check(event: dict[str, Any]) -> None:
    """Of each phase the fields that the format asks for, of the types that it names, and no others."""
    assert set(event) - {"cname"} == FIELDS[event["ph"]]
    assert all(isinstance(event[name], int) and event[name] >= 0 for name in ("pid", "tid", "ts", "dur") if name in event)
    assert isinstance(event["name"], str)
    assert event.get("cname", "terrible") in {"terrible", "bad", "grey"}
    if event["ph"] == "C":
        assert all(isinstance(value, int | float) for value in event["args"].values())
    if event["ph"] == "M":
        assert event["name"] in {"process_name", "thread_name", "thread_sort_index"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("laid")
    lay_out(place, Built(modules=2, kernels=3, builds=2, ended=False))
    return place


def run(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(command, ["-C", str(folder), *words])


def test_what_the_commands_print(folder: Path, tmp_path: Path) -> None:
    listed = run(folder, "--build", "build-0", "slowest", "-n", "3")
    assert (listed.stderr, len(listed.stdout.splitlines())) == ("", 2 + 3 + 1)
    assert listed.stdout.splitlines()[-1].startswith("of 21 steps, 0.21 s together, in ")
    killed = run(folder, "critical-path", "--json")
    assert killed.stderr == "note: build build-1 was killed, or still runs: this is what had ended\n"
    stages = [each["stage"] for each in json.loads(killed.stdout)["steps"]]
    assert stages == ["source", "split", "plan", "lower", "assemble", "link", "pack", "manifest"]
    shown = run(folder, "critical-path").stdout.splitlines()
    assert shown[-2].startswith("these 8 of 21 steps take 0.08 s one after another")
    assert "with 2 jobs; with a worker for every step" in shown[-1]
    written = run(folder, "trace", "-o", str(tmp_path / "t.json"))
    assert written.stdout == f"{tmp_path / 't.json'}: 21 steps of build build-1 in 2 lanes\n"
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) > 21
    assert run(folder / "build", "slowest").exit_code == 2


def test_a_build_that_had_nothing_to_do_says_so(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / ".gpu-store/log.jsonl", build="idle")
    log.write(type="start", argv=[], looking=False, jobs=1, top=str(tmp_path))
    log.write(type="end", ok=True, programs=[], plans=[], wall_seconds=0.1)
    for name in ("slowest", "critical-path"):
        assert run(tmp_path, name).stdout == "build idle ran no step: there was nothing to do\n"


def test_one_build_is_read_without_the_others(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logs = {name: BuildLog(path, build=name) for name in ("one", "two", "three")}
    logs["one"].write(type="start", looking=False)
    logs["one"].write(type="action", stage="plan")
    logs["two"].write(type="start", looking=False, argv=["one"])
    path.rename(rotated(path))
    logs["one"].write(type="end")
    logs["two"].write(type="action", stage="link", name='"build":"one"')
    logs["three"].write(type="start", looking=True)
    with path.open("ab") as file:
        file.write(b'{"build":"two", torn\n')
    assert [record["type"] for record in read_build(path)[1]] == ["start", "action"]
    assert (read_build(path)[0], read_build(path, "three")[0], read_build(path, "four")) == ("two", "three", ("", []))
    assert [record["type"] for record in read_build(path, "one")[1]] == ["start", "action", "end"]
    assert [record["type"] for record in read_build(path, "one", holding=(b"end", b"plan"))[1]] == ["action", "end"]
    whole = of(folder / ".gpu-store", "build-0")
    assert (len(whole.actions), whole.actions[0].target) == (21, str(folder / f"build/net/m0/m0.cu.{ARCH}.ll"))

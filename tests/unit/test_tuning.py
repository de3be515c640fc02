from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import ENTRY

import scons_gpu
from scons_gpu.errors import GpuError, SourceError, UsageError
from scons_gpu.store.files import TEMPORARY
from scons_gpu.tune.model import Problem, pairs
from scons_gpu.tune.tuning import Device, Solution, Tuning, check, from_text, merge, read, to_text, write

ROOT = str(Path(scons_gpu.__file__).parents[1])


def entry(**fields: Any) -> dict[str, Any]:
    return {**ENTRY, **fields}


def text(*entries: Any) -> str:
    return json.dumps({"schema": "scons-gpu/tuning/1", "entries": list(entries)})


def one(**fields: Any) -> Solution:
    return from_text(text(entry(**fields))).solutions[0]


def tuning(name: str, *entries: dict[str, Any]) -> Tuning:
    return from_text(text(*entries), file=name)


# The file.


def test_the_form_of_the_file() -> None:
    assert to_text([one(kernel="b"), one(kernel="a", arch="sm_100", device={"name": "B200", "capability": "10.0"}), one(kernel="a")]) == (
        "{\n"
        '"entries": [\n'
        '{"arch": "sm_90", "candidates": 3, "device": {"capability": "9.0", "driver": "580.1", "name": "NVIDIA H200"}, "kernel": "a", "keys": {"n": "4096"}, '
        '"spread": 0.021, "time_us": 12.5, "tools": {"llvm": "22.1.0", "ptxas": "13.5.37"}, "values": {"TILE": "64"}},\n'
        '{"arch": "sm_100", "candidates": 3, "device": {"capability": "10.0", "driver": "", "name": "B200"}, "kernel": "a", "keys": {"n": "4096"}, '
        '"spread": 0.021, "time_us": 12.5, "tools": {"llvm": "22.1.0", "ptxas": "13.5.37"}, "values": {"TILE": "64"}},\n'
        '{"arch": "sm_90", "candidates": 3, "device": {"capability": "9.0", "driver": "580.1", "name": "NVIDIA H200"}, "kernel": "b", "keys": {"n": "4096"}, '
        '"spread": 0.021, "time_us": 12.5, "tools": {"llvm": "22.1.0", "ptxas": "13.5.37"}, "values": {"TILE": "64"}}\n'
        "],\n"
        '"schema": "scons-gpu/tuning/1"\n'
        "}\n"
    )


def test_an_empty_file() -> None:
    assert from_text(to_text([])) == Tuning(file="tuning.json")


def test_what_is_read_is_what_was_meant() -> None:
    assert one() == Solution(
        problem=Problem("gemm(float*)", "sm_90", (("n", "4096"),)),
        values=(("TILE", "64"),),
        time_us=12.5,
        spread=0.021,
        candidates=3,
        device=Device("NVIDIA H200", "9.0", "580.1"),
        tools=(("llvm", "22.1.0"), ("ptxas", "13.5.37")),
    )
    by_hand = one(keys={"n": 4096}, values={"TILE": 64}, time_us=12, later="field", device={**ENTRY["device"], "later": "field"})
    assert by_hand == one(time_us=12.0)
    assert one(values={}).label == "as written"


def test_a_problem_is_found_by_all_of_it() -> None:
    read_back = tuning("f", entry(), entry(arch="sm_80"), entry(keys={}))
    assert [read_back.find(each.problem) for each in read_back.solutions] == list(read_back.solutions)
    assert read_back.find(Problem("gemm(float*)", "sm_90", pairs({"n": 1}))) is None


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: "=" not in word and word.isprintable()
)
maps = st.dictionaries(words, words | st.just(""), max_size=3)
solutions = st.builds(
    Solution,
    problem=st.builds(Problem, words, st.sampled_from(["sm_90", "sm_90a", "sm_100f", "compute_80"]), maps.map(pairs)),
    values=maps.map(pairs),
    time_us=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    spread=st.floats(0, 10),
    candidates=st.integers(1, 100),
    device=st.builds(Device, words, st.sampled_from(["9.0", "8.6", "12.1"]), words),
    tools=maps.map(pairs),
)
many = st.lists(solutions, max_size=4, unique_by=lambda each: each.problem)


@given(many, st.randoms())
def test_what_is_written_is_read(written: list[Solution], random: Any) -> None:
    once = to_text(written)
    back = from_text(once)
    assert sorted(map(repr, back.solutions)) == sorted(map(repr, written))
    random.shuffle(written)
    assert to_text(written) == once == to_text(back.solutions)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*ENTRY, "name"]), inner),
    )
)
def test_whatever_an_entry_holds_it_is_read_or_an_error(data: Any) -> None:
    for field in ENTRY:
        with suppress(SourceError):
            assert len(from_text(text(entry(**{field: data}))).solutions) == 1


# Files that do not read.


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"values": None}, "entry 1 (gemm(float*) sm_90) is undecided: it has no values\n  a tuning file holds what was decided: measure"),
        ({"values": []}, "is undecided: it has no values"),
        ({"values": {"TILE": None}}, "is undecided: it has no values"),
        ({"values": {"TI LE": "1"}}, ": \"values\": 'TI LE' is no name\n  a name is text without blanks"),
        ({"values": {"TILE": ["1"]}}, ": \"values\": TILE is ['1'], which is no value\n  a value is a number, or text on one line"),
        ({"kernel": None}, 'entry 1 (sm_90): "kernel" is null, which is no name'),
        ({"kernel": "a\nb"}, 'entry 1 (sm_90): "kernel" is "a\\nb", which is no name'),
        ({"kernel": ""}, '"kernel" is "", which is no name'),
        (
            {"arch": "90"},
            'entry 1 (gemm(float*) 90): "arch" is "90", which is no architecture\n  it is spelled in full, as sm_90, sm_90a or',
        ),
        ({"arch": "sm_91"}, '"arch" is "sm_91", which is no architecture'),
        ({"arch": "sm_80a"}, '"arch" is "sm_80a", which is no architecture'),
        ({"keys": "n"}, '"keys" is "n", not names with values\n  it is written as {"TILE": "64"}'),
        ({"keys": {"n": None}}, '"keys" is {"n": null}, not names with values'),
        ({"time_us": "fast"}, '"time_us" is "fast", not a number above 0'),
        ({"time_us": 0}, '"time_us" is 0, not a number above 0'),
        ({"time_us": -1}, '"time_us" is -1, not a number above 0'),
        ({"time_us": float("nan")}, '"time_us" is NaN, not a number above 0'),
        ({"time_us": 10**400}, "not a number above 0"),
        ({"time_us": True}, '"time_us" is true, not a number above 0'),
        ({"spread": None}, '"spread" is null, not a number of 0 or more'),
        ({"candidates": 0}, '"candidates" is 0, not the number of those that were measured'),
        ({"candidates": 1.5}, '"candidates" is 1.5, not the number of those that were measured'),
        ({"device": "H200"}, '"device" is "H200", not names with values'),
        ({"device": {"capability": "9.0"}}, '"device" has no name'),
        (
            {"device": {"name": "H200", "capability": "sm_90"}},
            '"device" has the compute capability "sm_90", which is none\n  it is written as 9.0',
        ),
        ({"tools": None}, '"tools" is null, not names with values'),
    ],
)
def test_m12_an_entry_that_is_none_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        from_text(text(entry(**fields)), file="gpu/tuning.json")
    assert str(caught.value).startswith("gpu/tuning.json: entry 1")
    assert says in str(caught.value)


@pytest.mark.parametrize("field", sorted(ENTRY))
def test_no_field_may_lack(field: str) -> None:
    with pytest.raises(SourceError, match="entry 2"):
        from_text(text(entry(kernel="other"), {name: value for name, value in ENTRY.items() if name != field}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "f.json: this is not JSON: Expecting value: line 1 column 1 (char 0)\n  restore it from version control"),
        ('{"schema": ', "f.json: this is not JSON: Expecting value: line 1"),
        ("[" * 200_000, "f.json: this is not JSON: "),
        ('{"a": 1, "a": 2}', 'f.json: this is not JSON: "a" stands twice in one object'),
        ("[]", 'f.json: this is no tuning file: its schema is null, not "scons-gpu/tuning/1"\n  scons-gpu bench and'),
        ('{"schema": "scons-gpu/tuning/2", "entries": []}', 'its schema is "scons-gpu/tuning/2", not "scons-gpu/tuning/1"'),
        ('{"schema": "scons-gpu/tuning/1"}', 'f.json: "entries" is null, not a list'),
        (text(5), "f.json: entry 1 is no object"),
        (
            to_text([one()]).replace("],\n", "<<<<<<< HEAD\n],\n=======\n],\n>>>>>>> other\n"),
            "f.json: line 4: two versions of the file are not merged yet\n  save both and join them: scons-gpu tuning merge OURS THEIRS -o FILE",
        ),
        (
            text(entry(), entry(kernel="b"), entry(values={"TILE": "1"})),
            "f.json: entries 1 and 3 both solve gemm(float*) sm_90 n=4096\n  keep one",
        ),
    ],
)
def test_what_is_no_tuning_file(content: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        from_text(content, file="f.json")
    assert says in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^lost.json: cannot be read: No such file or directory\n  a tuning file is what"):
        read(tmp_path / "lost.json", name="lost.json")
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"image: cannot be read: .*codec can't decode"):
        read(tmp_path / "image")


def test_the_name_is_the_users(tmp_path: Path) -> None:
    write(tmp_path / "t.json", [one()])
    assert read(tmp_path / "t.json").file == str(tmp_path / "t.json")
    assert read(tmp_path / "t.json", name="gpu/t.json") == Tuning(file="gpu/t.json", solutions=(one(),))


# Writing.


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuError, match=r"^cannot write .*file/t.json"):
        write(tmp_path / "file" / "t.json", [])


def test_m13_a_killed_write_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    versions = {to_text(one(kernel=f"k{number:03}", time_us=step) for number in range(100)) for step in (1, 2)}
    code = (
        "import sys, itertools; from pathlib import Path; from scons_gpu.tune.tuning import from_text, write\n"
        "texts = [from_text(Path(name).read_text()).solutions for name in sys.argv[2:]]\n"
        "for each in itertools.cycle(texts): write(Path(sys.argv[1]), each)\n"
    )
    sources = [tmp_path / "1", tmp_path / "2"]
    for source, content in zip(sources, sorted(versions), strict=True):
        source.write_text(content)
    seen = set()
    for moment in range(10):
        process = subprocess.Popen([sys.executable, "-c", code, path, *sources], env={**os.environ, "PYTHONPATH": ROOT})
        before = path.stat().st_mtime_ns if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.001)
        time.sleep(moment * 0.0007)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        seen.add(path.read_text())
    assert seen <= versions
    assert {each.name for each in tmp_path.iterdir() if not each.name.startswith(TEMPORARY)} == {"1", "2", "tuning.json"}


# What runs where.


# Merging.

OLD = {"llvm": "22.1.0", "ptxas": "13.4.0"}


def fields(*merged: Solution) -> list[tuple[str, str, float]]:
    return [(each.problem.kernel, each.label, each.time_us) for each in merged]


def test_merging_what_does_not_touch() -> None:
    merged = merge(
        [
            tuning("a", entry(kernel="b"), entry(), entry(keys={})),
            tuning("b", entry(kernel="a"), entry(arch="sm_80", device={"name": "A100", "capability": "8.0"})),
        ]
    )
    assert [(each.problem.kernel, each.problem.arch) for each in merged.solutions] == [
        ("a", "sm_90"),
        ("b", "sm_90"),
        ("gemm(float*)", "sm_80"),
        ("gemm(float*)", "sm_90"),
        ("gemm(float*)", "sm_90"),
    ]
    assert merged.conflicts == ()
    assert merge([]).solutions == ()


def test_the_newer_tools_win_though_they_are_slower() -> None:
    merged = merge([tuning("a", entry(tools=OLD, values={"TILE": "8"})), tuning("b", entry(time_us=99))])
    assert fields(*merged.solutions) == [("gemm(float*)", "TILE=64", 99.0)]
    assert merged.conflicts == (
        "gemm(float*) sm_90 n=4096: TILE=64 (99.00 us, b) is kept, TILE=8 (12.50 us, a) is not: by ptxas 13.5.37, not 13.4.0",
    )


@pytest.mark.parametrize(
    ("tools", "others", "newer"),
    [
        ({"ptxas": "13.10.1"}, {"ptxas": "13.9.9"}, True),
        ({"ptxas": "13.5", "llvm": "21.1.0"}, {"ptxas": "13.4", "llvm": "22.1.0"}, True),
        ({"ptxas": "13.5", "llvm": "22.1.0"}, {"ptxas": "13.5.0", "llvm": "21.1.0"}, True),
        ({"ptxas": "13.5"}, {"llvm": "22.1.0"}, True),
        ({"ptxas": "13.5"}, {}, True),
        ({"ptxas": "13.5"}, {"ptxas": "13.5.0"}, False),
        ({"ptxas": "of no number"}, {"ptxas": ""}, False),
    ],
)
def test_which_tools_are_newer(tools: dict[str, str], others: dict[str, str], newer: bool) -> None:  # noqa: FBT001 - a table
    slow = entry(tools=tools, values={"TILE": "1"}, time_us=20)
    merged = merge([tuning("a", slow), tuning("b", entry(tools=others, values={"TILE": "2"}, time_us=10))])
    assert fields(*merged.solutions) == [("gemm(float*)", "TILE=1", 20.0) if newer else ("gemm(float*)", "TILE=2", 10.0)]
    assert merged.conflicts[0].endswith(": it is faster") is not newer


def test_the_faster_one_wins_by_equal_tools() -> None:
    merged = merge([tuning("a", entry()), tuning("b", entry(values={"TILE": "8"}, time_us=12.4))])
    assert fields(*merged.solutions) == [("gemm(float*)", "TILE=8", 12.4)]
    assert merged.conflicts[0].endswith(": it is faster")
    equal = merge([tuning("a", entry()), tuning("b", entry(values={"TILE": "8"}))])
    assert equal.conflicts[0].endswith("TILE=8 (12.50 us, b) is not: they are equally fast, and it sorts first")


def test_the_names_of_files_decide_nothing() -> None:
    entries = entry(values={"TILE": "8"}), entry(values={"TILE": "9"})
    assert {merge([tuning(name, each) for name, each in zip(names, entries, strict=True)]).solutions for names in ("ab", "ba")} == {
        (one(values={"TILE": "8"}),)
    }


def test_of_two_solutions_the_first_is_written() -> None:
    assert to_text([one(time_us=2), one(time_us=1)]) == to_text([one(time_us=2)])


def test_what_agrees_is_no_conflict() -> None:
    merged = merge([tuning("a", entry()), tuning("b", entry(time_us=11.0)), tuning("c", entry())])
    assert (fields(*merged.solutions), merged.conflicts) == ([("gemm(float*)", "TILE=64", 11.0)], ())


def test_what_counts_nowhere_never_wins() -> None:
    nowhere = entry(values={"TILE": "8"}, time_us=1, device={"name": "A10", "capability": "8.6"}, tools={"ptxas": "99.0"})
    merged = merge([tuning("a", nowhere), tuning("b", entry())])
    assert fields(*merged.solutions) == [("gemm(float*)", "TILE=64", 12.5)]
    assert merged.conflicts[0].endswith("is not: A10 (8.6), which is said to have measured it, cannot run code for sm_90")
    assert check(tuning("a", entry(kernel="k"), nowhere)) == (
        "gemm(float*) sm_90 n=4096: A10 (8.6), which is said to have measured it, cannot run code for sm_90",
    )
    assert check(tuning("b", entry())) == ()


def test_the_order_of_files_decides_nothing() -> None:
    files = [
        tuning("a", entry(tools={"ptxas": "13.5", "llvm": "21.0"}, values={"TILE": "1"}, time_us=3)),
        tuning("b", entry(tools={"llvm": "22.0"}, values={"TILE": "2"}, time_us=2)),
        tuning("c", entry(tools={"ptxas": "13.4", "llvm": "23.0"}, values={"TILE": "3"}, time_us=1)),
        tuning("d", entry(tools={"ptxas": "13.5", "llvm": "21.0"}, values={"TILE": "4"}, time_us=3)),
    ]
    merged = {merge(order) for order in itertools.permutations(files)}
    assert len(merged) == 1
    assert [each.label for each in merged.pop().solutions] == ["TILE=1"]

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.split.digest import content, fields

if TYPE_CHECKING:
    from collections.abc import Mapping

# Few letters, among them those that the framing itself uses, so that fields run into one another wherever they can.
FIELDS = st.dictionaries(st.text("ab:01", max_size=4), st.text("ab:01=\0", max_size=6), max_size=4)


def test_content_is_xxh3_128() -> None:
    # From the published test vectors: the empty input, seed 0.
    assert content(b"") == "99aa06d3014798d86001c324468d497f"
    assert content(b"abc") == xxhash.xxh3_128_hexdigest(b"abc")


@given(st.binary(max_size=64))
def test_a_digest_is_32_hex_digits(data: bytes) -> None:
    assert len(content(data)) == 32
    assert set(content(data)) <= set("0123456789abcdef")


@given(FIELDS, FIELDS)
def test_d3_fields_cannot_run_into_one_another(one: Mapping[str, str], two: Mapping[str, str]) -> None:
    assert (fields(one) == fields(two)) == (one == two)


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=6), min_size=1, max_size=4), st.data())
def test_d3_moving_a_letter_between_fields_changes_the_digest(values: dict[str, str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(values)))
    rest = {other: value for other, value in values.items() if other != name}
    value = values[name]
    moved = [{**rest, name + value[:1]: value[1:]}, {**rest, name[:-1]: name[-1:] + value}, {**rest, name: value + "\0"}, rest]
    assert fields(values) not in [fields(other) for other in moved if other != values]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"a": "bc"}, {"ab": "c"}),
        ({"a": "1", "b": "2"}, {"a": "1b2"}),
        ({"a": ""}, {}),
        ({"": "a"}, {"a": ""}),
        ({"a": "1:b"}, {"a": "1", "b": ""}),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}),
        ({"a": "3:xyz"}, {"a": "xyz"}),
        ({"a": "é"}, {"a": "e\u0301"}),
    ],
)
def test_d3_pairs_that_a_join_would_confuse(one: Mapping[str, str], two: Mapping[str, str]) -> None:
    assert fields(one) != fields(two)


def test_the_order_of_fields_does_not_matter() -> None:
    assert fields({"a": "1", "b": "2"}) == fields({"b": "2", "a": "1"})


def test_a_value_that_is_no_utf8() -> None:
    assert fields({"a": "\udcff"}) != fields({"a": "\udcfe"})


def test_t10_the_same_in_every_process() -> None:
    script = "from scons_gpu.split.digest import fields\nprint(fields({'arch': 'sm_90', 'slice': 'x'}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert found == {fields({"arch": "sm_90", "slice": "x"}) + "\n"}


def test_t9_the_hash_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, body = fields({"a": "x"}), content(b"x")
    monkeypatch.setenv("SCONS_GPU_TEST_HASH_BITS", "4")
    assert fields({"a": "x"}) == whole[-1].rjust(32, "0")
    assert len({fields({"a": str(number)}) for number in range(200)}) == 16
    assert content(b"x") == body, "nothing compares what a body stands for"

from __future__ import annotations

from pathlib import Path

from scons_gpu.scons.verify import Difference, first_difference, short_diff
from scons_gpu.store.record import Entry, Resources, make


def difference(key: dict[str, str], now: dict[str, str]) -> Difference:
    kept = make(b"abcd", key=key.items(), resources=[Resources(kernel="one", registers=8)])
    again = make(b"abXde", key=now.items(), resources=[Resources(kernel="one", registers=10, stack_bytes=0)])
    return Difference(what="object", kept=Entry(path=Path("store/x.cubin"), data=b"abcd", record=kept), data=b"abXde", again=again)


def test_where_sequences_differ() -> None:
    assert first_difference(b"abc", b"abd") == 2
    assert first_difference(b"abc", b"ab") == 2
    assert first_difference(b"", b"a") == 0
    assert first_difference(["one", "two"], ["one", "two", "three"]) == 2


def test_both_records_are_told_field_by_field() -> None:
    found = difference(
        {"arch": "sm_90", "opt": "3", "old": "1", "libdevice": ""}, {"arch": "sm_90", "opt": "2", "new": "1", "libdevice": ""}
    )
    assert found.fields == ({"arch": "sm_90", "libdevice": ""}, {"new": ("", "1"), "old": ("1", ""), "opt": ("3", "2")})
    assert found.text().splitlines() == [
        "object store/x.cubin",
        "  in the store:   4 bytes, sha256 88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589; one: 8 registers",
        f"  compiled again: 5 bytes, sha256 {found.again.sha256}; one: 10 registers, 0 stack_bytes",
        "  the first byte that differs is number 2, counted from 0",
        "  fields of the key that differ:",
        "    new = (empty) in the store, 1 now",
        "    old = 1 in the store, (empty) now",
        "    opt = 3 in the store, 2 now",
        "  fields of the key that are equal:",
        "    arch = sm_90",
        "    libdevice = (empty)",
    ]


def test_equal_keys_are_said_to_be() -> None:
    assert "fields of the key that differ: none\n" in difference({"arch": "sm_90"}, {"arch": "sm_90"}).text()


def test_a_diff_shows_the_first_place_and_no_more() -> None:
    old = [f"line {number}" for number in range(1, 5000)]
    new = [*old[:999], "changed", *old[1000:2000], "another", *old[2001:]]
    assert short_diff("\n".join(old), "\n".join(new)) == [
        "line 1000:", " line 998", " line 999", "-line 1000", "+changed", " line 1001", " line 1002",
    ]  # fmt: skip


def test_a_line_that_was_put_in_does_not_make_the_rest_differ() -> None:
    old = [f"line {number}" for number in range(1, 5000)]
    assert short_diff("\n".join(old), "\n".join(["new", *old])) == ["line 1:", "+new", " line 1", " line 2"]


def test_a_long_diff_is_cut() -> None:
    shown = short_diff("\n".join(["old"] * 100), "\n".join(["new"] * 100))
    assert len(shown) == 18
    assert shown[-1] == "..."


def test_lines_at_the_end_and_ends_of_lines() -> None:
    assert short_diff("a\nb\n", "a\nb\nc\n") == ["line 3:", " a", " b", "+c"]
    assert short_diff("a\n", "a") == ["line 2:"]

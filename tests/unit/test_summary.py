from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.inspect.summary import summary
from scons_gpu.store.stats import Stats


def test_all_parts() -> None:
    found = Stats(references=294, unique=282, shared=12, needed=282, compiled=12, reused=270, linked=3, wall_seconds=1.44)
    assert summary(found) == "units 294: 12 compiled, 270 reused, 12 shared · 3 images · 1.4 s"


def test_a_cold_build_with_one_image() -> None:
    found = Stats(references=4, unique=4, needed=4, compiled=4, linked=1, wall_seconds=12.0)
    assert summary(found) == "units 4: 4 compiled · 1 image · 12.0 s"


def test_nothing_to_do() -> None:
    assert summary(Stats(references=294, unique=282, shared=12, wall_seconds=0.2)) == "units 294: nothing to do"
    assert summary(Stats()) == "units 0: nothing to do"


def test_one_module_of_many() -> None:
    found = Stats(references=294, unique=282, shared=12, needed=10, compiled=1, reused=9, linked=1, wall_seconds=0.6)
    assert summary(found) == "units 294: 1 compiled, 9 reused, 272 current, 12 shared · 1 image · 0.6 s"


def test_failures() -> None:
    found = Stats(references=294, unique=282, shared=12, needed=11, compiled=11, failed=2, wall_seconds=3.0)
    assert summary(found) == "units 294: 11 compiled, 12 shared, 2 failed · 3.0 s"
    assert summary(Stats(failed=1, wall_seconds=0.1)) == "units 0: 1 failed · 0.1 s"


def test_verified_units_are_told_apart_from_the_others() -> None:
    assert summary(Stats(references=3, unique=3, verified=3, wall_seconds=0.1)) == "units 3: 3 current · 3 verified · 0.1 s"
    assert summary(Stats(references=3, unique=3, verified=3, failed=1, wall_seconds=0.1)) == "units 3: 1 failed · 3 verified · 0.1 s"


def test_deferred() -> None:
    found = Stats(references=3, unique=3, needed=3, compiled=1, deferred=2, linked=1, wall_seconds=0.1)
    assert summary(found) == "units 3: 1 compiled, 2 deferred · 1 image · 0.1 s"


def test_an_image_without_units() -> None:
    assert summary(Stats(linked=1, wall_seconds=0.1)) == "units 0: none · 1 image · 0.1 s"


def test_an_edit_of_host_code() -> None:
    found = Stats(references=3, unique=3, hosts=1, wall_seconds=0.1)
    assert summary(found) == "units 3: 3 current · 1 host object · 0.1 s"
    assert summary(Stats(hosts=2, wall_seconds=0.1)) == "units 0: none · 2 host objects · 0.1 s"


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_the_parts_add_up(compiled: int, reused: int, deferred: int, current: int, shared: int) -> None:
    needed = compiled + reused + deferred
    found = Stats(
        references=needed + current + shared, unique=needed + current, shared=shared, needed=needed,
        compiled=compiled, reused=reused, deferred=deferred, linked=1,
    )  # fmt: skip
    counts = [int(count) for count in re.findall(r"(\d+) (?:compiled|reused|deferred|current|shared)", summary(found))]
    assert sum(counts) == found.references
    assert 0 not in counts

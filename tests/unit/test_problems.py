from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scons_gpu.errors import ToolMissingError
from scons_gpu.inspect.problems import Problem, difference, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("held", "wanted", "found"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, None),
        ({"a": [1, {"b": 3}]}, {"a": [1, {"b": 2}]}, ("a[1].b", "is 3, and should be 2")),
        ({"a": 1, "b": 2}, {"a": 1}, ("b", "is there, and should not be")),
        ({}, {"a": 1}, ("a", "is not there")),
        ([1, 2], [1], ("", "has 2 items, and should have 1")),
        ({"a": True}, {"a": 1}, ("a", "is True, and should be 1")),
    ],
)
def test_where_two_values_differ(held: Any, wanted: Any, found: Any) -> None:
    assert difference(held, wanted) == found


def test_reading_what_does_not_read_is_a_problem_and_want_of_a_tool_is_none() -> None:
    def check(error: Exception) -> Iterator[Problem]:
        yield Problem("m", "f", "first")
        raise error

    assert [str(each) for each in guarded("m", lambda: check(KeyError("x")))] == ["m: f: first", "m: 'x'"]
    assert [str(each) for each in guarded("m", lambda: check(ValueError("m: y")))] == ["m: f: first", "m: y"]
    with pytest.raises(ToolMissingError):
        list(guarded("m", lambda: check(ToolMissingError("none"))))

from __future__ import annotations

import re
from typing import Any

import pytest

from scons_gpu.errors import UsageError
from scons_gpu.tune.launch import TYPES, Buffer, Launch, Scalar, read_argument, read_launch


def test_m13_a_launch_is_read_as_a_user_writes_it() -> None:
    launch = read_launch({"grid": [64], "block": (16, 16), "shared": 1024, "args": ["in f32 1048576", " out  f32 64 ", "i32 4096"]})
    assert launch == Launch(grid=(64, 1, 1), block=(16, 16, 1), shared=1024, args=("in f32 1048576", "out f32 64", "i32 4096"))
    assert launch.arguments == (Buffer("in", "f32", 1048576), Buffer("out", "f32", 64), Scalar("i32", 4096))
    assert launch.outputs == (Buffer("out", "f32", 64),)
    assert read_launch(launch.to_json()) == launch
    assert read_launch({"grid": 3, "block": 32}) == Launch(grid=(3, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_may_be_a_buffer_or_a_number(kind: str) -> None:
    assert read_argument(f"inout {kind} 3") == Buffer("inout", kind, 3)
    assert Buffer("in", kind, 3).bytes == 3 * TYPES[kind]
    assert read_argument(f"{kind} 1") == Scalar(kind, 1)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("in f32", "\"in f32\" does not read: 'in' is no type"),
        ("in f33 4", "'f33' is no type"),
        ("f33 4", "'f33' is no type"),
        ("in f32 0", "'0' is no number of values"),
        ("in f32 -4", "'-4' is no number of values"),
        ("in f32 4.5", "'4.5' is no number of values"),
        ("in f32 " + "9" * 30, "is no number of values"),
        ("through f32 4", "it has another number of words"),
        ("in f32 4 4", "it has another number of words"),
        ("", "it has another number of words"),
        ("i32 x", "'x' is no i32"),
        ("i32 1.5", "'1.5' is no i32"),
        ("f32 x", "'x' is no f32"),
        ("i8 128", "128 does not fit into i8"),
        ("i8 -129", "-129 does not fit into i8"),
        ("u32 -1", "-1 does not fit into u32"),
        ("u32 4294967296", "does not fit into u32"),
    ],
)
def test_the_word_that_is_wrong_is_quoted(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as caught:
        read_launch({"grid": [1], "block": [1], "args": ["i32 1", word]})
    assert f'the argument "{word}" does not read' in str(caught.value)
    assert "in f32 1024" in caught.value.hint


def test_numbers_fit_up_to_their_ends() -> None:
    words = ("i8 127", "i8 -128", "u32 4294967295", "i64 -9223372036854775808", "u64 0xffffffffffffffff", "f64 1e300", "bf16 0.5")
    values = [127, -128, 2**32 - 1, -(2**63), 2**64 - 1, 1e300, 0.5]
    assert [argument.value for argument in map(read_argument, words) if isinstance(argument, Scalar)] == values


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"block": [1]}, "a launch has no grid"),
        ({"grid": [1]}, "a launch has no block"),
        ({"grid": [1], "block": [1], "cluster": [2]}, "a launch knows no 'cluster'"),
        ({"grid": [], "block": [1]}, "grid [] is no shape"),
        ({"grid": [1, 1, 1, 1], "block": [1]}, "is no shape"),
        ({"grid": ["1"], "block": [1]}, "grid ['1'] is no shape"),
        ({"grid": [True], "block": [1]}, "is no shape"),
        ({"grid": [0], "block": [1]}, "grid [0] is out of range"),
        ({"grid": [1, 65536], "block": [1]}, "is out of range"),
        ({"grid": [1], "block": [1, 1, 65]}, "block [1, 1, 65] is out of range"),
        ({"grid": [1], "block": [32, 33]}, "block [32, 33] has 1056 threads"),
        ({"grid": [1], "block": [1], "shared": -1}, "shared -1 is no size"),
        ({"grid": [1], "block": [1], "args": "in f32 4"}, "args 'in f32 4' is no list of words"),
        ({"grid": [1], "block": [1], "args": [4]}, "args [4] is no list of words"),
        ([1, 2], "[1, 2] is no launch"),
    ],
)
def test_a_launch_that_does_not_read_is_a_users_mistake(data: Any, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        read_launch(data)


def test_a_block_of_every_size_that_a_gpu_takes() -> None:
    assert read_launch({"grid": [2**31 - 1, 65535, 65535], "block": [1024]}).block == (1024, 1, 1)
    assert read_launch({"grid": [1], "block": [4, 4, 64]}).block == (4, 4, 64)

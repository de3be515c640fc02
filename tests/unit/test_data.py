from __future__ import annotations

import numpy as np
import pytest

from scons_gpu.tune.data import TOLERANCES, contents, difference
from scons_gpu.tune.launch import TYPES, Buffer

DTYPES = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u32": np.uint32,
    "u64": np.uint64,
}

FIRST = [35, 0, 79, 44, 47, 90]  # SplitMix64 from seed 0: 0xe220a8397b1dcdaf, ..., each modulo 100


def numbers(data: bytes, kind: str) -> np.ndarray:
    if kind == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, DTYPES[kind])


def made(values: list[float], kind: str) -> bytes:
    if kind == "bf16":
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return np.array(values, DTYPES[kind]).tobytes()


@pytest.mark.parametrize("kind", TYPES)
def test_buffers_are_filled_alike_each_time_and_unlike_one_another(kind: str) -> None:
    buffer = Buffer("in", kind, 1000)
    data = contents(buffer, place=0)
    assert len(data) == buffer.bytes
    assert data == contents(buffer, place=0) == contents(Buffer("inout", kind, 2000), place=0)[: len(data)]
    assert data != contents(buffer, place=1)
    values = numbers(data, kind).astype(np.float64)
    low, high = (-1, 1) if kind in TOLERANCES else (0, 99)
    assert (values.min() >= low, values.max() <= high, len(set(values.tolist())) > 90) == (True, True, True)
    assert contents(Buffer("out", kind, 3), place=0) == bytes(3 * TYPES[kind])


def test_what_fills_a_buffer_is_the_same_with_every_numpy() -> None:
    assert numbers(contents(Buffer("in", "i32", 6), place=0), "i32").tolist() == FIRST
    floats = numbers(contents(Buffer("in", "f32", 2000), place=2), "f32")
    for kind in ("f16", "bf16", "f64"):
        assert numbers(contents(Buffer("in", kind, 2000), place=2), kind).tolist() == floats.tolist()


@pytest.mark.parametrize("kind", TOLERANCES)
def test_floating_point_may_differ_by_its_tolerance(kind: str) -> None:
    buffer = Buffer("out", kind, 4)
    base = made([1, 1, 1, 1], kind)
    within = made([1, 1, 1 + TOLERANCES[kind], 1], kind)
    beyond = made([1, 1, 1 + 3 * TOLERANCES[kind], 1], kind)
    assert difference(buffer, base, base) == ""
    assert difference(buffer, base, within) == ""
    assert difference(buffer, base, beyond).startswith("1 of 4 values differ, the first at 2: ")
    assert difference(buffer, base, beyond).endswith(f" for 1.0 (tolerance {TOLERANCES[kind]:g})")
    assert difference(buffer, base, beyond, tolerance=1.0) == ""
    assert "(tolerance 0)" in difference(buffer, base, made([1, 1, 1.5, 1], kind), tolerance=0.0)


def test_what_cancels_out_is_held_to_the_size_of_its_neighbours() -> None:
    buffer = Buffer("out", "f32", 4)
    assert difference(buffer, made([1, 1, 1, 0], "f32"), made([1, 1, 1, 5e-5], "f32")) == ""
    assert difference(buffer, made([1, 1, 1, 0], "f32"), made([1, 1, 1, 5e-4], "f32")) != ""
    assert difference(buffer, made([0, 0, 0, 0], "f32"), made([0, 0, 0, 1e-9], "f32")) != ""


def test_infinity_and_what_is_no_number_equal_themselves_alone() -> None:
    buffer = Buffer("out", "f32", 3)
    odd = made([np.nan, np.inf, 1], "f32")
    assert difference(buffer, odd, made([np.nan, np.inf, 1.00001], "f32")) == ""
    for other in ([0, np.inf, 1], [np.nan, -np.inf, 1], [np.nan, 3, 1], [np.nan, np.inf, np.nan], [np.nan, np.inf, np.inf]):
        assert difference(buffer, odd, made(other, "f32")) != ""
    assert difference(buffer, made([np.nan] * 3, "f32"), made([np.nan, np.nan, 1], "f32")) != ""


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in TOLERANCES])
def test_integers_must_be_equal(kind: str) -> None:
    buffer = Buffer("out", kind, 3)
    assert (
        difference(buffer, made([1, 2, 3], kind), made([1, 2, 4], kind), tolerance=9.0) == "1 of 3 values differ, the first at 2: 4 for 3"
    )


def test_another_size_is_another_result() -> None:
    assert difference(Buffer("out", "f32", 2), b"12345678", b"1234") == "it has 4 bytes for 8"

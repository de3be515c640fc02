"""What buffers are filled with, and whether two candidates gave the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scons_gpu.tune.launch import Buffer

__all__ = ["TOLERANCES", "contents", "difference"]

TOLERANCES = {"bf16": 3e-2, "f16": 4e-3, "f32": 1e-4, "f64": 1e-10}
"""About four units in the last place of 16 bits, and what a sum in another order costs 32 and 64 bits. Integers must be equal."""

_DTYPES = {
    "bf16": "<u2",
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "i8": "i1",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "u1",
    "u32": "<u4",
    "u64": "<u8",
}
_FEW = 100


def contents(buffer: Buffer, *, place: int) -> bytes:
    """What a buffer holds before a launch: zeros for `out`; else a sequence that depends on `place`, the argument's, alone.

    Floating point numbers are multiples of 2**-7 from -1 to 1, which all types hold exactly; integers go from 0 to 99, so that they
    serve as indexes too.
    """
    if buffer.direction == "out":
        return bytes(buffer.bytes)
    bits = _sequence(buffer.count, place)
    if buffer.type not in TOLERANCES:
        return (bits % _FEW).astype(_DTYPES[buffer.type]).tobytes()
    values = ((bits % 257).astype(np.float32) - 128) / 128
    if buffer.type == "bf16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype(_DTYPES[buffer.type]).tobytes()


def difference(buffer: Buffer, expected: bytes, got: bytes, *, tolerance: float | None = None) -> str:
    """How `got` differs from `expected`, in one line; empty where it does not.

    Two numbers are the same if they are not further apart than the tolerance times the expected one's magnitude and the mean magnitude
    together: what cancels out to nearly nothing is not held to its own size. Not-a-number equals itself, and so does infinity.
    """
    if len(expected) != len(got):
        return f"it has {len(got)} bytes for {len(expected)}"
    if expected == got:
        return ""
    first, second = _numbers(expected, buffer.type), _numbers(got, buffer.type)
    allowed = 0.0 if buffer.type not in TOLERANCES else TOLERANCES[buffer.type] if tolerance is None else tolerance
    wrong = _apart(first, second, allowed)
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    place = int(np.argmax(wrong))
    within = f" (tolerance {allowed:g})" if buffer.type in TOLERANCES else ""
    return f"{count} of {buffer.count} values differ, the first at {place}: {second[place]} for {first[place]}{within}"


def _apart(expected: NDArray[Any], got: NDArray[Any], allowed: float) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = expected != got
    if expected.dtype.kind != "f":
        return wrong
    finite = np.isfinite(expected)
    mean = float(np.abs(expected[finite]).mean()) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        near = np.abs(got - expected) <= allowed * (np.abs(expected) + mean)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    wrong[:] = ~np.where(finite & np.isfinite(got), near, same)
    return wrong


def _numbers(data: bytes, kind: str) -> NDArray[Any]:
    """In double precision, whatever they were; integers as they are."""
    raw = np.frombuffer(data, dtype=_DTYPES[kind])
    if kind == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64) if kind in TOLERANCES else raw


def _sequence(count: int, place: int) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood, 2014), so that it is the same with every numpy."""
    with np.errstate(over="ignore"):
        state: NDArray[np.uint64] = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(place << 40)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
        return state

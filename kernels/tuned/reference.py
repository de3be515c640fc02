"""What the tuned kernels should give: plain Python in double precision, with a small case of each for tests on a GPU."""  # noqa: INP001 - it lies beside the kernels, not in a package

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CASES", "Case", "gemm_tiled", "numbers", "reduce_rows", "softmax_rows"]


@dataclass(frozen=True)
class Case:
    """One launch: the input buffers, what the output buffer should hold, and the sizes in the order of the kernel's parameters.

    `reduce_rows` has its workspace, all zeros, between output and sizes.
    """

    kernel: str
    inputs: tuple[tuple[float, ...], ...]
    expected: tuple[float, ...]
    sizes: tuple[int, ...]
    tolerance: float  # relative to the largest of the expected


def gemm_tiled(a: Sequence[float], b: Sequence[float], *, m: int, n: int, k: int) -> list[float]:
    """A (m x k) times B (k x n), row-major."""
    return [math.fsum(a[i * k + p] * b[p * n + j] for p in range(k)) for i in range(m) for j in range(n)]


def reduce_rows(x: Sequence[float], *, rows: int, columns: int) -> list[float]:
    """The sum of each row."""
    return [math.fsum(x[row * columns : (row + 1) * columns]) for row in range(rows)]


def softmax_rows(x: Sequence[float], *, rows: int, columns: int) -> list[float]:
    """exp(x - max) / sum of each row; NaN for one that holds NaN or +inf, or nothing but -inf."""
    return [share for row in range(rows) for share in _softmax(x[row * columns : (row + 1) * columns])]


def _softmax(row: Sequence[float]) -> list[float]:
    highest = max(row)
    if math.isinf(highest) or any(math.isnan(value) for value in row):
        return [math.nan] * len(row)
    powers = [math.exp(value - highest) for value in row]
    total = math.fsum(powers)
    return [power / total for power in powers]


def numbers(count: int, *, seed: int = 1) -> tuple[float, ...]:
    """Numbers from -1 to 1 that f32 holds exactly, the same ones each time: a linear congruential sequence's upper bits."""
    state, found = seed, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        found.append((state >> 16) / 2**15 - 1.0)
    return tuple(found)


def _cases() -> tuple[Case, ...]:
    # No size is a multiple of a tile, a warp or a batch, so that every bound is met.
    m, n, k, rows, columns = 67, 131, 37, 3, 1029
    a, b, x = numbers(m * k), numbers(k * n, seed=2), numbers(rows * columns, seed=3)
    return (
        Case("gemm_tiled", (a, b), tuple(gemm_tiled(a, b, m=m, n=n, k=k)), (m, n, k), 1e-5),
        Case("reduce_rows", (x,), tuple(reduce_rows(x, rows=rows, columns=columns)), (rows, columns), 1e-5),
        Case("softmax_rows", (x,), tuple(softmax_rows(x, rows=rows, columns=columns)), (rows, columns), 1e-5),
    )


CASES = _cases()

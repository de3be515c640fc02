from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scons_gpu.errors import UsageError
from scons_gpu.tune.occupancy import LIMITS, Limits, best, limits, occupancy

ROWS = [pytest.param(row, id=f"{row.number / 10:.1f}") for row in LIMITS]
# CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability": blocks, warps, KB of shared memory per SM and block.
GUIDE = {
    75: (16, 32, 64, 64),
    80: (32, 64, 164, 163),
    86: (16, 48, 100, 99),
    87: (16, 48, 164, 163),
    89: (24, 48, 100, 99),
    90: (32, 64, 228, 227),
    100: (32, 64, 228, 227),
    103: (32, 64, 228, 227),
    110: (24, 48, 228, 227),
    120: (24, 48, 100, 99),
    121: (24, 48, 100, 99),
}


def arch(row: Limits) -> str:
    return f"sm_{row.number}"


def blocks(row: Limits, *, registers: int = 16, shared: int = 0, threads: int = 32) -> Fraction:
    """Resident ones, from the warps that they fill."""
    return occupancy(arch(row), registers, shared, threads) * row.warps / -(-threads // 32)


def test_the_table_is_the_guides() -> None:
    table = {row.number: (row.blocks, row.warps, row.shared_bytes >> 10, (row.shared_bytes - row.reserved_bytes) >> 10) for row in LIMITS}
    assert table == GUIDE
    assert [row.number for row in LIMITS] == sorted(table)


@pytest.mark.parametrize("row", ROWS)
def test_blocks_per_sm(row: Limits) -> None:
    assert blocks(row) == row.blocks
    assert blocks(row, threads=64) == min(row.blocks, row.warps // 2)


@pytest.mark.parametrize("row", ROWS)
def test_warps_per_sm(row: Limits) -> None:
    assert occupancy(arch(row), 16, 0, 256) == 1
    assert occupancy(arch(row), 16, 0, 257) == Fraction(row.warps // 9 * 9, row.warps), "a warp is taken whole"


@pytest.mark.parametrize("row", ROWS)
def test_threads_per_block(row: Limits) -> None:
    assert occupancy(arch(row), 16, 0, 1024) == Fraction(32, row.warps) * (row.warps // 32)
    assert occupancy(arch(row), 16, 0, 1025) == 0


@pytest.mark.parametrize("row", ROWS)
def test_registers_per_thread(row: Limits) -> None:
    assert occupancy(arch(row), 255, 0, 32) == Fraction(8, row.warps)
    assert occupancy(arch(row), 256, 0, 32) == 0


@pytest.mark.parametrize("row", ROWS)
def test_registers_per_block(row: Limits) -> None:
    assert occupancy(arch(row), 64, 0, 1024) > 0
    assert occupancy(arch(row), 65, 0, 1024) == 0


@pytest.mark.parametrize("row", ROWS)
def test_registers_per_sm(row: Limits) -> None:
    assert occupancy(arch(row), 40, 0, 128) == Fraction(min(48, row.warps), row.warps)
    assert occupancy(arch(row), 41, 0, 128) == Fraction(min(40, row.warps), row.warps), "handed out by eights"
    assert occupancy(arch(row), 48, 0, 128) == Fraction(min(40, row.warps), row.warps)
    assert occupancy(arch(row), 49, 0, 128) == Fraction(min(36, row.warps), row.warps)


def test_registers_lie_in_four_parts() -> None:
    assert occupancy("sm_90", 168, 0, 96) == Fraction(12, 64), "each part holds 3 warps of 5,376, though all of them hold 12.19"
    assert occupancy("sm_90", 168, 0, 416) == 0, "13 warps are checked as 16"
    assert occupancy("sm_90", 168, 0, 384) == Fraction(12, 64)


def test_no_registers_are_no_limit() -> None:
    assert occupancy("sm_90", 0, 0, 1024) == 1


@pytest.mark.parametrize("row", ROWS)
def test_shared_memory_per_block(row: Limits) -> None:
    most = row.shared_bytes - row.reserved_bytes
    assert blocks(row, shared=most) == 1
    assert blocks(row, shared=most + 1) == 0


@pytest.mark.parametrize("row", ROWS)
def test_shared_memory_per_sm(row: Limits) -> None:
    half = row.shared_bytes // 2 - row.reserved_bytes
    assert blocks(row, shared=half) == 2
    assert blocks(row, shared=half + 1) == 1


@pytest.mark.parametrize("row", ROWS)
def test_shared_memory_is_handed_out_by_multiples(row: Limits) -> None:
    taken = row.shared_bytes // 5 // row.shared_multiple * row.shared_multiple
    assert blocks(row, shared=taken - row.reserved_bytes) == 5
    assert blocks(row, shared=taken - row.reserved_bytes - row.shared_multiple + 1) == 5
    assert blocks(row, shared=taken - row.reserved_bytes + 1) == row.shared_bytes // (taken + row.shared_multiple)


def test_the_system_reserves_shared_memory_of_each_block_from_8_0_on() -> None:
    assert [row.number for row in LIMITS if not row.reserved_bytes] == [75]
    assert [row.number for row in LIMITS if row.shared_multiple == 256] == [75]
    assert blocks(limits("sm_86"), shared=100 * 1024 // 16 - 1024) == 16
    assert blocks(limits("sm_86"), shared=100 * 1024 // 16) == 13


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sm_90", 90),
        ("sm_90a", 90),
        ("sm_100f", 100),
        ("compute_90", 90),
        ("sm_121a", 121),
        ("sm_107", 103),
        ("sm_101", 100),
        ("sm_88", 87),
        ("sm_130", 121),
        ("sm_70", 75),
        ("sm_50", 75),
    ],
)
def test_an_architecture_that_the_table_lacks_has_those_of_the_nearest_older_one(name: str, number: int) -> None:
    assert limits(name).number == number


@pytest.mark.parametrize("name", ["", "90", "sm_", "gfx90a", "sm_90b"])
def test_what_is_no_architecture(name: str) -> None:
    with pytest.raises(UsageError, match="is no architecture"):
        limits(name)


@pytest.mark.parametrize("figures", [(-1, 0, 32), (1, -1, 32), (1, 0, 0), (1, 0, -32)])
def test_figures_that_no_kernel_has(figures: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no kernel has"):
        occupancy("sm_90", *figures)


def test_the_best_size_of_block_is_found() -> None:
    assert best("sm_86", 40, 0) == 1, "768 threads, where 1,024 fill two thirds"
    assert occupancy("sm_86", 40, 0, 1024) == Fraction(2, 3)
    assert best("sm_90", 255, 0) == Fraction(8, 64)
    assert best("sm_90", 16, 300_000) == 0


kernels = st.tuples(st.sampled_from(LIMITS), st.integers(0, 255), st.integers(0, 228 * 1024), st.integers(1, 1024))


@given(kernels)
def test_a_part_of_an_sm(kernel: tuple[Limits, int, int, int]) -> None:
    row, registers, shared, threads = kernel
    filled = occupancy(arch(row), registers, shared, threads)
    assert 0 <= filled <= 1
    assert (filled * row.warps).denominator == 1
    assert filled <= best(arch(row), registers, shared)


@given(kernels)
def test_more_of_anything_never_fills_more(kernel: tuple[Limits, int, int, int]) -> None:
    row, registers, shared, threads = kernel
    filled = occupancy(arch(row), registers, shared, threads)
    assert occupancy(arch(row), registers + 1, shared, threads) <= filled
    assert occupancy(arch(row), registers, shared + 1, threads) <= filled

from __future__ import annotations

from itertools import permutations

import pytest

from scons_gpu.toolchain.arch import KNOWN
from scons_gpu.toolchain.running import best_first, fitting, loaded_as, runs_on, span


@pytest.mark.parametrize(
    ("arch", "runs", "does_not"),
    [
        ("sm_80", ["8.0", "8.6", "8.9"], ["7.5", "8.7", "9.0"]),
        ("sm_86", ["8.6", "8.9"], ["8.0", "8.7", "9.0"]),
        ("sm_87", ["8.7"], ["8.6", "8.9"]),
        ("sm_90", ["9.0"], ["8.9", "10.0"]),
        ("sm_90a", ["9.0"], ["10.0"]),
        ("sm_100", ["10.0", "10.3"], ["11.0", "12.0"]),
        ("sm_100a", ["10.0"], ["10.3"]),
        ("sm_100f", ["10.0", "10.3"], ["12.0", "9.0"]),
        ("sm_110", ["11.0"], ["10.0", "12.0"]),
        ("sm_120", ["12.0", "12.1"], ["10.0"]),
        ("compute_80", ["8.0", "8.7", "9.0", "12.1"], ["7.5"]),
        ("compute_90a", ["9.0"], ["10.0"]),
        ("compute_100f", ["10.0", "10.3"], ["12.0"]),
    ],
)
def test_what_code_runs_on(arch: str, runs: list[str], does_not: list[str]) -> None:
    assert [capability for capability in runs + does_not if runs_on(arch, capability)] == runs


ARCHS = ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100f", "sm_100", "compute_80", "compute_90", "compute_90a")


@pytest.mark.parametrize(
    ("capability", "taken"),
    [
        ("7.5", None),
        ("8.0", "sm_80"),
        ("8.7", "compute_80"),  # Tegra's runs nobody else's machine code
        ("8.9", "sm_86"),
        ("9.0", "sm_90a"),
        ("10.0", "sm_100f"),
        ("10.3", "sm_100f"),
        ("12.0", "compute_90"),
    ],
)
def test_a_gpu_takes_the_best_that_runs_on_it(capability: str, taken: str | None) -> None:
    assert fitting(ARCHS, capability) == taken
    assert fitting(reversed(ARCHS), capability) == taken


def test_the_order_is_one_for_all() -> None:
    wanted = ["sm_100f", "sm_100", "sm_90a", "sm_90", "compute_90a", "compute_90"]
    assert all(best_first(order) == wanted for order in permutations(wanted))


def test_ptx_is_for_all_that_is_newer_whatever_it_was_made_for() -> None:
    assert [loaded_as("sm_90", ptx=False), loaded_as("sm_90a", ptx=True), loaded_as("compute_90", ptx=True)] == [
        "sm_90",
        "compute_90a",
        "compute_90",
    ]


@pytest.mark.parametrize("arch", [f"{kind}_{name}" for kind in ("sm", "compute") for name in KNOWN])
def test_a_span_says_the_same_in_numbers(arch: str) -> None:
    found = span(arch)
    for device in range(50, 200):
        told = found.least <= device <= found.most and bool(found.minors >> device % 10 & 1)
        assert told == runs_on(arch, f"{device // 10}.{device % 10}"), device

"""What a GPU measured, as tuning files have it."""

from __future__ import annotations

from typing import Any

__all__ = ["ENTRY"]

ENTRY: dict[str, Any] = {
    "kernel": "gemm(float*)",
    "arch": "sm_90",
    "keys": {"n": "4096"},
    "values": {"TILE": "64"},
    "time_us": 12.5,
    "spread": 0.021,
    "candidates": 3,
    "device": {"name": "NVIDIA H200", "capability": "9.0", "driver": "580.1"},
    "tools": {"llvm": "22.1.0", "ptxas": "13.5.37"},
}

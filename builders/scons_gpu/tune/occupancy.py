"""How many warps of a kernel an SM holds at a time, by NVIDIA's published limits.

The limits are those of the CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability", and so are those of
12.1, by its column 12.x. 10.3 is as 10.0 in CCCL's `cuda/__device/arch_traits.h`. How registers and shared memory are handed out (by
what multiples, to which parts of an SM, what is reserved) is what `cuda_occupancy.h` of CUDA 13.5 computes. Where sources differ on
12.0 (its tuning guide and CCCL say 32 blocks), the guide's table and `cuda_occupancy.h` agree, and are followed.

An SM is taken to be set up for as much shared memory as it can have, and a kernel to have asked for as much as it needs. Barriers and
clusters, which may limit occupancy too, are left out: candidates of one kernel seldom differ in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from scons_gpu.toolchain.arch import Target

__all__ = ["LIMITS", "Limits", "best", "limits", "occupancy"]

# The same on every architecture of the table.
WARP = 32  # threads
MOST_THREADS = 1024  # per block
MOST_REGISTERS = 255  # per thread
REGISTERS = 64 * 1024  # per SM, and per block
_REGISTER_MULTIPLE = 256  # per warp
_PARTITIONS = 4  # of an SM, each with its part of the registers

_KB = 1024


@dataclass(frozen=True)
class Limits:
    """What one SM has."""

    number: int
    """The compute capability without its dot."""
    warps: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = 1024
    """Of each block's shared memory, by the system."""
    shared_multiple: int = 128
    """A block's shared memory is handed out in multiples of this, in bytes."""


LIMITS: tuple[Limits, ...] = (
    Limits(75, warps=32, blocks=16, shared_bytes=64 * _KB, reserved_bytes=0, shared_multiple=256),
    Limits(80, warps=64, blocks=32, shared_bytes=164 * _KB),
    Limits(86, warps=48, blocks=16, shared_bytes=100 * _KB),
    Limits(87, warps=48, blocks=16, shared_bytes=164 * _KB),
    Limits(89, warps=48, blocks=24, shared_bytes=100 * _KB),
    Limits(90, warps=64, blocks=32, shared_bytes=228 * _KB),
    Limits(100, warps=64, blocks=32, shared_bytes=228 * _KB),
    Limits(103, warps=64, blocks=32, shared_bytes=228 * _KB),
    Limits(110, warps=48, blocks=24, shared_bytes=228 * _KB),
    Limits(120, warps=48, blocks=24, shared_bytes=100 * _KB),
    Limits(121, warps=48, blocks=24, shared_bytes=100 * _KB),
)


def limits(arch: str) -> Limits:
    """Those of `sm_90`, `sm_90a` or `compute_90`.

    An architecture that the table lacks has those of the nearest older one, so that `sm_107` is held to those of 10.3; one that is older
    than all (5.0 to 7.2) has those of 7.5. Whoever shows a figure that came about so says it: `limits(arch).number` is another than the
    architecture's. Raises UsageError for what is no architecture.
    """
    number = Target(name=arch, real=arch.startswith("sm_")).number
    return next((row for row in reversed(LIMITS) if row.number <= number), LIMITS[0])


def occupancy(arch: str, registers: int, shared_bytes: int, threads: int) -> Fraction:
    """The part of an SM's warps that blocks of `threads` threads fill: 1 is full, 0 a block that does not fit at all.

    `registers` are those of one thread, `shared_bytes` the block's own, static and dynamic, without what the system reserves.
    Raises UsageError for what is no architecture, ValueError for figures that no kernel has.
    """
    if registers < 0 or shared_bytes < 0 or threads < 1:
        msg = f"no kernel has {registers} registers, {shared_bytes} bytes of shared memory and {threads} threads"
        raise ValueError(msg)
    sm = limits(arch)
    warps = _up(threads, WARP) // WARP
    blocks = min(sm.blocks, _by_threads(sm, threads), _by_shared(sm, shared_bytes), _by_registers(sm, registers, warps))
    return Fraction(blocks * warps, sm.warps)


def best(arch: str, registers: int, shared_bytes: int) -> Fraction:
    """The most that blocks of any size fill, for a kernel of which nobody says how it is launched."""
    return max(occupancy(arch, registers, shared_bytes, threads) for threads in range(WARP, MOST_THREADS + 1, WARP))


def _by_threads(sm: Limits, threads: int) -> int:
    return sm.warps // (_up(threads, WARP) // WARP) if threads <= MOST_THREADS else 0


def _by_shared(sm: Limits, shared_bytes: int) -> int:
    taken = _up(shared_bytes + sm.reserved_bytes, sm.shared_multiple)
    return sm.shared_bytes // taken if taken else sm.blocks


def _by_registers(sm: Limits, registers: int, warps: int) -> int:
    """Each warp's registers lie in one part of the SM; whether a block fits is decided as if its warps filled all parts alike."""
    if not registers:
        return sm.blocks
    taken = _up(registers * WARP, _REGISTER_MULTIPLE)
    if registers > MOST_REGISTERS or taken * _up(warps, _PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // _PARTITIONS // taken * _PARTITIONS // warps


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

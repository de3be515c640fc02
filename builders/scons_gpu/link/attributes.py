"""Attributes of `.nv.info` sections: which of them are known, and which hold indexes of symbols.

No public document defines them. Names are those that cuobjdump 13.5 prints (EIATTR_…) for each number; those that it calls unknown have
the number alone. Which ones hold indexes was read off files in which one kernel has other indexes: all else in them stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MIN_STACK_SIZE", "UnknownAttributeError", "indexes", "records"]


class UnknownAttributeError(Exception):
    """An attribute that is not in these tables."""


_FRAME_SIZE, MIN_STACK_SIZE, _MAX_STACK_SIZE, _REGCOUNT = 0x11, 0x12, 0x23, 0x2F
_PARAM_CBANK, _EXTERNS = 0x0A, 0x0F
_FIRST = frozenset({_FRAME_SIZE, MIN_STACK_SIZE, _MAX_STACK_SIZE, _REGCOUNT, _PARAM_CBANK})
"""The first word is an index: of a function, or of the section of a kernel's parameters."""
_PLAIN = {
    0x01: "PAD",
    0x04: "CTAIDZ_USED",
    0x05: "MAX_THREADS",
    0x0D: "SYNC_STACK",
    0x10: "REQNTID",
    0x17: "KPARAM_INFO",
    0x19: "CBANK_PARAM_SIZE",
    0x1B: "MAXREG_COUNT",
    0x1C: "EXIT_INSTR_OFFSETS",
    0x1D: "S2RCTAID_INSTR_OFFSETS",
    0x1E: "CRS_STACK_SIZE",
    0x21: "EXPLICIT_CACHING",
    0x25: "LD_CACHEMOD_INSTR_OFFSETS",
    0x26: "LOAD_CACHE_REQUEST",
    0x27: "ATOM_SYS_INSTR_OFFSETS",
    0x28: "COOP_GROUP_INSTR_OFFSETS",
    0x29: "COOP_GROUP_MASK_REGIDS",
    0x2A: "0x2a",
    0x2B: "WMMA_USED",
    0x2D: "ATOMF16_EMUL_INSTR_OFFSETS",
    0x2E: "ATOM16_EMUL_INSTR_REG_MAP",
    0x30: "0x30",
    0x31: "INT_WARP_WIDE_INSTR_OFFSETS",
    0x32: "SHARED_SCRATCH",
    0x33: "STATISTICS",
    0x34: "INDIRECT_BRANCH_TARGETS",
    0x35: "0x35",
    0x36: "SW_WAR",
    0x37: "CUDA_API_VERSION",
    0x38: "NUM_MBARRIERS",
    0x39: "MBARRIER_INSTR_OFFSETS",
    0x3D: "CTA_PER_CLUSTER",
    0x3E: "EXPLICIT_CLUSTER",
    0x3F: "MAX_CLUSTER_RANK",
    0x40: "INSTR_REG_MAP",
    0x41: "RESERVED_SMEM_USED",
    0x42: "RESERVED_SMEM_0_SIZE",
    0x44: "UNUSED_LOAD_BYTE_OFFSET",
    0x45: "KPARAM_INFO_V2",
    0x46: "SYSCALL_OFFSETS",
    0x4A: "VRC_CTA_INIT_COUNT",
    0x4C: "NUM_BARRIERS",
    0x50: "SPARSE_MMA_MASK",
    0x51: "TCGEN05_1CTA_USED",
    0x52: "TCGEN05_2CTA_USED",
    0x53: "GEN_ERRBAR_AT_EXIT",
    0x54: "REG_RECONFIG",
    0x55: "ANNOTATIONS",
    0x57: "STACK_CANARY_TRAP_OFFSETS",
    0x59: "LOCAL_CTA_ASYNC_STORE_OFFSETS",
    0x5A: "0x5a",
    0x5B: "BLOCKS_ARE_CLUSTERS",
    0x5F: "0x5f",
    0x62: "CLUSTER_LAUNCH_CONTROL_USED",
    0x64: "MIN_PER_CTA_MEMORY_SIZE",
    0x65: "IGNOREOOB_CP_ASYNC_BULK_INSTR_OFFSETS",
    0x66: "LANGUAGE",
    0x68: "GRID_ATTRIBUTES",
    0x6B: "NVSAL_SW_WAR",
    0x6C: "INSTR_OFFSETS",
    0x6D: "PREEXIT_USED",
}
"""Counts, sizes, offsets of instructions within the function."""
_SIZED = 4  # EIFMT_SVAL


def records(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end, attribute) of each: a format byte, the attribute, two bytes of value, or of length where the format says so."""
    place, end = 0, len(data)
    while place < end:
        start, place = place, place + 4
        if data[start] == _SIZED:
            place += data[start + 2] | data[start + 3] << 8
        yield start, place, data[start + 1]
    _check_end(place, end)


def indexes(data: bytes) -> list[int]:
    """Where the indexes of symbols are. Raises UnknownAttributeError, with its number, for an attribute that is not known."""
    place, end = 0, len(data)
    found: list[int] = []
    while place < end:  # as `records`, in one loop: a file has some twenty for each function
        start, place = place, place + 4
        if data[start] == _SIZED:
            place += data[start + 2] | data[start + 3] << 8
        attribute = data[start + 1]
        if attribute in _PLAIN:
            continue
        if attribute in _FIRST:
            found.append(start + 4)
        elif attribute == _EXTERNS:
            found += range(start + 4, place, 4)
        else:
            msg = f"attribute {attribute:#04x}"
            raise UnknownAttributeError(msg)
    _check_end(place, end)
    return found


def _check_end(place: int, end: int) -> None:
    if place != end:
        msg = "an attribute ends behind its section"
        raise ValueError(msg)

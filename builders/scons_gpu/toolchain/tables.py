"""What NVIDIA's and LLVM's releases know, as data: architectures, PTX versions, CUDA releases, versions to refuse or warn of.

Sources: the release history of NVIDIA's PTX ISA document, `ptxas --help` of 13.0 and 13.5, and LLVM 22's NVPTX processors as llvmlite
shows them. Contract tests compare each table with the tools at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARCHS", "CUDA_OF_DRIVER", "LLVM_PTX", "PARAMETER_BYTES", "PTX_OF_CUDA", "VERSION_RULES", "Arch", "VersionRule"]


@dataclass(frozen=True)
class Arch:
    """One architecture: the least PTX version (78 is 7.8) that names it, per suffix, and the CUDA release that dropped it, if one did."""

    number: int
    ptx: int
    specific: int | None = None  # sm_90a: code for this very GPU
    family: int | None = None  # sm_100f: code for the family of this GPU
    dropped: tuple[int, int] | None = None

    def least_ptx(self, suffix: str) -> int | None:
        """The least PTX version for `sm_<number><suffix>`; None if there is no such architecture."""
        return {"": self.ptx, "a": self.specific, "f": self.family}[suffix]


# An architecture came with the CUDA release that brought its PTX version, so no column says that.
ARCHS: tuple[Arch, ...] = (
    Arch(50, 40, dropped=(13, 0)),
    Arch(52, 41, dropped=(13, 0)),
    Arch(53, 42, dropped=(13, 0)),
    Arch(60, 50, dropped=(13, 0)),
    Arch(61, 50, dropped=(13, 0)),
    Arch(62, 50, dropped=(13, 0)),
    Arch(70, 60, dropped=(13, 0)),
    Arch(72, 61, dropped=(13, 0)),
    Arch(75, 63),
    Arch(80, 70),
    Arch(86, 71),
    Arch(87, 74),
    Arch(88, 90),
    Arch(89, 78),
    Arch(90, 78, specific=80),
    Arch(100, 86, specific=86, family=88),
    Arch(101, 86, specific=86, family=88, dropped=(13, 0)),  # goes on as 110
    Arch(103, 88, specific=88, family=88),
    Arch(107, 94, specific=94, family=94),
    Arch(110, 90, specific=90, family=90),
    Arch(120, 87, specific=87, family=88),
    Arch(121, 88, specific=88, family=88),
)

# CUDA release → the newest PTX version that its tools read.
PTX_OF_CUDA: dict[tuple[int, int], int] = {
    (11, 0): 70,
    (11, 1): 71,
    (11, 2): 72,
    (11, 3): 73,
    (11, 4): 74,
    (11, 5): 75,
    (11, 6): 76,
    (11, 7): 77,
    (11, 8): 78,
    (12, 0): 80,
    (12, 1): 81,
    (12, 2): 82,
    (12, 3): 83,
    (12, 4): 84,
    (12, 5): 85,
    (12, 6): 85,
    (12, 7): 86,
    (12, 8): 87,
    (12, 9): 88,
    (13, 0): 90,
    (13, 1): 91,
    (13, 2): 92,
    (13, 3): 93,
    (13, 4): 94,
    (13, 5): 95,
}

# PTX version from which on → bytes of parameters that a kernel can have, newest first (ptxas 13.5; PTX ISA, 5.1.6.1). The larger needs
# sm_70, which is older than all that LLVM's PTX of that version is for.
PARAMETER_BYTES: tuple[tuple[int, int], ...] = ((81, 32_764), (0, 4_352))

# Branch of the driver → the newest CUDA release that it was made for (CUDA release notes, table of toolkits and drivers).
CUDA_OF_DRIVER: dict[int, tuple[int, int]] = {
    450: (11, 0),
    455: (11, 1),
    460: (11, 2),
    465: (11, 3),
    470: (11, 4),
    495: (11, 5),
    510: (11, 6),
    515: (11, 7),
    520: (11, 8),
    525: (12, 0),
    530: (12, 1),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    560: (12, 6),
    565: (12, 7),
    570: (12, 8),
    575: (12, 9),
    580: (13, 0),
    590: (13, 1),
}

# LLVM's major version → the newest PTX version that its NVPTX back end writes.
# It knows all of ARCHS up to that version, `a` and `f` included.
LLVM_PTX: dict[int, int] = {20: 87, 21: 88, 22: 90}


@dataclass(frozen=True)
class VersionRule:
    """Versions of a tool, from `first` up to but without `end`, that are refused or warned of: for `archs`, or for all if that is empty."""

    tool: str
    first: tuple[int, ...]
    end: tuple[int, ...]
    verdict: str  # "refuse" or "warn"
    why: str
    archs: frozenset[int] = frozenset()


_ALWAYS = (10**6,)

VERSION_RULES: tuple[VersionRule, ...] = (
    # The ptxas rows are those of openxla/xla: subprocess_compilation.cc and ptx_compiler_helpers.cc.
    VersionRule("ptxas", (0,), (11, 8), "refuse", "the oldest that can be used is 11.8"),
    VersionRule("ptxas", (12, 3, 103), (12, 3, 104), "refuse", "it miscompiles; take another release"),
    VersionRule(
        "ptxas",
        (12, 0),
        (12, 6, 85),
        "warn",
        "it miscompiles some clamping for sm_90 and newer (NVIDIA bug 4826023); 12.6.85 and newer do not",
        archs=frozenset(arch.number for arch in ARCHS if arch.number >= 90),
    ),
    VersionRule("nvlink", (0,), (11, 8), "refuse", "the oldest that can be used is 11.8"),
    VersionRule("clang", (0,), (20,), "refuse", "the oldest that can be used is 20"),
    VersionRule("clang", (23,), _ALWAYS, "warn", "its LLVM IR may be newer than what LLVM 22 reads"),
    VersionRule("cuda-headers", (0,), (11, 0), "refuse", "clang reads the headers of CUDA 11.0 to 12.9"),
    VersionRule("cuda-headers", (13,), _ALWAYS, "warn", "clang 22 reads headers newer than 12.9 only in part"),
)

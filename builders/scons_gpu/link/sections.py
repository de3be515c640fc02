"""The sections of a whole-program cubin that merging knows, by name, and what each is.

No public document defines them. They were read off files of ptxas 13.5 (ELF ABI version 8) that differ in one kernel, in one feature or
in the order of kernels, beside what `cuobjdump -elf` and `nvdisasm` print of them. `.nv.merc.…` and `.nv.capmerc.…` are there from sm_100
on: the same functions in a second form, which a driver can finish for another GPU of the family.
"""

from __future__ import annotations

import re
from typing import Final

from scons_gpu.link.pieces import MAIN, MERCURY

__all__ = [
    "ADDRESSES",
    "BANKS",
    "LAST",
    "MEMORY",
    "MERCURY_TEXT",
    "NAMES",
    "NOBITS",
    "OF_FILE",
    "OF_FUNCTION",
    "PLACED",
    "RELOCATIONS",
    "SAME",
    "TAIL",
    "has_memory",
    "holds_memory",
    "ranks",
]

NOBITS: Final = frozenset({8, 0x70000015})  # SHT_NOBITS; and its kind of `.nv.merc.nv.shared.reserved.0`
RELOCATIONS: Final = frozenset({4, 9, 0x70000082})  # SHT_RELA, SHT_REL, and that of `.nv.merc.rela.…`
NAMES: Final = (".shstrtab", ".strtab")
MERCURY_TEXT: Final = ".nv.capmerc.text"
_STARTS = (
    *(".nv.info", ".rela.text", ".rel.text", ".rela.nv.constant2", ".rel.nv.constant2", ".text", ".nv.shared", ".nv.constant0"),
    *(".nv.constant2", ".nv.merc.nv.info", ".nv.merc.rela.text", ".nv.merc.rela.nv.constant.optimizer", ".nv.merc.nv.constant.optimizer"),
    *(".nv.constant.optimizer", MERCURY_TEXT),
)
OF_FUNCTION: Final = re.compile(rf"(?:{'|'.join(map(re.escape, _STARTS))})\.(?!reserved\.)(.+)", re.DOTALL)
"""Sections of one function: its name is the group."""
OF_FILE: Final = frozenset(
    {
        *("", *NAMES, MAIN, MERCURY, ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.compat", ".nv.info", ".nv.callgraph", ".nv.rel.action"),
        *(".debug_frame", ".rela.debug_frame", ".rel.debug_frame"),
        *(".nv.merc.nv.info", ".nv.merc.nv.callgraph", ".nv.merc.debug_frame", ".nv.merc.rela.debug_frame"),
    }
)
"""Sections that a file has once, whatever is in it."""
BANKS: Final = frozenset(
    {
        *(".nv.constant3", ".nv.constant4", ".nv.global.init", ".rela.nv.constant4", ".rela.nv.global.init"),
        *(".rela.nv.constant3", ".rel.nv.constant3", ".rel.nv.constant4", ".rel.nv.global.init"),
        *(".nv.merc.nv.constant.pic", ".nv.merc.nv.constant.user", ".nv.merc.nv.global.init", ".nv.merc.rela.nv.constant.pic"),
    }
)
"""Memory of the module: variables, and the addresses that its code reads from bank 4."""
MEMORY: Final = BANKS | {".nv.global", ".nv.merc.nv.global"}
"""Sections that are memory of the module, or addresses of it: their layout is in the code of all who use them."""
ADDRESSES: Final = frozenset({".rela.nv.constant4", ".rel.nv.constant4", ".rela.debug_frame", ".rel.debug_frame"})
"""Relocations of the file."""
PLACED: Final = frozenset({".nv.shared.reserved.0", ".nv.global", ".nv.merc.nv.shared.reserved.0", ".nv.merc.nv.global"})
"""Sections of the file that stand among those of functions: behind the shared memory of the first."""
SAME: Final = {
    ".nv.merc.nv.constant.pic": ".nv.constant4",
    ".nv.merc.nv.constant.user": ".nv.constant3",
    ".nv.merc.nv.global.init": ".nv.global.init",
}
"""Sections whose bytes are those of another one, at its place in the file."""
TAIL: Final = frozenset({".debug_frame", ".nv.callgraph", ".nv.rel.action"})
"""Sections of the file that have a symbol behind the functions' local ones."""
LAST: Final = frozenset({".rela.nv.constant2.", ".rel.nv.constant2."})
"""Relocations of a function that may also stand among those of the file: of addresses of functions, not of jumps."""
_ORDER = (
    *("", ".shstrtab", ".strtab", MAIN, ".debug_frame", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.info", ".nv.compat", ".nv.info."),
    *(".nv.callgraph", ".rela.text.", ".rela.debug_frame"),
    *(".nv.constant4", ".nv.constant2.", ".text.", ".nv.global.init", ".nv.shared.", ".nv.constant0.", MERCURY),
    *(".nv.merc.debug_frame", ".nv.merc.nv.info", ".nv.merc.nv.info.", ".nv.merc.nv.callgraph", ".nv.merc.rela.text."),
    *(".nv.merc.rela.debug_frame", ".nv.merc.nv.constant.pic"),
    *(".nv.merc.nv.constant.optimizer.", ".nv.capmerc.text.", ".nv.merc.nv.global.init", ".nv.merc.nv.shared."),
)
"""Sections in the order of the file; a point at the end stands for those of functions, in their order."""
_OLDER = (
    *("", ".shstrtab", ".strtab", MAIN, ".debug_frame", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.info", ".nv.info."),
    *(".nv.callgraph", ".nv.rel.action", ".rel.text.", ".rel.debug_frame"),
    *(".nv.constant4", ".nv.constant0.", ".text.", ".nv.global.init", ".nv.shared."),
)
"""The same, in the layout of sm_75 to sm_89."""
_WITH = {
    **dict.fromkeys((".rela.nv.constant3", ".rela.nv.constant4", ".rela.nv.global.init"), ".rela.debug_frame"),
    **dict.fromkeys((".rel.nv.constant3", ".rel.nv.constant4", ".rel.nv.global.init"), ".rel.debug_frame"),
    ".nv.merc.rela.nv.constant.pic": ".nv.merc.rela.debug_frame",
    ".nv.merc.nv.constant.user": ".nv.merc.nv.constant.pic",
    ".nv.constant3": ".nv.constant4",
    ".nv.global": ".nv.shared.",
    ".nv.shared.reserved.0": ".nv.shared.",
    ".nv.merc.nv.shared.reserved.0": ".nv.merc.nv.shared.",
    ".nv.constant2.": ".nv.constant0.",
    ".rela.nv.constant2.": ".rela.text.",
    ".rel.nv.constant2.": ".rel.text.",
    ".nv.merc.rela.nv.constant.optimizer.": ".nv.merc.rela.text.",
}
"""Sections that stand among those of another name; memory of the module, in the order of the file that has it."""


def ranks(*, older: bool) -> dict[str, int]:
    """Name, or the start of one that ends with a point → where sections called so stand."""
    found = {name: rank for rank, name in enumerate(_OLDER if older else _ORDER)}
    return {name: found[other] for name, other in _WITH.items() if other in found} | found


def has_memory(section: str) -> bool:
    """Whether this section is one of those."""
    return section in MEMORY


def holds_memory(data: bytes) -> bool:
    """Whether an object has such a section, by its table of names: what has none of them there has none at all."""
    return any(name in data for name in (b"\0.nv.constant3\0", b"\0.nv.constant4\0", b"\0.nv.global\0", b"\0.nv.global.init\0"))

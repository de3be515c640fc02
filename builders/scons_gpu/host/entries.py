"""What a host object leaves to be registered by whoever links the device's code: the entries that clang's new driver writes.

An entry is LLVM's `__tgt_offload_entry` (llvm/Frontend/Offloading/Utility.h), in the section `llvm_offload_entries`; its name and the
host's address of it are relocations. A linker puts the entries of all objects side by side.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import DamagedError
from scons_gpu.host.registered import Registered, kernel_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENTRY", "SECTION", "Entries", "read"]

SECTION = "llvm_offload_entries"
ENTRY = struct.Struct("<QHHIQQQQQ")
"""Reserved, version, kind, flags, address, name, size, data, auxiliary address."""
_NAME, _CUDA, _KIND = 24, 2, 7


@dataclass(frozen=True)
class Entries:
    """One object's."""

    registered: Registered
    own: tuple[str, ...]
    """Kernels that this object alone may define: not inline, no template, not private. As the stub's name tells them."""
    kinds: frozenset[int]
    """Of variables: 0 plain, 1 managed, 2 a surface, 3 a texture."""


def read(data: bytes, *, path: str) -> Entries:
    """Of a relocatable ELF object. Raises DamagedError for anything else."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - only those who link device code load it
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - the same

    try:
        elf = ELFFile(BytesIO(data))
        found = list(_entries(elf))
        own = tuple(kernel for name in _strong(elf) if (kernel := kernel_of(name)))
    except (ELFError, struct.error, ValueError, KeyError, AttributeError, IndexError) as error:
        msg = f"{path} is no object that can be read: {error}"
        raise DamagedError(msg) from None
    kernels = tuple(name for name, size, _ in found if not size)
    variables = [(name, flags & _KIND) for name, size, flags in found if size]
    registered = Registered(kernels=kernels, variables=tuple(name for name, _ in variables))
    return Entries(registered, own, frozenset(kind for _, kind in variables))


def _entries(elf: Any) -> Iterator[tuple[str, int, int]]:  # noqa: ANN401 - pyelftools has no types
    """Name, size and flags of each; a kernel's size is 0."""
    section, places = elf.get_section_by_name(SECTION), elf.get_section_by_name(f".rela{SECTION}")
    if section is None or places is None:
        return
    symbols = elf.get_section(places["sh_link"])
    at = {place["r_offset"]: place for place in places.iter_relocations()}
    for number, (_, _, kind, flags, _, _, size, _, _) in enumerate(ENTRY.iter_unpack(section.data())):
        if kind == _CUDA:
            place = at[number * ENTRY.size + _NAME]
            symbol = symbols.get_symbol(place["r_info_sym"])
            held = elf.get_section(symbol["st_shndx"]).data()
            begins = symbol["st_value"] + place["r_addend"]
            yield held[begins : held.index(b"\0", begins)].decode(errors="surrogateescape"), size, flags


def _strong(elf: Any) -> Iterator[str]:  # noqa: ANN401 - the same
    """Functions that no other object may define."""
    table = elf.get_section_by_name(".symtab")
    for symbol in table.iter_symbols() if table else ():
        if symbol["st_info"]["bind"] == "STB_GLOBAL" and symbol["st_shndx"] != "SHN_UNDEF":
            yield symbol.name

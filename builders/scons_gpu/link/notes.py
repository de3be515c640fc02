"""Takes out of a program's code what its tools wrote about themselves: names, versions and options of assembler and linker.

`.note.nv.tkinfo` carries no code, and the assembler of 12.9 writes none. Its text becomes zeros where it lies, so that no offset, size or
index changes, in the image and in the fatbin or bundle that holds it; the manifest gets the checksums of what came out.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from scons_gpu.assemble import cubin
from scons_gpu.errors import DamagedError
from scons_gpu.link import bundle, manifest
from scons_gpu.store.archive import write_zip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.link.manifest import Module

__all__ = ["program_without_notes", "without_notes"]

_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_NOTE = struct.Struct("<III")  # Elf64_Nhdr: bytes of the name, bytes of the text, type
_NAMES = (b".note.nv.tkinfo\0",)


def program_without_notes(path: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of one program, its manifest at `path`. Raises DamagedError for a fatbin that does not hold its images as they are."""
    program = manifest.from_text(files[path].decode(), path=path)
    made = dict(files)
    modules = {name: _module(module, made) for name, module in program.modules.items()}
    made[path] = manifest.to_text(replace(program, modules=modules)).encode()
    return made


def _module(module: Module, files: dict[str, bytes]) -> Module:
    images = dict(module.images)
    for arch, image in module.images.items():
        old = files[image.file]
        files[image.file] = new = without_notes(old, path=image.file)
        images[arch] = replace(image, sha256=hashlib.sha256(new).hexdigest())
        if module.fatbin and new != old:
            files[module.fatbin] = _exchanged(files[module.fatbin], old, new, module.fatbin)
    module = replace(module, images=images)
    return _bundle(module, files) if module.bundle else module


def _exchanged(fatbin: bytes, old: bytes, new: bytes, path: str) -> bytes:
    if fatbin.count(old) != 1:
        msg = f"{path}: does not hold its images as they are"
        raise DamagedError(msg, hint="build again")
    return fatbin.replace(old, new)


def _bundle(module: Module, files: dict[str, bytes]) -> Module:
    file = module.bundle or ""
    read = bundle.read_bundle(files[file], path=file)
    objects = {member: without_notes(data, path=f"{file}: {member}") for member, data in read.objects.items()}
    hashes = {hashlib.sha256(data).hexdigest(): hashlib.sha256(objects[member]).hexdigest() for member, data in read.objects.items()}
    inner = manifest.from_text(read.manifest, path=file)
    inner = replace(inner, modules={name: _hashed(each, hashes) for name, each in inner.modules.items()})
    files[file] = write_zip({bundle.MANIFEST: manifest.to_text(inner).encode(), **objects})
    return _hashed(module, hashes)


def _hashed(module: Module, hashes: Mapping[str, str]) -> Module:
    kernels = {
        symbol: replace(kernel, archs={arch: replace(build, sha256=hashes.get(build.sha256 or "")) for arch, build in kernel.archs.items()})
        for symbol, kernel in module.kernels.items()
    }
    return replace(module, kernels=kernels)


def without_notes(data: bytes, *, path: str) -> bytes:
    """Machine code without what its tools say of themselves; PTX as it is. Raises DamagedError, naming `path`."""
    if not data.startswith(b"\x7fELF"):
        return data
    head = cubin.head(data)
    if isinstance(head, str):
        msg = f"{path}: {head}"
        raise DamagedError(msg)
    found = bytearray(data)
    try:
        for start, size in _texts(data, head.sections):
            found[start : start + size] = bytes(size)
    except (struct.error, IndexError) as error:
        msg = f"{path}: not a cubin that reads: {error}"
        raise DamagedError(msg) from None
    return bytes(found)


def _texts(data: bytes, table: cubin.Table) -> Iterator[tuple[int, int]]:
    """Where the texts of the notes lie, and how many bytes they have."""
    sections = [_SECTION.unpack_from(data, table.offset + number * _SECTION.size) for number in range(table.count)]
    names = sections[table.names][4]
    for section in sections:
        if not data.startswith(_NAMES, names + section[0]):
            continue
        place, end = section[4], section[4] + section[5]
        while place + _NOTE.size <= end:
            name, text, _ = _NOTE.unpack_from(data, place)
            start = place + _NOTE.size + -(-name // 4) * 4
            yield start, min(text, end - start)
            place = start + -(-text // 4) * 4

"""Whether a module's code is what its manifest says: architectures, kernels, variables, and what kernels take of the machine."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import TYPE_CHECKING

from scons_gpu.inspect.problems import Problem, difference, guarded
from scons_gpu.link import bundle, elf, fatbin_entries, manifest
from scons_gpu.source import ptx_reader
from scons_gpu.toolchain.arch import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scons_gpu.link.manifest import Build, Module

__all__ = ["check_module"]

_FIELDS = ("registers", "shared_bytes", "constant_bytes", "stack_bytes")


def check_module(name: str, module: Module, files: Mapping[str, bytes], *, most: int) -> Iterator[Problem]:
    """What is wrong with the code of module `name`. `files` by path from the manifest; `most`: bytes that packed PTX may come to."""
    for arch, image in sorted(module.images.items()):
        data = files[image.file]
        if (found := hashlib.sha256(data).hexdigest()) != image.sha256:
            yield Problem(image.file, "sha256", f"is {found}, and the manifest says {image.sha256}")
        builds = {symbol: kernel.archs[arch] for symbol, kernel in module.kernels.items() if arch in kernel.archs}
        yield from guarded(image.file, lambda file=image.file, arch=arch, builds=builds: _image(file, files[file], arch, builds, module))  # type: ignore[misc]
    if module.fatbin:
        file = module.fatbin
        yield from guarded(file, lambda: _fatbin(file, module, files, most))
    if module.bundle:
        archive = module.bundle
        yield from guarded(archive, lambda: _bundle(name, archive, files[archive], module))


def _image(file: str, data: bytes, arch: str, builds: Mapping[str, Build], module: Module) -> Iterator[Problem]:
    """One architecture's image. Kernels have their own names there."""
    if file.endswith(".ptx"):
        yield from _ptx(file, data, arch, set(builds))
        return
    read = elf.read(data, path=file)
    yield from _arch(file, read, arch)
    yield from _kernels(file, read, builds)
    variables = {symbol.name: symbol for symbol in read.variables}
    for state in module.state:
        held = variables.get(state.symbol)
        if held is not None and (held.bytes, held.space) != (state.bytes, state.space):
            yield Problem(file, f"variable {state.symbol}", f"{held.bytes} bytes {held.space}, in the manifest {state.bytes} {state.space}")


def _arch(file: str, read: elf.Cubin, arch: str) -> Iterator[Problem]:
    if read.arch not in (arch, arch.rstrip("af")):  # an assembler before 13 leaves no note of a suffix
        yield Problem(file, "architecture", f"it is made for {read.arch}, and the manifest says {arch}")


def _ptx(file: str, data: bytes, arch: str, kernels: set[str]) -> Iterator[Problem]:
    text = data.decode()
    if (target := ptx_reader.target_named(text)) != parse(arch)[0].cpu:
        yield Problem(file, "architecture", f"it is PTX for {target or 'nothing'}, and the manifest says {arch}")
    yield from _named(file, set(ptx_reader.entries(text)), kernels)


def _named(file: str, held: set[str], wanted: set[str]) -> Iterator[Problem]:
    for symbol in sorted(wanted - held):
        yield Problem(file, f"kernel {symbol}", "is in the manifest, and not here")
    for symbol in sorted(held - wanted):
        yield Problem(file, f"kernel {symbol}", "is not in the manifest")


def _kernels(file: str, read: elf.Cubin, builds: Mapping[str, Build]) -> Iterator[Problem]:
    held = {kernel.symbol: kernel for kernel in read.kernels}
    yield from _named(file, set(held), set(builds))
    for symbol in sorted(held.keys() & builds.keys()):
        kernel, build = held[symbol], builds[symbol]
        told = {name: (getattr(kernel, name), getattr(build, name)) for name in _FIELDS}
        told["max_threads"] = (kernel.max_threads or build.max_threads, build.max_threads)
        for name, (here, there) in told.items():
            if here != there:
                yield Problem(file, f"kernel {symbol}", f"{name} is {here}, and the manifest says {there}")


def _fatbin(file: str, module: Module, files: Mapping[str, bytes], most: int) -> Iterator[Problem]:
    """It holds the images and nothing else; PTX in it has lost its comments, so its kernels are compared."""
    entries = fatbin_entries.read_fatbin(files[file], path=file, most=most)
    codes = {image.file: fatbin_entries.filled(files[image.file]) for image in module.images.values() if not image.file.endswith(".ptx")}
    held = [entry.data for entry in entries if entry.kind == "elf"]
    for name, data in sorted(codes.items()):
        if held.count(data) != 1:
            yield Problem(file, name, f"is in it {held.count(data)} times, and should be once")
    if len(held) > len(codes):
        yield Problem(file, "machine code", f"{len(held)} images are in it, and {len(codes)} in the manifest")
    texts = {files[image.file] for image in module.images.values() if image.file.endswith(".ptx")}
    wanted = sorted(sorted(ptx_reader.entries(text.decode())) for text in texts)
    packed = [entry.data for entry in entries if entry.kind == "ptx"]
    if None not in packed:
        found = sorted(sorted(ptx_reader.entries((text or b"").rstrip(b"\0").decode())) for text in packed)
        if found != wanted:
            yield Problem(file, "PTX", f"it has the kernels {found}, and the images {wanted}")


def _bundle(name: str, file: str, data: bytes, module: Module) -> Iterator[Problem]:
    """Each kernel's object, and what the bundle says of itself."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                yield Problem(file, info.filename, "is packed, and a bundle's members never are")
                return
    read = bundle.read_bundle(data, path=file)
    inner = manifest.from_text(read.manifest, path=f"{file}: {bundle.MANIFEST}").modules
    told, mine = (
        {symbol: json.loads(json.dumps(_plain(kernel))) for symbol, kernel in each.items()}
        for each in (inner[name].kernels if name in inner else {}, module.kernels)
    )
    if found := difference(told, mine):
        yield Problem(file, f"{bundle.MANIFEST}: kernels.{found[0]}", found[1])
    wanted: dict[str, dict[str, Build]] = {}
    for kernel in module.kernels.values():
        for arch, build in kernel.archs.items():
            member = f"{arch}/{build.unit}.ptx" if build.object is None else f"{arch}/{build.object}.cubin"
            wanted.setdefault(member, {})[build.entry] = build
    yield from _named(file, set(read.objects), set(wanted))
    for member in sorted(wanted.keys() & read.objects.keys()):
        yield from _member(f"{file}: {member}", member.partition("/")[0], read.objects[member], wanted[member])


def _plain(kernel: manifest.Kernel) -> dict[str, object]:
    return {**vars(kernel), "archs": {arch: vars(build) for arch, build in kernel.archs.items()}}


def _member(label: str, arch: str, data: bytes, builds: Mapping[str, Build]) -> Iterator[Problem]:
    found = hashlib.sha256(data).hexdigest()
    for build in builds.values():
        if build.sha256 not in (None, found):
            yield Problem(label, "sha256", f"is {found}, and the manifest says {build.sha256}")
    if label.endswith(".ptx"):
        yield from guarded(label, lambda: _ptx(label, data, arch, set(builds)))
    else:
        yield from guarded(label, lambda: _object(label, data, arch, builds))


def _object(label: str, data: bytes, arch: str, builds: Mapping[str, Build]) -> Iterator[Problem]:
    read = elf.read(data, path=label)
    yield from _arch(label, read, arch)
    yield from _kernels(label, read, builds)

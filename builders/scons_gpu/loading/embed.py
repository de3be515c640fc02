"""A program's code inside an object file: the C++ that holds it, and says what of it is where, to `include/scons_gpu.hpp`.

The code itself is taken in by the assembler (`.incbin`) from the files that the build made: nothing is copied or printed as numbers.
The text names these files; nothing else of it depends on them, so that most edits leave it as it is.
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scons_gpu.errors import DamagedError
from scons_gpu.loading.code import images, kernel_code
from scons_gpu.toolchain.running import best_first, span
from scons_gpu.tune.naming import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scons_gpu.link.manifest import Manifest, Module
    from scons_gpu.loading.code import Code

__all__ = ["HEADER", "identifier", "literal", "table"]

HEADER = "scons_gpu.hpp"
_LOCAL = struct.Struct("<26xHH")  # of a zip's local file header: lengths of the name and the extra field behind it (APPNOTE.TXT 4.3.7)


def identifier(name: str) -> str:
    """A name as it can stand behind another in C++: `then.2` → `then_2`."""
    return re.sub(r"[^0-9A-Za-z_]", "_", name)


def table(manifest: Manifest, *, folder: Path, spelled: Callable[[Path], str]) -> str:
    """The C++ text. `folder` holds the manifest; `spelled` gives the path of a file as the compiler is to be told it.

    Raises DamagedError for a bundle that lacks what the manifest names.
    """
    made = _Table(f"scons_gpu_{identifier(manifest.program)}", folder, spelled)
    for name, module in sorted(manifest.modules.items()):
        if module.kernels:
            made.add(name, module)
    return made.text(manifest.program)


@dataclass
class _Table:
    symbol: str
    folder: Path
    spelled: Callable[[Path], str]
    blobs: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """File and member → its number, and the assembler's line that takes it in."""
    parts: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    def add(self, name: str, module: Module) -> None:
        """A module with its kernels."""
        whole = [self._part(arch, "", self._fatbin(module)) for arch in best_first(images(module))] if module.bundle is None else []
        self.modules.append(f"    {{{literal(name)}, {self._parts(whole)}}},")
        place = len(self.modules) - 1
        for symbol, kernel in sorted(module.kernels.items()):
            code = kernel_code(module, symbol)
            parts = [self._part(arch, code[arch][0], self._blob(module, code[arch][1])) for arch in best_first(code)]
            names = ", ".join(map(literal, names_of(symbol, kernel.readable)))
            self.kernels.append(f"    {{modules + {place}, {names}, {self._parts(parts)}}},")

    def _parts(self, lines: Sequence[str]) -> str:
        first = len(self.parts)
        self.parts += lines
        return f"parts + {first}, {len(lines)}" if lines else "nullptr, 0"

    def _part(self, arch: str, entry: str, blob: int) -> str:
        fits = span(arch)
        runs = f"{fits.least}, {fits.most}, {fits.minors:#x}"
        return f"    {{{literal(arch)}, {runs}, {literal(entry)}, blobs + {blob}, {{nullptr}}, {{nullptr}}, 0}},"

    def _blob(self, module: Module, code: Code) -> int:
        return self._member(code) if code.member else self._fatbin(module)

    def _fatbin(self, module: Module) -> int:
        name = module.fatbin or ""
        return self._taken((name, ""), lambda: f'.incbin "{_quoted(self.spelled(self.folder / name))}"')

    def _member(self, code: Code) -> int:
        def line() -> str:
            path = self.folder / code.file
            start, size = _place(path, code.member)
            end = "; .byte 0" if code.ptx else ""  # the driver takes PTX for a string
            return f'.incbin "{_quoted(self.spelled(path))}", {start}, {size}{end}'

        return self._taken((code.file, code.member), line)

    def _taken(self, key: tuple[str, str], line: Callable[[], str]) -> int:
        if key not in self.blobs:
            self.blobs[key] = len(self.blobs), line()
        return self.blobs[key][0]

    def text(self, program: str) -> str:
        """All of it."""
        names = [f"{self.symbol}_{place}" for place in range(len(self.blobs))]
        taken = [line for name, (_, blob) in zip(names, self.blobs.values(), strict=True) for line in _assembly(name, blob)]
        counted = f"{_counted('modules', self.modules)}, {_counted('kernels', self.kernels)}"
        declared = [f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {name}[];' for name in names]
        return "\n".join(
            [
                f"// Written by scons-gpu: the code of the program {identifier(program)}, and what of it is where.",
                "#define SCONS_GPU_TABLES",
                f'#include "{HEADER}"',
                "",
                '__asm__(".pushsection .rodata.scons_gpu, \\"a\\"\\n"',
                *taken,
                '        ".popsection\\n");',
                *declared,
                "",
                "namespace {",
                *_array("Blob", "blobs", [f"    {{{name}, {{nullptr}}}}," for name in names]),
                *_array("Part", "parts", self.parts),
                *_array("Module", "modules", self.modules),
                *_array("Entry", "kernels", self.kernels),
                "}  // namespace",
                "",
                f"SCONS_GPU_EMBEDDED({self.symbol.removeprefix('scons_gpu_')});",
                f"::scons_gpu::Table {self.symbol} = {{{literal(program)}, {counted}, {{}}}};",
                "",
            ]
        )


def _assembly(name: str, line: str) -> list[str]:
    """A loader wants 16 bytes at most; lines of a cache are no worse."""
    words = (".balign 64", f".globl {name}", f".hidden {name}", f"{name}:", *line.split("; "))
    return [f"        {literal(f'{word}{chr(10)}')}" for word in words]


def _array(kind: str, name: str, lines: Sequence[str]) -> list[str]:
    return [f"::scons_gpu::{kind} {name}[] = {{", *lines, "};"] if lines else []


def _counted(name: str, lines: Sequence[str]) -> str:
    return f"{name}, {len(lines)}" if lines else "nullptr, 0"


def _place(path: Path, member: str) -> tuple[int, int]:
    """Where a stored member's bytes lie in a zip, and how many there are."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            info = archive.getinfo(member)
            file.seek(info.header_offset)
            name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
            return info.header_offset + _LOCAL.size + name + extra, info.file_size
    except (OSError, KeyError, zipfile.BadZipFile, struct.error) as error:
        msg = f"{path}: not the bundle that its manifest names: {error}"
        raise DamagedError(msg, hint="build the program again") from None


def _quoted(path: str) -> str:
    """As the assembler reads it between quotes."""
    return path.replace("\\", "\\\\").replace('"', '\\"')


def literal(text: str) -> str:
    """A string of C++, whatever is in it: letters beyond ASCII as bytes."""
    return '"' + "".join(_ESCAPED.get(char, char if char.isascii() and char.isprintable() else _bytes(char)) for char in text) + '"'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "?": "\\?"}  # two of the last begin a trigraph


def _bytes(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode())

"""What registers a program's device code, run against a runtime that only writes down what it is told."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import DamagedError
from scons_gpu.host import entries, registration

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = r"""
#include <stdio.h>
typedef struct { unsigned long long reserved; unsigned short version, kind; unsigned flags; void *address; char *name; unsigned long long size, data; void *other; } Entry;
#define ENTRY(id, kind, flags, address, text, size) \
  static const char id##_name[] = text; \
  Entry id __attribute__((used, section("llvm_offload_entries"), aligned(8))) = {0, 1, kind, flags, address, (char *)id##_name, size, 7, 0};
static int one, two, texture, here;
ENTRY(a, 2, 0, &one, "kernel", 0)
ENTRY(b, 2, 0, &one, "kernel", 0)
ENTRY(c, 2, 0, &two, "kernel", 0)
ENTRY(d, 2, 16, &here, "constant", 4)
ENTRY(e, 2, 8, &here, "external", 8)
ENTRY(f, 1, 0, &one, "another language's", 0)
ENTRY(g, 2, 3 | 32, &texture, "texture", 4)
void **__cudaRegisterFatBinary(void *wrapper) { printf("fatbin %s\n", ((char ***)wrapper)[1]); return wrapper; }
void __cudaRegisterFatBinaryEnd(void **handle) { puts("end"); }
void __cudaUnregisterFatBinary(void **handle) { puts("gone"); }
void __cudaRegisterFunction(void **handle, const char *stub, char *device, const char *name, int limit) { printf("kernel %s\n", name); }
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global) {
  printf("variable %s %d %zu %d\n", name, external, size, constant);
}
void __cudaRegisterTexture(void **handle, void *host, void **device, const char *name, int dim, int norm, int external) { printf("texture %s %d %d\n", name, dim, norm); }
const char __fatbinwrap_x[] = "theirs";
void __cudaRegisterLinkedBinary_x(void (*)(void **), void *, void *, void (*)(void *));
static void used(void *name) { printf("used %s\n", (char *)name); }
static void theirs(void **handle) { puts("theirs"); }
__attribute__((constructor)) static void begin(void) { __cudaRegisterLinkedBinary_x(theirs, 0, 0, used); }
int main(void) { puts("main"); return 0; }
"""
WORDS = [
    *("fatbin code", "used theirs", "theirs", "kernel kernel", "kernel kernel", "variable constant 0 4 1", "variable external 1 8 0"),
    *("texture texture 7 1", "end", "main", "gone"),
]


def test_entries_are_walked_once_each_and_others_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "device.fatbin").write_bytes(b"code\0")
    (tmp_path / "register.c").write_text(registration.source(has_code=True, kinds={0, 3}, linked=["_x"]))
    (tmp_path / "main.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", "app", "main.c", "register.c", "-w"], cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "app"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(told) == sorted(WORDS)
    assert told[-3:] == ["end", "main", "gone"]
    assert told.index("fatbin code") < min(told.index("theirs"), told.index("kernel kernel"))


def test_without_device_code_nothing_runs() -> None:
    assert registration.source(has_code=False) == "typedef int nothing;\n"
    assert "Texture" not in registration.source(has_code=True, kinds={0, 1})


def test_what_is_no_object_has_no_entries() -> None:
    for data in (b"", b"\x7fELF\x02\x01\x01" + b"\xff" * 80, b"text"):
        with pytest.raises(DamagedError, match=r"a\.o is no object that can be read"):
            entries.read(data, path="a.o")

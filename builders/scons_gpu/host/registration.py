"""The object that registers a program's device code with CUDA's runtime when the program starts: one for each program or shared library.

It holds the fatbin, and walks the entries that the linker has put side by side (`host/entries.py`). A template's kernel has one in each
object that names it; the runtime is told of it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scons_gpu.errors import ToolError, ToolSilentError
from scons_gpu.host.entries import SECTION
from scons_gpu.source.clang import environ
from scons_gpu.toolchain.process import private_folder, run

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from scons_gpu.toolchain.tools import Tool

__all__ = ["command", "compile_registration", "source"]

_FATBIN, _SOURCE, _OBJECT = "device.fatbin", "register.c", "register.o"

_TEXT = r"""
typedef __SIZE_TYPE__ size_t;
typedef struct {
  unsigned long long reserved;
  unsigned short version, kind;
  unsigned flags;
  void *address;
  char *name;
  unsigned long long size, data;
  void *other;
} Entry;

extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaUnregisterFatBinary(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
extern void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
extern int atexit(void (*)(void));
extern void *calloc(size_t, size_t);
extern void free(void *);
extern int strcmp(const char *, const char *);

extern Entry __start_SECTION[] __attribute__((visibility("hidden")));
extern Entry __stop_SECTION[] __attribute__((visibility("hidden")));
/* Where no object of the link has an entry, the section is there all the same. */
static Entry none[0] __attribute__((used, section("SECTION"), aligned(8)));

__asm__(".section .nv_fatbin,\"a\",%progbits\n.balign 16\ndevice_code:\n.incbin \"FATBIN\"\n.previous\n");
extern const char device_code[] __attribute__((visibility("hidden")));
static struct { int magic, version; const void *code; void *unused; } wrapper
    __attribute__((used, section(".nvFatBinSegment"), aligned(8))) = {0x466243b1, 1, device_code, 0};
static void **handle;
static int waiting = 1;

static void **opened(void) {
  if (!handle)
    handle = __cudaRegisterFatBinary(&wrapper);
  return handle;
}

static void leave(void) { __cudaUnregisterFatBinary(handle); }

static void entered(void) {
  if (--waiting)
    return;
  __cudaRegisterFatBinaryEnd(handle);
  atexit(leave);
}

LINKED
static void enter(const Entry *one) {
  int external = one->flags >> 3 & 1, constant = one->flags >> 4 & 1, normalized = one->flags >> 5 & 1;
  (void)normalized;
  if (!one->size)
    __cudaRegisterFunction(handle, one->address, one->name, one->name, -1, 0, 0, 0, 0, 0);
  else if ((one->flags & 7) == 0)
    __cudaRegisterVar(handle, one->address, one->name, one->name, external, one->size, constant, 0);
  OTHERS
}

__attribute__((constructor)) static void begin(void) {
  size_t count = __stop_SECTION - __start_SECTION, places = 2;
  const Entry **known;
  opened();
  while (places < 2 * count)
    places *= 2;
  known = calloc(places, sizeof *known);
  for (const Entry *one = __start_SECTION; one != __stop_SECTION; one++) {
    size_t place = ((size_t)one->address >> 4) * 0x9E3779B97F4A7C15ull & (places - 1);
    if (one->kind != 2)
      continue;
    while (known && known[place] && (known[place]->address != one->address || strcmp(known[place]->name, one->name)))
      place = (place + 1) & (places - 1);
    if (known && known[place])
      continue;
    if (known)
      known[place] = one;
    enter(one);
  }
  free(known);
  entered();
}
"""


_OTHERS = {
    1: "void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int); "
    "__cudaRegisterManagedVar(handle, one->other, one->address, one->name, external, one->size, constant, 0);",
    2: "void __cudaRegisterSurface(void **, const void *, const void **, const char *, int, int); "
    "__cudaRegisterSurface(handle, one->address, (const void **)one->name, one->name, (int)one->data, external);",
    3: "void __cudaRegisterTexture(void **, const void *, const void **, const char *, int, int, int); "
    "__cudaRegisterTexture(handle, one->address, (const void **)one->name, one->name, (int)one->data, normalized, external);",
}
"""Kinds of variables that most programs have none of. A runtime may have no function for them: CUDA 12 has none for the last two."""


_LINKED = r"""extern const char __fatbinwrapID[];
__attribute__((visibility("hidden"))) void __cudaRegisterLinkedBinaryID(void (*all)(void **), void *code, void *name, void (*use)(void *)) {
  use((void *)__fatbinwrapID);
  all(opened());
  entered();
}
"""
"""What an object of nvcc's calls to have its kernels registered. It names the object, so that a linker takes it out of its archive."""


def source(*, has_code: bool, kinds: Collection[int] = (), linked: Sequence[str] = ()) -> str:
    """C for clang; of a program without device code nothing that would run.

    `kinds` of variables are those that entries have; `linked` are identities of objects that are linked besides (`link/library.py`).
    """
    others = [f"else if (one->size && (one->flags & 7) == {kind}) {{ {_OTHERS[kind]} }}" for kind in sorted(kinds) if kind in _OTHERS]
    text = _TEXT.replace("OTHERS", "\n  ".join(others)).replace("LINKED\n", "".join(_LINKED.replace("ID", each) for each in linked))
    text = text.replace("waiting = 1", f"waiting = {1 + len(linked)}")
    text = text.replace("SECTION", SECTION).replace("FATBIN", _FATBIN)
    return text.lstrip() if has_code else "typedef int nothing;\n"


def command(clang: Tool) -> list[str]:
    """The command line, to be run beside the source."""
    plain = ("--no-default-config", "-fno-lto", "-fno-ident", "-w")
    return [clang.path, "-x", "c", "-std=c11", "-O2", "-fPIC", *plain, "-c", _SOURCE, "-o", _OBJECT]


def compile_registration(clang: Tool, fatbin: Path | None, *, kinds: Collection[int] = (), linked: Sequence[str] = ()) -> bytes:
    """The object, with the fatbin in it. `kinds` and `linked`: see `source`. Raises a ToolError."""
    with private_folder() as folder:
        (folder / _SOURCE).write_text(source(has_code=fatbin is not None, kinds=kinds, linked=linked), encoding="utf-8")
        if fatbin is not None:
            (folder / _FATBIN).symlink_to(fatbin.absolute())
        done = run(command(clang), cwd=folder, environ=environ(), together=True)
        made = folder / _OBJECT
        data = made.read_bytes() if made.is_file() else b""
    if done.status:
        msg = "clang cannot compile what registers the device's code"
        raise ToolError(msg, output=done.output)
    if not data:
        msg = "clang said that it succeeded and made nothing"
        raise ToolSilentError(msg, output=done.output)
    return data

"""Device code that is linked with that of other sources: what clang is told for it, and what of its IR is made plain.

With `-fgpu-rdc` clang gives private kernels and variables that the host can name an ending, so that two sources may have one of a name. Its
own ending comes from the file's path and inode; ours is what the caller says, and both halves of a source are told the same. What else
the flag changes would give kernels that need nothing of other sources another digest than they have without it. That is taken back.
"""

from __future__ import annotations

import re

__all__ = ["flags", "plain"]

_KERNEL = re.compile(rb"^define weak_odr (dso_local ptx_kernel )", re.MULTILINE)
_KEPT = rb"@__clang_gpu_used_external"
_LIST = re.compile(
    rb"^@llvm\.compiler\.used = appending global \[(\d+) x ptr\] \[([^\n]*?)(?:, )?ptr " + _KEPT + rb"\](.*\n)", re.MULTILINE
)
_SHOWN = re.compile(rb"^@([\w.$]+?)(__static__[0-9a-f]+) = ", re.MULTILINE)


def flags(identity: str) -> tuple[str, ...]:
    """For either half. `identity` tells the source from all others of its program."""
    return "-fgpu-rdc", f"-cuid={identity}", "-D__CUDACC_RDC__"


def plain(ir: bytes) -> bytes:
    """IR as clang prints it, with the linkage that kernels have without the flag, and without what only the flag keeps.

    A private variable that the host names is called by its old name where a kernel stands before the host's code (clang 22.1): that would
    be another variable.
    """
    ir = _KERNEL.sub(rb"define \1", ir)
    ir = _LIST.sub(_shorter, ir)
    ir = re.sub(rb"^" + _KEPT + rb" = [^\n]*\n", b"", ir, flags=re.MULTILINE)
    for found in dict.fromkeys(_SHOWN.findall(ir)):
        name, ending = found
        ir = re.sub(rb"^@" + re.escape(name) + rb" = external [^\n]*\n", b"", ir, flags=re.MULTILINE)
        ir = re.sub(rb"@" + re.escape(name) + rb"(?![\w.$])", b"@" + name + ending, ir)
    return ir


def _shorter(found: re.Match[bytes]) -> bytes:
    count = int(found[1]) - 1
    return b"@llvm.compiler.used = appending global [%d x ptr] [%b]%b" % (count, found[2], found[3]) if count else b""

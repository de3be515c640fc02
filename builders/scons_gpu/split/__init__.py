"""IR becomes an index and slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scons_gpu.split.index import Index
    from scons_gpu.split.parse import Known
    from scons_gpu.toolchain.arch import Target

__all__ = ["INDEX_FORMAT", "split"]

INDEX_FORMAT = "scons-gpu/index/5"
"""Format of the index file. It stands here because the graph names it, and reads no index."""


def split(  # noqa: PLR0913 - one keyword for each thing that decides
    text: str, *, source: str, target: Target, form: str, put: Callable[[str], str], known: Known = "", exports: bool = False
) -> Index:
    """The index of one source's IR; every slice goes through `put`, which returns its name in the store.

    `form` is `apart` (state and tables are left to objects of their own: image, whole, merged PTX) or `closed` (every unit is a program).
    `exports`: whether the module has other sources, which may need what this one defines, or define what it lacks.
    `known`: whether `text` was verified, or verified and printed by this LLVM, already.
    Raises SourceError for IR that does not read or is another target's, RefusedError, by name, for what cannot become units.
    """
    from scons_gpu.split.parse import parse  # noqa: PLC0415 - the tool imports this package and must not load LLVM
    from scons_gpu.split.reader import read  # noqa: PLC0415 - the same
    from scons_gpu.split.units import Splitter  # noqa: PLC0415 - the same

    if form not in ("apart", "closed"):
        msg = f"form is apart or closed, not {form!r}"
        raise ValueError(msg)
    module = read(parse(text, source=source, known=known), source=source)
    return Splitter(module, form=form, put=put, exports=exports).index(source=source, arch=target.name)

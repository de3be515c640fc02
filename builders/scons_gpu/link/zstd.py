"""Zstandard, so that equal data, level and version of the library make equal bytes, and so that nothing can unpack to more than allowed.

The library is `zstandard`, which brings Zstandard with it: what a machine or a Python has of its own does not matter. One thread writes
one frame, with length and checksum. The window is as large as the data, up to what `zstd -d` takes unasked: a release holds each image
twice, alone and in its fatbin.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import ToolMissingError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["LEVELS", "Oversized", "compress", "decompress", "writer"]

LEVELS = range(1, 20)
"""Beyond 19 Zstandard wants memory that `zstd -d` does not give."""
_WINDOW = 27  # 128 MiB: the most that zstd takes unasked (ZSTD_WINDOWLOG_LIMIT_DEFAULT)
_LONG = 23  # beyond that, long matches are found by their own table
_CHUNK = 1 << 20


class Oversized(ValueError):  # noqa: N818 - a state of the data, not of the program
    """There is more than allowed."""


def compress(data: bytes, *, level: int) -> bytes:
    """One frame. Raises ToolMissingError without the library."""
    zstandard = _library()
    window = min(max(len(data).bit_length(), 10), _WINDOW)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(data), window_log=window, enable_ldm=window > _LONG, write_checksum=1, write_content_size=1, threads=0
    )
    result: bytes = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    return result


def decompress(data: bytes, *, most: int) -> bytes:
    """What frames hold. Raises ValueError for what is none, Oversized where more than `most` bytes would come out."""
    zstandard = _library()
    found = bytearray()
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW).stream_reader(io.BytesIO(data), read_across_frames=True)
        while chunk := reader.read(_CHUNK):
            found += chunk
            if len(found) > most:
                msg = f"it unpacks to more than {most} bytes"
                raise Oversized(msg)
        told = zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if told != zstandard.CONTENTSIZE_UNKNOWN and len(found) < told:  # the reader takes the end of the data for the end of the frame
        msg = f"zstd: cut short, {len(found)} of {told} bytes come out"
        raise ValueError(msg)
    return bytes(found)


def writer() -> dict[str, str]:
    """What decides the bytes: the library, and Zstandard in it."""
    zstandard = _library()
    return {"zstandard": str(zstandard.__version__), "zstd": ".".join(map(str, zstandard.ZSTD_VERSION))}


def _library() -> ModuleType | Any:  # noqa: ANN401 - its types come with it
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "the Python package zstandard is not installed"
        raise ToolMissingError(msg, hint="pip install 'scons-gpu[release]' brings it") from None
    return zstandard

from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

import pytest
import zstandard

from scons_gpu.link.zstd import LEVELS, Oversized, compress, decompress, writer

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(100)) * 40


@pytest.mark.parametrize("level", [LEVELS.start, 3, LEVELS.stop - 1])
def test_equal_data_makes_equal_bytes_that_zstd_takes(level: int, tmp_path: Path) -> None:
    packed = compress(DATA, level=level)
    assert packed == compress(DATA, level=level)
    assert decompress(packed, most=len(DATA)) == DATA
    (tmp_path / "x.zst").write_bytes(packed)
    assert subprocess.run(["zstd", "-dc", tmp_path / "x.zst"], capture_output=True, check=True).stdout == DATA
    frame = zstandard.get_frame_parameters(packed)
    assert (frame.has_checksum, frame.content_size, frame.dict_id) == (True, len(DATA), 0)


def test_nothing_unpacks_to_more_than_allowed() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    assert len(bomb) < 1 << 15
    with pytest.raises(Oversized, match="more than 100000 bytes"):
        decompress(bomb, most=100000)
    with pytest.raises(Oversized):
        decompress(compress(DATA, level=1) + bomb, most=1 << 20)


PACKED = compress(DATA, level=3)


@pytest.mark.parametrize("data", [b"", b"rubbish that is long enough", PACKED + b"more", PACKED[:-9], PACKED[:40] + b"else", PACKED[:7]])
def test_what_is_no_whole_frame_is_a_plain_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"zstd|[Ff]rame"):
        decompress(data, most=1 << 20)


def test_a_window_beyond_what_zstd_takes_unasked_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=30, write_content_size=0)
    with pytest.raises(ValueError, match=r"[Ff]rame requires too much memory|window"):
        decompress(zstandard.ZstdCompressor(compression_params=parameters).compressobj().compress(DATA * 400), most=1 << 30)


def test_the_writer_is_named_with_what_decides() -> None:
    assert writer() == {"zstandard": zstandard.__version__, "zstd": ".".join(map(str, zstandard.ZSTD_VERSION))}

"""Changes single bytes of a release, and counts those that `scons-gpu verify` does not find: `python benchmarks/releases.py ARCHIVE [N]`.

One half in the archive as it is, the other in the tar file inside, packed again. Prints what found them; ends with 1 if one was missed.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scons_gpu.inspect.verify import unpack, verify
from scons_gpu.link import release, zstd

if TYPE_CHECKING:
    from collections.abc import Callable


def changed(data: bytes, chance: random.Random) -> bytes:
    """The same with one byte that is another."""
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ chance.randrange(1, 256)]) + data[place + 1 :]


def tried(what: str, times: int, make: Callable[[], bytes]) -> int:
    """How many of `times` changes were not found."""
    found: collections.Counter[str] = collections.Counter()
    begun = time.perf_counter()
    for _ in range(times):
        problems = verify(make()).problems
        found[_kind(str(problems[0])) if problems else "not found"] += 1
    print(f"{what}: {times - found['not found']} of {times} found, {(time.perf_counter() - begun) / times * 1000:.1f} ms each")
    for kind, count in found.most_common():
        print(f"  {count:6}  {kind}")
    return found["not found"]


def _kind(problem: str) -> str:
    for kind in ("SHA-256", "of the tar file", "of the archive", "zstd", "header"):
        if kind in problem:
            return {
                "SHA-256": "a checksum",
                "of the tar file": "padding",
                "of the archive": "the frame",
                "zstd": "zstd",
                "header": "a header",
            }[kind]
    return problem


def main(archive: str, times: str = "1000") -> int:
    """The exit code."""
    data, chance = Path(archive).read_bytes(), random.Random(11)  # noqa: S311 - the same bytes in each run
    _, files, tar = unpack(data)
    level = json.loads(files[release.PROVENANCE])["predicate"]["buildDefinition"]["internalParameters"]["compression"]["level"]
    missed = tried("in the archive", int(times), lambda: changed(data, chance))
    missed += tried("in the tar file", int(times), lambda: zstd.compress(changed(tar, chance), level=level))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Several builds write one store at once, and one of them is killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys
from pathlib import Path
from scons_gpu.store import record
from scons_gpu.store.store import Store
root, seed = Path(sys.argv[1]), int(sys.argv[2])
sys.stdin.readline()
for turn in range(30):
    store = Store([root])
    for number in range(8):
        key = (("number", str(number % 4)),)
        path = store.claim("object", f"{number // 4:032x}", key, suffix=".cubin")
        data = str(number % 4).encode() * 50_000
        if (found := store.load(path)) is None:
            store.save(path, data, record.make(data, key=key))
            found = store.load(path)
        # A collision that another build won while we built, or an entry that it took away, is a miss; never a wrong object.
        assert found is None or (found.record.key == key and found.data == data), path
        name = store.put_text("slice", text := f"{number} {turn}\\n" * 2000)
        assert store.get_text("slice", name) == text
        if (number + turn + seed) % 5 == 0:
            store.discard(path)
    said = [line for line in store.drain_warnings() if "something else" not in line]
    assert not said, said
"""


def test_t2_processes_share_a_store(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with contextlib.ExitStack() as running:
        writers = [
            running.enter_context(subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            for seed in range(3)
        ]
        for writer in writers:
            assert writer.stdin
            writer.stdin.write("\n")
            writer.stdin.flush()
        errors = [writer.communicate()[1] for writer in writers]
    assert errors == ["", "", ""]
    assert [path.name for path in tmp_path.rglob(".tmp-*")] == []


@pytest.mark.parametrize("pause", [0.002, 0.006, 0.01, 0.014])
def test_r5_a_killed_build_leaves_a_store_that_the_next_heals(tmp_path: Path, pause: float) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "1"], stdin=subprocess.PIPE) as writer:
        assert writer.stdin
        writer.stdin.write(b"\n")
        writer.stdin.flush()
        while not (tmp_path / "object").exists():
            assert writer.poll() is None
        time.sleep(pause)
        writer.kill()
    subprocess.run([sys.executable, "-c", WRITER.replace("assert not said", "assert True"), str(tmp_path), "1"], input=b"\n", check=True)

"""What was found out stays known until the file changes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from scons_gpu.errors import ToolStoppedError
from scons_gpu.toolchain import fingerprint
from scons_gpu.toolchain.facts import Facts

if TYPE_CHECKING:
    from pathlib import Path


def test_facts_are_kept_for_what_does_not_change(tmp_path: Path) -> None:
    facts, file, asked = Facts(tmp_path / "facts"), tmp_path / "file", []
    file.write_text("1")

    def learn() -> dict[str, str]:
        return facts.learn("k", str(file), files=lambda: [str(file)], find_out=lambda _: asked.append(1) or {"n": str(len(asked))})

    assert [learn(), learn()] == [{"n": "1"}, {"n": "1"}]
    file.write_text("22")
    assert [learn(), learn()] == [{"n": "2"}, {"n": "2"}]
    assert facts.learn("other", str(file), files=lambda: [str(file)], find_out=lambda _: {"n": "other"}) == {"n": "other"}


def test_a_file_that_is_led_to_counts_as_well(tmp_path: Path) -> None:
    facts, stub, library = Facts(tmp_path / "facts"), tmp_path / "stub", tmp_path / "library"
    stub.write_text("1")
    library.write_text("1")

    def learn() -> str:
        files = [str(stub), str(library)]
        return facts.learn("k", str(stub), files=lambda: files, find_out=lambda _: {"size": str(library.stat().st_size)})["size"]

    assert learn() == "1"
    library.write_text("22")
    assert learn() == "2"
    library.unlink()
    library.write_text("333")
    assert learn() == "3"


def test_r2_a_file_that_changes_with_its_size_and_time_kept_is_asked_again(tmp_path: Path) -> None:
    facts, file = Facts(tmp_path / "facts"), tmp_path / "file"
    for text in ("old", "new"):
        file.write_text(text)
        os.utime(file, (1, 1))
        assert facts.learn("k", str(file), files=lambda: [str(file)], find_out=lambda _: {"text": file.read_text()}) == {"text": text}
        time.sleep(0.02)  # more than a tick of the file system's clock


def test_t1_a_fact_that_was_changed_is_found_out_again(tmp_path: Path) -> None:
    facts, file = Facts(tmp_path / "facts"), tmp_path / "file"
    file.write_text("1")
    facts.learn("k", str(file), files=lambda: [str(file)], find_out=lambda _: {"version": "13.5"})
    (kept,) = (tmp_path / "facts").glob("*/*.json")
    kept.write_text(kept.read_text().replace("13.5", "12.5"))
    assert facts.learn("k", str(file), files=lambda: [str(file)], find_out=lambda _: {"version": "13.5"}) == {"version": "13.5"}


def test_nothing_is_kept_where_the_end_cannot_be_seen(tmp_path: Path) -> None:
    facts, calls = Facts(tmp_path / "facts"), []
    for _ in range(2):
        facts.learn("k", "file", files=list, find_out=lambda _: calls.append(1) or {})
    assert len(calls) == 2
    assert not (tmp_path / "facts").exists()


def test_r5_what_a_tool_was_kept_from_saying_is_not_remembered(tmp_path: Path) -> None:
    """For want of memory, say. It would be a tool without a version for as long as it lies there, or no clang at all."""
    facts, tool, flag = Facts(tmp_path / "facts"), tmp_path / "tool", tmp_path / "kill-one"
    tool.write_text(f"#!/bin/sh\nrmdir {flag} 2>/dev/null && kill -9 $$\necho 'V13.5.37, clang version 22.1.8, nvptx64'\n")
    tool.chmod(0o755)
    flag.mkdir()
    assert fingerprint.nvidia_tool(str(tool), facts=facts).version == "", "nothing is kept of what it makes this time"
    assert fingerprint.nvidia_tool(str(tool), facts=facts).version == "13.5.37"
    flag.mkdir()
    with pytest.raises(ToolStoppedError, match="tool was killed by SIGKILL"):
        fingerprint.clang(str(tool), environ={}, facts=facts)
    found = fingerprint.clang(str(tool), environ={}, facts=facts)
    assert (found.version, found.trouble) == ("22.1.8", "")

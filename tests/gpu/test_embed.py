"""The C++ program of docs/loading.md on a real device, by machine code and by PTX; and the page's Python."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from loading_page import Page

from scons_gpu.tune.device import connect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("real", [True, False])
def test_the_documented_programs_run(tmp_path: Path, *, real: bool) -> None:
    device = connect(0)
    capability = device.facts.capability.replace(".", "")
    device.close()
    page = Page(tmp_path / "project", archs=f'"{"sm" if real else "compute"}_{capability if real else 75}"')
    for words in ([str(page.project.path("app"))], [sys.executable, "-c", page.launching]):
        done = subprocess.run(words, cwd=page.project.root, env=page.project.environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout in {"relu(-1) is 0\n", ""}

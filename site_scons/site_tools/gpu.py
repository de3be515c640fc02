"""Makes `tools=["gpu"]` work in this tree: puts builders/ first on the path and hands over to the package's own tool."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "builders"))

from scons_gpu.tools.gpu import exists, generate

__all__ = ["exists", "generate"]

"""How large the report's page is, and how long a browser takes to open it and each of its views: `python benchmarks/report.py`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/e2e"))

from browsing import Opened, browser, chromium
from report_data import generated

from scons_gpu.inspect.report.encode import encode
from scons_gpu.inspect.report.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

VIEWS = ("kernels", "graph", "timeline", "rebuilt", "twins", "tools")
READY = "performance.getEntriesByName('ready')[0].startTime"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--times", type=int, default=5, help="medians of this many openings")
    asked = parser.parse_args()
    if not chromium():
        sys.exit("no Chromium on this machine: apt-get install chromium")
    print("units     data MB  page MB  made s  ready ms  " + "  ".join(f"{view} ms".rjust(11) for view in VIEWS))
    with browser() as started:
        for units in asked.units:
            print(row(started, units, times=asked.times))


def row(started: Browser, units: int, *, times: int) -> str:
    """One size."""
    report = generated(units)
    begun = time.perf_counter()
    text = page(report)
    took = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        found = [list(measured(started, path)) for _ in range(times)]
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    sizes = f"{units:<9} {len(encode(report)) / 1e6:7.2f}  {len(text) / 1e6:7.2f}  {took:6.2f}  "
    return f"{sizes}{medians[0]:8.0f}  " + "  ".join(f"{each:11.0f}" for each in medians[1:])


def measured(started: Browser, path: Path) -> Iterator[float]:
    """Milliseconds: from the start of the navigation until the page is ready, then of each view until it is there."""
    opened = Opened.at(started, path)
    yield opened.page.evaluate(READY)
    for view in VIEWS:
        begun = time.perf_counter()
        opened.view(view)
        yield (time.perf_counter() - begun) * 1000
    opened.close()


if __name__ == "__main__":
    main()

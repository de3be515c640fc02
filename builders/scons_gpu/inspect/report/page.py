"""The report's page: our own page, style and code, the libraries, and the data, in one file that asks nothing of a network."""

from __future__ import annotations

import html
import re
from importlib import resources
from typing import TYPE_CHECKING

from scons_gpu.inspect.report.encode import encode
from scons_gpu.inspect.report.libraries import libraries

if TYPE_CHECKING:
    from scons_gpu.inspect.report.libraries import Libraries
    from scons_gpu.inspect.report.model import Report

__all__ = ["page"]

SCRIPTS = ("data", "dom", "libraries", "theme", "overview", "tables", "layout", "graph", "drawing", "timeline", "main")
"""In this order they are one module: a name of one is known to all."""
_HOLE = re.compile(r"\{\{ (\w+) \}\}")


def page(report: Report, *, shipped: Libraries | None = None) -> str:
    """The file's text. `shipped`: what is inlined of others; found where None. Raises ToolMissingError where a wheel is not installed."""
    found = shipped or libraries()
    fillings = {
        "title": _escaped(f"{', '.join(report.overview.programs) or 'no program'} - scons-gpu report"),
        "style": found.table_style + _asset("page.css"),
        "data": encode(report),
        "plot": found.plot,
        "table": found.table,
        "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
        "licences": _escaped(found.licences),
    }
    # In one pass, so that nothing that is filled in is taken for a hole.
    return _HOLE.sub(lambda hole: fillings[hole[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("scons_gpu.inspect.report") / "assets" / name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    """ASCII, also of names that are no UTF-8."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()

"""What others wrote of the page: Bokeh, which draws, and DataTables as ITables ships it, both out of their wheels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from scons_gpu.errors import ToolMissingError

__all__ = ["Libraries", "libraries", "versions"]


@dataclass(frozen=True)
class Libraries:
    """Texts as the page holds them."""

    plot: str
    """JSON: the texts of the scripts that bring `Bokeh`."""
    table: str
    """JSON: the text of the module whose default export is `DataTable`."""
    table_style: str
    licences: str
    """Who wrote them, which version, under what licence."""


def versions() -> list[str]:
    """Which ones are installed. Raises ToolMissingError where one is not."""
    try:
        return [f"{name} {metadata.version(name)}" for name in ("bokeh", "itables")]
    except metadata.PackageNotFoundError as error:
        raise _missing(str(error.name)) from None


def libraries() -> Libraries:
    """Reads them. Raises ToolMissingError where one is not installed."""
    try:
        from bokeh.resources import Resources  # noqa: PLC0415 - only who asks for a report loads it
        from itables import options  # noqa: PLC0415 - the same
    except ImportError as error:
        raise _missing(str(error.name)) from None
    drawing = Resources(mode="inline", components=["bokeh", "bokeh-api"], minified=True, log_level="warn")
    bundle = Path(options.dt_bundle)
    return Libraries(
        plot=_json(drawing.js_raw),
        table=_json(bundle.read_text(encoding="utf-8")),
        table_style=bundle.with_suffix(".css").read_text(encoding="utf-8"),
        licences="; ".join(map(_licence, ("bokeh", "itables"))),
    )


def _missing(name: str) -> ToolMissingError:
    msg = f"a report takes its tables and drawings from {name}, which is not installed"
    return ToolMissingError(msg, hint="pip install 'scons-gpu[report]' brings it")


def _licence(name: str) -> str:
    found = metadata.metadata(name).json
    said = str(found.get("license_expression") or found.get("license") or "see its wheel")
    return f"{name} {found['version']} ({said.splitlines()[0]})"


def _json(value: object) -> str:
    """Data, not a script: what looks like the end of an element inside of it ends nothing."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")

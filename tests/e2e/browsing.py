"""Chromium as the tests drive it: one that the machine has, without a window, and a page that keeps what it complained of."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Opened", "browser", "chromium"]


def chromium() -> str:
    """Where it is; empty where this machine has none."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), "")


@contextmanager
def browser() -> Iterator[Any]:
    """Playwright's handle of it. Its wheel brings what drives a browser; the browser is the machine's."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only those who browse load it

    with sync_playwright() as playwright:
        # A container's root has no sandbox; the page is our own file.
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield started
        finally:
            started.close()


@dataclass
class Opened:
    """A page of ours in a window."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """Warnings and errors of its console, exceptions, and whatever it asked of a network."""

    @classmethod
    def at(cls, started: Any, path: Path, *, width: int = 1280, scheme: str = "light", anchor: str = "") -> Opened:
        """The file at `path`, ready."""
        page = started.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        opened = cls(page)
        page.on("console", lambda said: opened.complaints.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(("file:", "blob:", "data:")) else opened.complaints.append(asked.url))
        page.goto(f"{path.as_uri()}{anchor}")
        page.locator("html[data-ready=yes]").wait_for()
        return opened

    def view(self, name: str) -> Any:
        """Goes to a view, and waits until it is there."""
        self.page.evaluate("name => { location.hash = name }", f"#{name}")
        shown = self.page.locator(f"#view-{name}[data-ready=yes]")
        shown.wait_for()
        return shown

    def close(self) -> None:
        self.page.context.close()

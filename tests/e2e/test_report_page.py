"""The report's page in a real browser: 10,000 units, by mouse and by keyboard, wide and narrow, light and dark."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest
from browsing import Opened, browser, chromium
from playwright.sync_api import expect
from report_data import generated

from scons_gpu.inspect.report.model import Overview, Report
from scons_gpu.inspect.report.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not chromium(), reason="no Chromium on this machine: apt-get install chromium")

VIEWS = ("overview", "kernels", "graph", "timeline", "rebuilt", "twins", "tools")
NASTY = ("</script><b>x</b>", '"quoted" \\ <!-- <script>', "<img src=x onerror=alert(1)>", "\u2028中文 &amp;", "bad\udcff{{ data }}")


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(page(generated(10_000)), encoding="utf-8")
    return path


@pytest.fixture
def opened(started: Any, large: Path) -> Iterator[Opened]:
    """The large page; a test that ends with a complaint in the console has failed."""
    found = Opened.at(started, large)
    yield found
    found.close()
    assert found.complaints == []


def saved(report: Report, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path


def test_the_overview_has_the_counts_and_the_tree(opened: Opened) -> None:
    overview = opened.view("overview")
    tiles = dict(zip(overview.locator(".tile dt").all_inner_texts(), overview.locator(".tile dd").all_inner_texts(), strict=True))
    assert tiles["Kernels"].startswith("11,000")
    assert tiles["Shared"].startswith("1,000")
    assert overview.locator(".tree details, .tree .leaf").count() == 100
    overview.get_by_role("link", name="graph of net.block0.layer2").click()
    opened.page.locator("#view-graph[data-ready=yes] .panel", has_text="net.block0.layer2").wait_for()


def test_kernels_are_found_sorted_and_filtered(opened: Opened) -> None:
    kernels = opened.view("kernels")
    rows, info = kernels.locator("tbody tr"), kernels.locator(".dt-info")
    assert (rows.count(), info.inner_text()) == (50, "1 to 50 of 11,000")
    kernels.get_by_label("Search").fill("gemm<float, 256> #43")
    kernels.get_by_text(re.compile(r"\(of 11,000\)")).wait_for()
    assert {"gemm<float, 256>" in text and "#43" in text for text in kernels.locator("tbody td:first-child").all_inner_texts()} == {True}
    assert re.fullmatch(r"1 to (\d+) of \1 \(of 11,000\)", info.inner_text())
    kernels.get_by_label("Search").fill("")

    registers = kernels.get_by_role("columnheader", name="Registers")
    for order, first in (("descending", "215"), ("ascending", "16")):
        registers.click()
        expect(registers).to_have_attribute("aria-sort", order)
        assert rows.first.locator("td").nth(4).inner_text() == first
    kernels.get_by_role("combobox", name="Module").select_option("net.block0.layer5")
    kernels.get_by_role("combobox", name="Result").select_option("failed")
    expect(rows).to_have_count(1)
    assert rows.first.locator("td").first.inner_text().endswith("#5")


def test_a_table_is_used_by_keyboard_alone(opened: Opened) -> None:
    kernels, keys = opened.view("kernels"), opened.page.keyboard
    spills = kernels.get_by_role("columnheader", name="Spills")
    spills.get_by_role("button").focus()
    for order in ("descending", "ascending"):
        keys.press("Enter")
        expect(spills).to_have_attribute("aria-sort", order)
    kernels.get_by_role("textbox", name="move by arrow keys").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        keys.press(key)
    name = kernels.locator("tbody tr", has=opened.page.locator("td.focus")).locator("a").inner_text()
    assert name == kernels.locator("tbody a").nth(2).inner_text()
    keys.press("Enter")
    opened.page.locator("#view-graph[data-ready=yes] .panel .what", has_text=name).wait_for()


def test_the_graph_is_folded_searched_and_walked(opened: Opened) -> None:
    graph = opened.view("graph")
    drawing, panel = graph.locator(".drawing"), graph.locator(".panel")
    assert drawing.get_attribute("data-drawn") == "101"  # 100 modules and their program
    panel.get_by_role("button", name="open net.block0.layer5").click()
    expect(drawing).to_have_attribute("data-drawn", re.compile("1[4-9].|2.."))  # of its 100 units, those of most interest
    assert panel.get_by_role("button", name="fold net.block0.layer5").get_attribute("aria-expanded") == "true"

    search = graph.get_by_role("combobox", name="Search the graph")
    search.fill("#1230")
    graph.get_by_role("option").first.wait_for()
    search.press("ArrowDown")
    search.press("Enter")
    panel.get_by_text("#1230").first.wait_for()
    assert int(drawing.get_attribute("data-drawn")) >= 6  # its source, itself, its object, two images, modules
    assert panel.get_by_role("heading").all_inner_texts() == ["unit", "Made from 1", "Used by 1"]
    panel.get_by_role("listitem").last.get_by_role("link").click()
    panel.get_by_role("heading", name="object").wait_for()
    assert panel.get_by_role("heading").all_inner_texts() == ["object", "Made from 1", "Used by 2"]
    opened.page.go_back()
    panel.get_by_role("heading", name="unit").wait_for()
    graph.get_by_role("button", name="Fold everything").click()
    expect(drawing).to_have_attribute("data-drawn", "101")


def test_a_drawing_is_zoomed_moved_and_clicked(opened: Opened) -> None:
    graph = opened.view("graph")
    drawing, keys = graph.locator(".drawing"), opened.page.keyboard
    drawing.focus()

    def picture() -> bytes:
        opened.page.wait_for_timeout(150)
        return bytes(drawing.screenshot())

    whole = picture()
    keys.press("+")
    near = picture()
    keys.press("ArrowRight")
    assert len({whole, near, picture()}) == 3
    graph.get_by_role("button", name="Show all that is drawn").click()
    box = drawing.bounding_box()
    assert box
    middle, hit = box["y"] + box["height"] / 2, False
    for part in (0.97, 0.93, 0.9, 0.87):  # what all leads to stands at the right, in the middle
        opened.page.mouse.click(box["x"] + box["width"] * part, middle)
        opened.page.wait_for_timeout(120)
        hit = hit or bool(re.search(r"#graph/\d+$", opened.page.url))
    assert hit


def test_the_timeline_has_a_table_of_the_same(opened: Opened) -> None:
    timeline = opened.view("timeline")
    assert timeline.get_by_role("img", name=re.compile("Timeline of 2,859 steps on 8 workers")).count() == 1
    lower = timeline.get_by_role("button", name="lower")
    before = timeline.locator(".drawing").screenshot()
    lower.click()
    assert lower.get_attribute("aria-pressed") == "false"
    opened.page.wait_for_timeout(150)
    assert timeline.locator(".drawing").screenshot() != before
    took = timeline.get_by_role("columnheader", name="Took")
    assert took.get_attribute("aria-sort") == "descending"


def test_every_view_tells_why_twins_and_tools(opened: Opened) -> None:
    assert "was edited" in opened.view("rebuilt").locator("tbody tr").first.inner_text()
    assert opened.view("twins").locator(".dt-info").inner_text() == "1 to 50 of 400"
    assert "ptxas" in opened.view("tools").inner_text()


NAMELESS = """() => [...document.querySelectorAll('a, button, input, select, textarea, [role=application], [role=region], [role=img]')]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.getAttribute('aria-label') || each.title || each.labels?.[0]?.textContent.trim() || (each.tagName !== 'INPUT' && each.textContent.trim())))
  .map((each) => each.outerHTML)"""
CONTRAST = """() => {
  const value = (name) => {
    const probe = document.createElement('i');
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255).map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    probe.remove();
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ratio = (one, other) => (Math.max(value(one), value(other)) + 0.05) / (Math.min(value(one), value(other)) + 0.05);
  const texts = ['text', 'soft', 'accent', 'compiled', 'reused', 'deferred', 'failed', 'candidate', 'kept'];
  return Object.fromEntries(texts.flatMap((text) => ['card', 'page'].map((under) => [`${text} on ${under}`, ratio(text, under)])));
}"""


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_every_view_fits_is_named_and_can_be_read(started: Any, tmp_path: Path, width: int, scheme: str) -> None:
    opened = Opened.at(started, saved(generated(300, modules=20), tmp_path), width=width, scheme=scheme)
    for name in VIEWS:
        opened.view(name)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert opened.page.evaluate(NAMELESS) == [], name
    assert {pair: ratio for pair, ratio in opened.page.evaluate(CONTRAST).items() if ratio < 4.5} == {}
    background = opened.page.evaluate("getComputedStyle(document.querySelector('.dt-container')).backgroundColor")
    assert background in {"rgba(0, 0, 0, 0)", opened.page.evaluate("getComputedStyle(document.querySelector('.tablebox')).backgroundColor")}
    opened.close()
    assert opened.complaints == []


def test_names_are_text_whatever_they_hold(started: Any, tmp_path: Path) -> None:
    made = generated(50, modules=5)
    units = tuple(dataclasses.replace(unit, name=NASTY[row % 5]) for row, unit in enumerate(made.units))
    kernels = tuple(dataclasses.replace(kernel, name=NASTY[kernel.unit % 5]) for kernel in made.kernels)
    nodes = tuple(dataclasses.replace(node, name=NASTY[node.row % 5]) if node.kind == "unit" else node for node in made.nodes)
    nasty = dataclasses.replace(
        made, units=units, kernels=kernels, nodes=nodes, overview=dataclasses.replace(made.overview, programs=(NASTY[0], NASTY[4]))
    )
    opened = Opened.at(started, saved(nasty, tmp_path))
    for name in VIEWS:
        opened.view(name)
    shown = opened.page.evaluate("[...document.querySelectorAll('#view-kernels tbody td:first-child')].map((each) => each.textContent)")
    assert set(NASTY[:4]) <= set(shown)
    assert opened.page.locator("h1").inner_text().startswith("</script><b>x</b>, bad")
    assert opened.page.locator("main b, main img").count() == 0
    assert opened.page.title().startswith("</script><b>x</b>")
    opened.close()
    assert opened.complaints == []


@pytest.mark.parametrize(
    "report", [Report(), Report(overview=Overview(build="b", state="done", counts={"modules": 0}))], ids=["none", "idle"]
)
def test_a_page_of_nothing_has_all_its_views(started: Any, tmp_path: Path, report: Report) -> None:
    opened = Opened.at(started, saved(report, tmp_path))
    assert ("No build yet" in opened.view("overview").inner_text()) is (not report.overview.build)
    for name in VIEWS[1:]:
        assert opened.view(name).locator(".empty").count() == 1
    opened.close()
    assert opened.complaints == []


def test_a_view_can_be_a_bookmark(started: Any, large: Path) -> None:
    opened = Opened.at(started, large, anchor="#graph/0")
    assert opened.page.locator("#view-graph .panel .what").inner_text() == "net"
    assert opened.page.locator("nav a[aria-current=page]").inner_text() == "Graph"
    opened.close()
    assert opened.complaints == []

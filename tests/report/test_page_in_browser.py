"""The report in a real browser: no errors, tables sort, charts zoom and are read, dark and light, paper."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cli.main import run as command

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def page(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two runs."""
    path = tmp_path_factory.mktemp("pages") / "page.html"
    assert command(["report", *map(str, runs.values()), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def lone_page(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one run."""
    path = tmp_path_factory.mktemp("pages") / "lone.html"
    assert command(["report", str(runs["hisparse"]), "-o", str(path)]) == 0
    return path


def shown(browser: Any) -> list[float]:
    """The part of the time axis that is shown, as shares of all of it."""
    found: list[float] = browser.execute_script(
        "return timelines.shown.map((x) => x / timelines.all[1])",
    )
    return found


def mouse(browser: Any, kind: str, share: float, chart: int = 0, **more: object) -> None:
    """A mouse event in a chart, at a share of its plot's width."""
    at = browser.execute_script(
        "const c = timelines.charts[arguments[0]], canvas = c.canvas;"
        "canvas.scrollIntoView({block: 'center'});"
        "const box = canvas.getBoundingClientRect();"
        "return [box.left + c.left + arguments[1] * c.wide, box.top + box.height / 2]",
        chart,
        share,
    )
    event = {"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1, **more}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def frame(browser: Any) -> None:
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done))")


@pytest.mark.parametrize("which", ["page", "lone_page"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
def test_a_page_opens_without_errors_and_asks_the_network_for_nothing(
    which: str, width: int, dark: bool, show: Show, request: pytest.FixtureRequest
) -> None:
    opened = show(request.getfixturevalue(which), width=width, dark=dark)
    assert opened.get_log("browser") == []
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert opened.execute_script("return document.querySelectorAll('#timelines canvas').length") >= 6
    # Each chart has ink in the colour of its first line.
    assert opened.execute_script("""
        return [...timelines.charts].every((chart) => {
          const {width, height} = chart.canvas;
          const pixels = chart.canvas.getContext('2d').getImageData(0, 0, width, height).data;
          return pixels.some((value, i) => i % 4 === 3 && value > 0);
        })""")


def test_tables_sort_by_number_both_ways_and_keep_unknowns_last(page: Path, show: Show) -> None:
    opened = show(page)
    opened.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    column = """
        const table = document.getElementById('slowest');
        const index = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.startsWith('TTFT'));
        return [...table.tBodies[0].rows].map((row) => Number(row.cells[index].dataset.v))"""
    click = column.replace(
        "return [", "table.tHead.rows[0].cells[index].querySelector('button').click(); return ["
    )
    before = opened.execute_script(column)
    up = opened.execute_script(click)
    assert up == sorted(before) != before
    assert opened.execute_script(click) == sorted(before, reverse=True)
    assert opened.execute_script("return document.querySelectorAll('#slowest [aria-sort]').length") == 1


def test_dragging_over_a_chart_zooms_all_charts_and_a_double_click_shows_all(page: Path, show: Show) -> None:
    opened = show(page)
    mouse(opened, "mousePressed", 0.25)
    mouse(opened, "mouseMoved", 0.4)
    mouse(opened, "mouseMoved", 0.5)
    mouse(opened, "mouseReleased", 0.5)
    assert shown(opened) == pytest.approx([0.25, 0.5], abs=0.01)
    assert "to" in opened.execute_script("return document.getElementById('window').textContent")
    mouse(opened, "mousePressed", 0.5)
    mouse(opened, "mouseReleased", 0.5)
    mouse(opened, "mousePressed", 0.5, clickCount=2)
    mouse(opened, "mouseReleased", 0.5, clickCount=2)
    assert shown(opened) == [0, 1]


def test_labels_of_a_zoomed_axis_say_where_they_stand(page: Path, show: Show) -> None:
    opened = show(page)
    for width in (1, 0.37, 0.011, 0.0004):
        labels = opened.execute_script(
            """
            const [low, high] = [timelines.all[1] * 0.3, timelines.all[1] * (0.3 + 0.7 * arguments[0])];
            const marks = ticks(low / timeScale, high / timeScale, 6);
            return marks.map((t) => [t, parseFloat(time(t * timeScale, high - low).replaceAll(',', ''))])""",
            width,
        )
        assert len(labels) > 2
        for exact, label in labels:
            assert label == pytest.approx(exact, rel=1e-9)


def test_wheel_buttons_and_keys_zoom_too(page: Path, show: Show) -> None:
    opened = show(page)
    mouse(opened, "mouseWheel", 0.5, deltaX=0, deltaY=-300, modifiers=2)
    low, high = shown(opened)
    assert high - low == pytest.approx(1 / 2.718, rel=0.01)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.01)
    opened.execute_script("document.querySelector('[data-do=all]').click()")
    opened.execute_script("document.querySelector('[data-do=in]').click()")
    assert shown(opened) == pytest.approx([0.25, 0.75])
    opened.execute_script("document.querySelector('[data-do=right]').click()")
    assert shown(opened) == pytest.approx([0.5, 1.0])
    opened.execute_script("timelines.charts[0].canvas.focus()")
    for key in ("Escape", "ArrowRight"):
        opened.execute_script(
            "timelines.charts[0].canvas.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", key
        )
    assert shown(opened) == [0, 1]
    frame(opened)
    assert opened.execute_script("return timelines.charts[0].values[0].textContent") != ""


def test_two_fingers_zoom(page: Path, show: Show) -> None:
    opened = show(page, width=390)
    left, top, wide = opened.execute_script(
        "const c = timelines.charts[0]; c.canvas.scrollIntoView({block: 'center'});"
        "const box = c.canvas.getBoundingClientRect();"
        "return [box.left + c.left, box.top + box.height / 2, c.wide]"
    )

    def touch(kind: str, *shares: float) -> None:
        points = [{"x": left + share * wide, "y": top, "id": i} for i, share in enumerate(shares)]
        opened.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.4)
    touch("touchStart", 0.4, 0.6)
    touch("touchMove", 0.3, 0.7)
    touch("touchMove", 0.2, 0.8)
    touch("touchEnd")
    low, high = shown(opened)
    assert 0.2 < high - low < 0.5
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.1)


def test_hovering_reads_the_values_of_all_charts(lone_page: Path, show: Show) -> None:
    opened = show(lone_page)
    mouse(opened, "mouseMoved", 0.5)
    frame(opened)
    words = opened.execute_script("return timelines.charts.map((c) => c.values[0].textContent)")
    assert all(words)
    expected = opened.execute_script("""
        const run = DATA.runs[0], curve = run.curves['Requests/running'];
        const near = Math.floor(timelines.cursor / run.dt_s), of = curve.mean.slice(near - 12, near + 13);
        return [Math.min(...of), Math.max(...of)]""")
    assert expected[0] <= float(words[0].split(" ")[0]) <= expected[1]


def test_one_run_of_several_can_be_looked_at_alone(page: Path, show: Show) -> None:
    opened = show(page)
    opened.execute_script("document.querySelectorAll('#runs button')[1].click()")
    assert "What the GPU pool holds" in opened.execute_script("return timelines.charts.map((c) => c.title)")
    assert opened.get_log("browser") == []


def test_the_reader_switches_between_light_and_dark_and_it_is_remembered(page: Path, show: Show) -> None:
    opened = show(page)
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = opened.execute_script(paper)
    assert light == "rgb(255, 255, 255)"
    opened.execute_script("document.getElementById('theme').click()")
    dark = opened.execute_script(paper)
    assert dark != light
    opened.refresh()
    assert opened.execute_script(paper) == dark
    assert show(page, dark=True).execute_script(paper) == dark


def test_a_page_prints_on_white_with_all_of_it_open(page: Path, show: Show) -> None:
    opened = show(page, dark=True)
    opened.execute_script("""
        window.seen = null;
        addEventListener('beforeprint', () => {
          window.seen = [root.dataset.theme, document.querySelectorAll('details:not([open])').length];
        })""")
    made = base64.b64decode(opened.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert made.startswith(b"%PDF") and len(made) > 20_000
    assert opened.execute_script("return window.seen") == ["light", 0]
    assert opened.execute_script("return root.dataset.theme") == "dark"

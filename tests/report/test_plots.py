"""Pictures and the quantities over time that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.report import plots
from hisparse_sim.report.compare import main
from hisparse_sim.report.gantt import PHASE_COLOURS, gantt
from hisparse_sim.report.latency import latency
from hisparse_sim.report.phases import at_a_time, packed, phases
from hisparse_sim.report.plots import PICTURES, save_plots
from hisparse_sim.report.run_picture import RunPicture, names
from hisparse_sim.report.series import TimeGrid
from hisparse_sim.report.sheet import BLUE, COLOURS, GREEN, ORANGE, SKY, fits, short, style, time_unit
from hisparse_sim.report.timeline import TIER_COLOURS, overlay, timeline

STEPS: dict[str, list[Any]] = {
    "start_s": [0.0, 2.0, 5.0],
    "end_s": [2.0, 4.0, 6.0],
    "running": [1, 3, 2],
    "waiting": [0, 0, 0],
    "preemptions": [0, 2, 1],
    "gpu_free_blocks": [75, 50, 100],
    "host_free_blocks": [0, 0, 0],
    "resident_pages": [0, 0, 0],
    "host_only_pages": [0, 0, 0],
    "h2d_bytes": [0, 4_000_000_000, 0],
    "d2h_bytes": [0, 0, 0],
}
REQUESTS: dict[str, list[Any]] = {
    "request_id": ["a", "b", "c"],
    "arrival_s": [0.0, 0.1, 4.2],
    "first_scheduled_s": [0.0, 1.0, np.nan],
    "first_token_s": [0.1, 1.0, np.nan],
    "finish_s": [1.0, 4.0, np.nan],
    "status": ["completed", "completed", "failed"],
    "ttft_s": [0.1, 0.9, np.nan],
    "tpot_s": [0.01, 0.02, np.nan],
    "e2e_s": [1.0, 30.0, np.nan],
}
SUMMARY: dict[str, Any] = {
    "scenario": "mine",
    "mode": "offload",
    "running_mean": 2.0,
    "pools": {"num_gpu_blocks": 101, "num_host_blocks": None, "block_size": 64},
}


def picture(rows: int = 3, folder: str = "", **more: Any) -> RunPicture:
    return RunPicture(
        SUMMARY | more, pd.DataFrame(REQUESTS).iloc[:rows], pd.DataFrame(STEPS).iloc[:rows], folder
    )


def hisparse(**more: list[int]) -> RunPicture:
    """A run with a page on the GPU and three on the host only, then the other way round."""
    steps = STEPS | {
        "resident_pages": [1, 3, 0],
        "host_only_pages": [3, 1, 0],
        "host_free_blocks": [10, 5, 15],
    }
    pools = {"num_gpu_blocks": 101, "num_host_blocks": 21, "block_size": 64, "resident_groups": 2}
    summary = SUMMARY | {"mode": "hisparse", "pools": pools}
    return RunPicture(summary, pd.DataFrame(REQUESTS), pd.DataFrame(steps | more))


def panels(figure: Any) -> dict[str, Any]:
    """The axes of a sheet with one column, by the titles above them."""
    titles = [text.get_text() for text in figure.texts if text.get_fontweight() != "bold"]
    return dict(zip(titles, figure.axes, strict=True))


def line(axes: Any, number: int = 0) -> np.ndarray:
    return np.asarray(axes.get_lines()[number].get_ydata())


def test_a_mean_over_time_weighs_by_duration() -> None:
    grid = TimeGrid.over(6.0, intervals=3)
    start, end, value = (np.array(STEPS[name], dtype=float) for name in ("start_s", "end_s", "running"))
    assert grid.mean(start, end, value, hold=False).tolist() == [1.0, 3.0, 1.0]
    assert grid.mean(start, end, value, hold=True).tolist() == [1.0, 3.0, 2.5]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 100)), min_size=1, max_size=30),
    st.integers(1, 50),
)
def test_no_amount_is_lost_between_intervals(rows: list[tuple[float, float, float]], intervals: int) -> None:
    gaps, lengths, amounts = (np.array(column) for column in zip(*rows, strict=True))
    end = np.cumsum(gaps + lengths)
    grid = TimeGrid.over(float(end[-1]), intervals=intervals)
    rate = grid.rate_per_s(end - lengths, end, amounts)
    assert rate.sum() * grid.width_s == pytest.approx(amounts.sum(), abs=1e-6)
    assert (rate >= -1e-9).all()


# -- timeline --------------------------------------------------------------------------------------


def test_the_timeline_shows_what_happened_and_leaves_out_what_did_not() -> None:
    shown = panels(timeline([picture()]))
    assert list(shown) == [
        "requests",
        "preemptions so far",
        "GPU pool in use, % of blocks",
        "link of one GPU, GB/s",
    ]
    waiting, running = line(shown["requests"]), line(shown["requests"], 1)
    assert running.max() == pytest.approx(3) and not waiting.any()
    assert line(shown["preemptions so far"])[-1] == pytest.approx(3)
    assert line(shown["link of one GPU, GB/s"]).max() == pytest.approx(2)
    assert shown["GPU pool in use, % of blocks"].get_ylim() == (0, 104)


def test_hisparse_shows_where_the_kv_is() -> None:
    assert list(panels(timeline([hisparse()])))[2:5] == [
        "KV of the running, tokens",
        "GPU pool, % of blocks",
        "host pool, % of blocks",
    ]
    assert hisparse().kv_tokens() == {
        "on the GPU": pytest.approx([64, 192, 0]),
        "host only": pytest.approx([192, 64, 0]),
    }


def test_the_tiers_of_the_gpu_pool_add_up_to_what_is_in_use() -> None:
    assert hisparse().gpu_tiers() == {
        "indexer": pytest.approx([0.04, 0.04, 0]),
        "resident, hot": pytest.approx([0.21, 0.46, 0]),
    }
    # The second row's three resident pages of two blocks each are in use; the third row holds nothing.
    tiers = hisparse(hot_blocks=[21, 43, 0], resident_pages=[1, 3, 0]).gpu_tiers()
    assert tiers["hot buffers"] == pytest.approx([0.21, 0.43, 0])
    assert tiers["resident"] == pytest.approx([0, 0.03, 0])
    assert tiers["resident, idle"] == pytest.approx([0.02, 0.03, 0])
    assert picture().gpu_tiers() == {"resident": pytest.approx([0.25, 0.5, 0])}


def test_requests_that_load_while_nothing_runs_wait() -> None:
    run = picture()
    run.requests.loc[2, ["arrival_s", "first_scheduled_s"]] = (4.0, 5.0)
    assert run.waiting(TimeGrid.over(6.0, intervals=6)) == pytest.approx([0, 0, 0, 0, 1, 0])


def test_runs_side_by_side_have_the_same_scales() -> None:
    long = picture(folder="long")
    long.steps["running"] *= 100
    short_run = picture(rows=1, folder="short")
    figure = timeline([long, short_run])
    first, second = figure.axes[: len(figure.axes) // 2], figure.axes[len(figure.axes) // 2 :]
    assert [axes.get_ylim() for axes in first] == [axes.get_ylim() for axes in second]
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 6)}
    assert len(line(second[0])) < len(line(first[0]))


def test_a_queue_that_towers_over_what_runs_has_a_panel_of_its_own() -> None:
    run = picture()
    run.steps["waiting"] = [0, 12, 5]
    assert next(iter(panels(timeline([run])))) == "requests"
    run.steps["waiting"] = [0, 13, 5]
    shown = panels(timeline([run, picture(folder="b")][:1]))
    assert list(shown)[:2] == ["running requests", "waiting requests"]
    assert line(shown["running requests"]).max() == pytest.approx(3)
    assert line(shown["waiting requests"]).max() == pytest.approx(13)


def test_a_short_run_has_its_details_beside_a_long_one() -> None:
    short_run, long = picture(folder="a"), picture(folder="b")
    long.steps.loc[2, "end_s"] = 600.0
    first, *_ = timeline([short_run, long]).axes
    assert first.get_xlim() == (0, 10)  # minutes
    at = np.asarray(first.get_lines()[1].get_xdata())
    assert len(at) == 60 and at[-1] * 60 == pytest.approx(6, abs=0.1)
    assert line(first, 1).max() == pytest.approx(3)


def test_a_run_too_short_to_be_seen_says_when_it_ended() -> None:
    short_run, long = picture(folder="a"), picture(folder="b")
    long.steps.loc[2, "end_s"] = 600.0
    for draw in (timeline, gantt):
        texts = [text.get_text() for text in draw([short_run, long]).texts]
        assert "a, ends at 6 s" in texts and "b" in texts


def test_runs_over_each_other_have_a_line_and_a_marker_each() -> None:
    axes = panels(overlay([picture(folder="a"), picture(folder="b")]))["running requests"]
    lines = axes.get_lines()
    assert [entry.get_color() for entry in lines] == list(COLOURS[:2])
    assert len({entry.get_marker() for entry in lines}) == 2
    (starts, every), (other, _) = (entry.get_markevery() for entry in lines)
    assert starts != other and 300 / every == 5
    (lone,) = panels(overlay([picture()]))["running requests"].get_lines()
    assert lone.get_marker() == "None"


# -- names -----------------------------------------------------------------------------------------


def test_runs_are_told_apart_by_what_differs() -> None:
    assert names([picture()]) == ("mine, offload", [""])
    assert names([picture(), picture(mode="hisparse")]) == ("mine", ["offload", "hisparse"])
    assert names([picture(), picture(scenario="yours")]) == ("", ["mine, offload", "yours, offload"])
    assert names([picture(folder="out/a"), picture(folder="out/b")]) == ("mine", ["a", "b"])
    assert names([picture(folder="x/a"), picture(folder="y/a")]) == ("mine", ["x/a", "y/a"])
    assert names([picture(), picture()]) == ("mine", ["run 1", "run 2"])


def test_a_name_says_when_there_is_less_to_see() -> None:
    assert names([picture(rows=0)])[0] == "mine, offload (nothing ran)"
    assert names([picture(complete=False)])[0] == "mine, offload (not complete)"


# -- phases ----------------------------------------------------------------------------------------


def spans(requests: dict[str, list[Any]], end_s: float = 10.0) -> dict[str, list[tuple[int, float, float]]]:
    found = phases(pd.DataFrame(requests), end_s)
    return {
        name: sorted(zip(*(column.tolist() for column in part), strict=True))
        for name, part in found.items()
        if len(part.start_s)
    }


LIFE: dict[str, list[Any]] = {
    "arrival_s": [1.0],
    "first_scheduled_s": [2.0],
    "first_token_s": [4.0],
    "finish_s": [8.0],
    "status": ["completed"],
}


def test_a_request_queues_prefills_and_decodes() -> None:
    assert spans(LIFE) == {"queue": [(0, 1, 2)], "prefill": [(0, 2, 4)], "decode": [(0, 4, 8)]}


def test_a_load_is_no_queueing_and_a_preemption_no_decoding() -> None:
    more = {"load_start_s": [1.25], "load_end_s": [1.5], "preempted_s": [[3.0, 5.0, 6.0, 7.0]]}
    assert spans(LIFE | more) == {
        "queue": [(0, 1, 1.25), (0, 1.5, 2)],
        "load": [(0, 1.25, 1.5)],
        "prefill": [(0, 2, 3)],
        "decode": [(0, 5, 6), (0, 7, 8)],
        "preempted": [(0, 3, 5), (0, 6, 7)],
    }


def test_what_was_under_way_at_the_end_ends_there() -> None:
    nan = [np.nan]
    assert spans(LIFE | {"finish_s": nan, "preempted_s": [[5.0]]}) == {
        "queue": [(0, 1, 2)],
        "prefill": [(0, 2, 4)],
        "decode": [(0, 4, 5)],
        "preempted": [(0, 5, 10)],
    }
    waits = LIFE | dict.fromkeys(("first_scheduled_s", "first_token_s", "finish_s"), nan)
    assert spans(waits) == {"queue": [(0, 1, 10)]}
    assert spans(waits | {"load_start_s": [2.0], "load_end_s": nan})["load"] == [(0, 2, 10)]
    assert spans(waits | {"status": ["failed"]}) == {}


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=20))
def test_time_in_a_phase_is_counted_exactly(pairs: list[tuple[float, float]]) -> None:
    requests = {
        "arrival_s": [min(pair) for pair in pairs],
        "first_scheduled_s": [max(pair) for pair in pairs],
        "first_token_s": [np.nan] * len(pairs),
        "finish_s": [max(pair) for pair in pairs],
    }
    grid = TimeGrid.over(10.0, intervals=7)
    counted = at_a_time(phases(pd.DataFrame(requests), 10.0)["queue"], grid)
    assert counted.sum() * grid.width_s == pytest.approx(sum(max(p) - min(p) for p in pairs), abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.01, 5)), max_size=30))
def test_requests_of_a_row_follow_each_other(lives: list[tuple[float, float]]) -> None:
    arrival = np.array(sorted(start for start, _ in lives))
    over = arrival + np.array([length for _, length in lives])
    rows = packed(arrival, over)
    for row in set(rows.tolist()):
        mine = rows == row
        assert (over[mine][:-1] <= arrival[mine][1:]).all()
    most = max((int(((arrival <= t) & (t < over)).sum()) for t in arrival.tolist()), default=0)
    assert len(set(rows.tolist())) <= max(most, 1)


# -- gantt -----------------------------------------------------------------------------------------


def many(count: int, alive: int) -> RunPicture:
    """``count`` requests of which so many are alive at any time."""
    arrival = np.arange(count, dtype=float)
    requests = pd.DataFrame(
        {
            "request_id": [f"request-{i}" for i in range(count)],
            "arrival_s": arrival,
            "first_scheduled_s": arrival + alive / 3,
            "first_token_s": arrival + alive / 2,
            "finish_s": arrival + alive - 0.5,
        }
    )
    steps = pd.DataFrame(STEPS).iloc[:1].assign(end_s=float(count + alive))
    return RunPicture(SUMMARY, requests, steps)


def test_few_requests_have_a_named_row_each() -> None:
    _, bars = gantt([many(5, 2)]).axes
    assert [label.get_text() for label in bars.get_yticklabels()] == [f"request-{i}" for i in range(5)]
    assert [len(part.get_paths()) for part in bars.collections] == [5, 5, 5]


@pytest.mark.parametrize(("count", "alive", "drawn"), [(64, 10, 64), (1000, 30, 1000), (1000, 200, 250)])
def test_many_requests_share_rows_and_of_many_rows_some_are_drawn(count: int, alive: int, drawn: int) -> None:
    figure = gantt([many(count, alive)])
    _, bars = figure.axes
    assert len(bars.collections[0].get_paths()) == pytest.approx(drawn, rel=0.05)
    assert bars.get_ylim()[0] < 64
    assert ("; 1 row of 4" in " ".join(text.get_text() for text in figure.texts)) is (alive == 200)


def test_runs_of_many_rows_and_of_few_are_sampled_each_for_itself() -> None:
    figure = gantt([many(1000, 200), many(100, 10)])
    assert "; 1 row of 1 to 4" in " ".join(text.get_text() for text in figure.texts)
    bars = figure.axes[-1]
    assert len(bars.collections[0].get_paths()) == 100


def test_a_queue_that_towers_over_the_other_phases_is_counted_apart() -> None:
    run = many(1000, 90)
    assert next(iter(panels(gantt([run])))) == "requests by phase"
    run.requests["first_scheduled_s"] = run.requests["finish_s"] - 10
    run.requests["first_token_s"] = run.requests["finish_s"] - 5
    queue, others, _ = gantt([run]).axes
    assert queue.dataLim.y1 == pytest.approx(79.5, rel=0.05)
    assert others.dataLim.y1 == pytest.approx(10, rel=0.05)


def test_refused_requests_are_marked() -> None:
    _, bars = gantt([picture()]).axes
    (mark,) = bars.get_lines()
    assert np.asarray(mark.get_xydata()).tolist() == [[4.2, 2]]


# -- latency ---------------------------------------------------------------------------------------


def test_latencies_are_those_of_completed_requests() -> None:
    figure = latency([picture()])
    (drawn,) = figure.axes[0].get_lines()
    assert np.asarray(drawn.get_xdata()).tolist() == [0.1, 0.1, 0.9]
    assert np.asarray(drawn.get_ydata()).tolist() == [0.0, 50.0, 100.0]


def test_a_line_of_many_latencies_keeps_its_ends() -> None:
    values = np.random.default_rng(0).lognormal(size=50_000)
    run = RunPicture(SUMMARY, pd.DataFrame({"ttft_s": values}), pd.DataFrame(STEPS))
    (drawn,) = latency([run]).axes[0].get_lines()
    times, shares = np.asarray(drawn.get_xdata()), np.asarray(drawn.get_ydata())
    assert len(times) < 1100
    assert (times[0], times[-1], shares[-1]) == (values.min(), values.max(), 100.0)
    assert np.interp(50, shares, times) == pytest.approx(np.median(values), rel=0.01)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1])
def test_runs_of_any_length_are_drawn(tmp_path: Path, rows: int) -> None:
    written = save_plots([picture(rows=rows), picture()], tmp_path / "new" / "folder", formats=["png"])
    assert [path.name for path in written] == [f"{name}.png" for name in PICTURES]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(
        path.name for path in written
    )
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    only = ["timeline", "gantt"]
    first = save_plots([hisparse()], tmp_path / "a", only=only)
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red"}):  # whatever the user likes
        second = save_plots([hisparse()], tmp_path / "b", only=only)
    assert [p.name for p in first] == [f"{n}.{s}" for n in only for s in ("png", "svg")]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def shown_on(axis: Any) -> list[Any]:
    """The labels of the ticks that are in view."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    labels = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    return [label for label in labels if label.get_visible() and label.get_text()]


def test_one_run_fits_one_column_and_no_text_leaves_it() -> None:
    runs = [hisparse(hot_blocks=[5, 5, 0])]
    sheets = [(runs, draw) for draw in PICTURES.values()]
    sheets += [
        ([picture(folder=f"folder-{i}") for i in range(5)], draw) for draw in (timeline, gantt, overlay)
    ]
    named = picture()
    named.requests["request_id"] = [
        "conversation-0/1",
        "chatcmpl-4f9a0b7cc2",
        "a/rather-long/name-of/a-request/1234",
    ]
    named.requests["e2e_s"] = [0.1, 99.9, 10_000.0]
    sheets += [([named], draw) for draw in (gantt, latency)]
    with style():
        for drawn, draw in sheets:
            figure = draw(drawn)
            figure.draw_without_rendering()
            width, height = figure.get_size_inches()
            assert width == (3.3 if len(drawn) == 1 or draw is overlay else 7.0)
            ticks = [t for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for t in shown_on(axis)]
            keys = [t for legend in figure.legends for t in legend.get_texts()]
            for text in (*figure.texts, *keys, *ticks):
                box = text.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
                assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height, text


def test_names_are_no_formulas_and_of_any_script(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    run = picture(scenario="$\\frac{$")
    run.requests["request_id"] = ["$\\frac{$", "日本語", "a\x1bb"]
    for path in save_plots([run], tmp_path):
        if path.suffix == ".svg":
            ElementTree.parse(path)
    assert not recwarn.list


def test_pictures_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(runs: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setitem(PICTURES, "latency", fails)
    (tmp_path / "there").mkdir()
    for folder in ("there", "new"):
        with pytest.raises(OSError, match="disk full"):
            save_plots([picture()], tmp_path / folder, formats=["png"])
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


# -- colours ---------------------------------------------------------------------------------------

# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency
# (2009), severity 1, on linear RGB.
VISION = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def lab(colour: str, vision: list[list[float]]) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array([[0.412, 0.358, 0.181], [0.213, 0.715, 0.072], [0.019, 0.119, 0.951]])
    x, y, z = np.cbrt(xyz @ np.clip(np.array(vision) @ linear, 0, 1) / [0.951, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("colours", [TIER_COLOURS, PHASE_COLOURS], ids=["tiers", "phases"])
def test_areas_are_told_apart_with_any_colour_vision(colours: dict[str, str], vision: str) -> None:
    seen = [lab(colour, VISION[vision]) for colour in colours.values()]
    distances = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(distances) > 15  # 2 can just be seen, side by side


@pytest.mark.parametrize("pair", [(BLUE, ORANGE), (GREEN, SKY)])
def test_two_of_a_panel_are_told_apart_with_any_colour_vision(pair: tuple[str, str]) -> None:
    for vision in VISION.values():
        first, second = (lab(colour, vision) for colour in pair)
        assert np.linalg.norm(first - second) > 15
    assert abs(lab(BLUE, VISION["all cones"])[0] - lab(ORANGE, VISION["all cones"])[0]) > 20  # printed grey


# -- small things ----------------------------------------------------------------------------------


def test_numbers_on_axes_are_short() -> None:
    values = [0, 0.25, 5.0, 1000, 9999, 20_000, 1_500_000, 3e9]
    assert [short(v) for v in values] == ["0", "0.25", "5", "1000", "9999", "20k", "1.5M", "3G"]
    assert [time_unit(s)[0] for s in (0.1, 1, 299, 300, 1e5, 1e6)] == ["ms", "s", "s", "min", "h", "days"]


def test_long_names_are_cut_in_the_middle() -> None:
    assert fits("short", 1.0) == "short"
    cut = fits("a-very-long-name-of-a-request/12", 1.0)
    assert len(cut) == 20 and cut.startswith("a-very") and cut.endswith("/12")


# -- side by side ----------------------------------------------------------------------------------


def test_folders_of_runs_are_compared_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int]] = []
    monkeypatch.setattr(plots, "save_plots", lambda runs, folder: drawn.append((folder.name, len(runs))))
    folders = []
    for scenario in ("mine", "yours"):
        folder = tmp_path / scenario
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(SUMMARY | {"scenario": scenario}))
        pd.DataFrame(REQUESTS).to_parquet(folder / "requests.parquet")
        pd.DataFrame(STEPS).to_parquet(folder / "steps.parquet")
        folders.append(str(folder))
    assert main([*folders, "--plots", str(tmp_path / "plots")]) == 0
    assert capsys.readouterr().out.split()[:4] == ["mine", "yours", "offload", "offload"]
    assert main([folders[0], folders[0], "--plots", str(tmp_path / "plots")]) == 0
    assert drawn == [("mine", 1), ("yours", 1), ("plots", 2)]


@pytest.mark.parametrize("summary", [None, "{", "[]"])
def test_a_folder_without_a_summary_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], summary: str | None
) -> None:
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'summary.json'}: ")
    assert len(said.splitlines()) == 1

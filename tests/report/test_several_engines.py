"""Runs of several engines, of prefill apart, and of SGLang, on the page and in the timeline."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hisparse_sim as hs
from hisparse_sim.cli.main import run as command
from hisparse_sim.report.page.over_time import over_time
from hisparse_sim.report.page.question import differing, read_asked
from hisparse_sim.report.perfetto import events
from hisparse_sim.report.run_files import RunFolder
from hisparse_sim.report.run_picture import RunPicture

CLUSTERS = {
    "two": {"cluster.instances": 2},
    "apart": {"cluster.instances": 2, "cluster.prefill.instances": 1, "cluster.prefill.lands": "host"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    into = tmp_path_factory.mktemp("fleet")
    found = {}
    for name, settings in CLUSTERS.items():
        asked = hs.scenario("agentic-13turn-8xh200", settings, concurrency=6, limit=12)
        found[name] = hs.simulate(asked).save(into / name)
    shorter = {"workload.requests": 6, "workload.output_tokens": 300, "workload.concurrency": 3}
    found["sglang"] = hs.simulate(hs.scenario("sglang-8xh200", shorter)).save(into / "sglang")
    return found


def picture(folder: Path) -> RunPicture:
    return RunPicture.read(RunFolder(folder))


def mean(curve: dict[str, Any]) -> float:
    return float(np.mean(curve["mean"]))


def held_mean(run: RunPicture, values: np.ndarray[Any, Any]) -> float:
    """Of the whole run, each value until the next step, of one engine."""
    start = run.column("start_s")
    return float((values * np.diff([*start, run.end_s])).sum() / run.end_s)


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_pools_on_the_page_are_those_of_engines_that_decode(name: str, folders: dict[str, Path]) -> None:
    run = picture(folders[name])
    (shown,) = over_time([run], [""])["runs"]
    decoding = [part for part in run.parts() if part.prefilling is None]
    assert len(decoding) == 2
    for pool, key in (("gpu", "GPU pool in use/in use"), ("host", "Host pool/in use")):
        size = run.summary["pools"][f"num_{pool}_blocks"] - 1
        used = [100 * (1 - part.column(f"{pool}_free_blocks") / size) for part in decoding]
        curve = shown["curves"][key]
        # The last engine to stop ends the run: the others keep what they had.
        expected = np.mean([held_mean(p, u) * p.end_s / run.end_s + u[-1] * (1 - p.end_s / run.end_s)
                            for p, u in zip(decoding, used, strict=True)])  # fmt: skip
        assert mean(curve) == pytest.approx(expected, rel=0.05)
        assert max(curve["high"]) == pytest.approx(max(u.max() for u in used), rel=1e-3)
    layers = [shown["curves"].get(f"What the GPU pool holds/{tier}") for tier in ("indexer", "resident")]
    assert all(max(layer["mean"]) <= 100 for layer in layers if layer)


def test_engines_that_only_prefill_have_lines_of_their_own(folders: dict[str, Path]) -> None:
    run = picture(folders["apart"])
    found = over_time([run], [""])["runs"][0]["curves"]
    theirs = run.steps[run.steps["replica"] == 2]
    step_ms = 1e3 * (theirs["end_s"] - theirs["start_s"]) / theirs["steps"]
    assert max(filter(None, found["Step time/of engines that only prefill"]["high"])) == pytest.approx(
        step_ms.max(), rel=1e-3
    )
    size = run.summary["prefill"]["num_gpu_blocks"] - 1
    used = found["GPU pool in use/of engines that only prefill"]
    assert max(used["high"]) == pytest.approx(100 * (1 - theirs["gpu_free_blocks"].min() / size), rel=1e-3)
    alone = over_time([picture(folders["two"])], [""])["runs"][0]["curves"]
    assert not any("prefill" in key.partition("/")[2] and "only" in key for key in alone)


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_rates_and_requests_are_sums_of_all_engines(name: str, folders: dict[str, Path]) -> None:
    run = picture(folders[name])
    shown = over_time([run], [""])["runs"][0]
    curves = shown["curves"]
    prompt = mean(curves["Tokens a second/prompt tokens computed"]) * shown["end_s"]
    assert prompt == pytest.approx(run.steps["prefill_tokens"].sum(), rel=0.01)
    seconds = run.steps["end_s"] - run.steps["start_s"]
    running = (run.steps["running"] * seconds).sum() / shown["end_s"]
    assert mean(curves["Requests/running"]) == pytest.approx(running, rel=0.01)
    assert "high" not in curves["Requests/running"]


def test_a_page_names_the_cluster_and_has_a_row_a_replica(folders: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert command(["report", str(folders["apart"]), "-o", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert "2 decode, 1 only prefill (KV lands on the host), router least_loaded" in html
    assert "By replica" in html
    assert command(["report", str(folders["sglang"]), "-o", str(page)]) == 0
    assert "By replica" not in page.read_text(encoding="utf-8")


def test_what_differs_leaves_out_settings_that_prefill_shares_with_decode(folders: dict[str, Path]) -> None:
    rows = {row[0]: row[1:] for row in differing([read_asked(folders[name]) for name in CLUSTERS])}
    assert rows["cluster.prefill.lands"] == ["-", "host"]
    assert rows["cluster.prefill.engine.mode"] == ["-", "resident"]
    assert "cluster.prefill.engine.gpu_memory_utilization" not in rows


def test_a_request_prefilled_apart_is_loaded_after_its_prefill(folders: dict[str, Path]) -> None:
    spans = [e for e in events(picture(folders["apart"])) if e.get("cat") == "request"]
    lines, of = defaultdict(list), defaultdict(list)
    for e in spans:
        lines[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        of[e["args"]["request"]].append((e["ts"], e["name"]))
    for line in lines.values():
        line.sort()
        assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(line))
    orders = {tuple(name for _, name in sorted(each) if name != "queue") for each in of.values()}
    assert ("prefill", "load", "prefill", "decode") in orders


def test_an_engine_that_only_prefills_says_so_in_the_timeline(folders: dict[str, Path]) -> None:
    names = [e["args"]["name"] for e in events(picture(folders["apart"])) if e["name"] == "process_name"]
    assert [name.split(":")[0] for name in names] == [
        "engine 0",
        "engine 1",
        "engine 2 (prefill only)",
        "requests",
    ]


def test_sglang_is_shown_with_its_own_settings_words_and_pools(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert command(["report", str(folders["sglang"]), "-o", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    for shown in (
        "SGLang, TP 8",
        "host_to_device_ratio 8",
        "max_running_requests 480",
        "SGLang&#x27;s HiSparse",
    ):
        assert shown in html, shown
    assert "max_num_batched_tokens" not in html and "Hybrid HiSparse" not in html
    summary = json.loads((folders["sglang"] / "summary.json").read_text(encoding="utf-8"))
    assert summary["engine"] == "sglang"
    assert "chunked_prefill_size" in summary["waiting_for_s"]
    run = picture(folders["sglang"])
    tiers = run.gpu_tiers()
    assert set(tiers) == {"hot buffers", "resident"}
    blocks = run.summary["pools"]["num_gpu_blocks"] - 1
    np.testing.assert_allclose(tiers["hot buffers"] * blocks, run.column("hot_blocks"))
    used = run.used_share("gpu")
    assert used is not None
    np.testing.assert_allclose(tiers["hot buffers"] + tiers["resident"], used)


def test_runs_of_two_engines_are_told_apart() -> None:
    shown = repr(hs.compare(*(hs.simulate(hs.scenario(name, {"workload.concurrency": 1, "workload.limit": 1}))
                              for name in ("sglang-8xh200", "stream-1m-8xh200"))))  # fmt: skip
    assert "hisparse (SGLang)" in shown

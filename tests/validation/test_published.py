"""Published results beside simulated ones: tables read, errors, and the cliffs in the right place."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.validation.published import agentic, calculator, rtx_pro, watermark
from hisparse_sim.validation.published.compare import SOURCES, compare
from hisparse_sim.validation.published.comparison import simulated
from hisparse_sim.validation.published.rows import METRICS, Row, summary
from hisparse_sim.validation.published.tables import read_table

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "validation"
SHIPPED = configs_dir() / "validation"
AGENTIC = ",".join(agentic.COLUMNS)
CALCULATOR = ",".join(calculator.COLUMNS) + "\n"


def compare_reads(stem: str, path: Path) -> Any:
    module = SOURCES[stem]
    return module.read(path) if hasattr(module, "read") else read_table(path, module.COLUMNS)


def table(tmp_path: Path, name: str, content: str) -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


# -- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "found", "error"),
    [(100.0, 90.0, -0.1), (0.0, 0.0, 0.0), (0.0, 3.0, None), (5.0, None, None)],
)
def test_an_error_is_relative_to_what_was_published(
    published: float, found: float | None, error: float | None
) -> None:
    assert Row("s", "c", "concurrency", published, found).rel_error == (
        None if error is None else pytest.approx(error)
    )


def test_errors_are_summed_by_source_and_metric() -> None:
    rows = [Row("s", str(i), "concurrency", 100, found) for i, found in enumerate((110, 70, None))]
    (sums,) = summary(rows)
    assert (sums.rows, sums.without) == (3, 1)
    assert (sums.median_abs, sums.max_abs) == (pytest.approx(0.2), pytest.approx(0.3))


# -- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "gpu,tp,dp,context_tokens,baseline,hisparse,min_host_gib,colour\n",
            "unknown column 'colour'; known are gpu",
        ),
        ("gpu,tp\n", "column 'dp' is missing"),
        ("# nothing\n", "holds no table"),
        (CALCULATOR, "holds no rows"),
        (CALCULATOR + "H200,8,1,8192,48,71\n", "6 values for 7 columns"),
        (CALCULATOR + "H200,eight,1,8192,48,71,25\n", "tp: 'eight' is no number"),
        (CALCULATOR + "H200,0,1,8192,48,71,25\n", "tp: '0' is not positive"),
        (CALCULATOR + "H200,8,1,8192,-1,71,25\n", "baseline: '-1' is negative"),
        (CALCULATOR + "H200,8,1,,48,71,25\n", "context_tokens: '' is no number"),
    ],
)
def test_a_bad_table_is_named_with_line_and_column(tmp_path: Path, content: str, words: str) -> None:
    path = table(tmp_path, "calculator_vllm.csv", content)
    with pytest.raises(InputError) as caught:
        read_table(path, calculator.COLUMNS)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_lines_are_counted_with_comments(tmp_path: Path) -> None:
    path = table(tmp_path, "calculator_vllm.csv", f"# a\n\n{CALCULATOR}# b\nH200,8,1,8192,x,71,25\n")
    with pytest.raises(InputError, match=r"calculator_vllm\.csv:5: baseline"):
        read_table(path, calculator.COLUMNS)


def test_a_bad_file_loses_itself_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, "calculator_vllm_more.csv", CALCULATOR + "H200,8,1,8192,48,71,25\n")
    table(tmp_path, "locality_of_mine.txt", "x")
    table(tmp_path, "README.md", "x")
    table(tmp_path, "openhands_glm53_8xh200.csv", "series,speed\n")
    assert run(["validate", "published", "--data", str(tmp_path), "--json"]) == 2
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["rel_error"] for row in rows] == [0, 0, 0]
    assert json.loads(out).keys() == {"rows"}
    assert list(rows[0]) == ["source", "case", "metric", "published", "simulated", "rel_error"]
    assert "unknown column 'speed'" in err
    assert "locality_of_mine.txt: no kind of table" in err
    assert "README.md: no kind of table" in err


def test_a_series_that_is_not_understood_is_named(tmp_path: Path) -> None:
    table(tmp_path, "openhands_glm53_8xh200.csv", AGENTIC + "\nmagic_nomtp,1,1,1,1,1,1\n")
    found = compare(tmp_path)
    assert not found.rows
    assert "series 'magic_nomtp' is not understood" in found.problems[0]


@pytest.mark.parametrize(("name", "words"), [("absent", "is no folder"), ("", "holds no table")])
def test_a_folder_without_tables_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare(tmp_path / name)


def test_other_gpus_and_replicas_of_the_calculator_are_answered(tmp_path: Path) -> None:
    table(
        tmp_path,
        "calculator_vllm_b.csv",
        CALCULATOR + "H100,8,1,8192,0,0,\nMI999,8,1,8192,1,1,\nH200,4,2,8192,10,10,10\n",
    )
    rows = compare(tmp_path).rows
    assert [row.simulated is None for row in rows] == [False, False, True, True, False, False, False]
    assert "MI999" in rows[2].case
    assert "unknown node '8xmi999'" in rows[2].note


def test_every_shipped_table_is_understood_and_says_where_it_is_from() -> None:
    for path in sorted(SHIPPED.glob("*.csv")):
        stem = next(stem for stem in SOURCES if path.name.startswith(stem))
        assert compare_reads(stem, path)
        assert "Source" in path.read_text(encoding="utf-8")


@pytest.mark.skipif(not SHARED.exists(), reason="the published tables are not here")
@pytest.mark.parametrize("stem", [s for s in SOURCES if (SHARED / f"{s}.csv").exists()])
def test_shipped_figures_are_those_that_were_published(stem: str) -> None:
    def rows(folder: Path) -> list[dict[str, str]]:
        lines = (folder / f"{stem}.csv").read_text(encoding="utf-8").splitlines()
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))

    assert rows(SHIPPED) == rows(SHARED)


def test_locality_figures_stand_beside_what_did_not_see_them(tmp_path: Path) -> None:
    lines = [
        "model,quantity,policy,buffer_rows,layers,value",
        "GLM-5.1,miss_rate,LRU,4096,all,0.134",
        "GLM-5.1,miss_rate,LRU,6144,all,0.09",
        "GLM-5.1,hit_rate,LRU,6144,all,0.91",
        "GLM-5.1,step_overlap_mean,,2048,all,0.5",
    ]
    table(tmp_path, "locality_mine.csv", "\n".join(lines))
    found = compare(tmp_path).rows
    assert [row.metric for row in found] == ["miss_rate", "miss_rate", "hit_rate"]
    assert "other figures alone" in found[0].note
    assert found[0].simulated == pytest.approx(0.14, abs=0.01)
    assert found[1].simulated == pytest.approx(1 - (found[2].simulated or 0))
    assert 0.07 < (found[1].simulated or 0) < 0.14


# -- what must come out -------------------------------------------------------------------------


@cache
def agentic_rows(series: str, clients: int) -> dict[str, float]:
    row: dict[str, Any] = dict.fromkeys(agentic.COLUMNS, 1.0)
    row |= {"series": series, "configured_concurrency": clients}
    (comparison,) = agentic.comparisons([row], "table")
    answer = simulated(comparison.runs[0])
    return {
        r.metric: r.simulated or 0.0
        for r in comparison.rows([answer] + ["not run"] * (len(comparison.runs) - 1))
    }


def test_classic_offload_collapses_between_8_and_24_clients() -> None:
    few, many = (agentic_rows("offload512_nomtp", n)["total_tok_s_per_gpu"] for n in (8, 24))
    assert many < few / 4
    hisparse = agentic_rows("hisparse384+offload128_nomtp", 24)["total_tok_s_per_gpu"]
    assert hisparse > 7 * many


def test_hisparse_costs_one_client_about_three_percent() -> None:
    with_it, without = (
        agentic_rows(series, 1)["mean_tpot_ms"]
        for series in ("hisparse384+offload128_nomtp", "offload512_nomtp")
    )
    assert 1.005 < with_it / without < 1.05


def test_hisparse_overtakes_on_rtx_pro_at_about_eight_requests() -> None:
    """Published: between six and eight (sglang PR 33075); replayed copies of followers make it sooner."""
    without = rtx_pro.output_tok_s("glm-5.2", 6, hisparse=False)
    assert rtx_pro.output_tok_s("glm-5.2", 6, hisparse=True, index_share=True) < without
    assert rtx_pro.output_tok_s("glm-5.2", 8, hisparse=True, index_share=True) > without
    assert rtx_pro.output_tok_s("glm-5.2", 7, hisparse=True) < without
    assert rtx_pro.output_tok_s("glm-5.2", 9, hisparse=True) > without


def test_a_watermark_takes_most_preemptions_away() -> None:
    columns: dict[str, Any] = dict.fromkeys(watermark.COLUMNS, 1.0)
    rows = watermark.comparisons([columns | {"watermark": w} for w in (0.0, 0.05)], "table")
    none, some = (simulated(comparison.runs[0]) for comparison in rows)
    assert isinstance(none, dict)
    assert isinstance(some, dict)
    assert some["preemptions"] < none["preemptions"] / 4
    assert some["output_tokens_per_s"] > none["output_tokens_per_s"]


def test_every_metric_is_one_of_those_that_are_documented() -> None:
    for metric in ("running_mean", "mean_tpot_ms", "total_tok_s_per_gpu"):
        assert metric in METRICS
    assert set(agentic_rows("offload512_nomtp", 8)) <= set(METRICS)


def test_a_picture_and_a_table_are_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table(data, "calculator_vllm.csv", CALCULATOR + "H200,8,1,8192,48,71,25\n")
    assert run(["validate", "published", "--data", str(data), "--out", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"rows.csv", "published.png", "published.svg"}
    with (tmp_path / "out" / "rows.csv").open(encoding="utf-8") as file:
        assert [row["metric"] for row in csv.DictReader(file)] == [
            "concurrency",
            "concurrency",
            "min_host_gib",
        ]

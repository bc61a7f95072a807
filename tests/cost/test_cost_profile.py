"""The shipped profile is whole and within its error gates; broken ones are refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cost.profile import Profile, load_profile, profile_for
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.scenario.loader import load_node

SHIPPED = configs_dir() / "calibrations" / "h200-published.json"


@pytest.fixture(scope="module")
def shipped() -> Profile:
    return load_profile("h200-published")


def test_every_term_cites_a_listed_source_and_fitted_ones_state_their_error(shipped: Profile) -> None:
    for term in shipped.terms:
        assert shipped.sources[term.source].text
        if term.source == "aic":
            assert term.residual is not None, term.id
            assert term.holdout is not None or term.form == "constant", term.id


@pytest.mark.parametrize(
    ("prefix", "median", "p90"),
    [
        ("dsa.decode.indexer.", 0.04, 0.10),
        ("dsa.decode.vllm.", 0.04, 0.10),
        ("dsa.decode.skip.glm.h8.fp8", 0.03, 0.10),
        ("dsa.prefill.indexer.", 0.03, 0.10),
        ("allreduce.", 0.03, 0.10),
        ("moe.hidden6144.ep8", 0.03, 0.10),
    ],
)
def test_left_out_rows_are_predicted_within_the_gates(
    shipped: Profile, prefix: str, median: float, p90: float
) -> None:
    errors = [t.holdout for t in shipped.terms if t.id.startswith(prefix)]
    assert errors
    assert max(e.median_abs_rel for e in errors if e) <= median
    assert max(e.p90_abs_rel for e in errors if e) <= p90


def test_the_hash_depends_on_content_alone(shipped: Profile, tmp_path: Path) -> None:
    data = json.loads(SHIPPED.read_text())
    (tmp_path / "same.json").write_text(json.dumps(data, indent=3))
    data["terms"][0]["params"]["base_s"] *= 2
    (tmp_path / "other.json").write_text(json.dumps(data))
    assert load_profile(tmp_path / "same.json").hash == shipped.hash
    assert load_profile(tmp_path / "other.json").hash != shipped.hash


def _broken(change: str) -> str:
    data: dict[str, Any] = json.loads(SHIPPED.read_text())
    term = data["terms"][0]
    match change:
        case "missing unit":
            del term["unit"]
        case "negative time":
            term["params"]["base_s"] = -1e-6
        case "NaN":
            term["params"]["base_s"] = float("nan")
        case "unknown form":
            term["form"] = "spline"
        case "missing coefficient":
            del term["params"]["context_s"]
        case "future version":
            data["schema"] = "hisparse-sim/calibration/9"
        case "unlisted source":
            term["source"] = "hearsay"
        case "duplicate":
            data["terms"].append(term)
        case "falling line":
            line = next(t for t in data["terms"] if t["form"] == "piecewise_linear")
            line["params"]["y"] = line["params"]["y"][::-1]
        case "truncated":
            return SHIPPED.read_text()[:5000]
        case "a list":
            return "[1, 2]"
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("missing unit", "unit"),
        ("negative time", "base_s is negative"),
        ("NaN", "finite"),
        ("unknown form", "spline"),
        ("missing coefficient", "context_s"),
        ("future version", "calibration/9"),
        ("unlisted source", "hearsay"),
        ("duplicate", "twice"),
        ("falling line", "y falls"),
        ("truncated", "truncated"),
        ("a list", "schema"),
    ],
)
def test_a_broken_profile_is_refused_with_file_and_reason(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(_broken(change))
    with pytest.raises(InputError, match=said) as caught:
        load_profile(path)
    assert caught.value.where == str(path)


def test_unknown_names_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="shipped: h200-published"):
        load_profile("h300-published")
    with pytest.raises(InputError, match="cannot be read"):
        load_profile(tmp_path / "absent.json")


def test_a_node_without_tables_answers_capacity_only_by_name() -> None:
    with pytest.raises(InputError, match=r"capacity only.*8xmi350x"):
        profile_for(load_node("8xmi350x"))
    assert profile_for(load_node("8xh200")).id == "h200-published"
    assert profile_for(load_node("8xmi350x"), "h200-published").id == "h200-published"


def test_the_nearest_size_is_the_next_larger_one_else_the_largest(shipped: Profile) -> None:
    term, same = shipped.nearest("dsa.decode.indexer.glm.h", ".fp8", 12)
    assert (term.id, same) == ("dsa.decode.indexer.glm.h16.fp8", False)
    term, same = shipped.nearest("allreduce.gpus", "", 16)
    assert (term.id, same) == ("allreduce.gpus8", False)
    with pytest.raises(InputError, match="no price"):
        shipped.nearest("dsa.decode.indexer.other.h", ".fp8", 8)

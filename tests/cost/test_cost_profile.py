"""The shipped profile is whole and within its error gates; broken ones are refused by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cost.profile import Profile, Source, load_profile, profile_for
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import load_model, load_node

SHIPPED = configs_dir() / "calibrations" / "h200-published.json"


@pytest.fixture(scope="module")
def shipped() -> Profile:
    return load_profile("h200-published")


def test_every_term_cites_a_listed_source_and_fitted_ones_state_their_error(shipped: Profile) -> None:
    for term in shipped.terms:
        assert shipped.sources[term.source].text
        if term.source == "aic" and term.form != "constant":
            assert term.residual is not None and term.holdout is not None, term.id
        elif term.source == "aic":
            assert term.plausible is not None, term.id


@pytest.mark.parametrize(
    ("prefix", "median", "p90"),
    [
        ("dsa.decode.indexer.", 0.03, 0.10),
        ("dsa.decode.skip.", 0.032, 0.10),
        ("dsa.decode.vllm.", 0.03, 0.10),
        ("dsa.prefill.indexer.", 0.03, 0.13),
        ("dsa.prefill.vllm.", 0.03, 0.10),
        ("allreduce.", 0.03, 0.10),
        ("mla.decode.", 0.035, 0.10),
    ],
)
def test_rows_that_no_fit_saw_are_predicted_within_the_gates(
    shipped: Profile, prefix: str, median: float, p90: float
) -> None:
    errors = [t.kept_out or t.holdout for t in shipped.terms if t.id.startswith(prefix)]
    assert errors
    assert max(e.median_abs_rel for e in errors if e) <= median
    assert max(e.p90_abs_rel for e in errors if e) <= p90


def test_the_hash_depends_on_content_alone(shipped: Profile, tmp_path: Path) -> None:
    data = json.loads(SHIPPED.read_text())
    (tmp_path / "same.json").write_text(json.dumps(data, indent=3))
    data["terms"][0]["params"]["depth_s"] *= 2
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
            term["params"]["depth_s"] = -1e-6
        case "NaN":
            term["params"]["depth_s"] = float("nan")
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
        case "falling batch":
            term["params"]["rows_s"][1] = 0.0
        case "reversed domain":
            term["domain"]["batch"] = [256, 1]
        case "one number of a series":
            term["params"]["depth_s"] = [1e-9, 2e-9]
        case "absurd time":
            term["params"]["depth_s"] = 1e300
        case "lost domain":
            del term["domain"]["batch_x_context"]
        case "wrong form for its part" | "nothing to divide by" | "no slots" | "hidden twice":
            by_id = {t["id"]: t for t in data["terms"]}
            resolve, share = by_id["hisparse.resolve"], by_id["hisparse.prefetch_hidden_share"]
            if change == "wrong form for its part":
                resolve.update(form="constant", params={"value": 2e-5})
            elif change == "no slots":
                resolve["params"]["slots"] = 0
            elif change == "hidden twice":
                share.update(params={"value": 2.0}, plausible=None)
            else:
                by_id["roofline.hbm_share"].update(params={"value": 0.0}, plausible=None)
        case "wrong unit for its part":
            term["unit"] = "B/s"
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
        ("missing unit", "unit: missing"),
        ("negative time", "depth_s is negative"),
        ("NaN", "not a finite number"),
        ("unknown form", "spline"),
        ("missing coefficient", "context_s"),
        ("future version", "calibration/9"),
        ("unlisted source", "hearsay"),
        ("duplicate", "twice"),
        ("falling line", "y falls"),
        ("falling batch", "rows_s falls"),
        ("one number of a series", "depth_s is one number, not 2"),
        ("absurd time", r"depth_s is 1e\+300, must be at most 1e\+06"),
        ("lost domain", r"lacks domain\.batch_x_context"),
        ("wrong form for its part", r"form constant does not price hisparse\.resolve, which takes wave"),
        ("nothing to divide by", r"roofline\.hbm_share: value 0 is not allowed"),
        ("no slots", "slots is 0, must be at least 1"),
        ("hidden twice", "value 2 is not allowed, must be 0 to 1"),
        ("wrong unit for its part", "is in 's', not in 'B/s'"),
        ("reversed domain", "domain.batch runs from 256 down to 1"),
        ("truncated", "truncated"),
        ("a list", "holds a list"),
    ],
)
def test_a_broken_profile_is_refused_with_file_and_reason(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(_broken(change))
    with pytest.raises(InputError, match=said) as caught:
        load_profile(path)
    assert (caught.value.where or "").startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        SHIPPED.read_text().encode("utf-16"),
        b"\xef\xbb\xbf" + SHIPPED.read_bytes(),
        SHIPPED.read_bytes().replace(b'"text": "', b'"text": "\xed\xa0\x80', 1),
        SHIPPED.read_bytes().replace(b'"text": "', b'"text": "\\ud83d', 1),
        b"\0" * 10,
        b"",
        b"[" * 100_000,
    ],
    ids=["UTF-16", "byte-order mark", "bytes of half an emoji", "half an emoji", "nulls", "nothing", "deep"],
)
def test_a_profile_is_text_that_can_be_written_again(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is not JSON") as caught:
        load_profile(path)
    assert (caught.value.where or "") == str(path)


def test_unknown_names_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shipped: .*h200-published"):
        load_profile("h300-published")
    with pytest.raises(InputError, match="cannot be read"):
        load_profile(tmp_path / "absent.json")


def test_a_node_without_tables_answers_capacity_only_by_name() -> None:
    with pytest.raises(InputError, match=r"capacity only.*8xmi350x"):
        profile_for(load_node("8xmi350x"))
    assert profile_for(load_node("8xh200")).id == "h200-published"
    assert profile_for(load_node("8xmi350x"), "h200-published").id == "h200-published"


def test_the_nearest_size_is_the_next_larger_one_else_the_largest(shipped: Profile) -> None:
    term, same = shipped.nearest("dsa.decode.indexer.glm.h", [".fp8"], 12)
    assert (term.id, same) == ("dsa.decode.indexer.glm.h16.fp8", False)
    term, same = shipped.nearest("allreduce.gpus", [""], 16)
    assert (term.id, same) == ("allreduce.gpus8", False)
    with pytest.raises(InputError, match="no price"):
        shipped.nearest("dsa.decode.indexer.other.h", [".fp8"], 8)


def _layer(
    path: Path, kind: str, seconds: float, *, over: tuple[str, ...] = (), term: str = "overhead.layer"
) -> Path:
    path.write_text(
        json.dumps(
            {
                "schema": "hisparse-sim/calibration/1",
                "id": path.stem,
                "kind": kind,
                "hardware": {"gpu": "NVIDIA H200"},
                "over": list(over),
                "sources": {f"of-{path.stem}": {"text": path.stem}},
                "terms": [
                    {
                        "id": term,
                        "form": "constant",
                        "unit": "s",
                        "params": {"value": seconds},
                        "source": f"of-{path.stem}",
                        "grade": "measured",
                    }
                ],
            }
        )
    )
    return path


def test_measured_terms_hide_a_users_which_hide_published_ones(tmp_path: Path) -> None:
    user = _layer(tmp_path / "mine.json", "user", 2e-6, over=("h200-published",))
    measured = _layer(tmp_path / "box.json", "measured", 1e-6, over=("mine.json",))
    assert load_profile(user).term("overhead.layer").value() == 2e-6
    whole = load_profile(measured)
    assert whole.term("overhead.layer").value() == 1e-6
    assert whole.find("dsa.decode.skip.glm.h8.fp8") is not None
    assert whole.id == "box" and "of-mine" in whole.sources and "aic" in whole.sources
    # The kind decides, whatever the order they are named in.
    named = load_profile(f"h200-published,{user},{measured}")
    assert named.term("overhead.layer").value() == 1e-6
    assert named.hash != whole.hash  # another name, the same prices
    assert {t.id: t.params for t in named.terms} == {t.id: t.params for t in whole.terms}


def test_a_size_laid_over_a_profile_is_found_though_it_was_asked_before(
    shipped: Profile, tmp_path: Path
) -> None:
    assert not shipped.nearest("allreduce.gpus", [""], 3)[1]
    size = next(t for t in shipped.terms if t.id == "allreduce.gpus8").model_copy(
        update={"id": "allreduce.gpus3", "source": "mine"}
    )
    mine = shipped.model_copy(
        update={"id": "mine", "kind": "user", "terms": (size,), "sources": {"mine": Source(text="mine")}}
    )
    assert mine.laid_over([shipped]).nearest("allreduce.gpus", [""], 3) == (size, True)


def test_every_gpu_that_prices_something_is_known_whatever_the_order(tmp_path: Path) -> None:
    box = _layer(tmp_path / "box.json", "measured", 1e-6)
    box.write_text(box.read_text().replace("NVIDIA H200", "NVIDIA B200"))
    both = {("h200-published", "NVIDIA H200"), ("box", "NVIDIA B200")}
    assert set(load_profile(f"h200-published,{box}").layers) == both
    assert set(load_profile(f"{box},h200-published").layers) == both
    hidden = _layer(tmp_path / "hidden.json", "user", 1e-6)
    assert {name for name, _ in load_profile(f"{box},{hidden},h200-published").layers} == {
        "box",
        "h200-published",
    }
    model = load_model("glm-5.3")
    warnings = StepCostModel(
        model, load_node("8xh200"), EngineSpec(), load_profile(f"h200-published,{box}")
    ).warnings
    assert warnings == ("profile box was measured on NVIDIA B200, the node has H200 SXM5 141GB",)


def test_a_profile_over_itself_or_over_nothing_known_is_refused(tmp_path: Path) -> None:
    one = _layer(tmp_path / "one.json", "user", 1e-6, over=("two.json",))
    _layer(tmp_path / "two.json", "user", 1e-6, over=("one.json",))
    with pytest.raises(InputError, match="lies over itself"):
        load_profile(one)
    with pytest.raises(InputError, match="shipped:"):
        load_profile(_layer(tmp_path / "lost.json", "user", 1e-6, over=("h300-published",)))


def test_uncertainty_comes_from_rows_left_out_else_from_the_range_else_from_the_grade(
    shipped: Profile,
) -> None:
    fitted = shipped.term("dsa.decode.skip.glm.h8.fp8")
    assert fitted.kept_out and fitted.uncertainty == pytest.approx(1.4826 * fitted.kept_out.median_abs_rel)
    assert shipped.term("overhead.layer").uncertainty == pytest.approx(0.6)  # 4 to 16 us about 10
    assert shipped.term("hisparse.kernel").uncertainty == 0.10

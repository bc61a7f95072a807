"""Published profiles: the tables give the shipped coefficients again, and no other rows do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scipy", reason="fitting needs the extra `fit`")

from hisparse_sim.calibration import importer
from hisparse_sim.calibration.importer import SYSTEMS, _terms, import_profile, to_text
from hisparse_sim.calibration.tables import BY_STEM, Folder
from hisparse_sim.cost.profile import Profile, list_profiles, load_profile
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import configs_dir, list_nodes
from hisparse_sim.scenario.loader import load_node

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "measured" / "h200"
needs_tables = pytest.mark.skipif(not SHARED.is_dir(), reason="the measured H200 tables are not at hand")


@needs_tables
@pytest.mark.parametrize(
    "stem", ["dsa_decode_module_sglang", "allreduce_custom_vllm", "deepep_ll_sglang", "nccl"]
)
def test_the_shipped_coefficients_come_out_again(stem: str) -> None:
    # The shipped profile was fitted to the whole package, of which these are the rows that may be.
    shipped = load_profile("h200-published")
    again = list(_terms(stem, Folder(SHARED).need(stem)))
    assert again
    for term in again:
        known = shipped.term(term["id"])
        assert known.residual and known.residual.n == term["residual"]["n"]
        for name, value in term["params"].items():
            assert np.ravel(value) == pytest.approx(np.ravel(known.params[name]), rel=1e-3, abs=1e-15)


@needs_tables
def test_a_prefill_term_comes_out_again() -> None:
    rows = Folder(SHARED).need("dsa_prefill_module_sglang")
    rows = rows[
        (rows["num_heads"] == 8) & (rows["kv_cache_dtype"] == "fp8") & rows["model"].str.contains("GLM-5-FP8")
    ].reset_index(drop=True)
    for term in _terms("dsa_prefill_module_sglang", rows):
        known = load_profile("h200-published").term(term["id"])
        if "dense" not in term["id"]:
            assert term["params"]["floor_s"] == pytest.approx(known.params["floor_s"], rel=1e-3)
            assert term["params"]["token_s"] == pytest.approx(known.value("token_s"), rel=1e-2)


def test_kept_out_rows_change_no_coefficient() -> None:
    rows = pd.DataFrame(
        {
            "backend": "vllm_graph",
            "num_gpus": 8,
            "message_size": 2 ** np.arange(7, 27),
            "t_s": 5e-6 + 2.0 ** np.arange(8, 28) / 250e9,
            "kept_out": np.arange(20) % 4 == 1,
        }
    )
    (plain,) = _terms("allreduce_custom_vllm", rows)
    (spoiled,) = _terms(
        "allreduce_custom_vllm", rows.assign(t_s=np.where(rows["kept_out"], 1.0, rows["t_s"]))
    )
    assert spoiled["params"] == plain["params"] and spoiled["residual"] == plain["residual"]
    assert plain["kept_out"]["n"] == 5 and plain["kept_out"]["max_abs_rel"] < 0.01
    assert spoiled["kept_out"]["max_abs_rel"] > 0.9


def test_rows_without_a_time_fit_nothing_and_too_few_are_named_with_their_term() -> None:
    rows = pd.DataFrame({"backend": "vllm_graph", "num_gpus": 8, "message_size": [128, 256, 512, 1024]})
    rows = rows.assign(t_s=[np.nan, np.inf, 0.0, -1.0], kept_out=False)
    assert list(_terms("allreduce_custom_vllm", rows)) == []
    assert list(_terms("allreduce_custom_vllm", rows.assign(t_s=1.0, kept_out=True))) == []
    decode = {"op_name": "x", "model": "GLM", "kv_cache_dtype": "fp8", "gemm_type": "fp8_block"}
    decode |= {"num_heads": 8, "batch_size": 1, "isl": 1, "t_s": 1e-4, "kept_out": False}
    rows = pd.DataFrame(decode | {"step": [511, 1023]})
    with pytest.raises(InputError, match=r"dsa\.decode\.indexer\.glm\.h8\.fp8: .*two batch sizes"):
        list(_terms("dsa_decode_module_sglang", rows))
    other = dict.fromkeys(BY_STEM["moe_fp8_sglang"].key, 3) | {"num_experts": 3}
    with pytest.raises(InputError, match="no row of a shape"):
        list(importer._experts(pd.DataFrame([other | {"moe_dtype": "bf16", "kept_out": False, "t_s": 1.0}]),
                               SYSTEMS["h200"]))  # fmt: skip


def test_a_folder_without_the_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table dsa_decode_module_sglang"):
        import_profile(SYSTEMS["h200"], tmp_path, load_node("8xh200"))


def test_every_shipped_profile_is_whole_and_cites_what_it_rests_on() -> None:
    for name in list_profiles():
        profile = load_profile(name)
        cited = {term.source for term in profile.terms}
        assert cited == set(profile.sources), name
        if profile.kind == "published":
            assert all(term.kept_out or term.holdout for term in profile.terms if term.id.startswith("moe.6"))


def test_every_node_but_the_unmeasured_has_a_profile_of_its_gpu() -> None:
    by_node = {name: load_node(name).calibration for name in list_nodes()}
    assert {name for name, profile in by_node.items() if profile is None} == {"8xmi350x"}
    of_system = {s.node: f"{s.name}-published" for s in SYSTEMS.values()} | {"1xgb200": "gb200-published"}
    assert {k: v for k, v in by_node.items() if v} == of_system


def test_what_was_scaled_and_not_measured_says_so() -> None:
    profile = load_profile("rtxpro6000-published")
    sparse = [t for t in profile.terms if t.id.startswith("dsa.")]
    assert sparse and all(t.grade == "derived" and t.source == "scaled" for t in sparse)
    assert "h200-published" in profile.sources["scaled"].text
    h200 = load_profile("h200-published").term("dsa.decode.vllm.glm.h8.fp8")
    own = profile.term("dsa.decode.vllm.glm.h8.fp8")
    ratio = load_node("8xh200").gpu.hbm_bytes_per_s / load_node("8xrtxpro6000").gpu.hbm_bytes_per_s
    assert own.value("context_s") == pytest.approx(ratio * h200.value("context_s"), rel=1e-3)
    assert own.series("rows_s")[0] == pytest.approx(h200.series("rows_s")[0], rel=1e-3)


def _shape(schema: dict[str, Any]) -> dict[str, Any]:
    """Records, their fields and which of them are required: versions of pydantic differ in the rest."""
    return {
        name: (sorted(record.get("properties", {})), sorted(record.get("required", [])))
        for name, record in {"": schema, **schema["$defs"]}.items()
    }


def test_the_committed_schemas_are_those_of_the_records() -> None:
    from hisparse_sim.calibration.schemas import profile_schema, samples_schema

    folder = configs_dir() / "schemas"
    for name, made in (("calibration-1", profile_schema()), ("samples-1", samples_schema())):
        committed = json.loads((folder / f"{name}.schema.json").read_text())
        assert committed["$schema"] == made["$schema"]
        assert _shape(committed) == _shape(made)


def test_a_profile_as_text_is_one_term_a_line_and_reads_back() -> None:
    data = load_profile("h200-published").model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = to_text(data)
    assert Profile.model_validate(json.loads(text)).hash == load_profile("h200-published").hash
    assert sum(line.startswith('  {"id"') for line in text.splitlines()) == len(data["terms"])


def test_the_systems_name_nodes_of_the_catalogue() -> None:
    for system in importer.SYSTEMS.values():
        assert load_node(system.node).gpu.name

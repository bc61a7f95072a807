"""Tables: the quarter that no fit sees stays out, files are told by name, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisparse_sim.calibration import tables
from hisparse_sim.calibration.rows import groups
from hisparse_sim.calibration.tables import BY_STEM, Folder, kept_out, package_folder, read_rows, recognised
from hisparse_sim.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "measured" / "h200"
needs_tables = pytest.mark.skipif(not SHARED.is_dir(), reason="the measured H200 tables are not at hand")


def test_the_kept_out_rule_is_that_of_the_key_as_text() -> None:
    key = BY_STEM["moe_fp8_sglang"].key
    rows = pd.DataFrame({name: np.arange(4000) for name in key})
    assert kept_out(rows, key).mean() == pytest.approx(0.25, abs=0.03)
    one = pd.DataFrame(
        {
            "kernel_source": ["FLASHMLA_SPARSE"],
            "model": ["zai-org/GLM-5"],
            "kv_cache_dtype": ["fp8"],
            "gemm_type": ["fp8_block"],
            "num_heads": [8],
            "batch_size": [1],
            "isl": [1],
            "tp_size": [1],
            "step": [512],
        }
    )
    # sha256("FLASHMLA_SPARSE|zai-org/GLM-5|fp8|fp8_block|8|1|1|1|512") is a multiple of 4.
    assert kept_out(one, BY_STEM["dsa_decode_module_vllm"].key).tolist() == [True]
    assert not kept_out(one.assign(step=2048), BY_STEM["dsa_decode_module_vllm"].key).any()


@needs_tables
@pytest.mark.parametrize(
    "stem",
    [
        "dsa_decode_module_vllm",
        "dsa_decode_module_sglang",
        "dsa_prefill_module_vllm",
        "dsa_prefill_module_sglang",
        "moe_fp8_sglang",
        "glm5_topk_sglang",
        "glm5_dsa_attn_sglang",
        "glm5_mqa_logits_sglang",
        "dsv4_paged_mqa_logits_sglang",
    ],
)
def test_no_kept_out_row_is_in_the_tables_at_hand(stem: str) -> None:
    rows = Folder(SHARED).need(stem)
    assert len(rows) and not rows["kept_out"].any()


def test_files_are_told_by_name_and_versions_by_folder(tmp_path: Path) -> None:
    for name in ("moe_fp8_sglang_0.5.14.parquet", "glm5_topk_sglang_1.parquet", "notes.parquet"):
        (tmp_path / name).touch()
    found = {path.name: table.stem for path, table in recognised(tmp_path)}
    assert found == {
        "moe_fp8_sglang_0.5.14.parquet": "moe_fp8_sglang",
        "glm5_topk_sglang_1.parquet": "glm5_topk_sglang",
    }
    table = BY_STEM["moe_fp8_sglang"]
    for version in ("0.5.9", table.version, "0.6.0"):
        (tmp_path / table.place / version).mkdir(parents=True)
        (tmp_path / table.place / version / "moe_perf.parquet").touch()
    file = Folder(tmp_path).file(table)
    assert file is not None and file.parent.name == table.version


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such folder of tables"):
        Folder(tmp_path / "absent")
    with pytest.raises(InputError, match="no table moe_fp8_sglang"):
        Folder(tmp_path).need("moe_fp8_sglang")
    broken = tmp_path / "moe_fp8_sglang_0.5.14.parquet"
    broken.write_text("no parquet")
    with pytest.raises(InputError, match="not a readable parquet table"):
        read_rows(broken, BY_STEM["moe_fp8_sglang"])
    pd.DataFrame({"latency": [1.0]}).to_parquet(broken)
    with pytest.raises(InputError, match="lacks the columns kernel_source, num_tokens"):
        read_rows(broken, BY_STEM["moe_fp8_sglang"])
    key = dict.fromkeys(BY_STEM["moe_fp8_sglang"].key, 1) | {"kernel_source": "k", "distribution": "d"}
    pd.DataFrame([key]).to_parquet(broken)
    with pytest.raises(InputError, match="lacks the columns moe_dtype, num_experts, latency"):
        read_rows(broken, BY_STEM["moe_fp8_sglang"])
    whole = key | {"moe_dtype": "fp8", "num_experts": 256, "latency": 1.0}
    for name, value, said in (("latency", "fast", "not numbers"), ("distribution", 3, "not text")):
        pd.DataFrame([whole | {name: value}]).to_parquet(broken)
        with pytest.raises(InputError, match=rf"column {name} holds .*, {said}"):
            read_rows(broken, BY_STEM["moe_fp8_sglang"])
    pd.DataFrame([whole])[:0].to_parquet(broken)
    with pytest.raises(InputError, match="moe_fp8_sglang holds no rows"):
        Folder(tmp_path).need("moe_fp8_sglang")
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"hisparse-sim\[aiconfigurator\]"):
        package_folder("h200_sxm")


def test_a_row_belongs_to_one_term_with_its_units_turned() -> None:
    rows = pd.DataFrame(
        {
            "backend": ["vllm_graph", "vllm_eager"],
            "num_gpus": [8, 8],
            "message_size": [1024, 1024],
        }
    )
    found = {group.term: group.variables["bytes"].tolist() for group in groups("allreduce_custom_vllm", rows)}
    assert found == {"allreduce.gpus8": [2048.0], "vllm_eager.allreduce.gpus8": [2048.0]}

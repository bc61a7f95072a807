"""Terms that no table holds as they are: shares of datasheet rates, and another GPU's times scaled."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from hisparse_sim.calibration.experts_fit import DISTRIBUTIONS
from hisparse_sim.calibration.fitting import fit, rounded, span
from hisparse_sim.calibration.tables import Folder
from hisparse_sim.cost.decode_form import DECODE_WORK
from hisparse_sim.cost.forms import FORMS
from hisparse_sim.cost.profile import read_profile
from hisparse_sim.cost.term import Term
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from hisparse_sim.scenario.node import NodeSpec

    Array = npt.NDArray[np.float64]

Json = dict[str, Any]


def expert_shares(rows: pd.DataFrame, node: NodeSpec) -> Json:
    """For expert shapes without a line: reading the experts hit, and work, at shares of the datasheet."""
    import numpy as np

    rows = rows[
        ~rows["kept_out"]
        & (rows["t_s"] > 0)
        & (rows["t_s"] < inf)
        & (rows["moe_dtype"] == "fp8_block")
        & (rows["inter_size"] == 2048)
    ]
    rows = rows[rows["hidden_size"].isin((6144, 7168)) & rows["num_experts"].isin((256, 384))]
    rows = rows[(rows["moe_tp_size"] == 1) | (rows["moe_ep_size"] == 1)]
    rows = rows[
        (rows["moe_tp_size"] * rows["moe_ep_size"] <= 8) & (rows["distribution"] == DISTRIBUTIONS[-1])
    ]
    if rows.empty:
        raise InputError("has no row that tells shares of the datasheet rates", where="moe_fp8_sglang")
    names = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
    tokens, hidden, inter, experts, topk, tp, ep = (np.asarray(rows[name].to_numpy(float)) for name in names)
    weights = 3.0 * hidden * inter / tp
    hit = 1.0 - (1.0 - topk / experts) ** tokens
    read = experts / ep * hit * weights / node.gpu.hbm_bytes_per_s
    work = 2.0 * tokens * topk / ep * weights / node.gpu.fp8_flops
    params, errors = fit("shares", {"read_s": read, "work_s": work}, rows["t_s"].to_numpy(float))
    return {
        "id": "moe.roofline",
        "form": "shares",
        "unit": "s",
        "params": dict(params),
        "domain": {"tokens": list(span(tokens))},
        **errors,
        "source": "aic",
        "grade": "derived",
        "note": "For other expert shapes: base + bytes of the experts hit / HBM + flops / peak, at shares.",
    }


def rooflines(tables: Folder, node: NodeSpec) -> Iterator[Json]:
    """Shares of the datasheet rates that matrix products and attention reach, as medians of the tables."""
    import numpy as np

    gemm = tables.read("gemm_vllm")
    if gemm is not None:
        rows = gemm[~gemm["kept_out"]]
        big = rows[(rows[["m", "n", "k"]].min(axis=1) >= 4096) & (rows[["n", "k"]].max(axis=1) <= 20_000)]
        for dtype, kind, peak in (
            ("bfloat16", "bf16", node.gpu.bf16_flops),
            ("fp8", "fp8", node.gpu.fp8_flops),
        ):
            some = big[big["gemm_dtype"] == dtype]
            flops = 2.0 * some["m"] * some["n"] * some["k"]
            yield _share(f"roofline.{kind}_share", (flops / some["t_s"] / peak).to_numpy(float),
                         "Matrix products of 4,096 and more each way; 10th to 90th percentile.")  # fmt: skip
        few = rows[(rows["gemm_dtype"] == "bfloat16") & (rows["m"] <= 16) & (rows["n"] * rows["k"] >= 2**25)]
        rate = 2.0 * few["n"] * few["k"] / few["t_s"] / node.gpu.hbm_bytes_per_s
        yield _share("roofline.hbm_share", np.minimum(rate.to_numpy(float), 1.0),
                     "Weights of 64 MiB and more read for up to 16 rows.")  # fmt: skip
    attention = tables.read("gqa_prefill_vllm")
    if attention is not None:
        rows = attention[~attention["kept_out"] & (attention["window_size"] == 0)]
        rows = rows[(rows["head_dim"] == 128) & (rows["isl"] >= 4096) & (rows["num_heads"] >= 8)]
        rows = rows[(rows["kv_cache_dtype"] == "bfloat16") & (rows["batch_size"] * rows["isl"] >= 16_384)]
        flops = 256.0 * rows["batch_size"] * rows["num_heads"] * rows["isl"] ** 2
        share = (flops / rows["t_s"] / node.gpu.bf16_flops).to_numpy(float)
        yield _share(
            "roofline.attention_share", share, "Causal attention of 16,384 tokens and more, of the bf16 peak."
        )


def _share(term_id: str, shares: Array, note: str) -> Json:
    import numpy as np

    low, middle, high = (float(f"{q:.4g}") for q in np.quantile(shares, [0.1, 0.5, 0.9]))
    return {
        "id": term_id,
        "form": "constant",
        "unit": "1",
        "params": {"value": middle},
        "plausible": [low, high],
        "source": "aic",
        "grade": "measured",
        "note": note,
    }


def scaled_attention(
    profile_name: str, its_node: NodeSpec, gpu: str, node: NodeSpec
) -> tuple[list[Json], Json]:
    """Another GPU's sparse attention: its work longer by the ratio of memory rates, launches as they are."""
    profile = read_profile(profile_name)
    ratio = its_node.gpu.hbm_bytes_per_s / node.gpu.hbm_bytes_per_s
    terms = [
        _scaled(term, ratio)
        for term in profile.terms
        if term.id.startswith(("dsa.decode.", "dsa.prefill.")) and not term.id.startswith("dsa.prefill.vllm")
    ]
    source = {
        "text": f"The sparse-attention terms of {profile.id}, work x {ratio:.3g} for the ratio of memory "
        f"rates; no table of {gpu} has such modules",
        "licence": "Apache-2.0",
    }
    return terms, {"scaled": source}


def _scaled(term: Term, ratio: float) -> Json:
    params: dict[str, float | tuple[float, ...]] = dict(term.params)
    if term.form == "decode_module":
        first = term.series("rows_s")[0]
        params["rows_s"] = tuple(first + (v - first) * ratio for v in term.series("rows_s"))
        names: tuple[str, ...] = DECODE_WORK
    else:
        names = tuple(
            n for n in FORMS[term.form].parameters if n.endswith("_s") and n not in ("base_s", "floor_s")
        )
    for name in names:
        params[name] = term.value(name) * ratio
    return {
        "id": term.id,
        "form": term.form,
        "unit": "s",
        "params": dict(rounded(params)),
        "domain": {name: list(bounds) for name, bounds in term.domain.items()},
        "source": "scaled",
        "grade": "derived",
        "note": "Scaled from another GPU, not measured.",
    }

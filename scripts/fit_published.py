#!/usr/bin/env python3
"""Fit the shipped profile ``configs/calibrations/h200-published.json``.

    python scripts/fit_published.py TABLES [--out PROFILE.json]

TABLES is a folder with these measured tables of NVIDIA's aiconfigurator-core package (Apache-2.0),
one parquet file each, named STEM_VERSION.parquet: dsa_decode_module_sglang, dsa_decode_module_vllm,
dsa_prefill_module_sglang, moe_fp8_sglang, allreduce_custom_vllm, deepep_ll_sglang,
deepep_normal_sglang. Needs the extra ``fit`` (scipy). Coefficients and errors go into the profile;
the tables do not. A fixed quarter of the rows (see ``kept_out``) is never fitted: it is for checks.
"""

from __future__ import annotations

import argparse
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from hisparse_sim.cost.forms import (
    DECODE_COEFFICIENTS,
    PREFILL_COEFFICIENTS,
    decode_features,
    prefill_features,
)
from hisparse_sim.cost.profile import SCHEMA, Profile

Array = npt.NDArray[np.float64]

TOPK_ROWS = 2048.0
FAR_TOKENS = 65_536.0
CHUNK_TOKENS = 8192.0
FAMILIES = {"GLM-5-FP8": "glm", "GLM-5.2-FP8": "glm", "GLM-5": "glm", "DeepSeek-V3.2": "deepseek"}
HBM_BYTES_PER_S, FP8_FLOPS = 4.8e12, 1979e12  # the H200's datasheet; shares refer to them
MOE_KNOTS = (0.0, 8.0, 32.0, 64.0, 512.0, 2048.0)
MESSAGE_KNOTS = (0.0, 2.0**15, 2.0**17, 2.0**19, 2.0**22, 2.0**25)

NOTES = {
    "indexer": "SGLang 0.5.14, a layer with an indexer, graph replay.",
    "skip": "SGLang 0.5.14, a layer that reuses its leader's selection, graph replay.",
    "vllm": "vLLM 0.24.0, a layer with an indexer; the fixed part holds eager launches: use context_s.",
    "prefill.indexer": "SGLang 0.5.14, a layer with an indexer, above 1,024 new tokens a sequence.",
    "prefill.skip": "SGLang 0.5.14, a layer that reuses a selection, one sequence above 1,024 new tokens.",
    "launch": "Median of the rows below 1,024 tokens: launches, not work; once a layer and step.",
    "moe": "256 experts, top 8, inner size 2,048, fp8 blocks, experts chosen by power law 1.2.",
    "roofline": "For other expert shapes: base + bytes of the experts hit / HBM + flops / peak, at shares.",
    "allreduce": "vLLM's own all-reduce in a CUDA graph, NCCL above its size limit.",
    "deepep": "Dispatch and combine on 8 GPUs, top 8 of 256 experts.",
}

MODULE_KEY = (
    "kernel_source",
    "model",
    "kv_cache_dtype",
    "gemm_type",
    "num_heads",
    "batch_size",
    "isl",
    "tp_size",
    "step",
)
MOE_KEY = (
    "kernel_source",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
)


def kept_out(rows: pd.DataFrame, key: tuple[str, ...]) -> Array:
    """Which rows belong to the quarter that no fit may see."""
    texts = rows[list(key)].astype(str).agg("|".join, axis=1)
    return np.array([int(sha256(text.encode()).hexdigest(), 16) % 4 == 0 for text in texts])


class Tables:
    """The folder of tables; remembers what was read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.inputs = folder, {}

    def read(self, stem: str, key: tuple[str, ...] = ()) -> pd.DataFrame:
        """A table without its kept-out rows; latency in seconds as ``t``."""
        found = sorted(self.folder.glob(f"{stem}_[0-9]*.parquet"))
        if not found:
            raise SystemExit(f"error: {self.folder}: no table {stem}_*.parquet")
        self.inputs[found[-1].name] = sha256(found[-1].read_bytes()).hexdigest()
        rows = pd.read_parquet(found[-1])
        if key:
            rows = rows[~kept_out(rows, key)]
        return rows.assign(t=rows["latency"] / 1e3) if "latency" in rows else rows


def solve(x: Array, y: Array) -> Array:
    """Non-negative coefficients of small relative error, few large errors forgiven (reweighted)."""
    weight = 1.0 / y
    for _ in range(20):
        c, _ = nnls(x * weight[:, None], y * weight)
        weight = 1.0 / y / np.sqrt(np.maximum(np.abs(x @ c / y - 1.0), 0.02))
    return np.asarray(c)


def describe(relative: Array) -> dict[str, Any]:
    """The errors as a profile states them."""
    r = np.abs(relative)
    return {
        "n": len(r),
        "median_abs_rel": round(float(np.median(r)), 4),
        "p90_abs_rel": round(float(np.quantile(r, 0.9)), 4),
        "max_abs_rel": round(float(r.max()), 4),
    }


def fit(x: Array, y: Array) -> tuple[Array, dict[str, Any]]:
    """Coefficients from all rows, with residual and left-out errors (five folds, or each row)."""
    c = solve(x, y)
    folds = len(y) if len(y) < 40 else 5
    fold = np.random.default_rng(0).permutation(len(y)) % folds
    left_out = np.empty(len(y))
    for i in range(folds):
        left_out[fold == i] = x[fold == i] @ solve(x[fold != i], y[fold != i]) / y[fold == i] - 1.0
    return c, {"residual": describe(x @ c / y - 1.0), "holdout": describe(left_out)}


def rounded(value: float) -> float:
    """Five significant digits: far below the fit's own error."""
    return float(f"{value:.5g}")


def span(values: pd.Series) -> list[float]:
    """Domain of a variable."""
    return [float(values.min()), float(values.max())]


def floats(values: pd.Series) -> Array:
    """A column as float64."""
    return np.asarray(values, dtype=float)


def term(
    term_id: str, form: str, params: dict[str, Any], fitted: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """A profile's term, measured unless said."""
    clean = {
        k: [rounded(v) for v in val] if isinstance(val, list) else rounded(val) for k, val in params.items()
    }
    return {
        "id": term_id,
        "form": form,
        "unit": "s",
        "params": clean,
        **fitted,
        "source": "aic",
        "grade": "measured",
        **more,
    }


def decode_terms(rows: pd.DataFrame, kind: str) -> list[dict[str, Any]]:
    """One term per family, heads on a GPU and KV dtype."""
    out = []
    rows = rows[rows.gemm_type == "fp8_block"]
    for (model, heads, kv), part in rows.groupby(["model", "num_heads", "kv_cache_dtype"]):
        family, context = FAMILIES[model.split("/")[-1]], part.step + part.isl
        x = decode_features(floats(part.batch_size), floats(context), topk_rows=TOPK_ROWS)
        if kind == "skip":
            x[:, 5:] = 0.0  # nothing selects: no cost of context beyond the selected rows
        elif kind == "vllm":
            x[:, 7] = 0.0
        c, fitted = fit(x, floats(part.t))
        params = {**dict(zip(DECODE_COEFFICIENTS, c, strict=True)), "topk_rows": TOPK_ROWS}
        domain = {
            "batch": span(part.batch_size),
            "context_tokens": span(context),
            "batch_x_context": span(part.batch_size * context),
        }
        name = f"dsa.decode.{kind}.{family}.h{heads}.{'fp8' if kv == 'fp8' else 'bf16'}"
        out.append(term(name, "decode_module", params, fitted, domain=domain, note=NOTES[kind]))
    return out


def prefill_terms(rows: pd.DataFrame, kind: str) -> list[dict[str, Any]]:
    """One term per family, heads and KV dtype, and the launch floor per KV dtype."""
    out = []
    rows = rows[~rows.kernel_source.str.contains("dense_mha")]
    large = rows[rows.isl > 1024]
    if kind == "skip":
        large = large[large.batch_size == 1]
    for (model, heads, kv), part in large.groupby(["model", "num_heads", "kv_cache_dtype"]):
        x = prefill_features(
            floats(part.batch_size),
            floats(part.isl),
            floats(part.step),
            topk_rows=TOPK_ROWS,
            far_tokens=FAR_TOKENS,
        )
        c, fitted = fit(x, floats(part.t))
        params = {
            **dict(zip(PREFILL_COEFFICIENTS, c, strict=True)),
            "topk_rows": TOPK_ROWS, "far_tokens": FAR_TOKENS, "chunk_tokens": CHUNK_TOKENS,
        }  # fmt: skip
        family, dtype = FAMILIES[model.split("/")[-1]], "fp8" if kv == "fp8" else "bf16"
        domain = {"new_tokens": [1024.0, CHUNK_TOKENS], "past_tokens": span(part.step)}
        out.append(
            term(
                f"dsa.prefill.{kind}.{family}.h{heads}.{dtype}",
                "prefill_module",
                params,
                fitted,
                domain=domain,
                note=NOTES[f"prefill.{kind}"],
            )
        )
    for kv, part in rows[(rows.isl * rows.batch_size < 1024)].groupby("kv_cache_dtype"):
        floor = float(part.t.median())
        name = f"dsa.prefill_launch.{kind}.{'fp8' if kv == 'fp8' else 'bf16'}"
        errors = {"residual": describe(floor / floats(part.t) - 1.0)}
        domain = {"new_tokens": [1.0, 1024.0]}
        out.append(term(name, "constant", {"value": floor}, errors, domain=domain, note=NOTES["launch"]))
    return out


def broken_line(x: Array, y: Array, knots: tuple[float, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A monotone broken line with slopes that may rise or fall at each knot, never below 0."""
    segments = [np.clip(x, low, high) - low for low, high in zip(knots, (*knots[1:], np.inf), strict=True)]
    c, fitted = fit(np.stack([np.ones_like(x), *segments], axis=1), y)
    values = [c[0]]
    for i in range(len(knots) - 1):
        values.append(values[-1] + c[i + 1] * (knots[i + 1] - knots[i]))
    return {"x": list(knots), "y": values, "tail_slope": float(c[-1])}, fitted


def moe_terms(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One layer's experts against the tokens of the step, per hidden size and way of sharding."""
    out = []
    rows = rows[rows.distribution == "power_law_1.2"]
    for (hidden, tp, ep), part in rows.groupby(["hidden_size", "moe_tp_size", "moe_ep_size"]):
        if (tp > 1 and ep > 1) or tp > 8 or ep > 64:
            continue
        params, fitted = broken_line(floats(part.num_tokens), floats(part.t), MOE_KNOTS)
        name = f"moe.hidden{hidden}.tp{tp}" if tp > 1 else f"moe.hidden{hidden}.ep{ep}"
        domain = {"tokens": span(part.num_tokens)}
        out.append(term(name, "piecewise_linear", params, fitted, domain=domain, note=NOTES["moe"]))
    rows = rows[
        (rows.moe_tp_size * rows.moe_ep_size <= 8) & ((rows.moe_tp_size == 1) | (rows.moe_ep_size == 1))
    ]
    tokens, hidden, tp, ep = (
        floats(rows[c]) for c in ("num_tokens", "hidden_size", "moe_tp_size", "moe_ep_size")
    )
    expert = 3.0 * hidden * floats(rows.inter_size) / tp
    experts, topk = floats(rows.num_experts), floats(rows.topk)
    read = experts / ep * (1.0 - (1.0 - topk / experts) ** tokens) * expert / HBM_BYTES_PER_S
    work = 2.0 * tokens * topk / ep * expert / FP8_FLOPS
    c, fitted = fit(np.stack([np.ones_like(read), read, work], axis=1), floats(rows.t))
    params = {"base_s": c[0], "hbm_share": 1.0 / c[1], "flops_share": 1.0 / c[2]}
    more = {"domain": {"tokens": span(rows.num_tokens)}, "grade": "derived", "note": NOTES["roofline"]}
    out.append(term("moe.roofline", "moe_roofline", params, fitted, **more))
    return out


def collective_terms(tables: Tables) -> list[dict[str, Any]]:
    """All-reduce by bytes; DeepEP dispatch and combine by tokens a rank."""
    out = []
    rows = tables.read("allreduce_custom_vllm")
    for gpus, part in rows[rows.backend == "vllm_graph"].groupby("num_gpus"):
        size = floats(part.message_size) * 2.0  # the table counts bfloat16 elements
        params, fitted = broken_line(size, floats(part.t), MESSAGE_KNOTS)
        more = {"domain": {"bytes": [float(size.min()), float(size.max())]}, "note": NOTES["allreduce"]}
        out.append(term(f"allreduce.gpus{gpus}", "piecewise_linear", params, fitted, **more))
    low = tables.read("deepep_ll_sglang")
    low = low.assign(t=(low.dispatch_avg_t_us + low.combine_avg_t_us) / 1e6)
    normal = tables.read("deepep_normal_sglang")
    normal = normal[(normal.dispatch_sms == 24) & (normal.combine_sms == 24)]
    normal = normal.assign(t=(normal.dispatch_transmit_us + normal.combine_transmit_us) / 1e6)
    for kind, rows in (("low_latency", low), ("normal", normal)):
        for hidden in (6144, 7168):
            part = rows[(rows.hidden_size == hidden) & (rows.num_topk == 8) & (rows.num_experts == 256)]
            n = floats(part.num_token)
            c, fitted = fit(np.stack([np.ones_like(n), n], axis=1), floats(part.t))
            params = {"base_s": c[0], "per_unit_s": c[1]}
            more = {"domain": {"tokens_per_rank": span(part.num_token)}, "note": NOTES["deepep"]}
            out.append(term(f"deepep.{kind}.hidden{hidden}", "linear", params, fitted, **more))
    return out


def build(folder: Path) -> dict[str, Any]:
    """The profile as JSON-ready data."""
    tables = Tables(folder)
    constants = json.loads((Path(__file__).parent / "published_constants.json").read_text(encoding="utf-8"))
    key = ("op_name", *MODULE_KEY)
    decode, prefill = (
        tables.read("dsa_decode_module_sglang", key),
        tables.read("dsa_prefill_module_sglang", key),
    )
    # Above 256 requests SGLang's skip and indexer rows jump fourfold: another kernel, not vLLM's.
    decode = decode[
        (decode.batch_size <= 256)
        & decode.model.isin(["zai-org/GLM-5-FP8", "zai-org/GLM-5.2-FP8", "deepseek-ai/DeepSeek-V3.2"])
    ]
    skips = decode.op_name.str.contains("skip")
    vllm = tables.read("dsa_decode_module_vllm", MODULE_KEY)
    terms = decode_terms(decode[~skips], "indexer") + decode_terms(decode[skips], "skip")
    terms += decode_terms(vllm[vllm.num_heads >= 8], "vllm")
    skips = prefill.op_name.str.contains("skip")
    terms += prefill_terms(prefill[~skips], "indexer") + prefill_terms(prefill[skips], "skip")
    terms += moe_terms(tables.read("moe_fp8_sglang", MOE_KEY)) + collective_terms(tables)
    return {
        "schema": SCHEMA,
        "id": "h200-published",
        "kind": "published",
        "hardware": {"gpu": "NVIDIA H200", "generation": "hopper"},
        "inputs": dict(sorted(tables.inputs.items())),
        "sources": constants["sources"],
        "terms": [*terms, *constants["terms"]],
    }


def to_text(profile: dict[str, Any]) -> str:
    """JSON with one term a line, so that a change shows as one."""
    head = {k: v for k, v in profile.items() if k != "terms"}
    lines = ",\n  ".join(json.dumps(t) for t in profile["terms"])
    return json.dumps(head, indent=1)[:-2] + ',\n "terms": [\n  ' + lines + "\n ]\n}\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    default = Path(__file__).resolve().parents[1] / "configs" / "calibrations" / "h200-published.json"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args()
    profile = build(given.tables)
    Profile.model_validate(profile)
    given.out.write_text(to_text(profile), encoding="utf-8")
    print(f"{given.out}: {len(profile['terms'])} terms")
    for t in profile["terms"]:
        if "residual" in t:
            shown = "  ".join(
                f"{name} {e['median_abs_rel']:6.1%} {e['p90_abs_rel']:6.1%} {e['max_abs_rel']:6.1%}"
                for name in ("residual", "holdout")
                if (e := t.get(name))
            )
            print(f"{t['id']:42s} n={t['residual']['n']:4d}  {shown}")


if __name__ == "__main__":
    main()

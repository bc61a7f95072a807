"""The answer as plain data for scripts: integers, floats, text and null; never NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hisparse_sim.estimate.answer import MODES, Answer, ModeAnswer, Row
from hisparse_sim.estimate.calculator import PageAnswer
from hisparse_sim.estimate.log_check import Finding
from hisparse_sim.memory.budget import derived_kv_bytes, weights_per_gpu
from hisparse_sim.memory.host import GIB
from hisparse_sim.memory.layout import tensor_parallel
from hisparse_sim.memory.reserve import reserve_bytes
from hisparse_sim.scenario.vllm_log import StartupLog


def answer_json(found: Answer, log: StartupLog | None, findings: Sequence[Finding]) -> dict[str, Any]:
    """The default answer. Times are seconds, sizes GiB or bytes as their names say."""
    out: dict[str, Any] = {
        "model": found.model.name,
        "node": found.node.name,
        "nodes": found.nodes,
        "engine": found.engine.model_dump(mode="json"),
        "output_tokens": found.output_tokens,
        "memory": memory_json(found),
        "time": {
            "known": not found.untimed,
            "reason": found.untimed or None,
            "warnings": list(found.warnings),
        },
        "rows": [_row(row) for row in found.rows],
    }
    if found.users is not None:
        out["users"] = {"users": found.users, "longest_context_tokens": dict(found.longest_tokens)}
    if log is not None:
        out["log"] = {
            "path": log.path,
            "overrides": log.overrides(),
            "findings": [asdict(f) | {"sentence": f.sentence} for f in findings],
        }
    return out


def memory_json(found: Answer) -> dict[str, Any]:
    """Per GPU: what weights, reserve and KV take, and the bytes of blocks."""
    model, node, engine = found.model, found.node, found.engine
    layout = found.pools["resident"].layout
    sizes = {mode: found.pools[mode].sizes for mode in MODES}
    resident, sparse = sizes["resident"], sizes["hisparse"]
    kv = (resident or sparse or sizes["offload"]) and next(s for s in sizes.values() if s).kv_bytes
    return {
        "gpu_gib": node.gpu.memory_bytes / GIB,
        "weights_gib": weights_per_gpu(model, node, engine) / GIB,
        "reserve_gib": reserve_bytes(model, engine, tensor_parallel(node, engine)) / GIB,
        "derived_kv_gib": derived_kv_bytes(model, node, engine) / GIB,
        "kv_gib": kv / GIB if kv else 0.0,
        "row_format": layout.row_format,
        "row_bytes": layout.row_bytes,
        "block_tokens": layout.block_size,
        "block_bytes": layout.block_bytes,
        "hisparse_block_bytes": layout.hisparse.block_bytes if layout.hisparse else None,
        "host_block_bytes": sparse.host_block_bytes if sparse else None,
        "host_pool_gib_per_dp": sparse.host_pool_bytes / GIB if sparse else None,
        "resident_groups": layout.hisparse.resident_groups if layout.hisparse else None,
        "hot_rows": layout.hisparse.hot_rows if layout.hisparse else None,
        "admission_window_pages": sparse.admission_window_pages if sparse else None,
        "max_model_len": {mode: size.max_model_len if size else 0 for mode, size in sizes.items()},
        "max_concurrency": {mode: size.max_concurrency if size else 0.0 for mode, size in sizes.items()},
        "steady_concurrency": sparse.steady_concurrency if sparse else None,
    }


def page_json(rows: Sequence[PageAnswer]) -> dict[str, Any]:
    """The published calculator's answer. Offload fits what resident fits."""
    return {
        "like": "vllm-calculator",
        "rows": [
            {
                "context_tokens": row.context_tokens,
                "resident": row.resident,
                "offload": row.resident,
                "hisparse": row.hisparse,
                "min_host_gib_per_dp": row.min_host_gib,
                "limit": row.limit,
                "kv_gib": row.kv_gib,
                "weights_gib": row.weights_gib,
            }
            for row in rows
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    modes = row.modes
    out: dict[str, Any] = {"context_tokens": row.context_tokens}
    out |= {mode: modes[mode].requests for mode in MODES}
    out |= {
        "min_host_gib_per_dp": row.min_host_gib_per_dp,
        "limit": modes[row.main].count.limit,
        "limit_words": modes[row.main].limit_words,
    }
    out |= {f"{mode}_range": list(modes[mode].range) for mode in MODES}
    refused = modes["hisparse"].count.limit == "unsupported"
    out["hisparse_reason"] = modes["hisparse"].limit_words if refused else None
    out["modes"] = {mode: _mode(modes[mode]) for mode in MODES}
    out["gains"] = [asdict(gain) for gain in row.gains]
    out["recommended_max_num_batched_tokens"] = row.batched_tokens[0] if row.batched_tokens else None
    out["hisparse_at_recommended"] = row.batched_tokens[1] if row.batched_tokens else None
    out["versus_calculator"] = asdict(row.differences) if row.differences else None
    if row.users_host_gib_per_dp is not None:
        out["users_host_gib_per_dp"] = row.users_host_gib_per_dp
    return out


def _mode(found: ModeAnswer) -> dict[str, Any]:
    speed = found.decode
    return {
        "requests": found.requests,
        "requests_per_dp": found.per_dp,
        "limit": found.count.limit,
        "limit_words": found.limit_words,
        "blocks_per_request": found.blocks_per_request,
        "tpot_s": speed.tpot_s if speed else None,
        "tpot_s_range": list(speed.tpot_range_s) if speed else None,
        "tpot_s_with_10_percent_more_link": speed.wider_link_tpot_s if speed else None,
        "tokens_per_s": speed.tokens_per_s if speed else None,
        "resident_share": speed.resident_share if speed else None,
        "miss_share": speed.miss_share if speed else None,
        "host_to_device_bytes_per_s_per_gpu": speed.h2d_bytes_per_s if speed else None,
        "link_share": speed.link_share if speed else None,
        "dram_bytes_per_s_per_node": speed.dram_bytes_per_s if speed else None,
        "dram_share": speed.dram_share if speed else None,
        "tpot_s_uncertainty": speed.uncertainty_s if speed else None,
        "in_domain": not speed.beyond if speed else None,
    }

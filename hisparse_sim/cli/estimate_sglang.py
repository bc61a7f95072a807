"""The estimate of SGLang for a terminal."""

from __future__ import annotations

from hisparse_sim.estimate.sglang import SGLangAnswer


def sglang_text(found: SGLangAnswer) -> str:
    """Pools of a rank, then a table of lengths; at most 100 columns wide."""
    engine, memory = found.engine, found.as_json()["memory"]
    tp, dp = engine.tp or found.node.gpus, engine.dp
    lines = [
        f"{found.model.name} on {found.node.name}, SGLang, {engine.mode}: TP {tp}, DP {dp}",
        f"static: {memory['mem_fraction_static']:.3f} of GPU memory, {memory['weights_gib']:.1f} GiB of "
        f"weights and {memory['kv_gib']:.2f} GiB of pools a GPU",
        f"max_total_num_tokens {memory['max_total_num_tokens']:,}, {memory['bytes_per_token']:,} bytes each "
        f"({memory['row_format']} rows)",
    ]
    if engine.mode == "hisparse":
        lines += [
            f"host pool {memory['host_pool_tokens']:,} tokens ({engine.host_to_device_ratio} x device): "
            f"{memory['host_pool_gib_per_rank']:,.1f} GiB a rank, "
            f"{memory['host_pool_gib_per_node']:,.0f} a node",
            f"hot buffer {memory['hot_buffer_tokens']:,} tokens a request; tables of "
            f"{memory['max_running_requests']:,} requests {memory['request_tables_gib']:.1f} GiB a GPU",
        ]
    lines += [f"longest request: {memory['longest_request_tokens']:,} tokens", ""]
    cells = [("context", "requests", "limit", "device", "host", "without", "TPOT ms", "tok/s", "miss")]
    cells += [
        (
            f"{row.context_tokens:,}",
            f"{row.requests}",
            row.limit,
            f"{row.device}",
            f"{row.host}",
            f"{row.resident * dp}",
            f"{row.tpot_s * 1e3:.1f}" if row.tpot_s else "-",
            f"{row.tokens_per_s:,.0f}" if row.tokens_per_s else "-",
            f"{row.miss_share:.1%}" if row.miss_share is not None else "-",
        )
        for row in found.rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines += ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    lines.append(
        "  (device, host: what each pool alone holds in a replica; without: requests without HiSparse)"
    )
    return "\n".join(lines)

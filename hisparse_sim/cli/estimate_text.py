"""The estimate for a terminal: who fits, how fast, what limits it, and why not the page's figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from hisparse_sim.estimate.answer import MODES, Answer, ModeAnswer, Row
from hisparse_sim.estimate.as_json import memory_json
from hisparse_sim.estimate.calculator import PageAnswer
from hisparse_sim.estimate.log_check import Finding

WIDTH = 100


def answer_text(found: Answer, findings: Sequence[Finding]) -> str:
    """The whole answer, at most 100 columns wide."""
    parts = [list(_head(found)), list(_counts(found))]
    if any(row.modes[mode].decode for row in found.rows for mode in MODES):
        parts.append(list(_speed(found)))
    elif found.untimed:
        parts.append(list(_wrapped(f"No seconds: {found.untimed.partition(';')[0]}")))
    parts.extend(list(_why(found, row)) for row in found.rows)
    if found.users is not None:
        parts.append(list(_users(found)))
    if findings:
        lines = ["Against the log"]
        for finding in findings:
            lines.extend(_wrapped(finding.sentence, "  ! " if finding.contradicts else "    "))
        parts.append(lines)
    return "\n\n".join("\n".join(lines) for lines in parts)


def page_text(rows: Sequence[PageAnswer]) -> str:
    """The published calculator's table."""
    lines = [
        "As vLLM's calculator page answers (decimal GB, KV memory rounded to 0.1 GiB)",
        f"KV memory {rows[0].kv_gib:.1f} GiB a GPU, weights {rows[0].weights_gib:.1f} GiB",
        "",
    ]
    table = [("context", "resident", "HiSparse", "min host GiB/DP", "limit")]
    table += [
        (f"{r.context_tokens:,}", f"{r.resident}", f"{r.hisparse}", f"{r.min_host_gib:,}", r.limit)
        for r in rows
    ]
    return "\n".join([*lines, *_table(table)])


def _head(found: Answer) -> Iterator[str]:
    memory, engine = memory_json(found), found.engine
    tp = engine.tp or found.node.gpus
    machine = found.node.name if found.nodes == 1 else f"{found.nodes} x {found.node.name}"
    experts = (", EP" if engine.ep else ", no EP") if found.model.num_experts else ""
    mtp = f", MTP {engine.mtp}" if engine.mtp else ""
    yield f"{found.model.name} on {machine}: TP {tp}, DP {engine.dp}{experts}{mtp}"
    derived = (
        f"{memory['gpu_gib']:.1f} GiB x {engine.gpu_memory_utilization:g} - {memory['weights_gib']:.1f} of "
        f"weights - {memory['reserve_gib']:.1f} of activations and runtime = "
        f"{memory['derived_kv_gib']:.1f} GiB"
    )
    if engine.available_kv_gib or engine.num_gpu_blocks or engine.kv_tokens:
        yield f"KV memory a GPU: {memory['kv_gib']:.2f} GiB, given"
        yield f"  (derived: {derived})"
    else:
        yield f"KV memory a GPU: {derived}"
    yield (
        f"KV rows: {memory['row_bytes']} bytes ({memory['row_format']}) a token and layer, "
        f"{memory['block_bytes'] // memory['block_tokens']:,} bytes a token in all"
    )
    if memory["host_pool_gib_per_dp"] is not None:
        shared = "" if engine.shared_host_pool else " (one a rank)"
        yield (
            f"HiSparse: host pool {memory['host_pool_gib_per_dp']:,.0f} GiB a replica{shared}, "
            f"{memory['hot_rows']:,} hot rows, {engine.max_num_batched_tokens:,} tokens a step"
        )


def _counts(found: Answer) -> Iterator[str]:
    yield "Requests that run at once (context = prompt + output; in brackets: reserve 10 % up and down)"
    table: list[tuple[str, ...]] = [
        ("context", "resident", "offload", "HiSparse", "min host GiB/DP", "limit")
    ]
    for row in found.rows:
        host = "-" if row.min_host_gib_per_dp is None else f"{row.min_host_gib_per_dp:,}"
        cells = [_count(row.modes[mode]) for mode in MODES]
        table.append((f"{row.context_tokens:,}", *cells, host, row.modes[row.main].count.limit))
    yield from _table(table)
    yield "  (offload fits what resident fits: running takes all KV on the GPU; it changes hits and TTFT)"


def _speed(found: Answer) -> Iterator[str]:
    yield "Decode at that batch (TPOT ms [misses, link], tokens/s, rows that miss, share of link and DRAM)"
    table = [("context", "resident", "tok/s", "HiSparse", "tok/s", "on GPU", "miss", "link", "DRAM")]
    for row in found.rows:
        plain, sparse = row.modes["resident"].decode, row.modes["hisparse"].decode
        table.append(
            (
                f"{row.context_tokens:,}",
                f"{plain.tpot_s * 1e3:.1f}" if plain else "-",
                f"{plain.tokens_per_s:,.0f}" if plain else "-",
                f"{sparse.tpot_s * 1e3:.1f} [{sparse.tpot_range_s[0] * 1e3:.1f}-"
                f"{sparse.tpot_range_s[1] * 1e3:.1f}]"
                if sparse
                else "-",
                f"{sparse.tokens_per_s:,.0f}" if sparse else "-",
                f"{sparse.resident_share:.0%}" if sparse else "-",
                f"{sparse.miss_share:.1%}" if sparse else "-",
                f"{sparse.link_share:.0%}" if sparse else "-",
                f"{sparse.dram_share:.0%}" if sparse else "-",
            )
        )
    yield from _table(table)
    if found.engine.mtp:
        yield "TPOT is of a step that accepts one token; drafts that are accepted divide it."


def _why(found: Answer, row: Row) -> Iterator[str]:
    main = row.modes[row.main]
    yield f"At {row.context_tokens:,} tokens"
    plain, sparse = row.modes["resident"].decode, row.modes["hisparse"].decode
    if plain and sparse and sparse.tokens_per_s < plain.tokens_per_s:
        yield "  HiSparse runs more requests here but decodes fewer tokens/s: misses cost more than they free"
    if row.main == "resident":
        yield from _wrapped(f"HiSparse: not available: {row.modes['hisparse'].limit_words}", "  ")
    yield from _wrapped(f"limit: {main.limit_words}", "  ")
    for gain in row.gains:
        slope = f" ({gain.per_unit:.2f} a GiB)" if gain.per_unit else ""
        yield f"  {gain.change}: {gain.gain:+d}{slope}"
    if sparse and sparse.link_share:
        faster = (sparse.wider_link_tpot_s - sparse.tpot_s) * 1e3
        yield f"  +10 % of host link: {faster:+.1f} ms of TPOT"
    if row.batched_tokens:
        budget, requests = row.batched_tokens
        asked = found.engine.max_num_batched_tokens
        if budget != asked:
            more = requests - row.modes["hisparse"].requests
            yield f"  max_num_batched_tokens {asked:,} -> {budget:,} (recommended): {more:+d}"
        else:
            yield f"  max_num_batched_tokens {asked:,}: lowering it frees too little to be worth it"
    if row.differences is None:
        return
    page = row.differences
    then = "; then" if page.causes else ""
    yield f"  vLLM's calculator page: {page.page_resident} resident, {page.page_hisparse} HiSparse{then}"
    for cause in page.causes:
        yield from _wrapped(cause.why, f"    {cause.resident:+4d} {cause.hisparse:+5d}  ", " " * 16)
    admitted = page.admitted_resident, page.admitted_hisparse
    if admitted != (row.modes["resident"].requests, row.modes["hisparse"].requests):
        yield from _wrapped(
            f"growth: at the prompt's length {admitted[0]} resident and {admitted[1]} HiSparse would be "
            "admitted; what is over the counts above is preempted while outputs grow",
            "    ",
        )
    if row.modes["hisparse"].decode:
        yield "    bandwidth: the page gives no speed; see the link's share above"


def _users(found: Answer) -> Iterator[str]:
    yield f"For {found.users} users at once"
    for mode in MODES:
        longest = found.longest_tokens[mode]
        yield f"  longest context, {mode}: {longest:,} tokens" if longest else f"  {mode}: does not fit"
    for row in found.rows:
        if row.users_host_gib_per_dp is not None:
            held = row.modes["hisparse"].requests
            enough = "" if held >= (found.users or 0) else f"; but HBM or the pool holds {held}"
            need = f"{row.users_host_gib_per_dp:,} GiB a replica"
            yield f"  host pool at {row.context_tokens:,}: {need}{enough}"


def _count(found: ModeAnswer) -> str:
    low, high = found.range
    if found.count.limit == "unsupported":
        return "-"
    return f"{found.requests}" if low == high else f"{found.requests} [{low}-{high}]"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) for c, w in zip(row, widths, strict=True)]
        yield ("  " + "  ".join(cells)).rstrip()


def _wrapped(text: str, first: str = "", rest: str | None = None) -> Iterator[str]:
    later = first if rest is None else rest
    yield from wrap(text, WIDTH, initial_indent=first, subsequent_indent=later or "  ")

"""``hisparse-sim explain``: where the time of one step goes."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from hisparse_sim.cli.flags import named_path
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.scenario.scenario import Scenario

_PEEKED = 200
"""Sessions of the workload that the usual context is taken from."""


def command(
    scenario: Annotated[str, typer.Argument(help="A YAML file, or a shipped name.")],
    mode: Annotated[str | None, typer.Option(help="resident, offload or hisparse.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Requests that decode.", show_default="the workload's, as far as they fit"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Of each of them.", show_default="the workload's median"),
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="New tokens of the prefill.", show_default="a step's budget"),
    ] = None,
    past: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Before them; 0 is allowed.", show_default="what is left"),
    ] = None,
    resident_share: Annotated[
        float | None,
        typer.Option(
            help="HiSparse: share of pages still on the GPU, 0 to 1.", show_default="what the pool leaves"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=named_path, metavar="FOLDER", help="Draw the steps as bars, PNG and SVG, here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """The parts of a decode step and of a prefill chunk, at one operating point."""
    from hisparse_sim.estimate.anatomy import decode_anatomy, prefill_anatomy, table
    from hisparse_sim.estimate.concurrency import mode_pools
    from hisparse_sim.scenario.loader import load_scenario
    from hisparse_sim.scenario.units import parse_tokens
    from hisparse_sim.simulation.replica import build_replica

    overrides = [*(settings or []), *([f"engine.mode={mode}"] if mode is not None else [])]
    asked = load_scenario(scenario, overrides=overrides)
    replica = build_replica(asked)
    longest = replica.pools.max_model_len
    clients, tokens = _asked_for(asked, longest)
    if context is not None:
        tokens = parse_tokens(context, where="--context")
    if tokens > longest:
        raise InputError(f"{tokens:,} tokens exceed max_model_len {longest:,}", where="--context")
    pools = mode_pools(asked.model, asked.node, asked.engine, asked.engine.mode)
    fits = max(1, pools.count(tokens).requests)
    requests = min(clients, fits) if batch is None else batch
    if requests < 1:
        raise InputError(f"{requests} requests; at least 1", where="--batch")
    if requests > fits:
        print(f"note: {requests:,} such requests do not fit, {fits:,} do", file=sys.stderr)
    share = pools.resident_share(tokens, requests) if resident_share is None else resident_share
    if not 0.0 <= share <= 1.0:
        raise InputError(f"{share:g} is no share from 0 to 1", where="--resident-share")
    new = min(tokens, asked.engine.max_num_batched_tokens)
    if chunk is not None:
        new = parse_tokens(chunk, where="--chunk")
    before = max(0, tokens - new)
    if past is not None:
        before = 0 if past.strip() == "0" else parse_tokens(past, where="--past")
    steps = [
        decode_anatomy(replica.cost, requests, tokens, share),
        prefill_anatomy(replica.cost, new, before, share),
    ]
    for warning in replica.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    found = [step.as_json() for step in steps]
    if as_json:
        print(json.dumps({"scenario": asked.name, "mode": asked.engine.mode, "steps": found}, indent=1))
    else:
        print(table(steps))
    if out is not None:
        from hisparse_sim.report.anatomy_plot import save_anatomy

        for path in save_anatomy(found, out):
            print(path, file=sys.stderr)
    return 0


def _asked_for(asked: Scenario, longest: int) -> tuple[int, int]:
    """Requests at a time, and tokens of one in the middle of its output, of the workload."""
    from hisparse_sim.workload.make import make_workload

    workload = make_workload(asked.workload, asked.seed)
    turns = (r for session in islice(workload.sessions(), _PEEKED) for r in session.requests)
    tokens = [r.prompt_tokens + r.output_tokens // 2 for r in turns]
    usual = min(longest, max(1, round(median(tokens)))) if tokens else longest
    return workload.concurrency or asked.engine.max_num_seqs, usual

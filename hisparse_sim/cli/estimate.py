"""``hisparse-sim estimate``: how many requests fit, how fast they decode, what limits them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisparse_sim.cli import serve_flags
from hisparse_sim.errors import HiSparseError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hisparse_sim.estimate.question import Deployment, Given
    from hisparse_sim.scenario.engine import EngineSpec
    from hisparse_sim.scenario.model import ModelSpec
    from hisparse_sim.scenario.vllm_log import StartupLog
    from hisparse_sim.serve.source import ServeCommand
    from hisparse_sim.serve.translate import Served

LIKE = ("vllm-calculator",)
OUTPUT_TOKENS = 1024
MOST_USERS = 10**9
FLAGS = {
    "tp": "--tp",
    "dp": "--dp",
    "ep": "--ep",
    "kv_cache_dtype": "--kv-dtype",
    "hot_rows": "--hot-rows",
    "host_pool_gib": "--host-pool",
    "mtp": "--mtp",
    "max_num_batched_tokens": "--max-num-batched-tokens",
}
"""The flag of each engine field that has one, for errors."""


DEFAULTS: dict[str, Any] = {"kv_cache_dtype": "fp8"}
"""Of fields whose flag was not given, without --serve, where it is not the engine's own."""


@dataclass(frozen=True, slots=True)
class Read:
    """A ``vllm serve`` command, and the node and workload it is asked about."""

    command: ServeCommand
    served: Served
    node: str
    concurrency: int | None = None
    context: int | None = None


def command(
    model: Annotated[str | None, typer.Option(help="Catalogue name, YAML or config.json.")] = None,
    node: Annotated[str | None, typer.Option(help="Catalogue name or YAML.")] = None,
    serve: serve_flags.Serve = None,
    scenario: Annotated[
        str | None, typer.Option(help="With --serve: node and workload of this scenario.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option(help="Tensor parallel size.", show_default="the node's GPUs")
    ] = None,
    dp: Annotated[
        int | None,
        typer.Option(help="Data parallel replicas; more than a node spans nodes.", show_default="1"),
    ] = None,
    ep: Annotated[
        bool | None, typer.Option("--ep/--no-ep", help="Expert parallelism.", show_default="ep")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="Tokens in all, prompt and output: 8k,128k,1M.", show_default="the longest"),
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="fp8, bf16, fp8_ds_mla or auto.", show_default="fp8")
    ] = None,
    hot_rows: Annotated[
        str | None,
        typer.Option(help="HiSparse device_buffer_size.", show_default="(mtp + 2) x top-k: 4096"),
    ] = None,
    host_pool: Annotated[
        str | None, typer.Option(help="HiSparse host pool a replica: auto or GiB.", show_default="auto")
    ] = None,
    mtp: Annotated[int | None, typer.Option(help="Speculative tokens a step.", show_default="0")] = None,
    max_num_batched_tokens: Annotated[
        str | None, typer.Option(help="Token budget of a step.", show_default="8192")
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="Part of the context that is output.", show_default="1024")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Also: longest context and host memory for so many.")
    ] = None,
    log: Annotated[str | None, typer.Option(help="vLLM start-up log: its KV memory replaces ours.")] = None,
    like: Annotated[str | None, typer.Option(help="vllm-calculator: the published page's figures.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any engine., model. or node. field."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How many requests fit resident, offloaded and with HiSparse, how fast, and what limits them."""
    from hisparse_sim.estimate.question import deployment
    from hisparse_sim.scenario.check import check_engine
    from hisparse_sim.scenario.units import parse_tokens
    from hisparse_sim.scenario.validate import locate

    if like is not None and like not in LIKE:
        raise InputError(f"{like!r} is not known; one of {', '.join(LIKE)}", where="--like")
    if users is not None and not 1 <= users <= MOST_USERS:
        raise InputError(f"{users} is not a number of users; 1 to {MOST_USERS:,}", where="--users")
    if like is not None:
        _only_what_the_page_knows(like, {"--users": users, "--output-tokens": output_tokens, "--mtp": mtp})
    asked: dict[str, Any] = {
        "tp": tp,
        "dp": dp,
        "ep": ep,
        "kv_cache_dtype": kv_dtype,
        "hot_rows": hot_rows and parse_tokens(hot_rows, where="--hot-rows"),
        "host_pool_gib": host_pool,
        "mtp": mtp,
        "max_num_batched_tokens": max_num_batched_tokens
        and parse_tokens(max_num_batched_tokens, where="--max-num-batched-tokens"),
    }
    given: Given = {("engine", name): FLAGS[name] for name in asked} | {
        ("model",): "--model",
        ("node",): "--node",
    }
    read: Read | None = None
    if serve is None:
        if scenario is not None:
            raise InputError("goes with --serve; give --model and --node otherwise", where="--scenario")
        for flag, value in (("--model", model), ("--node", node)):
            if value is None:
                raise InputError(f"missing; give {flag}, or --serve with a vllm serve command", where=flag)
        asked = DEFAULTS | {k: v for k, v in asked.items() if v is not None}
    else:
        read = _read_serve(serve, model, node, scenario)
        own: Given = {("engine", k): FLAGS[k] for k, v in asked.items() if v is not None}
        given = {**given, **read.served.places(), **own}
        asked = {**read.served.engine, **{k: v for k, v in asked.items() if v is not None}}
        model, node = read.served.model, read.node
    started = _read(log)
    if started is not None:
        for name, value in started.overrides().items():
            asked[name] = value
            given = {**given, ("engine", name): f"--log {log}"}
    named = {k: v for k, v in asked.items() if v is not None}
    try:
        found, given = deployment(model or "", node or "", named, settings=settings or (), given=given)
        contexts = _contexts(context, found.model, found.engine)
        output = _output_tokens(output_tokens, contexts)
        if like is not None:
            own_limit = any(path == ("engine", "max_num_seqs") for path in given)
            _print_page(found, contexts, as_json, own_limit)
            return
        extra: dict[str, Any] = {}
        if read is not None:
            extra = {"serve": _check_serve(read, found, contexts, users, as_json)}
        check_engine(found.model, found.node, found.engine)
        _print_answer(found, contexts, output, users, started, as_json, extra)
    except HiSparseError as error:
        # Deeper rooms name the field; say which flag set it.
        keys = tuple((error.where or "").split("."))
        if error.where is None or not any(keys[: len(path)] == path for path in given):
            raise
        raise type(error)(error.message, where=locate("", keys, given)) from None


def _read_serve(serve: str, model: str | None, node: str | None, scenario: str | None) -> Read:
    from hisparse_sim.scenario.loader import load_node, load_scenario

    if model is not None:
        raise InputError("the command names its model; leave out --model or --serve", where="--model")
    if node is None and scenario is None:
        print(f"note: no --node given: {serve_flags.NODE}", file=sys.stderr)
        node = serve_flags.NODE
    if scenario is None:
        command, served = serve_flags.read_serve(serve, load_node(node or ""))
        return Read(command, served, node or "")
    asked = load_scenario(scenario, overrides=[f"node={node}"] if node else ())
    command, served = serve_flags.read_serve(serve, asked.node)
    concurrency, context = serve_flags.load_of(asked)
    return Read(command, served, node or asked.node.name, concurrency, context)


def _check_serve(
    read: Read, found: Deployment, contexts: Sequence[int], users: int | None, as_json: bool
) -> dict[str, Any]:
    """Refuses what vLLM would, says the rest, and gives it for JSON."""
    from hisparse_sim.serve.startup import check_startup

    with serve_flags.refusals_as_json(read.command, read.served, as_json):
        findings = check_startup(
            read.served,
            found.model,
            found.node,
            found.engine,
            concurrency=users or read.concurrency,
            context=read.context or max(contexts),
        )
    serve_flags.say(read.served, findings)
    return serve_flags.as_json(read.command, read.served, findings)


def _print_answer(
    asked: Deployment,
    contexts: Sequence[int],
    output_tokens: int,
    users: int | None,
    started: StartupLog | None,
    as_json: bool,
    extra: Mapping[str, Any],
) -> None:
    from hisparse_sim.estimate.answer import answer
    from hisparse_sim.estimate.log_check import check_log

    model, node, engine = asked.model, asked.node, asked.engine
    if engine.kind == "sglang":
        _print_sglang(asked, contexts, output_tokens, as_json)
        return
    found = answer(model, node, engine, contexts, output_tokens=output_tokens, users=users)
    findings = check_log(model, node, engine, started) if started else []
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        from hisparse_sim.estimate.as_json import answer_json

        _print_json(answer_json(found, started, findings) | dict(extra))
        return
    from hisparse_sim.cli.estimate_text import answer_text

    typer.echo(answer_text(found, findings))


def _print_sglang(asked: Deployment, contexts: Sequence[int], output_tokens: int, as_json: bool) -> None:
    from hisparse_sim.cli.estimate_sglang import sglang_text
    from hisparse_sim.estimate.sglang import sglang_answer

    found = sglang_answer(asked.model, asked.node, asked.engine, contexts, output_tokens=output_tokens)
    if as_json:
        _print_json(found.as_json())
    else:
        typer.echo(sglang_text(found))


def _print_page(asked: Deployment, contexts: Sequence[int], as_json: bool, own_limit: bool) -> None:
    from hisparse_sim.estimate.answer import check_contexts
    from hisparse_sim.estimate.as_json import page_json
    from hisparse_sim.estimate.calculator import MAX_SEQUENCES, page_answer

    if asked.node.gpu.vendor != "nvidia":
        raise InputError(
            f"the page knows NVIDIA GPUs only, not {asked.node.gpu.name} of {asked.node.name}; drop --like",
            where="--like",
        )
    check_contexts(asked.model, asked.engine, contexts)
    most = asked.engine.max_num_seqs if own_limit else MAX_SEQUENCES
    rows = [page_answer(asked.model, asked.node, asked.engine, c, max_sequences=most) for c in contexts]
    if as_json:
        _print_json(page_json(rows))
        return
    from hisparse_sim.cli.estimate_text import page_text

    typer.echo(page_text(rows))


def _print_json(data: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def _read(path: str | None) -> StartupLog | None:
    if path is None:
        return None
    from hisparse_sim.scenario.vllm_log import read_log

    return read_log(path)


def _contexts(text: str | None, model: ModelSpec, engine: EngineSpec) -> list[int]:
    from hisparse_sim.scenario.units import parse_tokens

    if text is None:
        return [model.max_context_tokens if engine.max_model_len == "auto" else engine.max_model_len]
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        holds = "an empty length" if any(part.strip() for part in parts) else "no length"
        raise InputError(f"{text!r} holds {holds}; write 8k,128k,1M", where="--context")
    return [parse_tokens(part, where="--context") for part in parts]


def _output_tokens(text: str | None, contexts: Sequence[int]) -> int:
    """The output's part of each context, which leaves at least one token of prompt when asked for."""
    from hisparse_sim.scenario.units import parse_tokens

    if text is None:
        return OUTPUT_TOKENS
    output = parse_tokens(text, where="--output-tokens")
    if output >= min(contexts):
        raise InputError(
            f"{output:,} tokens of output leave no prompt in a context of {min(contexts):,}, output included",
            where="--output-tokens",
        )
    return output


def _only_what_the_page_knows(like: str, flags: Mapping[str, object]) -> None:
    for flag, value in flags.items():
        if value:
            raise InputError(f"{like} knows no such figure; leave out {flag} or --like", where=flag)

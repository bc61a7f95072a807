"""``--serve``: the command laid over the scenario, and its findings said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisparse_sim.errors import HiSparseError, InputError

if TYPE_CHECKING:
    from hisparse_sim.scenario.node import NodeSpec
    from hisparse_sim.scenario.scenario import Scenario
    from hisparse_sim.serve.finding import Finding
    from hisparse_sim.serve.source import ServeCommand
    from hisparse_sim.serve.translate import Served

NODE = "8xh200"
SCENARIO = "agentic-13turn-8xh200"
"""Taken, and said, when a command comes without a node or a workload."""

Serve = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND|FILE",
        help="A vllm serve command, or a script, compose file or manifest with one (FILE#NAME).",
    ),
]

_PEEKED = 32
"""Sessions that are looked at for the longest context."""


def read_serve(given: str, node: NodeSpec) -> tuple[ServeCommand, Served]:
    """The command and its translation. Raises ``InputError``."""
    from hisparse_sim.serve.parse import parse_flags
    from hisparse_sim.serve.source import find_command
    from hisparse_sim.serve.translate import translate

    command = find_command(given)
    flags = parse_flags(command.words, where=command.where, environment=command.environment)
    return command, translate(flags, node, version=command.version)


def overrides(served: Served) -> tuple[list[str], dict[tuple[str, ...], str]]:
    """The engine and model of the command as ``path=value`` settings, and the flag behind each field."""
    texts = [f"model={json.dumps(served.model)}", "engine={}"]
    texts += [f"engine.{name}={json.dumps(value)}" for name, value in served.engine.items()]
    return texts, served.places() | {("engine",): served.flags.where}


def load_over(scenario: str | None, serve: str | None, settings: Sequence[str]) -> Scenario:
    """A scenario with ``settings`` over it and, if given, a command under them, whose findings are said.

    Raises ``InputError``, and ``Refused`` for a command with which vLLM would not start as it stands.
    """
    from hisparse_sim.scenario.loader import load_scenario

    if serve is None and scenario is None:
        raise InputError("missing; name a YAML file or a shipped scenario", where="SCENARIO")
    if scenario is None:
        print(f"note: no scenario given: workload and node of {SCENARIO}", file=sys.stderr)
        scenario = SCENARIO
    if serve is None:
        return load_scenario(scenario, overrides=settings)
    from hisparse_sim.serve.startup import check_startup

    _, served = read_serve(serve, load_scenario(scenario, overrides=about_node(settings)).node)
    texts, places = overrides(served)
    try:
        asked = load_scenario(scenario, overrides=[*texts, *settings])
    except HiSparseError as error:
        raise _by_flag(error, texts, settings, places) from None
    concurrency, context = load_of(asked)
    findings = check_startup(
        served, asked.model, asked.node, asked.engine, concurrency=concurrency, context=context
    )
    say(served, findings)
    return asked


def _by_flag(
    error: HiSparseError, texts: Sequence[str], settings: Sequence[str], places: dict[tuple[str, ...], str]
) -> HiSparseError:
    """An error about a setting that the command made names the command's flag."""
    from hisparse_sim.scenario.overrides import parse_override, place

    own = {parse_override(text)[0] for text in settings}
    for text in texts:
        path = parse_override(text)[0]
        if path in places and path not in own and (error.where or "").startswith(place(text)):
            return type(error)(error.message, where=f"--serve: {places[path]}")
    return error


def about_node(settings: Sequence[str]) -> list[str]:
    """The settings that change the node: vLLM's defaults hang on the GPU."""
    from hisparse_sim.scenario.overrides import parse_override

    return [text for text in settings if parse_override(text)[0][0] == "node"]


def load_of(scenario: Scenario) -> tuple[int | None, int | None]:
    """Requests at once and tokens of the longest of the first sessions, of a scenario's workload."""
    from itertools import islice

    from hisparse_sim.workload.make import make_workload

    workload = make_workload(scenario.workload, scenario.seed)
    turns = [r for s in islice(workload.sessions(), _PEEKED) for r in s.requests]
    longest = max((r.prompt_tokens + r.output_tokens for r in turns), default=None)
    return workload.concurrency, longest


def say(served: Served, findings: Sequence[Finding]) -> None:
    """Warnings, flags that cannot matter and defaults that were taken, on stderr."""
    for finding in findings:
        print(f"warning: {finding}", file=sys.stderr)
    by_reason: dict[str, list[str]] = {}
    for flag, why in served.ignored.items():
        by_reason.setdefault(why, []).append(flag)
    for why, flags in by_reason.items():
        print(f"note: ignored {', '.join(flags)}: {why}", file=sys.stderr)
    for text in served.assumed:
        print(f"note: {text}", file=sys.stderr)


def as_json(command: ServeCommand, served: Served, findings: Sequence[Finding]) -> dict[str, Any]:
    """What ``--json`` and ``summary.json`` say of the command, under ``serve``."""
    return {
        "command": command.text,
        "findings": [finding.as_json() for finding in findings],
        "ignored": [{"flag": flag, "reason": why} for flag, why in served.ignored.items()],
        "assumed": list(served.assumed),
    }


@contextmanager
def refusals_as_json(command: ServeCommand, served: Served, as_json_too: bool) -> Iterator[None]:
    """What vLLM would refuse is also printed as JSON where JSON was asked for."""
    from hisparse_sim.serve.finding import Refused

    try:
        yield
    except Refused as error:
        if as_json_too:
            typer.echo(json.dumps({"serve": as_json(command, served, error.findings)}, indent=2))
        raise

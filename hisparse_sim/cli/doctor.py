"""``hisparse-sim doctor``: whether a host can pin what a plan needs, before the engine tries."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hisparse_sim.cli import serve_flags
from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.doctor.checks import Check
    from hisparse_sim.doctor.host import HostFacts
    from hisparse_sim.scenario.scenario import Scenario

SIGNS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM", "unknown": "?"}
WIDTH = 100
_ANY_BYTES = 10**17


def command(
    scenario: Annotated[
        str | None, typer.Argument(help="The plan: a YAML file, or a shipped name.", show_default=False)
    ] = None,
    serve: serve_flags.Serve = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A host described in YAML.", show_default="this machine"),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any field of the scenario.")
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Print the host's facts as YAML and nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a plan's pinned memory against a host. Exit code 1: a problem was found."""
    from hisparse_sim.doctor.host import load_host
    from hisparse_sim.doctor.read_host import read_host

    facts = load_host(host) if host is not None else read_host()
    if describe:
        import yaml

        typer.echo(
            yaml.safe_dump(facts.model_dump(mode="json", exclude_none=True), sort_keys=False), nl=False
        )
        return 0
    if scenario is None and serve is None:
        raise InputError("missing; name a YAML file, a shipped scenario, or --serve", where="SCENARIO")
    from hisparse_sim.doctor.checks import PIN_SOURCE, examine, pinning_s
    from hisparse_sim.doctor.pinned import pinned
    from hisparse_sim.memory.budget import size_pools

    asked = _asked(scenario, serve, settings or [], facts)
    need = pinned(size_pools(asked.model, asked.node, asked.engine), asked.node, asked.engine)
    checks = examine(need, facts, asked.node)
    if as_json:
        found = {
            "plan": asked.name,
            "mode": asked.engine.mode,
            "host": facts.model_dump(mode="json"),
            "pinned_bytes": need.total_bytes,
            "pool_bytes": need.pool_bytes,
            "pool_copies": need.pool_copies,
            "pool_shared": need.shared,
            "offload_bytes": need.offload_bytes,
            "shm_bytes": need.shm_bytes,
            "pinning_s_range": list(pinning_s(need)),
            "pinning_source": PIN_SOURCE,
            "checks": [check.as_json() for check in checks],
        }
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        typer.echo(f"{asked.name} ({asked.engine.mode}) on {facts.name}\n")
        for check in checks:
            typer.echo("\n".join(_lines(check)))
    return 1 if any(check.verdict == "problem" for check in checks) else 0


def _asked(scenario: str | None, serve: str | None, settings: list[str], host: HostFacts) -> Scenario:
    """The plan. Whether its host memory is there is for the checks to say, not for the reader."""
    from hisparse_sim.scenario.loader import load_scenario

    if scenario is None:
        print(f"note: no scenario given: node of {serve_flags.SCENARIO}", file=sys.stderr)
        scenario = serve_flags.SCENARIO
    texts: list[str] = []
    name = None
    if serve is not None:
        node = load_scenario(scenario, overrides=serve_flags.about_node(settings)).node
        command, served = serve_flags.read_serve(serve, node)
        texts, _ = serve_flags.overrides(served)
        name = command.text
    asked = load_scenario(scenario, overrides=[*texts, *settings, f"node.dram_bytes={_ANY_BYTES}"])
    if asked.engine.mode == "hisparse" and asked.engine.host_pool_gib == "auto":
        memory = {"dram_bytes": int(host.memory_gib * 2**30)}
        asked = asked.model_copy(update={"node": asked.node.model_copy(update=memory)})
    return asked if name is None else asked.model_copy(update={"name": name[:WIDTH]})


def _lines(check: Check) -> list[str]:
    from textwrap import wrap

    head = f"{SIGNS[check.verdict]:>7}  {check.name:<14}"
    rest = " " * len(head)
    lines = wrap(check.said, WIDTH, initial_indent=head + " ", subsequent_indent=rest + " ")
    if check.remedy:
        lines += wrap(f"-> {check.remedy}", WIDTH, initial_indent=rest + " ", subsequent_indent=rest + "    ")
    return lines

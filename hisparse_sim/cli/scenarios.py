"""``hisparse-sim scenarios``: the scenarios of the catalogue, and the file of one to start from."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hisparse_sim.errors import InputError


def command(
    action: Annotated[str, typer.Argument(metavar="[list|show]", help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A scenario.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the scenarios, or show the file of one."""
    from hisparse_sim.cli.catalogue import table
    from hisparse_sim.scenario.catalogue import find, list_scenarios
    from hisparse_sim.scenario.loader import load_scenario

    names = list_scenarios()
    if action == "list":
        if name is not None:
            raise InputError(f"takes no name; to see one: scenarios show {name}", where="scenarios list")
        rows = [{"scenario": known, "what": load_scenario(known).description} for known in names]
        typer.echo(json.dumps({"scenarios": names}, indent=2) if as_json else table(rows))
    elif action == "show":
        if name is None:
            raise InputError(
                f"needs the name of a scenario, one of {', '.join(names)}", where="scenarios show"
            )
        scenario = load_scenario(name)
        text = find("scenario", name).read_text(encoding="utf-8")
        typer.echo(scenario.model_dump_json(indent=2) if as_json else text.rstrip("\n"))
    else:
        raise InputError(f"{action!r} is not an action; use list or show NAME", where="scenarios")

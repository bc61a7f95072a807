"""``hisparse-sim calibrate``: profiles from tables and samples, and how good they are."""

from __future__ import annotations

import typer

from hisparse_sim.cli import calibrate_bench

app = typer.Typer(
    help="Build, fit, check, show and compare calibration profiles.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("build")(calibrate_bench.build)
app.command("run")(calibrate_bench.run)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of a profile file."""
    import json

    from hisparse_sim.cost.profile import Profile

    typer.echo(json.dumps(Profile.model_json_schema(by_alias=True), indent=2))

"""``hisparse-sim models``: the models of the catalogue, and what is known of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hisparse_sim.scenario.model import ModelSpec


def command(
    action: Annotated[str, typer.Argument(metavar="[list|show]", help="What to do.")] = "list",
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A model, or the path of a config.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models, or show one with its sources."""
    from hisparse_sim.cli.catalogue import answer
    from hisparse_sim.scenario.catalogue import list_models, load_model

    answer(action, name, kind="model", names=list_models, load=load_model, summary=_summary, as_json=as_json)


def _summary(model: ModelSpec) -> dict[str, str]:
    weights = model.weights
    return {
        "attention": model.attention,
        "layers": f"{model.num_layers}+{model.mtp_layers}" if model.mtp_layers else str(model.num_layers),
        "indexers": str(model.num_indexers) if model.num_indexers else "-",
        "context": f"{model.max_context_tokens:,}",
        "weights": f"{(weights.shared_bytes + weights.routed_bytes) / 2**30:,.1f} GiB {weights.dtype}",
    }

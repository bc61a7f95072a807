"""``hisparse-sim nodes``: the machines of the catalogue, and what is known of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hisparse_sim.scenario.node import NodeSpec


def command(
    action: Annotated[str, typer.Argument(metavar="[list|show]", help="What to do.")] = "list",
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A node, or the path of a YAML file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the nodes, or show one with its sources."""
    from hisparse_sim.cli.catalogue import answer
    from hisparse_sim.scenario.catalogue import list_nodes, load_node

    answer(action, name, kind="node", names=list_nodes, load=load_node, summary=_summary, as_json=as_json)


def _summary(node: NodeSpec) -> dict[str, str]:
    return {
        "gpus": f"{node.gpus} x {node.gpu.name}",
        "memory": f"{node.gpu.memory_bytes / 2**30:.1f} GiB ({node.gpu.memory_grade})",
        "host link": node.host_link.kind,
        "host memory": f"{node.dram_bytes / 2**30:,.0f} GiB",
        "hisparse": "yes" if node.hisparse else "no",
        "step times": node.calibration or "none: capacity only",
    }

"""What vLLM would refuse of a command, and what ought to be warned of: all findings in one list."""

from __future__ import annotations

from collections.abc import Iterator

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.memory.budget import size_pools
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.serve.finding import Finding, refuse
from hisparse_sim.serve.rules import Asked, check_rules
from hisparse_sim.serve.situations import Sized, check_situations, fit
from hisparse_sim.serve.translate import MTP_METHODS, Served


def check_startup(
    served: Served,
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    *,
    concurrency: int | None = None,
    context: int | None = None,
) -> list[Finding]:
    """The warnings. ``concurrency``: requests at once over all replicas; ``context``: tokens of one.

    Raises ``Refused`` with all findings for what vLLM would not start with, ``InputError`` for
    parallelism that is not modelled.
    """
    asked = Asked(served, model, node, engine)
    found = check_rules(asked)
    if not found:
        _only_modelled(asked)
    notes = list(_notes(served, model))
    if found:
        refuse([*found, *notes])
    pools, misfit = fit(asked)
    if misfit is not None:
        refuse([misfit, *notes])
    assert pools is not None
    try:
        resident = size_pools(
            model, node, engine.model_copy(update={"mode": "resident", "max_model_len": "auto"})
        )
    except HiSparseError:
        resident = None
    sized = Sized(asked, pools, resident, concurrency, context or pools.max_model_len)
    return [*check_situations(sized), *notes]


def _only_modelled(asked: Asked) -> None:
    for name in ("pipeline-parallel-size", "decode-context-parallel-size", "prefill-context-parallel-size"):
        if asked.count(name) > 1:
            raise InputError(
                "is not modelled: a replica is TP ranks that hold all layers and all of a context",
                where=asked.served.flags.place(name),
            )


def _notes(served: Served, model: ModelSpec) -> Iterator[Finding]:
    flags = served.flags
    if served.model_stands_in:
        yield Finding(
            "checkpoint-stands-in",
            "warning",
            flags.model,
            f"weights are counted as those of {model.hf_id} ({model.weights.dtype}); {flags.model} has the "
            "same layers and may have other weights",
            "name the path of its config.json for its own",
            "catalogue of models",
        )
    for name in served.connectors.others:
        yield Finding(
            "connector-not-modelled",
            "warning",
            "--kv-transfer-config",
            f"{name} is not modelled: answered as if it were not there",
            "expect other TTFT and hits",
            "docs/howto/serve.md",
        )
    config = flags.mapping("speculative-config")
    if config and not MTP_METHODS.fullmatch(str(config.get("method", ""))):
        yield Finding(
            "speculation-not-modelled",
            "warning",
            flags.written("speculative-config"),
            f"drafts by {config.get('method') or config.get('model') or 'another model'} are not modelled: "
            "answered without them, and without the memory that a draft model takes",
            "method mtp is modelled",
            "docs/howto/serve.md",
        )
    for name in flags.replaced:
        yield Finding(
            "json-flag-replaced",
            "warning",
            f"--{name}",
            f"given whole and by keys (--{name}.key): vLLM keeps the keys alone",
            "give it in one way",
            "FlexibleArgumentParser of vLLM",
        )
    for flag in served.unmodelled:
        yield Finding(
            "flag-not-modelled",
            "warning",
            flag,
            "may change memory or time, and is not modelled",
            "the answer is that without it",
            "docs/howto/serve.md",
        )

"""A published profile from NVIDIA's measured tables: one file a GPU, coefficients and errors only.

The kept-out quarter of each table is fitted nowhere; where the tables hold it, every term states its
error there. What no table holds (``constants.json``) comes with its own source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.calibration.derived import expert_shares, rooflines, scaled_attention
from hisparse_sim.calibration.experts_fit import DISTRIBUTIONS, Lines, Shape
from hisparse_sim.calibration.fitting import (
    describe,
    fit,
    left_out_errors,
    relative_errors,
    rounded,
    span,
)
from hisparse_sim.calibration.prefill_fit import fit_prefill
from hisparse_sim.calibration.rows import CHUNK_TOKENS, Group, groups, moe_term, seconds_of
from hisparse_sim.calibration.tables import Folder
from hisparse_sim.cost.forms import Params
from hisparse_sim.cost.profile import SCHEMA
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import load_node

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from hisparse_sim.scenario.node import NodeSpec

    Array = npt.NDArray[np.float64]

Json = dict[str, Any]
Progress = Callable[[str], None]

PACKAGE_VERSION = "0.12.0"
TOPK_ROWS = 2048.0
MESSAGE_KNOTS = (0.0, 2.0**15, 2.0**17, 2.0**19, 2.0**22, 2.0**25)
"""Where the all-reduce changes its way: one shot, two shots, and beyond what registered buffers hold."""


@dataclass(frozen=True, slots=True)
class System:
    """A GPU of the tables: its folder there, the profile's name, a node of the catalogue with it.

    ``all_experts``: every sharding of the expert layers rather than those that engines use.
    ``attention_of``: the profile whose sparse attention is scaled where the tables have none.
    """

    name: str
    folder: str
    gpu: str
    node: str
    all_experts: bool = False
    attention_of: str = ""


SYSTEMS = {
    s.name: s
    for s in (
        System("h200", "h200_sxm", "NVIDIA H200", "8xh200", all_experts=True),
        System("h100", "h100_sxm", "NVIDIA H100 80GB HBM3", "8xh100"),
        System("b200", "b200_sxm", "NVIDIA B200", "8xb200"),
        System("b300", "b300_sxm", "NVIDIA B300 SXM6 AC", "8xb300"),
        System("gb200", "gb200", "NVIDIA GB200", "gb200-nvl4"),
        System("gb300", "gb300", "NVIDIA GB300", "gb300-nvl4"),
        System(
            "rtxpro6000",
            "rtx_pro_6000_server",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "8xrtxpro6000",
            attention_of="h200",
        ),
    )
}

NOTES = {
    "dsa.decode.indexer": "SGLang, a layer with an indexer, graph replay.",
    "dsa.decode.skip": "SGLang, a layer that reuses its leader's selection, graph replay.",
    "dsa.decode.vllm": "vLLM, a layer with an indexer; the fixed part holds eager launches: use context_s.",
    "dsa.prefill.indexer": "SGLang, a layer with an indexer, eager.",
    "dsa.prefill.skip": "SGLang, a layer that reuses a selection, eager; neighbours differ by a third.",
    "dsa.prefill.dense": "SGLang, contexts up to the top-k, in dense kernels.",
    "dsa.prefill.vllm": "vLLM, a layer with an indexer, eager, no past or 128 tokens.",
    "moe": "fp8 blocks; all token counts of a step, before they are shared out.",
    "allreduce": "vLLM's own all-reduce in a CUDA graph, NCCL above its size limit.",
    "vllm_eager": "The same launched eagerly.",
    "nccl": "NCCL alone.",
    "deepep": "Dispatch and combine on 8 GPUs, top 8 of 256 experts.",
    "mla.decode": "vLLM, DeepSeek-V3's module; the fixed part holds eager launches: use context_s.",
    "gqa.decode": "vLLM, the attention kernel alone, heads of 128, no window.",
    "gqa.prefill": "vLLM, the attention kernel alone, causal, no past, heads of 128.",
}


def import_profile(system: System, folder: Path, node: NodeSpec, *, progress: Progress | None = None) -> Json:
    """The profile of one GPU as JSON-ready data.

    ``folder``: that GPU's tables; ``node``: a node with it, for the datasheet rates that shares refer
    to. Raises ``InputError`` for tables that are not there.
    """
    tables = Folder(folder)
    constants = json.loads((Path(__file__).parent / "constants.json").read_text(encoding="utf-8"))
    terms: list[Json] = []

    def say(stem: str) -> None:
        if progress is not None:
            progress(stem)

    sparse = not system.attention_of
    stems = ("dsa_decode_module_sglang", "dsa_prefill_module_sglang", "dsa_decode_module_vllm")
    for stem in stems if sparse else ():
        say(stem)
        terms += list(_terms(stem, tables.need(stem)))
    for stem in (
        "dsa_prefill_module_vllm",
        "allreduce_custom_vllm",
        "nccl",
        "deepep_ll_sglang",
        "deepep_normal_sglang",
        "mla_decode_module_vllm",
        "gqa_decode_vllm",
        "gqa_prefill_vllm",
    ):
        rows = tables.read(stem)
        if rows is not None:
            say(stem)
            terms += list(_terms(stem, rows))
    say("moe_fp8_sglang")
    moe = tables.need("moe_fp8_sglang")
    terms += [*_experts(moe, system), expert_shares(moe, node)]
    say("gemm_vllm")
    measured = list(rooflines(tables, node))
    known = {term["id"] for term in measured}
    terms += measured + [t for t in constants["terms"] if t["id"] not in known]
    sources = dict(constants["sources"])
    sources["aic"] = {
        "text": f"NVIDIA aiconfigurator, measured tables of {system.gpu} (Python package "
        f"aiconfigurator-core {PACKAGE_VERSION}; github.com/ai-dynamo/aiconfigurator)",
        "licence": "Apache-2.0",
    }
    if system.attention_of:
        other = SYSTEMS[system.attention_of]
        scaled, more = scaled_attention(f"{other.name}-published", load_node(other.node), system.gpu, node)
        terms += scaled
        sources |= more
    cited = {term["source"] for term in terms}
    return {
        "schema": SCHEMA,
        "id": f"{system.name}-published",
        "kind": "published",
        "hardware": {"gpu": system.gpu, "generation": node.gpu.generation},
        "inputs": dict(sorted(tables.inputs.items())),
        "sources": {name: text for name, text in sources.items() if name in cited},
        "terms": terms,
    }


def _terms(stem: str, rows: pd.DataFrame) -> Iterator[Json]:
    """A term a group of a table; none where all rows are kept out, or have no time."""
    for group in groups(stem, rows):
        seconds = seconds_of(stem, rows)[group.rows]
        out = rows["kept_out"].to_numpy(dtype=bool)[group.rows]
        usable = _timed(seconds) & group.whole
        if not (~out & usable).any():
            continue
        try:
            yield _term(group, seconds, out & usable, ~out & usable)
        except InputError as error:
            raise InputError(error.message, where=f"{stem}: {group.term}") from None


def _timed(seconds: Array) -> npt.NDArray[np.bool_]:
    import numpy as np

    return np.isfinite(seconds) & (seconds > 0)


def _term(group: Group, seconds: Array, out: npt.NDArray[np.bool_], fitted: npt.NDArray[np.bool_]) -> Json:
    inside = {name: values[fitted] for name, values in group.variables.items()}
    if group.form == "prefill_module":
        params, errors = _prefill(group.term, inside, seconds[fitted])
    else:
        options: Json = {}
        if group.form == "piecewise_linear":
            options["knots"] = MESSAGE_KNOTS
        elif group.form == "decode_module":
            options["topk_rows"] = 1e12 if group.term.startswith("mla.") else TOPK_ROWS
        params, errors = fit(group.form, inside, seconds[fitted], **options)
    if out.any():
        unseen = {name: values[out] for name, values in group.variables.items()}
        errors["kept_out"] = describe(relative_errors(group.form, params, unseen, seconds[out]))
    domain = {name: span(values) for name, values in inside.items()}
    if group.form == "decode_module":
        domain["batch_x_context"] = span(inside["batch"] * inside["context_tokens"])
    if group.form == "prefill_module":
        keys = inside["sequences"] * (inside["past_tokens"] + inside["new_tokens"])
        domain["keys"] = span(keys)
    return _json(group.term, group.form, params, errors, domain)


def _prefill(term_id: str, variables: dict[str, Array], seconds: Array) -> tuple[Params, Json]:
    chunk = CHUNK_TOKENS if ".vllm." not in term_id else 131_072.0
    selects = ".skip." not in term_id

    def fitted(some: Any, times: Array) -> Params:
        return fit_prefill(some, times, topk_rows=TOPK_ROWS, chunk_tokens=chunk, selects=selects)

    params = rounded(fitted(variables, seconds))
    residual = relative_errors("prefill_module", params, variables, seconds)
    left_out = left_out_errors(fitted, "prefill_module", variables, seconds)
    return params, {"residual": describe(residual), "holdout": describe(left_out)}


def _json(term_id: str, form: str, params: Params, errors: Json, domain: Json, **more: Any) -> Json:
    note = next((text for start, text in NOTES.items() if term_id.startswith(start)), "")
    return {
        "id": term_id,
        "form": form,
        "unit": "s",
        "params": dict(params),
        "domain": {name: list(bounds) for name, bounds in domain.items()},
        **errors,
        "source": "aic",
        "grade": "measured",
        **({"note": note} if note else {}),
        **more,
    }


def _wanted(shape: Shape, system: System) -> bool:
    """Whether a sharding is worth a term: what engines use, or all of H200's 256-expert layers."""
    if system.all_experts and shape.experts == 256:
        return True
    one_way = shape.tp == 1 or shape.ep == 1
    return one_way and shape.tp <= 8 and shape.ep <= 64 and shape.distribution == DISTRIBUTIONS[-1]


def _experts(rows: pd.DataFrame, system: System) -> Iterator[Json]:
    """The lines of all shardings, smoothed together."""
    import numpy as np

    kept = rows["kept_out"].to_numpy(dtype=bool)
    seconds = seconds_of("moe_fp8_sglang", rows)
    found: list[tuple[Shape, Group]] = []
    for group in groups("moe_fp8_sglang", rows):
        first = rows.loc[group.rows[0]]
        names = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
        hidden, inter, experts, topk, tp, ep = (int(first[name]) for name in names)
        shape = Shape(hidden, inter, experts, topk, tp, ep, str(first["distribution"]))
        usable = _timed(seconds[group.rows]) & group.whole
        if _wanted(shape, system) and (usable & ~kept[group.rows]).any():
            variables = {name: values[usable] for name, values in group.variables.items()}
            found.append((shape, Group(group.term, group.form, group.rows[usable], variables)))
    if not found:
        raise InputError("has no row of a shape that is modelled", where="moe_fp8_sglang")
    shape_of = np.concatenate([np.full(len(g.rows), i) for i, (_, g) in enumerate(found)])
    index = np.concatenate([g.rows for _, g in found])
    tokens = np.concatenate([g.variables["tokens"] for _, g in found])
    times, out = seconds[index], kept[index]
    lines = Lines([shape for shape, _ in found])
    fitted = lines.fit(shape_of[~out], tokens[~out], times[~out])
    left_out = np.full(len(times), np.nan)
    left_out[~out] = lines.left_out(shape_of[~out], tokens[~out], times[~out])
    for i, (shape, _) in enumerate(found):
        here, there = (shape_of == i) & ~out, (shape_of == i) & out
        params = fitted[i]
        errors = {
            "residual": describe(_relative(params, tokens[here], times[here])),
            "holdout": describe(left_out[here]),
        }
        if there.any():
            errors["kept_out"] = describe(_relative(params, tokens[there], times[there]))
        domain = {"tokens": span(tokens[here])}
        yield _json(moe_term(*shape), "rising_log_log", params, errors, domain)


def _relative(params: Params, tokens: Array, seconds: Array) -> Array:
    return relative_errors("rising_log_log", params, {"tokens": tokens}, seconds)


def to_text(profile: Json) -> str:
    """JSON with one term a line, so that a change shows as one."""
    head = {name: value for name, value in profile.items() if name != "terms"}
    lines = ",\n  ".join(json.dumps(term) for term in profile["terms"])
    return json.dumps(head, indent=1)[:-2] + ',\n "terms": [\n  ' + lines + "\n ]\n}\n"

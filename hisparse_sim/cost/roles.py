"""What the cost model expects of the terms that it reads by name: form, unit, bounds of the measured."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hisparse_sim.cost.term import Term


class Role(NamedTuple):
    """``domain``: variables whose bounds are read. ``least`` and ``most``: of a constant's value."""

    forms: tuple[str, ...]
    unit: str = "s"
    domain: tuple[str, ...] = ()
    least: float = 0.0
    most: float = inf


_TINY = 1e-12
"""Least of a share or a size that something is divided by."""

NAMED = {
    "overhead.layer": Role(("constant",)),
    "hisparse.kernel": Role(("constant",)),
    "hisparse.resolve": Role(("wave",)),
    "hisparse.gather": Role(("inflight_saturation",)),
    "hisparse.gather_blocks": Role(("constant",), "1"),
    "hisparse.gather_blocks_per_row": Role(("constant",), "1", least=1.0),
    "hisparse.line_bytes": Role(("constant",), "1", least=1.0),
    "hisparse.prefetch_hidden_share": Role(("constant",), "1", most=1.0),
    "locality.lru_miss_rate": Role(("log_log", "rising_log_log"), "1", ("buffer_over_topk",)),
    "link.h2d": Role(("alpha_beta",)),
    "link.d2h": Role(("alpha_beta",)),
    "link.both_ways": Role(("alpha_beta",)),
    "link.copy_issue": Role(("constant",)),
    "moe.roofline": Role(("shares",)),
}
"""By the whole name."""

FAMILIES = {
    "roofline.": Role(("constant",), "1", least=_TINY),
    "dsa.decode.": Role(("decode_module",), domain=("batch", "context_tokens", "batch_x_context")),
    "mla.decode.": Role(("decode_module",), domain=("batch_x_context",)),
    "dsa.prefill.": Role(("prefill_module",), domain=("past_tokens",)),
    "gqa.decode.": Role(("gqa_decode",), domain=("total_tokens",)),
    "gqa.prefill.": Role(("rates",)),
    "moe.": Role(("rising_log_log", "log_log"), domain=("tokens",)),
    "allreduce.gpus": Role(("piecewise_linear",), domain=("bytes",)),
    "deepep.low_latency.hidden": Role(("alpha_beta",)),
    "deepep.normal.hidden": Role(("alpha_beta",)),
}
"""By how the name begins."""


def misfit(term: Term) -> str:
    """What keeps ``term`` from the part that its name gives it, in words; empty if nothing does."""
    role = NAMED.get(term.id) or next((r for start, r in FAMILIES.items() if term.id.startswith(start)), None)
    if role is None:
        return ""
    if term.form not in role.forms:
        return f"form {term.form} does not price {term.id}, which takes {' or '.join(role.forms)}"
    if term.unit != role.unit:
        return f"{term.id} is in {role.unit!r}, not in {term.unit!r}"
    if lacking := [name for name in role.domain if name not in term.domain]:
        return f"{term.id} lacks domain.{', domain.'.join(lacking)}: how far it was measured"
    for name in role.domain:
        if term.domain[name][1] <= 0:
            return f"{term.id}: domain.{name} ends at {term.domain[name][1]:g}, must be more than 0"
    if term.form == "constant" and not role.least <= term.value() <= role.most:
        bounds = f"{role.least:g} or more" if role.most == inf else f"{role.least:g} to {role.most:g}"
        return f"{term.id}: value {term.value():g} is not allowed, must be {bounds}"
    return ""

"""Gauges over time (log lines, a range of scrapes, a table of samples) as figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hisparse_sim.validation.measured.evidence import Evidence


@dataclass(slots=True)
class Sample:
    """Gauges at one time; none: not said. Shares are of 1. ``time_s`` is of any clock."""

    time_s: float | None = None
    engine: str = "000"
    running: float | None = None
    waiting: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    kv_usage: float | None = None
    prefix_hit_rate: float | None = None
    external_hit_rate: float | None = None

    @property
    def busy(self) -> bool:
        """Whether anything ran, waited or came out."""
        return bool(self.running or self.waiting or self.output_tokens_per_s)


def add_samples(evidence: Evidence, samples: Sequence[Sample]) -> None:
    """Add what ``samples`` say: means over busy ones, of running requests over those that are not 0.

    Counts and rates of several engines are summed, shares averaged.
    """
    engines = list(dict.fromkeys(s.engine for s in samples))
    each = [_figures([s for s in samples if s.engine == engine]) for engine in engines]
    if len(engines) > 1:
        evidence.notes.append(
            f"{len(engines)} engines: counts and rates are summed, as of the replicas of a run"
        )
    for name in dict.fromkeys(name for found in each for name in found):
        values = [found[name] for found in each if name in found]
        total = sum(values)
        evidence.figures[name] = total / len(values) if name.endswith(("usage_mean", "_rate")) else total
        if name == "gpu_kv_usage_max":
            evidence.figures[name] = max(values)
    usage = [s.kv_usage for s in samples if s.kv_usage is not None]
    if usage and not any(usage) and any(s.running for s in samples):
        for name in ("gpu_kv_usage_mean", "gpu_kv_usage_max"):
            evidence.figures.pop(name, None)
        evidence.notes.append("KV usage is 0 while requests run: that server does not report it; left out")
    busy = sum(s.busy for s in samples)
    if not busy:
        evidence.notes.append(f"{len(samples)} samples, and the engine was idle at each")


def _figures(samples: Sequence[Sample]) -> dict[str, float]:
    busy = [s for s in samples if s.busy]
    found: dict[str, float] = {}

    def mean(name: str, of: Callable[[Sample], float | None], *, nonzero: bool = False) -> None:
        values = [v for s in busy if (v := of(s)) is not None and (v or not nonzero)]
        if values:
            found[name] = sum(values) / len(values)

    mean("running_mean", lambda s: s.running, nonzero=True)
    mean("waiting_mean", lambda s: s.waiting)
    mean("gpu_kv_usage_mean", lambda s: s.kv_usage)
    mean("prompt_tokens_per_s", lambda s: s.prompt_tokens_per_s)
    mean("output_tokens_per_s", lambda s: s.output_tokens_per_s)
    for name, values in (
        ("running_max", [s.running for s in busy]),
        ("waiting_max", [s.waiting for s in busy]),
        ("gpu_kv_usage_max", [s.kv_usage for s in busy]),
    ):
        known = [v for v in values if v is not None]
        if known:
            found[name] = max(known)
    # Each sample's rate is over what was asked lately, so the last busy one knows most.
    for name, rates in (
        ("prefix_hit_rate", [s.prefix_hit_rate for s in busy]),
        ("external_hit_rate", [s.external_hit_rate for s in busy]),
    ):
        known = [v for v in rates if v is not None and v >= 0]
        if known:
            found[name] = known[-1]
    return found

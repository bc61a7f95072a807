"""The text that an engine's ``/metrics`` gives, as samples by name.

Format: prometheus.io/docs/instrumenting/exposition_formats, of which counters, gauges and histograms are
read. A line without its end is left out: of a cut number nobody knows what it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hisparse_sim.errors import InputError
from hisparse_sim.workload.traces.rows import MAX_CLOCK

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?[\d.]+)?(?:\s+#.*)?")
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_GAUGES = ("vllm:hisparse_host_blocks_total",)
"""Named as if it were counted."""
_MOST_NAMED = 3
_COUNTS = ("_total", "_sum", "_count", "_bucket", "_hits", "_misses", "_queries", "_bytes")
"""How names of what is counted end; some are written without ``_total``."""

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Scrape:
    """Values of one moment by metric and labels."""

    samples: dict[str, dict[Labels, float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def values(self, names: Iterable[str]) -> dict[Labels, float]:
        """Of the first of ``names`` that is there, with and without ``_total``; empty: none."""
        for name in names:
            for written in (name, f"{name}_total"):
                if found := self.samples.get(written):
                    return found
        return {}

    def total(self, names: Iterable[str]) -> float | None:
        """The sum over all labels."""
        found = self.values(names)
        return sum(found.values()) if found else None

    def mean(self, names: Iterable[str]) -> float | None:
        """The mean over all labels."""
        found = self.values(names)
        return sum(found.values()) / len(found) if found else None

    def buckets(self, name: str) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound, over all other labels."""
        found: dict[float, float] = {}
        for labels, count in self.samples.get(f"{name}_bucket", {}).items():
            try:
                bound = float(dict(labels).get("le", "nan"))
            except ValueError:
                continue
            if not math.isnan(bound):
                found[bound] = found.get(bound, 0.0) + count
        return dict(sorted(found.items()))

    def labels(self, name: str) -> Mapping[str, str]:
        """Of the first sample of an information metric."""
        return dict(next(iter(self.samples.get(name, {})), ()))


def parse_scrape(text: str, where: str) -> Scrape:
    """Raises InputError if there is no sample, and says what there is instead."""
    scrape, bad, families = Scrape(), [], []
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1].strip():
        scrape.problems.append(
            f"{where}:{len(lines)}: the last line has no end and may be cut ({lines[-1][:60]!r}); left out"
        )
    for number, line in enumerate(lines[:-1], start=1):
        line = line.strip()
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        value = _number(match[3]) if match else None
        if match is None or value is None:
            bad.append(number)
        elif 0 <= value < MAX_CLOCK:  # -1: nothing was asked for a rate
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            scrape.samples.setdefault(match[1], {})[labels] = value
    if not scrape.samples:
        what = f"{len(families)} metrics are described and none has a sample" if families else "no such line"
        raise InputError(
            f"holds no samples of Prometheus metrics (name{{labels}} value): {what}", where=where
        )
    if bad:
        named = ", ".join(map(str, bad[:_MOST_NAMED])) + (" …" if len(bad) > _MOST_NAMED else "")
        scrape.problems.append(f"{where}: no samples in line {named}; left out, the rest is used")
    return scrape


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def minus(later: Scrape, earlier: Scrape) -> Scrape:
    """What was counted between two scrapes; gauges, which need no earlier one, are the later's."""
    found = Scrape()
    for name, values in later.samples.items():
        before = earlier.samples.get(name, {})
        counts = name.endswith(_COUNTS) and name not in _GAUGES
        found.samples[name] = {k: v - before.get(k, 0.0) if counts else v for k, v in values.items()}
    return found


def quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """Linear within its bucket, as PromQL's ``histogram_quantile``; the last finite bound above that."""
    bounds = list(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = q * buckets[bounds[-1]]
    low = below = 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            if math.isinf(bound):
                return low or None
            return low + (bound - low) * (rank - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return None

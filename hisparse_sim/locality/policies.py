"""Expected share of rows that miss a hot buffer, for each way to choose what is evicted.

Buffers work a step at a time, as the kernels do: what a step looks up is there before anything is
evicted for its misses, so a buffer holds at least one step's rows. Expectations are those of many rows
(top-k is 2,048), where sums over rows hardly vary; tests compare them with replays of sampled traces.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hisparse_sim.locality.reuse import Reuse


def lru(reuse: Reuse, buffer_rows: float) -> float:
    """Least recently used: the buffer holds the rows of the last steps, as many as fit.

    The share of a step's rows that those do not contain: Denning's miss rate of a window whose working
    set is the buffer.
    """
    if buffer_rows >= min(reuse.distinct[-1], reuse.context_rows):
        return 0.0
    window = reuse.window_of(buffer_rows)
    return min(1.0, max(0.0, (reuse.distinct_in(window + 1.0) - buffer_rows) / reuse.rows))


def fifo(reuse: Reuse, buffer_rows: float) -> float:
    """First in, first out; a row that the step wants waits at the head until a step does not want it.

    A row stays L steps and, if wanted then, as long as steps go on to want it. Each of its renewals in
    between is a hit, the next one misses: 1 / misses = 1 + hits, and misses a step times the length of
    stay fill the buffer.
    """
    if buffer_rows >= reuse.context_rows:
        return 0.0
    overlap = min(1.0 - float(reuse.share[1]), 1.0 - 1e-12)
    u = reuse.renewals
    last = len(u) - 1
    ages = np.arange(len(u))
    upto = np.cumsum(u)

    def visits(stay: float) -> float:  # lookups from the one that fetched it to the last that hits
        extra = max(0.0, stay - 1.0 - last) * float(u[-1])
        at = float(np.interp(stay, ages, u))
        return float(np.interp(stay - 1.0, ages, upto)) + extra + at / (1.0 - overlap)

    def length(stay: float) -> float:
        return stay + float(np.interp(stay, ages, u)) / (1.0 - overlap)

    wanted = buffer_rows / reuse.rows
    low, high = 1.0, 1e9
    if length(high) / visits(high) <= wanted:
        return 1.0 / visits(high)
    for _ in range(80):
        middle = (low + high) / 2 if high < 2 * last else (low * high) ** 0.5
        low, high = (middle, high) if length(middle) / visits(middle) < wanted else (low, middle)
    return min(1.0, 1.0 / visits(high))


def random(reuse: Reuse, buffer_rows: float) -> float:
    """Any row that the step does not want, each as likely.

    With misses a step m (in units of its rows) and h such rows in the buffer, an idle row survives a step
    with probability 1 - m / (h - (1 - m)); a row wanted again after g steps has survived g - 1 of them.
    """
    if buffer_rows >= reuse.context_rows:
        return 0.0
    h = buffer_rows / reuse.rows
    idle = np.maximum(reuse.ages[1:] - 1.0, 0.0)
    returns = reuse.returns[1:]

    def excess(m: float) -> float:
        survives = max(0.0, 1.0 - m / (h - (1.0 - m)))
        with np.errstate(under="ignore"):
            return 1.0 - float(returns @ survives**idle) - m

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    return high


def belady(reuse: Reuse, buffer_rows: float) -> float:
    """With the future known (L. Belady, IBM Systems Journal 5 (1966) 78): a bound, no policy.

    Keeping a row until it returns after g steps takes a slot for the g - 1 steps between, and pays one
    fetch; so the shortest returns are kept, as many as the buffer has slots beside the step's own rows.
    """
    if buffer_rows >= reuse.context_rows:
        return 0.0
    returns = reuse.returns
    slots = np.concatenate(([0.0], np.cumsum(returns[1:] * (reuse.ages[1:] + reuse.ages[:-1] - 1.0) / 2)))
    exact = reuse.ages[1:] - reuse.ages[:-1] == 1.0
    slots[1:][exact] = np.cumsum(returns[1:] * (reuse.ages[1:] - 1.0))[exact]
    kept = float(np.interp(buffer_rows / reuse.rows - 1.0, slots, np.cumsum(returns)))
    return min(1.0, max(0.0, 1.0 - kept))


POLICIES: dict[str, Callable[[Reuse, float], float]] = {
    "lru": lru,
    "fifo": fifo,
    "random": random,
    "belady": belady,
}
"""By name. HiSparse's kernels are LRU; the others show what LRU gains and what it leaves."""

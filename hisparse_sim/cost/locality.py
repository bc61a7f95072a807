"""Which share of the rows that attention selects is not in a request's hot buffer."""

from __future__ import annotations

from hisparse_sim.cost.forms import LogLog
from hisparse_sim.cost.profile import Profile


class Locality:
    """Miss rate of an exact-LRU hot buffer, from published figures.

    arXiv 2608.07009 measured GLM-5.1 (top-k 2,048, LongBench-v2): 30 %, 13.4 % and 6.7 % of the
    selected rows miss at 1, 2 and 4 times the top-k. Straight lines on logarithmic axes join and
    prolong them. One rate for all layers and contexts.
    """

    def __init__(self, profile: Profile, *, topk_rows: int) -> None:
        term = profile.term("locality.lru_miss_rate")
        self._line = LogLog(term.series("x"), term.series("y"))
        self._topk = topk_rows
        self._domain = term.domain["buffer_over_topk"]

    def miss_rate(self, hot_rows: int) -> float:
        """Expected share of looked-up rows that miss a buffer of ``hot_rows``; never above 1."""
        return min(1.0, self._line(max(1, hot_rows) / self._topk))

    def miss_rate_range(self, hot_rows: int) -> tuple[float, float]:
        """From the rate of a buffer twice as large to the rate itself (6.7 to 13.4 % at 4,096 rows).

        The published figures come from one data set; agentic contexts repeat themselves more.
        """
        return self.miss_rate(2 * hot_rows), self.miss_rate(hot_rows)

    @property
    def largest_rows(self) -> float:
        """Rows of the largest buffer that was measured."""
        return self._domain[1] * self._topk

    @property
    def smallest_rows(self) -> float:
        """Rows of the smallest."""
        return self._domain[0] * self._topk

"""Links: rates and their ceilings."""

from __future__ import annotations

import pytest

from hisparse_sim.cost.links import LinkRates
from hisparse_sim.cost.profile import load_profile
from hisparse_sim.cost.tiers import Tiers
from hisparse_sim.scenario.loader import load_node

PROFILE = load_profile("h200-published")
NODE = load_node("8xh200")


def test_a_link_alone_runs_at_the_copy_engines_rates() -> None:
    rates = LinkRates(NODE, ranks=1)
    link = NODE.host_link
    assert rates.h2d_bytes_per_s == link.copy_h2d_bytes_per_s
    assert rates.d2h_bytes_per_s == link.copy_d2h_bytes_per_s
    assert rates.both_ways_bytes_per_s == link.both_ways_bytes_per_s


def test_ranks_share_the_hosts_memory_bandwidth() -> None:
    slow = NODE.model_copy(update={"dram_bytes_per_s": 160e9})
    assert LinkRates(slow, ranks=8).h2d_bytes_per_s == pytest.approx(20e9)
    assert LinkRates(slow, ranks=1).h2d_bytes_per_s == pytest.approx(55e9)


def tiers(row_bytes: int) -> Tiers:
    return Tiers(NODE, PROFILE, layers=78, leaders=21, row_bytes=row_bytes, ranks=8)


@pytest.mark.parametrize(("row_bytes", "lines"), [(576, 5), (656, 6), (1152, 9)])
def test_a_gather_moves_whole_lines(row_bytes: int, lines: int) -> None:
    assert tiers(row_bytes).layer_gather_s(35e9 / 128, 0.0, 64) == pytest.approx(lines)


def test_one_request_of_many_is_bound_by_its_own_thread_block() -> None:
    # At 64 requests each has one block (15 GB/s); a lone request has eight and the link's 35 GB/s.
    t = tiers(1152)
    assert t.layer_gather_s(1000, 1000, 64) == pytest.approx(1000 * 1152 / 15e9)
    assert t.layer_gather_s(1000, 1000, 1) == pytest.approx(1000 * 1152 / 35e9)

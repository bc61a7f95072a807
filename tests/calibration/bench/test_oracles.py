"""The oracles themselves: laws and known values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.locality.hot_buffer import HotBuffer


@given(st.lists(st.sets(st.integers(0, 40), max_size=8), max_size=12), st.integers(8, 16))
def test_the_hot_buffer_is_lru_over_steps(steps: list[set[int]], slots: int) -> None:
    buffer = HotBuffer.empty(slots)
    last_use: dict[int, int] = {}  # what the buffer holds, and the last step that wanted it
    for step, wanted in enumerate(steps):
        rows = np.array(sorted(wanted), dtype=np.int64)
        _, missed = buffer.resolve(rows)
        assert set(rows[missed].tolist()) == wanted - last_use.keys()
        last_use.update(dict.fromkeys(wanted, step))
        held = set(buffer.owners[buffer.owners >= 0].tolist())
        gone = last_use.keys() - held
        assert wanted <= held and len(held) <= slots
        # Nothing that went was used later than anything that stayed.
        assert (
            max((last_use[r] for r in gone), default=-1) <= min(last_use[r] for r in held) if gone else True
        )
        for row in gone:
            del last_use[row]
        assert sorted(buffer.order.tolist()) == list(range(slots))
        ages = [last_use.get(int(buffer.owners[s]), -1) for s in buffer.order]
        assert ages == sorted(ages)


def test_e4m3_codes_have_their_published_values() -> None:
    values = oracles.e4m3_values()
    assert values[0x7E] == 448 and values[0x01] == 2**-9 and values[0x08] == 2**-6 and values[0x38] == 1
    assert values[0xC0] == -2 and np.isnan(values[[0x7F, 0xFF]]).all() and np.isnan(values).sum() == 2


def test_bf16_rounds_to_nearest_even() -> None:
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.140625], dtype=np.float32)
    assert oracles.from_bf16(oracles.to_bf16(halfway)).tolist() == [1, 1 + 2**-6, 1 + 2**-7, -3.140625]


def test_filled_words_all_differ_without_a_mask() -> None:
    words = oracles.filled(np.arange(10_000), keep=0xFFFFFFFF, ones=0, seed=5)
    assert len(np.unique(words)) == 10_000


def test_attention_over_one_row_gives_its_value() -> None:
    keys = np.arange(576.0)[None] / 576
    output, lse = oracles.attention(np.ones((2, 576)), keys, np.array([True]), 0.5)
    assert np.allclose(output, keys[:, :512]) and np.allclose(lse, keys.sum() / 2)


def test_equal_queries_and_keys_score_their_weighted_size() -> None:
    one = np.full((2, 128), 0x38, np.uint8)  # 1.0
    scores = oracles.indexer_scores(one, np.array([1, 2], np.float32), one, np.array([1, 0.5], np.float32))
    assert scores.tolist() == [384.0, 192.0]


@pytest.mark.parametrize("resident", [True, False])
def test_resident_pages_need_no_slot(resident: bool) -> None:
    tables = oracles.Tables(
        host=np.array([7], np.int32),
        resident=np.array([3 if resident else -1], np.int32),
        hot=np.array([9], np.int32),
    )
    buffer = HotBuffer.empty(64)
    done = oracles.resolve(np.array([5, -1], np.int32), tables, buffer)
    assert done.rows.tolist() == [3 * 64 + 5 if resident else 9 * 64, -1]
    assert (done.resident, done.hits, len(done.miss_sources)) == ((1, 0, 0) if resident else (0, 0, 1))
    assert done.miss_sources.tolist() == ([] if resident else [7 * 64 + 5])

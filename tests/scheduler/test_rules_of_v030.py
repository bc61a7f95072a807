"""What vLLM 0.30 does otherwise than 0.33, rule by rule, on engines small enough to follow by hand.

Unless a test says otherwise a page costs 3 GPU blocks (1 indexer, 2 resident), a hot region 2, block 0 of
each pool is never handed out, and write-backs are reported in the step that plans them (delay 0).
"""

from __future__ import annotations

import pytest
from small_engines import hit, replay, run, total, when

BOTH = ("0.33", "0.30")


def both(mode, engine, **requests):
    """What happens in 0.33 and in 0.30."""
    return tuple(run(mode, engine, version=version, **requests) for version in BOTH)


def test_a_full_host_pool_preempts_nobody():
    # Host: 3 blocks. a and b hold one each; a's token 65 (step 5) takes the last, b's finds none.
    engine = {"num_gpu_blocks": 500, "num_host_blocks": 4}
    new, old = both("hisparse", engine, a=(60, 80), b=(60, 80))
    assert new[5]["preempted"] == ["b"]
    assert old[5]["scheduled"] == {"a": 1, "b": 1}
    assert old[5]["host_free"] == 0
    assert total(old, "running") == 2 * 80
    # Page 1 of each is full with token 128 (step 68): a's is written back, b's has nowhere to go.
    assert old[68]["planned"] == 1
    assert [old[69]["reqs"][r][5:] for r in "ab"] == [[2, 0], [1, 0]]


def test_no_request_becomes_hot_while_blocks_are_free():
    # Window 2 pages. In 0.33 a with its 2 pages becomes hot at once.
    new, old = both("hisparse", {"num_gpu_blocks": 1000, "max_num_batched_tokens": 128}, a=(128, 200))
    assert new[1]["reqs"]["a"][3] == 1
    assert not any(line["reqs"]["a"][3] for line in old.values() if "a" in line["reqs"])


def test_what_an_early_request_gives_up_serves_a_later_one_of_the_same_step():
    # Watermark 10 blocks. Step 0: a 31 pages = 93 of 99: 6 free, so a must become hot.
    # Step 1: page 31 (3) and the hot region (2): 1 free; then a gives up its pages 0 to 29: + 60. b needs
    # 5 pages = 15. In 0.33 a gives up at the end of the step, so b waits for the next one.
    engine = {"num_gpu_blocks": 100, "max_num_batched_tokens": 2048}
    new, old = both("hisparse", engine, a=(1984, 5), b=(320, 1, 1))
    assert when(old, "new", "b") == [1]
    assert old[1]["gpu_free"] == 1 + 60 - 15
    assert when(new, "new", "b") == [2]


def test_admission_forgets_the_copies_of_a_hit_and_the_engine_dies():
    # 11 blocks. Step 0: a 3 pages = 9. It is over in step 1; pages 0, 1 stay findable, on the GPU too.
    # Step 2: c takes 3 of 11. b hits 128 tokens: 1 new indexer block + 2 hit ones that lie in the free list
    # + 1 page in 2 groups + 2 hot blocks = 7 <= 8: admitted. The hit ones leave the list: 6. The copies of
    # both pages are taken back, 4 blocks: 2. The indexer and the first resident group take those, and there
    # is none for the second. 0.33 takes copies back last, those that are left.
    engine = {"num_gpu_blocks": 12, "max_num_batched_tokens": 512}
    requests = {"a": (130, 2, 0, "g", 128), "c": (40, 9, 2), "b": (130, 2, 2, "g", 128)}
    dies = replay("hisparse", engine, version="0.30", **requests)
    assert [line["step"] for line in dies.lines()] == [0, 1]
    assert dies.died == "schedule: ValueError: Cannot get 1 free blocks from the pool"
    lives = run("hisparse", engine, **requests)
    assert lives[2]["new"] == ["c", "b"]
    assert when(lives, "finished", "b")


def test_the_lowest_page_is_given_up_first_and_so_lost_first():
    # As above: in step 1 a gives up its pages 0 to 29 and 1 block is free before them. In step 2 b takes 3:
    # that one, and page 0's. d hits page 0 in step 5: there is no copy of it to take back. In 0.33, where
    # page 29 was lost, there is.
    engine = {"num_gpu_blocks": 100, "max_num_batched_tokens": 2048}
    new, old = both("hisparse", engine, a=(1984, 9, 0, "g", 1984), b=(40, 1, 2), d=(100, 2, 5, "g", 64))
    for lines, adopted in ((new, 1), (old, 0)):
        assert (lines[1]["gpu_free"], lines[2]["lost"]) == (61, 1)
        assert hit(lines, "d") == [64]
        assert lines[5]["adopted"] == adopted


@pytest.mark.parametrize(("delay", "found"), [(0, 256), (1, 0)])
def test_host_pages_are_published_all_together_or_not_at_all(delay, found):
    # b comes in step 2, when a has 128 + 128 tokens. With delay 0 all 4 of its pages are on the host. With
    # delay 1 pages 2, 3 are under way, so not even pages 0, 1 can be found. (0.33 takes a's first 256 tokens
    # in step 0, since a is alone then.)
    engine = {"num_gpu_blocks": 1000, "max_num_batched_tokens": 256, "delay": delay}
    engine["long_prefill_token_threshold"] = 128
    requests = {"a": (1024, 1, 0, "g", 1024), "b": (300, 1, 2, "g", 256)}
    old = run("hisparse", engine, version="0.30", **requests)
    assert [old[s]["scheduled"].get("a") for s in range(3)] == [128, 128, 128]
    assert old[2]["hits"] == {"b": found}
    assert run("hisparse", engine, **requests)[2]["hits"] == {"b": 256}


def test_pages_in_flight_at_the_end_of_a_request_are_never_found():
    engine = {"num_gpu_blocks": 100, "delay": 1}
    new, old = both("hisparse", engine, a=(130, 1, 0, "g", 128), b=(130, 1, 2, "g", 128))
    assert (hit(new, "b"), hit(old, "b")) == ([128], [0])


def test_pages_of_a_request_that_is_gone_are_not_waited_for():
    # Delay 9, 10 blocks. Step 4: a, b, c hold 3 each. Step 5: a's token 65 needs 3 of 1. c goes, but the two
    # resident blocks of its page are in flight: 1 + 1. 0.33 waits for them; 0.30 preempts b, too.
    engine = {"num_gpu_blocks": 11, "delay": 9}
    new, old = both("hisparse", engine, a=(60, 20), b=(20, 20), c=(64, 20, 4))
    assert (new[5]["scheduled"], new[5]["preempted"]) == ({}, ["c"])
    assert (old[5]["scheduled"], old[5]["preempted"]) == ({"a": 1}, ["c", "b"])


def test_under_priorities_a_request_that_preempts_itself_ends_the_step():
    # 3 blocks: a 1, b 2. In step 6 a's token 65 finds none; a is the least urgent and goes; b has to wait.
    engine = {"num_gpu_blocks": 4, "policy": "priority"}
    requests = {"a": (59, 9, 0, None, 0, 5), "b": (100, 9, 1, None, 0, 0)}
    new, old = both("vanilla", engine, **requests)
    assert new[6]["preempted"] == old[6]["preempted"] == ["a"]
    assert (new[6]["scheduled"], old[6]["scheduled"]) == ({"b": 1}, {})


def test_the_threshold_cuts_even_the_prefill_of_a_request_that_is_alone():
    engine = {"num_gpu_blocks": 50, "max_num_batched_tokens": 256, "long_prefill_token_threshold": 64}
    new, old = both("vanilla", engine, a=(200, 1))
    assert (new[0]["scheduled"], old[0]["scheduled"]) == ({"a": 200}, {"a": 64})

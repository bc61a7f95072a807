"""HiSparse's rules, one by one, on engines small enough to follow by hand.

Unless a test says otherwise a page costs 3 GPU blocks (1 indexer, 2 resident) and a hot region 2,
block 0 of each pool is never handed out, and write-backs are reported in the step that plans them
(delay 0). ``reqs`` rows: resident, unpinned, host only, hot, clean and held, ready, in flight.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from small_engines import THREE_GROUPS, hit, replay, run, total, when

from hisparse_sim.memory.index_offload import IndexOffload


def hisparse(engine, **requests):
    return run("hisparse", engine, **requests)


# -- from resident to hot ------------------------------------------------------------------------


def test_the_two_last_pages_of_a_request_are_never_given_up():
    # Window: 128 tokens = 2 pages, so with 2 pages the request must become hot.
    lines = hisparse({"num_gpu_blocks": 100, "max_num_batched_tokens": 128}, a=(320, 4))
    # Step 0: pages 0, 1: 99 - 6. Both reach the host at once; no hot region yet, nothing given up.
    assert (lines[0]["gpu_free"], lines[0]["gpu_free_end"]) == (93, 93)
    assert lines[0]["reqs"]["a"] == [2, 0, 0, 0, 2, 2, 0]
    # Step 1: pages 2, 3 and the hot region: 93 - 6 - 2 = 85; pages 0, 1 given up: + 4.
    # Pages 2, 3 reach the host but are the last two of four.
    assert (lines[1]["gpu_free"], lines[1]["gpu_free_end"]) == (89, 89)
    assert lines[1]["reqs"]["a"] == [4, 2, 0, 1, 2, 4, 0]
    # Step 2: page 4: 89 - 3 = 86; of the clean pages 2, 3 only page 2 lies below 5 - 2: + 2.
    assert lines[2]["gpu_free_end"] == 88
    assert lines[2]["reqs"]["a"] == [5, 3, 0, 1, 2, 5, 0]
    # Step 3: token 321 opens page 5: 88 - 3 = 85; page 3 is free to go: + 2.
    assert lines[3]["gpu_free_end"] == 87
    assert lines[3]["reqs"]["a"] == [6, 4, 0, 1, 1, 5, 0]


def test_a_request_as_long_as_the_window_becomes_hot_without_any_pressure():
    # Window 2 pages, 999 blocks free. a has 2 pages after step 0, b 1 page until its token 65.
    lines = hisparse({"num_gpu_blocks": 1000, "max_num_batched_tokens": 128}, a=(128, 9), b=(40, 40, 1))
    assert [lines[s]["reqs"]["a"][3] for s in (0, 1)] == [0, 1]
    # b holds token 65 from step 1 + 25 on: 2 pages, so its next step brings the hot region.
    assert [lines[s]["reqs"]["b"][3] for s in (1, 25, 26, 27)] == [0, 0, 0, 1]


@pytest.mark.parametrize(("blocks", "hot"), [(100, 1), (101, 0)])
def test_below_the_watermark_of_a_tenth_of_the_pool_requests_become_hot(blocks, hot):
    # Watermark 10 blocks; window 32 pages, so length plays no part.
    # Step 0: a: 28 pages = 84 blocks. Step 1: a's token 1793 opens page 28 (3), b's page (3).
    # 99 - 84 - 6 = 9 < 10 makes both hot; with one block more they stay as they are.
    engine = {"num_gpu_blocks": blocks, "max_num_batched_tokens": 2048}
    lines = hisparse(engine, a=(1792, 5), b=(60, 5, 1))
    assert lines[1]["gpu_free"] == blocks - 91
    assert [lines[2]["reqs"][r][3] for r in "ab"] == [hot, hot]


def test_the_watermark_is_at_least_the_cost_of_a_hot_region():
    # A page is 4 blocks, a hot region 12: watermark max(12, 60 // 10) = 12.
    # Step 0: a 11 pages = 44, b 4: 59 - 48 = 11 < 12: a must become hot. b is over at once: 15 free.
    # Step 1: a gets its hot region: 15 - 12 = 3; pages 0 to 8 of 11 are clean and not the last two:
    # 9 * 3 = 27 blocks back.
    engine = {"num_gpu_blocks": 60, "max_num_batched_tokens": 2048}
    lines = run("hisparse", engine, THREE_GROUPS, a=(690, 5), b=(60, 1))
    assert (lines[0]["gpu_free"], lines[0]["gpu_free_end"]) == (11, 15)
    assert lines[0]["reqs"]["a"][3] == 0
    assert lines[1]["reqs"]["a"][3] == 1
    assert lines[1]["gpu_free"] == 3 + 27


def test_an_earlier_request_of_the_step_spares_a_later_one_the_watermark():
    # Pages cost 3, watermark 10. a is hot from step 1 on and gives up 2 pages a step as it grows.
    # The free count that b is judged by in step 1 is the one after a's pages have been given up.
    engine = {"num_gpu_blocks": 100, "max_num_batched_tokens": 1024}
    lines = hisparse(engine, a=(1536, 1), b=(100, 5))
    # Step 0: a 16 pages: 99 - 48 = 51. 16 pages are the window: hot at its next turn.
    # Step 1: a 8 pages (24) and the hot region (2), b 2 pages (6): 51 - 32 = 19; a's pages 0 to 15
    # are given up: + 32 = 51 when b is looked at.
    assert lines[0]["gpu_free"] == 51
    assert lines[1]["gpu_free"] == 51
    assert lines[2]["reqs"]["b"][3] == 0


# -- admission -----------------------------------------------------------------------------------


def test_admission_counts_resident_pages_only_up_to_the_window():
    # 10 pages: 10 indexer blocks + 2 groups * 2 pages (window) = 14 <= 23. All 10 resident pages
    # would be 10 + 20 = 30 blocks.
    engine = {"num_gpu_blocks": 24, "max_num_batched_tokens": 128}
    lines = hisparse(engine, a=(640, 3))
    assert when(lines, "new", "a") == [0]
    assert when(lines, "preempted", "a") == []


@pytest.mark.parametrize(("blocks", "starts"), [(30, 1), (29, 2)])
def test_the_whole_prompt_must_fit_before_its_first_chunk_runs(blocks, starts):
    # Window 3 pages. a: 3 pages = 9 blocks, and in step 1 its hot region, 2.
    # b: 12 indexer blocks + 2 groups * 3 pages = 18, which 29 - 11 are and 28 - 11 are not, though its
    # first chunk of 191 tokens would take but 9. At the end of step 1 a gives up page 0: 19 in step 2.
    engine = {"num_gpu_blocks": blocks, "max_num_batched_tokens": 192}
    lines = hisparse(engine, a=(180, 5), b=(768, 1, 1))
    assert when(lines, "new", "b") == [starts]


def test_a_hit_needs_a_hot_region_at_admission():
    # Step 0: a, 3 pages. Over in step 1; its 2 full pages stay findable.
    # Step 2: c takes 3 pages = 9 of 15: 6 left.
    # Step 3: b hits 128 tokens. 1 new indexer block + 2 hit ones that lie in the free list + 1 page in
    # 2 groups + 2 hot blocks = 7 > 6; without the hot region it would be 5.
    engine = {"num_gpu_blocks": 16, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), c=(180, 5, 2), b=(130, 2, 3, "g", 128))
    assert lines[2]["gpu_free"] == 6
    assert when(lines, "finished", "c") == [6]
    assert when(lines, "new", "b") == [7]
    assert hit(lines, "b") == [128]
    assert lines[7]["reqs"]["b"][3] == 1


def test_host_blocks_of_a_hit_count_as_needed_while_they_lie_in_the_free_list():
    # Host: 5 blocks. a leaves 2 hashed ones; c holds 3: 2 left, exactly the hit ones.
    # b needs 1 more beside them: 1 + 2 > 2.
    engine = {"num_gpu_blocks": 500, "num_host_blocks": 6, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), c=(180, 5, 2), b=(130, 2, 3, "g", 128))
    assert lines[2]["host_free"] == 2
    assert when(lines, "new", "b") == [7]
    assert hit(lines, "b") == [128]


# -- hits ----------------------------------------------------------------------------------------


def test_a_hit_reaches_as_far_as_host_pages_and_indexer_blocks_and_the_tail_goes_first():
    # GPU: 13 blocks. a: 3 pages = 9. At its end: the unfinished page 2 to the front (3 blocks), the
    # copies of pages 1, 0 and then the indexer blocks of pages 1, 0 to the tail.
    # c takes 12 in step 2: all but the indexer block of page 0.
    # The host still has pages 0 and 1, but b's hit is page 0 alone.
    engine = {"num_gpu_blocks": 14, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), c=(256, 1, 2), b=(130, 2, 4, "g", 128))
    assert lines[2]["gpu_free"] == 1
    assert hit(lines, "b") == [64]


def test_host_blocks_of_the_tail_are_reused_first():
    # Host: 5 blocks. a leaves its unfinished page at the front, then 2 unused, then pages 1, 0.
    # c takes 4: page 0 stays.
    engine = {"num_gpu_blocks": 500, "num_host_blocks": 6, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), c=(256, 1, 2), b=(130, 2, 4, "g", 128))
    assert lines[2]["host_free"] == 1
    assert hit(lines, "b") == [64]


def test_the_last_token_is_always_computed_again():
    engine = {"num_gpu_blocks": 500}
    lines = hisparse(engine, a=(128, 2, 0, "g", 128), b=(128, 2, 3, "g", 128), c=(129, 2, 3, "g", 128))
    assert hit(lines, "b") == [64]
    assert hit(lines, "c") == [128]


def test_a_hit_needs_prefix_caching():
    engine = {"num_gpu_blocks": 500, "enable_prefix_caching": False}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), b=(130, 2, 3, "g", 128))
    assert hit(lines, "b") == [0]


def test_indexer_blocks_offloaded_to_the_host_make_up_for_those_that_are_gone():
    # As above, where b's hit was cut to one page by the indexer; with an offload both pages count.
    requests = {"a": (130, 2, 0, "g", 128), "c": (256, 1, 2), "b": (130, 2, 4, "g", 128)}
    engine = {"num_gpu_blocks": 14, "max_num_batched_tokens": 512}
    for chunks, hit_tokens in ((10, 128), (4, 64)):  # 4 chunks: c's blocks have evicted a's
        replayed = replay("hisparse", engine, **requests)
        replayed.memory.index_offload = IndexOffload(chunks, 64)
        lines = {line["step"]: line for line in replayed.lines()}
        assert hit(lines, "b") == [hit_tokens]
        assert replayed.memory.index_offload.restored_blocks == hit_tokens // 64 - 1
        assert replayed.memory.gpu.free == 13


# -- copies on the GPU ---------------------------------------------------------------------------


def test_copies_are_adopted_after_all_allocations_of_the_step():
    # a: 3 pages, over in step 1. 22 blocks free, in this order: 3 of its unfinished page, 13 never
    # used, the copies of pages 1, 0 in group 0, of pages 1, 0 in group 1, its indexer blocks 1, 0.
    # Step 2: b (hit 128) needs 1 + 2 + 2 + 2 = 7; c 4 pages = 12: 22 - 19 = 3 are left. They were
    # taken before b's copies were looked at, and 5 + 12 = 17 blocks are one more than the 16 before the
    # copies: page 1's copy is gone. Page 0's is adopted, and, as b is hot and holds 3 pages, given up
    # again at once: 3 - 2 + 2.
    # Had b adopted both at its admission, 22 - 7 - 4 = 11 would not have done for c.
    engine = {"num_gpu_blocks": 23, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), b=(130, 3, 2, "g", 128), c=(256, 1, 2))
    assert lines[1]["gpu_free_end"] == 22
    assert lines[2]["new"] == ["b", "c"]
    assert lines[2]["adopted"] == 1
    assert lines[2]["gpu_free"] == 3
    assert lines[2]["reqs"]["b"][:3] == [2, 1, 1]


@pytest.mark.parametrize(("blocks", "adopted"), [(23, 1), (22, 0)])
def test_a_request_leaves_its_copies_group_by_group_and_the_last_page_first(blocks, adopted):
    # As above, but d shares page 0 alone: 2 + 2 + 2 = 6 blocks, 5 taken, and c takes 12.
    # With 22 blocks 17 reach one block into the copies, which is page 1's of group 0. With 21 they reach
    # page 0's of group 0 too.
    engine = {"num_gpu_blocks": blocks, "max_num_batched_tokens": 512}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), d=(100, 3, 2, "g", 64), c=(256, 1, 2))
    assert lines[2]["new"] == ["d", "c"]
    assert hit(lines, "d") == [64]
    assert lines[2]["adopted"] == adopted


def test_the_highest_page_is_given_up_first_and_so_lost_first():
    # Step 0: a's pages 0, 1: 21 - 6 = 15. Step 1: pages 2, 3 and the hot region: 7; pages 1 and 0 are
    # given up, in this order: 11 free, 7 of them in front of page 1.
    # Step 2: a's page 4 takes 3, b (hit 64) 1 + 2 + 2 = 5: one more than the 7. Page 1 is lost;
    # page 0 is still there for b to adopt. a gives up page 2: 11 - 8 + 2 - 2.
    engine = {"num_gpu_blocks": 22, "max_num_batched_tokens": 128}
    lines = hisparse(engine, a=(256, 5, 0, "g", 256), b=(100, 3, 2, "g", 64))
    assert (lines[1]["gpu_free"], lines[1]["reqs"]["a"][1]) == (11, 2)
    assert hit(lines, "b") == [64]
    assert (lines[2]["lost"], lines[2]["adopted"], lines[2]["gpu_free"]) == (1, 1, 3)
    assert lines[2]["reqs"]["a"][:3] == [4, 2, 1]


def test_unfinished_and_hot_blocks_are_handed_out_before_any_copy():
    # a's 3 pages and b's cost 9 each. Once a is over, b, c, d, e run one after the other on the blocks
    # of a's unfinished page and others that nobody can find; f still finds all of a.
    engine = {"num_gpu_blocks": 20, "max_num_batched_tokens": 512}
    small = {name: (40, 1, 2 + 2 * i) for i, name in enumerate("bcdefhij")}
    lines = hisparse(engine, a=(130, 2, 0, "g", 128), **small, z=(130, 2, 20, "g", 128))
    assert hit(lines, "z") == [128]
    assert total(lines, "adopted") == 2


# -- write-backs and publication -----------------------------------------------------------------


def test_a_page_is_written_back_once_it_is_full_and_reported_after_the_delay():
    for delay in (0, 1, 2):
        engine = {"num_gpu_blocks": 100, "delay": delay}
        lines = hisparse(engine, a=(126, 6))
        # Step 0 fills page 0, step 2 computes token 128 and fills page 1.
        assert [line["planned"] for line in lines.values()][:4] == [1, 0, 1, 0]
        done = [s for s, line in lines.items() if line["completed"]]
        assert done == [delay, 2 + delay]


def test_pages_in_flight_at_the_end_of_a_request_are_published_when_they_arrive():
    # Delay 1: a is over in step 0 with its 2 pages in flight; they are reported in step 1.
    lines = hisparse({"num_gpu_blocks": 100, "delay": 1}, a=(130, 1, 0, "g", 128), b=(130, 1, 2, "g", 128))
    assert (lines[0]["finished"], lines[0]["completed"], lines[1]["completed"]) == (["a"], 0, 2)
    assert lines[1]["host_free_end"] == 999
    assert hit(lines, "b") == [128]


def test_pages_in_flight_at_a_preemption_are_not_published():
    # Delay 1. Step 0: pages 0, 1: 13 - 6 = 7. Step 1: pages 2, 3 and the hot region: 8 > 7. What is in
    # flight belongs to a request that cannot read from the host: nothing to wait for; a goes.
    # In step 2 it starts again, with nothing found.
    engine = {"num_gpu_blocks": 14, "max_num_batched_tokens": 128, "delay": 1}
    lines = dict(zip(range(3), replay("hisparse", engine, a=(256, 1)).lines(), strict=False))
    assert lines[1]["preempted"] == ["a"]
    assert lines[1]["completed"] == 2
    assert lines[2]["resumed"] == ["a"]
    assert hit(lines, "a") == [0, 0]


def test_a_request_that_preempts_itself_for_ever_can_be_given_up():
    # The same: by the start-up check (4 indexer blocks, 2 groups * 2 pages, 2 hot: 10 of 13) the longest
    # request of 256 tokens fits, but alone it starts again every second step. vLLM would go on.
    engine = {"num_gpu_blocks": 14, "max_model_len": 256, "max_num_batched_tokens": 128, "delay": 1}
    endless = replay("hisparse", engine, a=(255, 1), b=(10, 1, 3))
    lines = list(zip(range(200), endless.lines(), strict=False))
    assert sum(len(line["preempted"]) for _, line in lines) == 100
    assert not any(line["finished"] for _, line in lines)

    ended = replay("hisparse", engine, a=(255, 1), b=(10, 1, 3))
    ended.scheduler.config = replace(ended.scheduler.config, give_up_after=5)
    lines = list(ended.lines())
    # Steps 1, 3, 5, 7, 9: no further than in step 0. Then b, behind it in the queue, has its turn.
    assert [line["step"] for line in lines if line["preempted"]] == [1, 3, 5, 7, 9]
    assert [line["step"] for line in lines if line["finished"]] == [10]
    assert ended.memory.gpu.free == 13


def test_a_long_prefill_publishes_page_by_page():
    # Delay 1. Steps 0, 1: a takes 256 tokens each. After step 1 pages 0 to 3 are on the host while pages
    # 4 to 7 are under way; b finds the four.
    engine = {"num_gpu_blocks": 1000, "max_num_batched_tokens": 256, "delay": 1}
    engine["long_prefill_token_threshold"] = 128
    lines = hisparse(engine, a=(1024, 1, 0, "g", 1024), b=(300, 1, 2, "g", 256))
    assert [lines[s]["scheduled"].get("a") for s in range(3)] == [256, 256, 128]
    assert lines[1]["reqs"]["a"][5:] == [4, 4]
    assert lines[2]["hits"] == {"b": 256}


def test_at_most_one_longest_request_of_pages_is_written_back_in_a_step():
    # max_model_len 256 = 4 pages a step; a and b fill 3 each.
    engine = {"num_gpu_blocks": 100, "max_model_len": 256}
    lines = hisparse(engine, a=(192, 5), b=(192, 5))
    assert [lines[s]["planned"] for s in range(2)] == [4, 2]
    assert [lines[0]["reqs"][r][5] for r in "ab"] == [3, 1]


# -- shortage ------------------------------------------------------------------------------------


def test_a_failing_request_waits_for_pages_on_their_way_instead_of_preempting():
    # Delay 1, 17 blocks. Step 0: 17 - 6 = 11. Step 1: pages and hot region: 3, pages 0, 1 arrive and are
    # given up: 7. Step 2: 1, pages 2, 3: 5. Step 3: 6 > 5, but pages 4, 5 are on their way and a can read
    # from the host: it waits. They are its last two, so nothing comes back; in step 4 it goes.
    engine = {"num_gpu_blocks": 18, "max_num_batched_tokens": 128, "delay": 1}
    lines = dict(zip(range(5), replay("hisparse", engine, a=(512, 1)).lines(), strict=False))
    assert [lines[s]["gpu_free_end"] for s in range(4)] == [11, 7, 5, 5]
    assert [lines[s]["scheduled"].get("a") for s in range(5)] == [128, 128, 128, None, None]
    assert [lines[s]["preempted"] for s in (3, 4)] == [[], ["a"]]


def test_pages_of_a_request_that_is_gone_are_waited_for_too():
    # Delay 9, 10 blocks. Step 4: a, b, c hold 3 each; 1 free < 2: all must become hot.
    # Step 5: a's token 65 and hot region: 5. c goes, but the two resident blocks of its page, in flight
    # since step 4, are not free yet: 1 + 1. a waits for them rather than preempt b.
    # They come with step 13: 4. In step 14 there is nothing more to wait for: b goes, too.
    engine = {"num_gpu_blocks": 11, "delay": 9}
    lines = hisparse(engine, a=(60, 20), b=(20, 20), c=(64, 20, 4))
    assert (lines[5]["scheduled"], lines[5]["preempted"], lines[5]["gpu_free"]) == ({}, ["c"], 2)
    assert all(lines[s]["scheduled"] == {} and lines[s]["preempted"] == [] for s in range(6, 14))
    assert lines[13]["gpu_free_end"] == 4
    assert (lines[14]["scheduled"], lines[14]["preempted"]) == ({"a": 1}, ["b"])


def test_without_a_host_block_a_request_preempts_though_the_gpu_is_empty():
    # Host: 3 blocks. a and b hold one each; a's token 65 (step 5) takes the last, b's finds none.
    engine = {"num_gpu_blocks": 500, "num_host_blocks": 4}
    lines = hisparse(engine, a=(60, 30), b=(60, 30))
    assert lines[4]["host_free"] == 1
    assert lines[5]["scheduled"] == {"a": 1}
    assert lines[5]["preempted"] == ["b"]
    assert lines[5]["host_free"] == 1
    assert lines[5]["gpu_free"] > 480
    # b comes back when a is over (29 steps after its first) and finds its own full page.
    assert when(lines, "finished", "a") == [29]
    assert when(lines, "resumed", "b") == [30]
    assert hit(lines, "b") == [0, 64]

"""The scheduler's own rules, one by one: queues, budget, preemption; a page costs one block here."""

from __future__ import annotations

import pytest
from small_engines import hit, replay, run, when

from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.queue import FcfsQueue, PriorityQueue
from hisparse_sim.scheduler.request import Request, Status
from hisparse_sim.scheduler.step import Scheduler


def vanilla(engine, **requests):
    return run("vanilla", engine, **requests)


# -- the tokens of a step ------------------------------------------------------------------------


def test_running_requests_come_first_and_share_one_budget():
    lines = vanilla({"num_gpu_blocks": 50, "max_num_batched_tokens": 100}, a=(150, 9), b=(120, 9))
    assert lines[0]["scheduled"] == {"a": 100}
    assert lines[1]["scheduled"] == {"a": 50, "b": 50}
    assert lines[2]["scheduled"] == {"a": 1, "b": 70}
    assert lines[3]["scheduled"] == {"a": 1, "b": 1}


def test_the_threshold_cuts_long_prefills_unless_a_request_is_alone():
    engine = {"num_gpu_blocks": 50, "max_num_batched_tokens": 256, "long_prefill_token_threshold": 64}
    assert vanilla(engine, a=(200, 1))[0]["scheduled"] == {"a": 200}
    lines = vanilla(engine, a=(200, 1), b=(200, 1))
    assert lines[0]["scheduled"] == lines[1]["scheduled"] == {"a": 64, "b": 64}
    # Waiting ones count: c waits in vain for a place, and a is cut all the same.
    lines = vanilla({**engine, "max_num_seqs": 1}, a=(200, 1), c=(200, 1))
    assert lines[0]["scheduled"] == {"a": 64}


def test_without_chunking_a_prompt_waits_for_a_step_that_takes_it_whole():
    engine = {"num_gpu_blocks": 50, "max_num_batched_tokens": 100, "enable_chunked_prefill": False}
    lines = vanilla(engine, a=(60, 3), b=(99, 1), c=(20, 1))
    # b does not fit beside a's 60, and c waits behind b; later 1 + 99 are just right.
    assert lines[0]["scheduled"] == {"a": 60}
    assert lines[1]["scheduled"] == {"a": 1, "b": 99}
    assert lines[2]["scheduled"] == {"a": 1, "c": 20}


def test_places_are_limited():
    lines = vanilla({"num_gpu_blocks": 50, "max_num_seqs": 2}, a=(10, 3), b=(10, 5), c=(10, 1))
    assert when(lines, "new", "c") == [3]
    assert max(line["running"] for line in lines.values()) == 2


def test_a_request_ends_at_the_longest_context_whatever_it_asked_for():
    lines = vanilla({"num_gpu_blocks": 50, "max_model_len": 104}, a=(100, 500))
    assert when(lines, "finished", "a") == [3]
    assert [sum(line["scheduled"].values()) for line in lines.values()] == [100, 1, 1, 1, 0]


# -- admission -----------------------------------------------------------------------------------


def test_the_whole_prompt_must_fit_and_nobody_overtakes_the_head_of_the_queue():
    # 5 blocks. a holds 2; b needs 4 in all, though its first chunk of 118 tokens needs 2; c needs 1.
    engine = {"num_gpu_blocks": 6, "max_num_batched_tokens": 128}
    lines = vanilla(engine, a=(110, 5), b=(256, 1), c=(10, 1))
    assert when(lines, "finished", "a") == [4]
    assert when(lines, "new", "b") == [5]
    assert when(lines, "new", "c") == [7]  # b takes 128 tokens in both its steps


def test_cached_blocks_of_a_hit_count_as_needed_while_they_lie_in_the_free_list():
    # 5 blocks. a leaves 2 hashed ones behind 3 others; c takes those 3.
    # b hits both: 1 new + 2 that leave the free list = 3 > 2.
    engine = {"num_gpu_blocks": 6}
    lines = vanilla(engine, a=(130, 2, 0, "g", 128), c=(180, 5, 2), b=(130, 2, 3, "g", 128))
    assert lines[2]["gpu_free"] == 2
    assert when(lines, "new", "b") == [7]
    assert hit(lines, "b") == [128]


def test_cached_blocks_that_somebody_holds_cost_nothing():
    # a is still running: its 2 hashed blocks are shared, 2 of 5 blocks are free and b needs 1.
    lines = vanilla({"num_gpu_blocks": 6}, a=(130, 9, 0, "g", 128), b=(130, 2, 3, "g", 128))
    assert when(lines, "new", "b") == [3]
    assert lines[3]["gpu_free"] == 1


def test_the_watermark_is_kept_free_while_others_run():
    # Watermark 0.3 * 10 = 3 blocks of 9. a needs 8 and is alone; then b needs 1 + 3.
    engine = {"num_gpu_blocks": 10, "watermark": 0.3}
    lines = vanilla(engine, a=(512, 3), b=(10, 1))
    assert when(lines, "new", "a") == [0]
    assert when(lines, "new", "b") == [3]
    lines = vanilla(engine, a=(5 * 64, 3), b=(10, 1))
    assert when(lines, "new", "b") == [0]


def test_blocks_nobody_can_find_are_handed_out_first():
    # 4 blocks: a takes 3 and leaves its unfinished one in front, then the unused one, then its full ones,
    # the last page first. c, d, e and f take turns on the front block.
    engine = {"num_gpu_blocks": 5}
    small = {name: (10, 1, 2 + 2 * i) for i, name in enumerate("cdef")}
    lines = vanilla(engine, a=(130, 2, 0, "g", 128), **small, b=(130, 1, 12, "g", 128))
    assert hit(lines, "b") == [128]


def test_the_tail_of_a_sequence_is_reused_before_its_head():
    # As above, but c takes 3 blocks at once: the front one, the unused one and a's page 1.
    lines = vanilla({"num_gpu_blocks": 5}, a=(130, 2, 0, "g", 128), c=(180, 1, 2), b=(130, 1, 4, "g", 128))
    assert hit(lines, "b") == [64]


def test_the_last_token_is_always_computed_again():
    lines = vanilla({"num_gpu_blocks": 20}, a=(128, 1, 0, "g", 128), b=(128, 1, 2, "g", 128))
    assert hit(lines, "b") == [64]


def test_a_resumed_request_finds_its_own_blocks_sampled_tokens_included():
    # 4 blocks. Step 5: b's token 65, 2 + 2. Step 9: a's token 129 finds none: b goes, 69 tokens long. Its
    # full block holds 60 tokens of its prompt and 4 that it sampled. It is back when a is over.
    lines = vanilla({"num_gpu_blocks": 5}, a=(120, 60), b=(60, 120))
    assert when(lines, "preempted", "b") == [9]
    assert when(lines, "finished", "a") == [59]
    assert when(lines, "resumed", "b") == [60]
    assert hit(lines, "b") == [0, 64]
    assert lines[60]["scheduled"] == {"b": 69 - 64}


# -- preemption ----------------------------------------------------------------------------------


def test_the_request_admitted_last_goes_first_whatever_it_has_done():
    # 3 blocks, one each. In step 4 a's token 65 needs one: c goes though it is larger than b.
    lines = vanilla({"num_gpu_blocks": 4}, a=(61, 9), b=(10, 30), c=(20, 30))
    assert lines[4]["preempted"] == ["c"]
    assert lines[4]["scheduled"] == {"a": 1, "b": 1}
    assert lines[4]["gpu_free"] == 0


def test_a_request_may_have_to_preempt_itself():
    lines = vanilla({"num_gpu_blocks": 3}, a=(20, 60), b=(60, 20))
    # Step 5: b's token 65 finds nothing, and b itself is the last.
    assert lines[5]["preempted"] == ["b"]
    assert lines[5]["scheduled"] == {"a": 1}


def test_nobody_is_admitted_in_a_step_that_preempted():
    # Priorities. a and b hold 2 + 2 of 4; in step 9 a needs its third block: b goes, 1 is left over.
    # c arrives in this step, stands before b and needs just 1, but must wait for the next step.
    engine = {"num_gpu_blocks": 5, "policy": "priority"}
    lines = vanilla(engine, a=(120, 40, 0, None, 0, 0), b=(120, 40, 0, None, 0, 2), c=(10, 3, 9, None, 0, 1))
    assert lines[9]["preempted"] == ["b"]
    assert lines[9]["gpu_free"] == 1
    assert when(lines, "new", "c") == [10]


def test_under_priorities_a_request_that_preempts_itself_does_not_end_the_step():
    # 3 blocks: a 1, b 2. In step 6 a's token 65 finds none; a is the least urgent and goes. b runs on.
    engine = {"num_gpu_blocks": 4, "policy": "priority"}
    lines = vanilla(engine, a=(59, 9, 0, None, 0, 5), b=(100, 9, 1, None, 0, 0))
    assert list(lines[1]["scheduled"]) == ["a", "b"]
    assert lines[6]["preempted"] == ["a"]
    assert lines[6]["scheduled"] == {"b": 1}


def test_under_priorities_a_victim_that_was_scheduled_gives_its_tokens_back():
    # 5 blocks, 40 tokens a step: a 1 block, b 1, c 152 tokens = 3 after step 6. In step 7 a (least urgent,
    # admitted first) has its token before b's token 65 finds no block. a goes; b has 1 of the 40 tokens,
    # c 39.
    engine = {"num_gpu_blocks": 6, "policy": "priority", "max_num_batched_tokens": 40}
    lines = vanilla(engine, a=(20, 90, 0, None, 0, 9), b=(60, 20, 1, None, 0, 0), c=(192, 9, 3, None, 0, 1))
    assert lines[6]["scheduled"] == {"a": 1, "b": 1, "c": 38}
    assert lines[7]["preempted"] == ["a"]
    assert lines[7]["scheduled"] == {"b": 1, "c": 39}


def test_of_two_requests_preempted_in_one_step_the_last_ends_up_first():
    # 4 blocks, one each. In step 4 the 65th tokens of a and b need one each: d goes, then c.
    lines = vanilla({"num_gpu_blocks": 5}, a=(61, 20), b=(61, 20), c=(10, 20), d=(10, 20))
    assert lines[4]["preempted"] == ["d", "c"]
    assert lines[4]["scheduled"] == {"a": 1, "b": 1}
    (back,) = when(lines, "resumed", "c")
    assert lines[back]["resumed"] == ["c", "d"]


def test_a_step_follows_the_last_finish_and_idle_steps_are_skipped():
    lines = vanilla({"num_gpu_blocks": 9}, a=(10, 1, 3), b=(10, 1, 40))
    assert list(lines) == [3, 4, 40, 41]
    assert lines[4]["scheduled"] == {}


# -- queues --------------------------------------------------------------------------------------


def request(name: str, *, arrival: float = 0.0, priority: int = 0) -> Request:
    return Request(name, 10, 5, ContentIndex(64).fresh(1), arrival=arrival, priority=priority)


def test_the_first_come_queue_takes_preempted_requests_at_the_front():
    queue = FcfsQueue()
    a, b, c, d = (request(n) for n in "abcd")
    queue.add(a)
    queue.add(b)
    queue.put_back(c)
    queue.put_back(d)
    assert [r.id for r in queue] == ["d", "c", "a", "b"]
    queue.remove(a)
    queue.remove(d)
    assert [r.id for r in queue] == ["c", "b"]
    assert len(queue) == 2


def test_the_priority_queue_orders_by_priority_then_arrival_whoever_comes_back():
    queue = PriorityQueue()
    late, early, urgent = (
        request("late", arrival=2),
        request("early", arrival=1),
        request("urgent", priority=-1),
    )
    for r in (late, urgent):
        queue.add(r)
    queue.put_back(early)
    assert [r.id for r in queue] == ["urgent", "early", "late"]
    queue.remove(early)
    assert len(queue) == 2


# -- why the queue waits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "engine", "requests", "step", "short_of"),
    [
        ("vanilla", {"num_gpu_blocks": 4}, {"a": (120, 9), "b": (120, 9)}, 1, "GPU blocks"),
        ("vanilla", {"num_gpu_blocks": 9, "max_num_seqs": 1}, {"a": (9, 9), "b": (9, 9)}, 1, "max_num_seqs"),
        (
            "vanilla",
            {"num_gpu_blocks": 9, "max_num_batched_tokens": 64},
            {"a": (64, 9), "b": (64, 9)},
            0,
            "max_num_batched_tokens",
        ),
        (
            "vanilla",
            {"num_gpu_blocks": 9, "max_num_batched_tokens": 64, "enable_chunked_prefill": False},
            {"a": (32, 9), "b": (64, 9)},
            0,
            "max_num_batched_tokens",
        ),
        ("vanilla", {"num_gpu_blocks": 4}, {"a": (61, 9), "b": (10, 9), "c": (10, 9)}, 4, "GPU blocks"),
        (
            "hisparse",
            {"num_gpu_blocks": 99, "num_host_blocks": 4},
            {"a": (120, 9), "b": (120, 9)},
            1,
            "host blocks",
        ),
        (
            "hisparse",
            {"num_gpu_blocks": 99, "num_host_blocks": 4},
            {"a": (60, 9), "b": (60, 9)},
            5,
            "host blocks",
        ),
        ("hisparse", {"num_gpu_blocks": 12}, {"a": (120, 9), "b": (120, 9)}, 1, "GPU blocks"),
    ],
)
def test_a_step_says_what_the_waiting_lack(mode, engine, requests, step, short_of):
    replayed = replay(mode, engine, **requests)
    lines = replayed.lines()
    seen = []
    schedule = replayed.scheduler.schedule

    def noted():
        seen.append(schedule())
        return seen[-1]

    replayed.scheduler.schedule = noted
    for _ in range(step + 1):
        next(lines)
    assert seen[step].short_of == short_of


# -- asynchronous scheduling ---------------------------------------------------------------------


def test_two_batches_are_under_way_and_tokens_come_back_one_step_late():
    # Step 0 samples token 65, but its result is taken note of in step 1, after step 1 was scheduled; in
    # step 3 the third and last token is already on the way, so nothing is scheduled while it comes back.
    lines = vanilla({"num_gpu_blocks": 9, "async_scheduling": True}, a=(64, 3))
    assert [line["scheduled"] for line in lines.values()] == [{"a": 64}, {"a": 1}, {"a": 1}, {}, {}, {}]
    assert when(lines, "finished", "a") == [3]
    assert lines[5]["drain"]


def test_a_preempted_requests_token_in_flight_still_counts_and_may_even_finish_it():
    # 2 blocks. In step 5 a's token 65 takes b's block; b's fifth token is on the way, and it asked for 5.
    engine = {"num_gpu_blocks": 3, "async_scheduling": True}
    lines = vanilla(engine, a=(60, 20), b=(60, 5))
    assert lines[5]["preempted"] == ["b"]
    assert lines[5]["finished"] == ["b"]
    assert (lines[5]["waiting"], lines[6]["waiting"]) == (1, 0)
    assert when(lines, "resumed", "b") == []


def scheduler(blocks: int) -> Scheduler:
    sizes = ResidentSizes(64, blocks, 4096)
    return Scheduler(SchedulerConfig(4096, 9, 2048, async_scheduling=True), ResidentMemory(sizes))


def test_a_preempted_request_waits_for_its_stale_results_and_others_may_pass():
    # 4 blocks: a and b hold 2 each. In the second batch a's token 129 takes one of b's; c needs 1.
    engine = scheduler(4)
    index = ContentIndex(64)
    a, b, c = (Request(n, p, 50, index.fresh(9)) for n, p in (("a", 128), ("b", 128), ("c", 10)))
    engine.add(a)
    engine.add(b)
    first = engine.schedule()
    second = engine.schedule()
    assert (second.preempted, b.status, b.stale, b.computed) == ([b], Status.PREEMPTED, 1, 0)
    engine.add(c)
    third = engine.schedule()  # the first batch has not come back yet
    assert [r for r, _ in third.lookups] == [c]
    assert third.admitted == [c]
    engine.update(first)
    assert (b.stale, b.num_tokens, b.placeholders) == (0, 129, 0)
    assert [r for r, _ in engine.schedule().lookups] == [b]


def test_a_page_filled_by_decoding_is_written_back_one_step_later_than_without():
    # Token 64 is computed in step 4; asynchronously the step does not know its 64th token yet.
    for asynchronous, step in ((False, 4), (True, 5)):
        engine = {"num_gpu_blocks": 99, "async_scheduling": asynchronous}
        lines = run("hisparse", engine, a=(60, 20))
        assert [s for s, line in lines.items() if line["planned"]] == [step]


def test_with_host_transfers_a_victim_must_have_come_back_first():
    # 8 blocks, 3 a page. In step 5 a's token 65 needs 3 blocks of 2; b is in flight, so the step ends
    # with nobody scheduled. In step 6 nothing of b is in flight: it goes.
    engine = {"num_gpu_blocks": 9, "async_scheduling": True}
    lines = run("hisparse", engine, a=(60, 20), b=(60, 20))
    assert (lines[5]["scheduled"], lines[5]["preempted"]) == ({}, [])
    assert (lines[6]["scheduled"], lines[6]["preempted"]) == ({"a": 1}, ["b"])

"""Native offloading's rules, one by one: what is stored, loaded, evicted, and who waits for it.

A page is one GPU block and one host chunk. With ``delay`` D a store is reported D + 1 steps after it
began, a load D steps after.
"""

from __future__ import annotations

import pytest
from small_engines import hit, run, when


def offload(engine, **requests):
    return run("cpu_offload", {"num_cpu_chunks": 100, **engine}, **requests)


def loaded(lines, request):
    """Blocks loaded for a request, by step."""
    return {step: line["loads"][request] for step, line in lines.items() if request in line.get("loads", ())}


def stored(lines, request):
    """Blocks stored for a request, by step."""
    return {s: line["stores"][request] for s, line in lines.items() if request in line.get("stores", ())}


# -- storing -------------------------------------------------------------------------------------


def test_full_blocks_of_the_prompt_are_stored_as_they_are_computed_and_nothing_else():
    # 200 tokens: 3 full blocks and 8 tokens; 100 sampled tokens fill blocks that are never stored.
    lines = offload({"num_gpu_blocks": 20, "max_num_batched_tokens": 128}, a=(200, 100))
    assert stored(lines, "a") == {0: 2, 1: 1}
    assert (lines[0]["cpu_free"], lines[1]["cpu_free"]) == (98, 97)


def test_a_store_is_reported_a_step_later_than_a_load_would_be():
    for delay in (0, 1, 2):
        lines = offload({"num_gpu_blocks": 20, "delay": delay}, a=(128, 9))
        assert [s for s, line in lines.items() if line["completed"]] == [delay + 1]


def test_chunks_that_exist_already_are_not_stored_again():
    lines = offload({"num_gpu_blocks": 20}, a=(200, 1, 0, "g", 128), b=(200, 1, 3, "g", 128))
    assert stored(lines, "a") == {0: 3}
    assert stored(lines, "b") == {3: 1}


def test_a_store_that_finds_no_room_is_tried_again_with_the_next_step():
    # 2 chunks, delay 1. a's store of 2 is under way until step 2, so b's of step 1 has nothing to evict; in
    # step 3 it has: both of a's go.
    lines = offload({"num_gpu_blocks": 20, "num_cpu_chunks": 2, "delay": 1}, a=(130, 1), b=(130, 9, 1))
    assert stored(lines, "a") == {0: 2}
    assert stored(lines, "b") == {3: 2}


def test_a_store_is_flushed_when_a_block_of_its_finished_request_is_handed_out_again():
    # 3 blocks, delay 2. a is over in step 0, its store of 2 due in step 3. In step 1 c takes 2 blocks: the
    # unused one and a's last: flushed, so it is reported in step 1.
    lines = offload({"num_gpu_blocks": 4, "delay": 2}, a=(128, 1), c=(100, 9, 1))
    assert lines[1]["flushed"] == 1
    assert next(s for s, line in lines.items() if line["completed"]) == 1
    # With one more block c does not touch a's: the store takes its time.
    lines = offload({"num_gpu_blocks": 5, "delay": 2}, a=(128, 1), c=(100, 9, 1))
    assert next(s for s, line in lines.items() if line["completed"]) == 3


def test_a_preemption_flushes_the_stores_of_its_victim():
    # 3 blocks, delay 9. b's store began in step 0; in step 4 a's token 65 takes b's place.
    lines = offload({"num_gpu_blocks": 4, "delay": 9}, a=(61, 9), b=(120, 9))
    assert lines[4]["preempted"] == ["b"]
    assert lines[4]["flushed"] == 1
    assert lines[4]["completed"] == 1


# -- eviction ------------------------------------------------------------------------------------


def overwritten(at, blocks=3):
    """Requests that leave nothing of others on a GPU of so many blocks, and store nothing."""
    return {f"x{i}": (50, 1, at) for i in range(blocks)}


def test_of_a_finished_request_the_tail_is_evicted_before_the_head():
    # 3 chunks: a's 2, then c's 2, for which one of a's must go: its page 1. b wants both.
    engine = {"num_gpu_blocks": 4, "num_cpu_chunks": 3}
    requests = {"a": (128, 1, 0, "g", 128), "c": (128, 1, 2), **overwritten(4), "b": (150, 1, 6, "g", 128)}
    lines = offload(engine, **requests)
    assert stored(lines, "c") == {2: 2}
    assert loaded(lines, "b") == {6: 1}
    assert hit(lines, "b") == [0]


def test_the_chunks_of_the_request_that_was_over_first_are_evicted_first():
    # 4 chunks: a's 2 and c's 2; then e needs 2.
    engine = {"num_gpu_blocks": 4, "num_cpu_chunks": 4}
    stores = {"a": (128, 1, 0, "g", 128), "c": (128, 1, 2, "h", 128), "e": (128, 1, 4), **overwritten(6)}
    assert loaded(offload(engine, **stores, b=(150, 1, 8, "g", 128)), "b") == {}
    assert loaded(offload(engine, **stores, b=(150, 1, 8, "h", 128)), "b") == {8: 2}


def test_using_chunks_makes_them_recent_when_the_request_is_over():
    # As before, but u loads a's chunks between c and e: now c's are the oldest.
    engine = {"num_gpu_blocks": 4, "num_cpu_chunks": 4}
    stores = {
        "a": (128, 1, 0, "g", 128),
        "c": (180, 1, 2, "h", 128),
        "u": (150, 1, 4, "g", 128),
        "e": (180, 1, 6),
        **overwritten(8),
    }
    lines = offload(engine, **stores, b=(150, 1, 10, "g", 128))
    assert loaded(lines, "u") == {4: 2}
    assert loaded(lines, "b") == {10: 2}
    assert loaded(offload(engine, **stores, b=(150, 1, 10, "h", 128)), "b") == {}


def test_chunks_of_running_requests_rank_by_who_came_first():
    # a and c run on. a came first, so e evicts a's chunk though c's was stored by then too; c's prompt is
    # longer, and of c's own the tail would go first.
    engine = {"num_gpu_blocks": 20, "num_cpu_chunks": 3}
    runs = {"a": (64, 30, 0, "g", 64), "c": (128, 30, 1, "h", 128), "e": (64, 1, 5)}
    lines = offload(engine, **runs, b=(64, 1, 8, "g", 64), f=(128, 1, 8, "h", 128))
    assert stored(lines, "e") == {5: 1}
    # b's block 0 is not to be had; f: block 0 from the GPU, block 1 from the host.
    assert loaded(lines, "b") == {}
    assert loaded(lines, "f") == {8: 1}


# -- loading -------------------------------------------------------------------------------------


def test_a_request_waits_for_chunks_that_are_still_being_stored_and_others_pass():
    # Delay 1. a's store is reported in step 2. b may reuse 1 block on the GPU (its last token is always
    # computed), and its second is on the way to the host: it is put aside in steps 1 and 2, c passes.
    # Step 3: the load begins, reported in step 4. Step 5: all of b is there; one token is computed.
    lines = offload(
        {"num_gpu_blocks": 20, "delay": 1}, a=(128, 1, 0, "g", 128), b=(128, 2, 1, "g", 128), c=(10, 1, 1)
    )
    assert when(lines, "new", "c") == [1]
    assert loaded(lines, "b") == {3: 1}
    assert hit(lines, "b") == [64]
    assert [lines[s]["running"] for s in (3, 4, 5)] == [0, 0, 1]
    assert [lines[s]["waiting"] for s in (3, 4, 5)] == [1, 1, 0]
    assert when(lines, "new", "b") == [5]
    assert lines[5]["scheduled"] == {"b": 1}


def test_a_load_takes_no_tokens_of_the_step_and_the_request_is_admitted_when_it_is_there():
    # 3 blocks, delay 0: a load of step s is reported in step s, so b runs in step 5.
    lines = offload({"num_gpu_blocks": 4}, a=(128, 1, 0, "g", 128), **overwritten(2), b=(150, 2, 4, "g", 128))
    assert lines[4]["scheduled"] == {}
    assert loaded(lines, "b") == {4: 2}
    assert (lines[4]["gpu_free"], lines[4]["running"]) == (1, 0)
    assert lines[5]["scheduled"] == {"b": 150 - 128}
    # Its blocks count as cached from now on.
    assert lines[5]["new"] == ["b"]


def test_a_chunk_that_is_being_loaded_is_not_loaded_twice_at_a_time():
    # Delay 2: b's load of step 6 is reported in step 8. c wants the same chunks and is put aside until
    # b runs in step 9; then the GPU has its first, and it loads the second.
    engine = {"num_gpu_blocks": 6, "delay": 2}
    lines = offload(
        engine,
        a=(128, 1, 0, "g", 128),
        **overwritten(4, 5),
        b=(130, 3, 6, "g", 128),
        c=(128, 1, 6, "g", 128),
    )
    assert loaded(lines, "b") == {6: 2}
    assert when(lines, "new", "b") == [9]
    assert loaded(lines, "c") == {9: 1}


def test_a_loading_request_keeps_its_place_before_the_queue():
    # 5 blocks, delay 2. b (4 blocks in all) loads 2 from step 6 on; d arrives in step 7, passes it and
    # takes 2. In step 9 the load is there, but b needs 2 more and 1 is free; e would need just that one,
    # but waits behind b until d is over.
    lines = offload(
        {"num_gpu_blocks": 6, "delay": 2},
        a=(128, 1, 0, "g", 128),
        **overwritten(4, 5),
        b=(200, 3, 6, "g", 128),
        d=(100, 5, 7),
        e=(10, 1, 9),
    )
    assert loaded(lines, "b") == {6: 2}
    assert when(lines, "new", "d") == [7]
    assert lines[9]["gpu_free"] == 1
    assert when(lines, "finished", "d") == [11]
    assert lines[12]["new"] == ["b", "e"]


@pytest.mark.parametrize(("blocks", "step"), [(5, 4), (4, 8)])
def test_a_load_leaves_room_for_what_running_prefills_still_need(blocks, step):
    # p: 250 tokens, 64 a step: 1 of its 4 blocks in step 4. b would load 1 block: 1 + 3 of the 5 - 1 that
    # are free. With 4 blocks it waits until p is over.
    engine = {"num_gpu_blocks": blocks + 1, "long_prefill_token_threshold": 64}
    lines = offload(
        engine, a=(64, 1, 0, "g", 64), **overwritten(2, blocks), p=(250, 1, 4), b=(70, 1, 4, "g", 64)
    )
    assert lines[4]["scheduled"] == {"p": 64}
    assert loaded(lines, "b") == {step: 1}


def test_a_resumed_request_reloads_its_prompt_and_computes_what_it_sampled_again():
    # 4 blocks. In step 9 a's token 129 takes one of b's two, in step 73 its token 193 the other.
    # b's first block is all prompt (64) or holds 4 sampled tokens (60), which were never stored.
    for prompt, loads, back, computes in ((64, {100: 1}, 101, 73 - 64), (60, {}, 100, 69)):
        lines = offload({"num_gpu_blocks": 5}, a=(120, 100), b=(prompt, 90))
        assert when(lines, "preempted", "b") == [9]
        assert when(lines, "finished", "a") == [99]
        assert loaded(lines, "b") == loads
        assert when(lines, "resumed", "b") == [back]
        assert lines[back]["scheduled"] == {"b": computes}

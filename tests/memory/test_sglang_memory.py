"""SGLang's memory under a scheduler: what it holds, admits and gives back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.memory.sglang import INIT_RATIO, SGLangMemory, SGLangSizes
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Scheduler

PAGE = 4


def memory(**fields: object) -> SGLangMemory:
    sizes = {"device_pages": 100, "host_pages": 500, "buffer_pages": 5, "max_model_len": 400, **fields}
    return SGLangMemory(SGLangSizes(page_size=PAGE, **sizes))  # type: ignore[arg-type]


def scheduler(held: SGLangMemory, **fields: object) -> Scheduler:
    config = {"max_num_seqs": 16, "max_num_batched_tokens": 32, "prefill_first": not held.sizes.imports}
    config |= {"max_model_len": held.sizes.max_model_len, "cohort": False, "retracts": True, **fields}
    return Scheduler(SchedulerConfig(**config), held)  # type: ignore[arg-type]


def request(name: str, prompt: int, output: int) -> Request:
    return Request(name, prompt, output, np.empty(0, dtype=np.int64))


def conserved(held: SGLangMemory) -> None:
    states = held.running.values()
    assert held.gpu.free + sum(s.device for s in states) == held.gpu.total
    assert held.host_pool.free + sum(s.pages for s in states) == held.host_pool.total
    assert held.gpu.free >= 0
    assert held.host_pool.free >= 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60)), min_size=1, max_size=12),
    st.integers(31, 60),
    st.integers(31, 200),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_pages_are_conserved_and_all_requests_end(
    sizes: list[tuple[int, int]], device: int, host: int, imports: bool, ahead: bool, mixed: bool
) -> None:
    longest = min(device, host) * PAGE
    held = memory(
        device_pages=device,
        host_pages=host,
        max_model_len=longest,
        imports=imports,
        reserved_decode_tokens=8,
    )
    engine = scheduler(held, async_scheduling=ahead, prefill_first=not imports and not mixed)
    sizes = [(p, min(o, longest - p)) for p, o in sizes if p < longest]
    for i, (prompt, output) in enumerate(sizes):
        engine.add(request(str(i), prompt, output))
    flying, finished = [], 0
    for _ in range(20_000):
        if not engine.has_work:
            break
        decision = engine.schedule()
        conserved(held)
        for r in held.running:
            state = held.running[r]
            assert state.pages == held.pages_for(min(r.computed, r.num_tokens + r.placeholders)) or imports
            assert state.hot_blocks <= held.sizes.buffer_pages
        flying.append(decision)
        if len(flying) > ahead or not decision:
            finished += len(engine.update(flying.pop(0)))
        conserved(held)
    assert finished == len(sizes)
    assert held.gpu.free == held.gpu.total
    assert held.host_pool.free == held.host_pool.total


def test_a_prompt_shrinks_to_its_hot_buffer_when_it_decodes() -> None:
    held = memory()
    engine = scheduler(held)
    asked = request("a", 60, 10)
    engine.add(asked)
    for expected in (8, 15):
        engine.update(engine.schedule())
        assert (held.gpu.total - held.gpu.free, asked.memory.host_only) == (expected, 0)
    engine.update(engine.schedule())
    assert held.gpu.total - held.gpu.free == 5
    assert held.host_pool.total - held.host_pool.free == 16
    assert asked.memory.host_only == 16


def test_a_context_that_fits_its_buffer_looks_nothing_up_until_it_outgrows_it() -> None:
    held = memory()
    engine = scheduler(held)
    asked = request("a", 14, 10)
    engine.add(asked)
    seen = []
    while engine.has_work:
        decision = engine.schedule()
        if asked.memory is not None:
            seen.append((asked.computed, asked.memory.device, bool(asked.memory.host_only)))
        engine.update(decision)
    assert seen[1] == (15, 5, False)  # the last page of the buffer comes with the one for the newest token
    assert (16, 5, False) in seen
    assert (17, 5, True) in seen


def test_a_step_that_prefills_decodes_nothing() -> None:
    held = memory()
    engine = scheduler(held)
    first, second = request("a", 20, 20), request("b", 60, 5)
    engine.add(first)
    engine.update(engine.schedule())
    engine.update(engine.schedule())
    engine.add(second)
    for _ in range(2):
        decision = engine.schedule()
        assert list(decision.scheduled) == [second]
        engine.update(decision)
    assert set(engine.schedule().scheduled) == {first, second}


def test_mixed_chunks_decode_beside_a_prefill() -> None:
    held = memory()
    engine = scheduler(held, prefill_first=False)
    first, second = request("a", 20, 20), request("b", 60, 5)
    engine.add(first)
    engine.update(engine.schedule())
    engine.add(second)
    assert set(engine.schedule().scheduled) == {first, second}


def test_admission_reserves_the_prompt_its_output_and_a_share_of_what_others_will_produce() -> None:
    # 32 pages = 128 tokens; the first holds 60 + 10 ahead of it, of which 0.7 is reserved.
    held = memory(device_pages=32)
    engine = scheduler(held, max_num_batched_tokens=64)
    engine.add(request("a", 60, 10))
    engine.update(engine.schedule())
    free = held.free_tokens - held.reserved_tokens()
    assert free == pytest.approx(128 - 60 - INIT_RATIO * 9)
    refused, admitted = request("b", 48, 10), request("c", 47, 10)
    assert held.shortage(refused) == "GPU blocks"  # 48 + 10 + a page is not below 61.7
    assert held.shortage(admitted) == ""


def test_a_prompt_longer_than_the_device_pool_waits_however_large_the_host() -> None:
    held = memory(device_pages=20)
    assert held.shortage(request("a", 100, 4)) == "GPU blocks"
    fed = memory(device_pages=20, imports=True)
    assert fed.shortage(request("a", 100, 4)) == ""


def test_a_decode_instance_takes_a_buffer_and_host_pages_for_a_prompt_and_computes_none_of_it() -> None:
    held = memory(imports=True)
    engine = scheduler(held)
    asked = request("a", 61, 10)
    engine.add(asked)
    decision = engine.schedule()
    assert decision.scheduled == {asked: 1}
    assert decision.hits[asked].imported
    assert (asked.memory.pages, asked.memory.device, asked.memory.origin) == (16, 5, 60)


def test_a_decode_instance_that_cannot_hold_a_prompt_on_the_host_lets_it_wait() -> None:
    # The failure of sglang issue 23704: here admission asks the host pool.
    held = memory(imports=True, host_pages=40, reserved_decode_tokens=0)
    engine = scheduler(held)
    for name in "abc":
        engine.add(request(name, 61, 3))
    decision = engine.schedule()
    assert len(decision.scheduled) == 2
    assert decision.short_of == "host blocks"


def test_who_has_decoded_least_is_retracted_and_waits_behind_the_others() -> None:
    held = memory(host_pages=17, device_pages=17, imports=True, reserved_decode_tokens=0, max_model_len=68)
    engine = scheduler(held)
    early, late, waits = request("early", 20, 30), request("late", 30, 30), request("waits", 60, 4)
    engine.add(early)
    for _ in range(3):
        engine.update(engine.schedule())
    engine.add(late)
    engine.update(engine.schedule())
    engine.add(waits)
    for _ in range(60):
        decision = engine.schedule()
        engine.update(decision)
        if decision.preempted:
            break
    assert decision.preempted == [late]
    assert early in decision.scheduled
    assert list(engine.waiting) == [waits, late]


def test_the_expected_output_sinks_while_decoding_and_rises_when_somebody_is_retracted() -> None:
    held = memory()
    engine = scheduler(held)
    first, second = request("a", 20, 100), request("b", 20, 100)
    engine.add(first)
    engine.add(second)
    for _ in range(30):
        engine.update(engine.schedule())
    assert 0.14 * INIT_RATIO < held.ratio < INIT_RATIO
    decoded = first.num_tokens - 20
    engine.running.remove(second)
    held.release(second, finished=False)
    assert held.ratio == pytest.approx((decoded + 20) / 101)

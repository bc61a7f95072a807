"""Blocks that nobody else can ask for are only counted; what others cached is evicted as before."""

from __future__ import annotations

import numpy as np
import pytest

from hisparse_sim.memory.base import NEVER
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.scheduler.request import Request

SIZE = 16


def served(memory: ResidentMemory, first_id: int, blocks: int, *, private: bool) -> Request:
    """A request of whole blocks that runs in one step and ends."""
    content = np.arange(first_id, first_id + blocks, dtype=np.int64)
    tokens = blocks * SIZE
    asked = Request("r", tokens, 1, content, private_from=0 if private else NEVER)
    memory.expect(asked)
    hit = memory.lookup(asked)
    assert hit is not None
    assert memory.admit(asked, hit, tokens - hit.tokens, others_running=False)
    memory.release(asked, finished=True)
    return asked


@pytest.mark.parametrize("private", [True, False], ids=["counted", "named"])
def test_cached_blocks_are_evicted_before_private_ones_that_ended_later(private: bool) -> None:
    memory = ResidentMemory(ResidentSizes(block_size=SIZE, gpu_blocks=20, max_model_len=4096))
    shared = served(memory, 0, 4, private=False)
    served(memory, 100, 8, private=private)
    # Free: 8 that nobody used, then the shared ones, then those of the other request.
    left = []
    for i in range(5):
        memory.gpu.take(1 if i else 8)
        left.append(len(memory.blocks.leading(shared.content)))
    assert left == [4, 3, 2, 1, 0]


def test_a_preempted_request_finds_its_private_blocks_again() -> None:
    memory = ResidentMemory(ResidentSizes(block_size=SIZE, gpu_blocks=20, max_model_len=4096))
    asked = Request("r", 4 * SIZE + 3, 1, np.arange(4, dtype=np.int64), private_from=0)
    memory.expect(asked)
    hit = memory.lookup(asked)
    assert hit is not None
    assert memory.admit(asked, hit, asked.num_tokens, others_running=False)
    assert (memory.unnamed, memory.gpu.free) == (5, 15)
    memory.release(asked, finished=False)
    asked.preemptions += 1
    assert (memory.unnamed, memory.gpu.free) == (0, 20)
    again = memory.lookup(asked)
    assert again is not None
    assert again.tokens == 4 * SIZE

"""Which chunks the host keeps: ranked by who used them first, and by place within one request."""

from __future__ import annotations

import numpy as np
import pytest

from hisparse_sim.memory.chunks import Access, ChunkStore
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.index_offload import IndexOffload
from hisparse_sim.scheduler.request import Request


class User:
    """A request that stores and uses chunks; its contents are consecutive numbers."""

    def __init__(self, store: ChunkStore, first: int, blocks: int) -> None:
        self.store = store
        self.content = np.arange(first, first + blocks)
        self.access = Access(blocks)

    def put(self, first: int = 0, end: int | None = None, *, ready: bool = True) -> list[int] | None:
        new = self.store.store(self.access, self.content[first:end], first, 64)
        if new is not None and ready:
            self.store.ready(new)
        return None if new is None else new.tolist()

    def finish(self) -> None:
        self.store.finish(self.access, self.content)


def held(store: ChunkStore, contents: int = 20) -> list[int]:
    return [c for c in range(contents) if store.run(np.array([c]))[0]]


def test_of_a_running_request_the_tail_goes_first():
    store = ChunkStore(4)
    User(store, 0, 4).put()
    User(store, 10, 2).put()
    assert held(store) == [0, 1, 10, 11]
    assert store.free == 0


def test_the_request_that_came_first_goes_first_however_late_it_stores():
    store = ChunkStore(4)
    old, young = User(store, 0, 3), User(store, 5, 2)
    old.put(0, 1)
    young.put()
    old.put(1, 2)
    User(store, 10, 2).put()
    assert held(store) == [5, 6, 10, 11]


def test_a_finished_requests_chunks_become_the_most_recent_its_head_last():
    store = ChunkStore(4)
    done, running = User(store, 0, 2), User(store, 5, 2)
    done.put()
    running.put()
    done.finish()
    User(store, 10, 2).put()
    assert held(store) == [0, 1, 10, 11]
    store = ChunkStore(2)
    done = User(store, 0, 2)
    done.put()
    done.finish()
    User(store, 10, 1).put()
    assert held(store) == [0, 10]


def test_using_a_chunk_raises_its_rank_but_never_lowers_it():
    store = ChunkStore(3)
    User(store, 0, 1).put()
    User(store, 5, 1).put()
    again = User(store, 0, 1)
    assert again.put() == []  # nothing to store, but used: ranks with the third request
    User(store, 7, 1).put()
    User(store, 10, 1).put()
    assert held(store) == [0, 7, 10]
    # The first request uses what the second has stored: as its own tail that would go before its head.
    store = ChunkStore(2)
    first = User(store, 0, 2)
    first.put(0, 1)
    User(store, 1, 1).put()
    assert first.put(1, 2) == []
    User(store, 10, 1).put()
    assert held(store) == [1, 10]


@pytest.mark.parametrize("held_by", ["a store", "a load"])
def test_chunks_that_move_are_not_evicted(held_by):
    store = ChunkStore(2)
    user = User(store, 0, 2)
    user.put(ready=held_by != "a store")
    if held_by == "a load":
        store.pin(user.content)
    assert store.run(user.content) == (2, False)
    assert User(store, 10, 1).put() is None
    if held_by == "a load":
        store.unpin(user.content)
    store.ready(user.content)
    assert store.run(user.content) == (2, True)
    assert User(store, 10, 1).put() == [10]


def test_nothing_of_what_is_offered_is_evicted_for_it():
    store = ChunkStore(2)
    User(store, 0, 2).put()
    assert User(store, 1, 2).put() == [2]
    assert held(store) == [1, 2]
    assert User(store, 1, 3).put() is None
    assert held(store) == [1, 2]


def test_a_run_ends_at_the_first_chunk_that_is_missing():
    store = ChunkStore(4)
    User(store, 0, 2).put()
    User(store, 3, 1).put()
    assert store.run(np.arange(5)) == (2, True)
    assert store.run(np.arange(2, 5)) == (0, True)
    assert store.run(np.arange(0)) == (0, True)


def test_an_indexer_block_that_was_evicted_is_offered_again_once_its_request_is_admitted_again():
    content = ContentIndex(64)
    offload = IndexOffload(2, 64)
    a, b = (Request(n, 130, 9, content.fresh(2)) for n in "ab")
    offload.offer(a, 128)
    offload.offer(b, 128)  # evicts both of a's
    assert (offload.run(a.content), offload.run(b.content), offload.stored_blocks) == (0, 2, 4)
    offload.offer(a, 128)
    assert offload.stored_blocks == 4
    offload.begin(a)
    offload.offer(a, 128)
    assert (offload.run(a.content), offload.stored_blocks) == (2, 6)
    offload.finish(a)
    offload.finish(b)
    offload.finish(b)  # nothing left to forget

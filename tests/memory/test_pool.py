"""The pools against the rules they stand for, written down naively: block by block, in lists."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisparse_sim.memory import pool as pool_module
from hisparse_sim.memory.copies import PageCopies, PagedState
from hisparse_sim.memory.pool import HashedBlocks, IdSource, Pool

CONTENTS = 8


class NaivePool:
    """vLLM's block pool: a list of free block ids, references, hashes, watchers, copies."""

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.caching = caching
        self.list = list(range(1, blocks + 1))
        self.ref = dict.fromkeys(self.list, 0)
        self.hash: dict[int, int] = {}
        self.by_hash: dict[int, list[int]] = {}
        self.readers: dict[int, list[tuple[int, int]]] = {}
        self.copies: dict[int, tuple[int, ...]] = {}
        self.lost: list[tuple[int, int]] = []
        self.pages: dict[tuple[int, int], tuple[int, ...]] = {}
        """Blocks of each (reader, page) that was unpinned."""

    def get(self, n: int) -> list[int]:
        got, self.list = self.list[:n], self.list[n:]
        for block in got:
            for content in [c for c, blocks in self.copies.items() if block in blocks]:
                del self.copies[content]
            for reader in self.readers.get(block, [])[:]:
                self.lost.append(reader)
                self.disown(reader)
        for block in got:
            if block in self.hash:
                content = self.hash.pop(block)
                self.by_hash[content].remove(block)
            self.ref[block] = 1
        return got

    def touch(self, block: int) -> None:
        if self.ref[block] == 0:
            self.list.remove(block)
        self.ref[block] += 1

    def free(self, blocks: list[int]) -> None:
        front, back = [], []
        for block in blocks:
            self.ref[block] -= 1
            if self.ref[block] == 0:
                (back if self.caching and block in self.hash else front).append(block)
        self.list = front + self.list + back

    def unpin(self, block: int) -> None:
        self.ref[block] -= 1
        if self.ref[block] == 0:
            self.list.append(block)

    def own(self, reader: tuple[int, int], blocks: tuple[int, ...]) -> None:
        self.pages[reader] = blocks
        for block in blocks:
            self.readers.setdefault(block, []).append(reader)

    def disown(self, reader: tuple[int, int]) -> None:
        for block in self.pages.pop(reader):
            self.readers[block].remove(reader)

    def lookup(self, content: int) -> int | None:
        blocks = self.by_hash.get(content)
        return blocks[0] if blocks else None

    def publish(self, block: int, content: int) -> None:
        self.hash[block] = content
        self.by_hash.setdefault(content, []).append(block)


class Page:
    """A page of a reader, on both sides."""

    def __init__(self, number: int, copy: int, blocks: tuple[int, ...], content: int) -> None:
        self.number, self.copy, self.blocks, self.content = number, copy, blocks, content
        self.recorded = self.given = self.moving = False


def ids(values) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


class Pair:
    """The same operations on the real pool and on the naive one."""

    def __init__(self, blocks: int, weight: int, *, caching: bool = True) -> None:
        self.weight = weight
        self.naive = NaivePool(blocks, caching=caching)
        self.pool = Pool(blocks)
        self.hashed = HashedBlocks(self.pool, caching=caching)
        self.copies = PageCopies(self.pool, weight)
        self.caching = caching
        self.anonymous: list[list[int]] = []
        self.held: list[tuple[int, int]] = []  # id here, block there; one entry a reference
        self.block_of: dict[int, int] = {}
        self.readers: dict[int, list[Page]] = {}
        self.states: dict[int, PagedState] = {}
        self.moves: list[Page] = []

    # each operation takes numbers and makes of them what the state allows

    def op_take(self, n: int, *_: int) -> None:
        n = min(n, self.pool.free)
        self.pool.take(n)
        self.anonymous.append(self.naive.get(n))

    def op_put(self, which: int, *_: int) -> None:
        if self.anonymous:
            blocks = self.anonymous.pop(which % len(self.anonymous))
            self.naive.free(blocks)
            self.pool.push_front(len(blocks))

    def op_new(self, n: int, *_: int) -> None:
        n = min(n, self.pool.free)
        self.pool.take(n)
        new = self.hashed.new(n).tolist()
        self.block_of.update(zip(new, self.naive.get(n), strict=True))
        self.held += [(i, self.block_of[i]) for i in new]

    def op_publish(self, first: int, n: int, content: int) -> None:
        plain = [i for i, b in dict.fromkeys(self.held) if b not in self.naive.hash][first:][:n]
        contents = [(content + k) % CONTENTS for k in range(len(plain))][:CONTENTS]
        plain = plain[: len(contents)]
        if self.caching:
            self.hashed.publish(ids(plain), ids(contents))
            for i, c in zip(plain, contents, strict=True):
                self.naive.publish(self.block_of[i], c)

    def op_release(self, first: int, n: int, _: int) -> None:
        out = list(dict.fromkeys(self.held[first:]))[:n][::-1]
        for pair in out:
            self.held.remove(pair)
        self.hashed.release(ids(i for i, _ in out))
        self.naive.free([b for _, b in out])

    def op_hit(self, content: int, n: int, _: int) -> None:
        contents = [(content + k) % CONTENTS for k in range(min(n, CONTENTS))]
        found = self.hashed.leading(ids(contents))
        expected = []
        for c in contents:
            block = self.naive.lookup(c)
            if block is None:
                break
            expected.append(block)
        assert [self.block_of[i] for i in found.tolist()] == expected
        idle = sum(self.naive.ref[b] == 0 for b in expected)
        if len(found):
            assert self.hashed.idle(found) == idle
        self.hashed.touch(found)
        for i, b in zip(found.tolist(), expected, strict=True):
            self.naive.touch(b)
            self.held.append((i, b))

    def _reader(self, which: int) -> tuple[int, list[Page]]:
        slots = sorted(self.readers)
        if not slots or which >= len(slots):
            state = PagedState(np.empty(0, dtype=np.int64))
            self.copies.enter(state)
            self.readers[state.slot] = []
            self.states[state.slot] = state
            return state.slot, self.readers[state.slot]
        return slots[which], self.readers[slots[which]]

    def _add(self, slot: int, copy: int, blocks: tuple[int, ...], content: int) -> Page:
        pages, state = self.readers[slot], self.states[slot]
        page = Page(len(pages), copy, blocks, content)
        pages.append(page)
        state.reach(len(pages))
        state.pages = len(pages)
        state.copy[page.number] = copy
        return page

    def op_pages(self, which: int, n: int, content: int) -> None:
        n = min(n, self.pool.free // self.weight)
        slot, _ = self._reader(which)
        self.pool.take(n * self.weight)
        groups = [self.naive.get(n) for _ in range(self.weight)]
        new = self.copies.new(n).tolist()
        for k, copy in enumerate(new):
            self._add(slot, copy, tuple(g[k] for g in groups), (content + k) % CONTENTS)

    def op_record(self, which: int, first: int, n: int) -> None:
        _, pages = self._reader(which)
        able = [p for p in pages[first:] if p.copy >= 0 and not p.moving][:n]
        able = list({p.content: p for p in able}.values())
        if able:
            self.copies.record(ids(p.copy for p in able), ids(p.content for p in able))
            for p in able:
                p.recorded = True
                self.naive.copies[p.content] = p.blocks

    def op_unpin(self, which: int, first: int, n: int) -> None:
        slot, pages = self._reader(which)
        able = [p for p in pages[first:] if p.copy >= 0 and not p.given and not p.moving][:n]
        if n % 2:
            able.reverse()
        if able:
            numbers = ids(p.number for p in able)
            self.copies.unpin(ids(p.copy for p in able), slot, numbers)
            self.states[slot].unpinned += len(able)
            for p in able:
                p.given = True
                self.naive.own((slot, p.number), p.blocks)
                for block in p.blocks:
                    self.naive.unpin(block)

    def op_adopt(self, which: int, content: int, n: int) -> None:
        contents = [(content + k) % CONTENTS for k in range(min(n, CONTENTS))]
        found = self.copies.adoptable(ids(contents))
        slot, pages = self._reader(which)
        mine = {p.copy for p in pages}
        for c, copy in zip(contents, found.tolist(), strict=True):
            assert (copy >= 0) == (c in self.naive.copies)
            if copy >= 0 and copy not in mine:
                self.copies.touch(ids([copy]))
                for block in self.naive.copies[c]:
                    self.naive.touch(block)
                self._add(slot, copy, self.naive.copies[c], c).recorded = True

    def op_move(self, which: int, first: int, n: int) -> None:
        """A transfer begins: it holds references of its own."""
        _, pages = self._reader(which)
        for p in pages[first:][:n]:
            if p.copy >= 0 and not (p.given or p.recorded or p.moving):
                p.moving = True
                self.copies.ref.a[p.copy] += 1
                for block in p.blocks:
                    self.naive.touch(block)
                self.moves.append(p)

    def op_moved(self, n: int, *_: int) -> None:
        done, self.moves = self.moves[:n], self.moves[n:]
        if done:
            self.copies.discard(ids(p.copy for p in done))
            for p in done:
                p.moving = False
                for block in p.blocks:
                    self.naive.free([block])

    def op_end(self, which: int, *_: int) -> None:
        if which >= len(self.readers):
            return
        slot, pages = self._reader(which)
        there = [p for p in pages if p.copy >= 0]
        clean = [p for p in there if not p.given and not p.moving and p.recorded][::-1]
        dirty = [p for p in there if not p.given and p not in clean][::-1]
        given = [p for p in there if p.given]
        self.copies.leave_behind(ids(p.copy for p in clean))
        for group in range(self.weight):
            for p in clean:
                self.naive.unpin(p.blocks[group])
        self.copies.disown(ids(p.copy for p in given), slot)
        for p in given:
            self.naive.disown((slot, p.number))
        self.copies.discard(ids(p.copy for p in dirty))
        for group in range(self.weight):
            self.naive.free([p.blocks[group] for p in dirty])
        self.copies.leave(self.states[slot])
        del self.readers[slot], self.states[slot]

    def check(self) -> None:
        naive = self.naive
        assert self.pool.free == len(naive.list)
        for c in range(CONTENTS):
            found = self.hashed.leading(ids([c])).tolist()
            block = naive.lookup(c)
            assert [self.block_of[i] for i in found] == ([] if block is None else [block])
        adoptable = self.copies.adoptable(ids(range(CONTENTS))) >= 0
        assert np.flatnonzero(adoptable).tolist() == sorted(naive.copies)
        for slot, number in naive.lost:
            self.readers[slot][number].copy = -1
        for slot, pages in self.readers.items():
            state = self.states[slot]
            assert state.copy[: len(pages)].tolist() == [p.copy for p in pages]
            lost = [number for s, number in naive.lost if s == slot]
            assert state.unpinned == sum(p.given and p.copy >= 0 for p in pages)
            assert state.hot_required == (state.lost > 0)
            assert state.lost == state.host_only
            assert state.lost >= len(lost)
        naive.lost = []

    def run(self, operations) -> None:
        for name, *numbers in operations:
            getattr(self, f"op_{name}")(*numbers)
            self.check()


OPERATIONS = {
    "take": 3, "put": 4, "new": 4, "publish": 5, "release": 4, "hit": 3, "pages": 4, "record": 4,
    "unpin": 4, "adopt": 3, "move": 1, "moved": 2, "end": 2,
}  # fmt: skip
"""How often each comes in a random sequence."""


def sequence(seed: int, length: int, without: tuple[str, ...] = ()) -> list[tuple]:
    random = Random(seed)
    names = [n for n, often in OPERATIONS.items() if n not in without for _ in range(often)]
    return [(random.choice(names), *(random.randrange(7) for _ in range(3))) for _ in range(length)]


@pytest.mark.parametrize("tidy_after", [2, 1_000_000])
@pytest.mark.parametrize("weight", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_any_operations_leave_both_pools_alike(monkeypatch, seed, weight, tidy_after):
    monkeypatch.setattr(pool_module, "_TIDY_AFTER", tidy_after)
    Pair(16 + seed, weight).run(sequence(seed, 250))


@given(
    st.sampled_from([10, 24]),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), *[st.integers(0, 6)] * 3), max_size=40),
)
def test_any_short_sequence_leaves_both_pools_alike(blocks, weight, operations):
    Pair(blocks, weight).run(operations)


@pytest.mark.parametrize("seed", range(10))
def test_without_prefix_caching_every_block_goes_back_to_the_front(seed):
    Pair(20, 2, caching=False).run(sequence(seed, 200, without=("record", "adopt")))


# Random sequences rarely get this far by themselves.
DEEP = {
    "a copy is handed out by halves": [
        ("pages", 0, 3, 0), ("record", 0, 0, 3), ("unpin", 0, 0, 4), ("take", 6, 0, 0), ("take", 6, 0, 0),
        ("take", 6, 0, 0), ("take", 1, 0, 0), ("take", 1, 0, 0), ("adopt", 1, 0, 3), ("take", 6, 0, 0),
    ],
    "copies left behind are adopted out of the middle, then the rest is handed out": [
        ("pages", 0, 4, 0), ("record", 0, 0, 4), ("end", 0, 0, 0), ("adopt", 0, 1, 2), ("take", 6, 0, 0),
        ("take", 6, 0, 0), ("take", 2, 0, 0), ("take", 1, 0, 0), ("take", 1, 0, 0), ("take", 6, 0, 0),
        ("end", 0, 0, 0), ("put", 0, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0),
    ],
    "two readers of one copy lose it together": [
        ("pages", 0, 2, 0), ("record", 0, 0, 2), ("unpin", 0, 0, 2), ("adopt", 1, 0, 2), ("unpin", 1, 0, 2),
        ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 1, 0, 0),
    ],
    "the first of two readers ends": [
        ("pages", 0, 2, 0), ("record", 0, 0, 2), ("unpin", 0, 0, 2), ("adopt", 1, 0, 2), ("unpin", 1, 0, 2),
        ("end", 0, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 1, 0, 0),
    ],
    "twins: the later block is found when the first is gone": [
        ("new", 4, 0, 0), ("publish", 0, 2, 3), ("publish", 0, 2, 3), ("release", 0, 1, 0), ("take", 6, 0, 0),
        ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 3, 0, 0), ("hit", 3, 2, 0), ("release", 0, 6, 0),
        ("take", 2, 0, 0), ("hit", 3, 2, 0),
    ],
    "a hit takes a block out of the middle of the list": [
        ("new", 6, 0, 0), ("publish", 0, 6, 0), ("release", 0, 6, 0), ("hit", 2, 2, 0), ("take", 6, 0, 0),
        ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 3, 0, 0), ("release", 0, 2, 0), ("take", 1, 0, 0),
        ("hit", 2, 2, 0),
    ],
    "a page in flight outlives its request": [
        ("pages", 0, 3, 0), ("move", 0, 0, 2), ("end", 0, 0, 0), ("take", 6, 0, 0), ("moved", 1, 0, 0),
        ("take", 3, 0, 0), ("moved", 1, 0, 0), ("take", 3, 0, 0),
    ],
    "a newer copy of a page replaces the older": [
        ("pages", 0, 2, 0), ("record", 0, 0, 2), ("pages", 1, 2, 0), ("record", 1, 0, 2), ("end", 0, 0, 0),
        ("adopt", 1, 0, 2), ("end", 0, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0), ("take", 6, 0, 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("tidy_after", [1, 1_000_000])
@pytest.mark.parametrize("weight", [1, 2, 3])
@pytest.mark.parametrize("name", DEEP)
def test_cases_that_random_sequences_rarely_reach(monkeypatch, name, weight, tidy_after):
    monkeypatch.setattr(pool_module, "_TIDY_AFTER", tidy_after)
    Pair(24, weight).run(DEEP[name])


def test_tidying_keeps_what_is_left_in_order(monkeypatch):
    monkeypatch.setattr(pool_module, "_TIDY_AFTER", 3)
    pool = Pool(20)
    blocks = HashedBlocks(pool, caching=True)
    pool.take(20)
    new = blocks.new(20)
    blocks.publish(new, np.arange(20))
    blocks.release(new)
    blocks.touch(new[[1, 2, 5, 7]])  # the fourth sets it off
    assert (pool.free, pool._absent) == (16, 0)
    left = [i for i in range(20) if i not in (1, 2, 5, 7)]
    for gone in range(16):
        pool.take(1)
        found = [c for c in range(20) if len(blocks.leading(np.array([c])))]
        assert sorted({*left[gone + 1 :], 1, 2, 5, 7}) == found
    assert pool.free == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
@example([(True, 5), (False, 0), (True, 2), (True, 5)])
def test_ids_are_never_held_twice(steps):
    source = IdSource()
    held: list[np.ndarray] = []
    for new, n in steps:
        if new:
            got = source.new(n)
            assert len(got) == n
            held.append(got)
        elif held:
            source.give_back(held.pop(n % len(held)))
        everything = np.concatenate([np.empty(0, dtype=np.int64), *held])
        assert len(set(everything.tolist())) == len(everything)
        assert all(i < source.bound for i in everything.tolist())

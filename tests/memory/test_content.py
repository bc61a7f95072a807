"""Two blocks have the same id exactly when they hold the same tokens from the start on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.memory.content import ContentIndex

STREAMS = st.sampled_from(["a", "b", ("c", 1)])
SEGMENTS = st.lists(st.tuples(STREAMS, st.integers(0, 40), st.integers(0, 90)), max_size=5)
REQUESTS = st.lists(st.tuples(SEGMENTS, st.integers(0, 300)), min_size=1, max_size=6)


def tokens_of(segments, total: int, request: int) -> list[object]:
    """The tokens, each as what it is; those that nobody described are the request's own."""
    known = [(stream, start + k) for stream, start, length in segments for k in range(length)]
    return (known + [(f"own {request}", k) for k in range(total)])[:total]


def check(ids_by_request: list[np.ndarray], tokens_by_request: list[list[object]], size: int) -> None:
    """Same id, same prefix, over all whole blocks."""
    prefix_of: dict[int, tuple[object, ...]] = {}
    id_of: dict[tuple[object, ...], int] = {}
    for ids, tokens in zip(ids_by_request, tokens_by_request, strict=True):
        assert len(ids) == len(tokens) // size
        for block, i in enumerate(ids.tolist()):
            prefix = tuple(tokens[: (block + 1) * size])
            assert prefix_of.setdefault(i, prefix) == prefix
            assert id_of.setdefault(prefix, i) == i


@pytest.mark.parametrize("size", [16, 64])
@given(requests=REQUESTS)
def test_ids_of_segments_agree_exactly_where_the_tokens_do(size, requests):
    index = ContentIndex(size)
    ids = [index.of_segments(tuple(segments), total) for segments, total in requests]
    tokens = [tokens_of(segments, total, k) for k, (segments, total) in enumerate(requests)]
    check(ids, tokens, size)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6), st.lists(st.integers(1, 60), min_size=1, max_size=6)
)
def test_how_a_stream_is_cut_into_segments_does_not_matter(one, two):
    index = ContentIndex(16)
    ids = []
    for lengths in (one, two):
        starts = np.cumsum([0, *lengths])
        segments = tuple(("s", int(a), n) for a, n in zip(starts, lengths, strict=False))
        ids.append(index.of_segments(segments, sum(lengths)))
    shared = min(len(ids[0]), len(ids[1]))
    assert ids[0][:shared].tolist() == ids[1][:shared].tolist()


def test_a_block_across_two_segments_is_shared_too():
    index = ContentIndex(64)
    first = index.of_segments((("system", 0, 100), ("chat", 100, 200)), 300)
    again = index.of_segments((("system", 0, 100), ("chat", 100, 150)), 250)
    other = index.of_segments((("system", 0, 100), ("talk", 100, 200)), 300)
    assert len(first) == 4
    assert again.tolist() == first[:3].tolist()
    assert other[0] == first[0]
    assert not set(other[1:].tolist()) & set(first.tolist())


def test_a_block_across_two_segments_differs_after_a_different_start():
    index = ContentIndex(64)
    tail = ("b", 0, 32), ("c", 0, 32)
    one, two = (index.of_segments((("a", start, 64), *tail), 128) for start in (0, 7))
    assert not set(one.tolist()) & set(two.tolist())


def test_a_tail_shorter_than_a_block_is_unique_to_the_request():
    index = ContentIndex(64)
    one, two = (index.of_segments((("p", 0, 100),), 200) for _ in range(2))
    assert one[0] == two[0]
    assert not set(one[1:].tolist()) & set(two[1:].tolist())


# -- content given as hashes ----------------------------------------------------------------------

FILES = st.sampled_from(["one.json", "two.json"])


def hashed(index: ContentIndex, known: dict, scope: str, tokens: list[object], per: int):
    """Ids per ``per`` tokens such that an id stands for its whole prefix, as trace files have them."""
    table = known.setdefault(scope, {})
    ids = [
        table.setdefault(tuple(tokens[: k + per]), len(table)) for k in range(0, len(tokens) - per + 1, per)
    ]
    return np.array(ids, dtype=np.int64)


@pytest.mark.parametrize(("size", "per"), [(16, 64), (16, 512), (64, 64), (64, 512), (64, 16)])
@given(
    requests=st.lists(
        st.tuples(FILES, st.lists(st.integers(0, 1), max_size=4), st.integers(0, 200)), max_size=6
    )
)
def test_ids_of_hashes_agree_exactly_where_the_tokens_do(size, per, requests):
    index = ContentIndex(size)
    known: dict = {}
    ids, tokens = [], []
    for k, (scope, pieces, rest) in enumerate(requests):
        said = [(scope, piece, t) for piece in pieces for t in range(per)]
        own = [("own", k, t) for t in range(rest)]
        given_ids = hashed(index, known, scope, said, per)
        total = len(said) + rest
        whole = len(said) // size * size  # a block that the hashes do not cover whole is the request's own
        own = [("own", k, t) for t in range(total - whole)]
        tokens.append(said[:whole] + own)
        ids.append(index.of_hashes(scope, given_ids, per, total))
    check(ids, tokens, size)


def test_hashes_longer_than_the_request_are_cut():
    index = ContentIndex(64)
    whole = index.of_hashes("f", np.array([5, 9]), 512, 1024)
    cut = index.of_hashes("f", np.array([5, 9]), 512, 700)
    assert cut.tolist() == whole[:10].tolist()


@pytest.mark.parametrize(("size", "per"), [(64, 48), (64, 100), (48, 64)])
def test_hash_blocks_that_do_not_fit_blocks_are_refused(size, per):
    with pytest.raises(ValueError, match=f"hashes of {per} tokens do not fit blocks of {size}"):
        ContentIndex(size).of_hashes("f", np.array([1, 2, 3]), per, 1000)

"""SGLang's HiSparse: how many requests of a length run at once, what limits them, and how fast they decode.

Counted at full length, prompt and output, as in ``concurrency``. What running requests may yet produce is
reserved when another is admitted and changes while they run; it is left out, so a count is what fits, not
what is always let in. Sources: ``memory/sglang_pools.py`` and ``memory/sglang.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.estimate.concurrency import Count, ModePools
from hisparse_sim.memory.budget import PoolSizes, size_pools
from hisparse_sim.memory.host import GIB, place
from hisparse_sim.memory.layout import ceil_div, kv_layout
from hisparse_sim.memory.sglang_pools import chunk_tokens, metadata_bytes, places, static_fraction
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec


@dataclass(frozen=True, slots=True)
class SGLangRow:
    """One context length. ``requests`` over all replicas; ``device`` and ``host`` of one, each pool alone.

    ``resident``: of one replica without HiSparse, with the same static memory. ``tpot_s`` none without a
    profile.
    """

    context_tokens: int
    requests: int
    per_dp: int
    limit: str
    device: int
    host: int | None
    resident: int
    tpot_s: float | None
    tokens_per_s: float | None
    miss_share: float | None


@dataclass(frozen=True, slots=True)
class SGLangAnswer:
    """The pools of one rank, and a row a length."""

    engine: EngineSpec
    model: ModelSpec
    node: NodeSpec
    pools: PoolSizes
    rows: tuple[SGLangRow, ...]

    def as_json(self) -> dict[str, Any]:
        """Tokens and bytes of one rank, then the rows."""
        engine, model, node, pools = self.engine, self.model, self.node, self.pools
        hisparse = pools.mode == "hisparse"
        layout = kv_layout(model, engine, node)
        return {
            "model": model.name,
            "node": node.name,
            "engine": engine.model_dump(mode="json"),
            "memory": {
                "mem_fraction_static": static_fraction(node, engine),
                "weights_gib": pools.weights_bytes / GIB,
                "kv_gib": pools.kv_bytes / GIB,
                "row_format": layout.row_format,
                "bytes_per_token": pools.block_bytes // pools.block_size,
                "max_total_num_tokens": pools.logged_tokens,
                "host_pool_tokens": (pools.num_host_blocks - 1) * pools.block_size if hisparse else 0,
                "host_pool_gib_per_rank": pools.host_pool_bytes / GIB,
                "host_pool_gib_per_node": (pools.host_pool_bytes * place(node, engine).ranks_per_node / GIB),
                "hot_buffer_tokens": pools.hot_blocks * pools.block_size,
                "max_running_requests": places(model, engine, pools),
                "request_tables_gib": metadata_bytes(model, engine, layout, pools) / GIB if hisparse else 0.0,
                "chunked_prefill_size": chunk_tokens(node, engine),
                "longest_request_tokens": pools.max_model_len,
            },
            "rows": [asdict(row) for row in self.rows],
        }


def sglang_answer(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    contexts: Sequence[int],
    *,
    output_tokens: int = 1024,
) -> SGLangAnswer:
    """Answer for each length in ``contexts``. Raises ``Infeasible`` for what SGLang would not start with."""
    for tokens in contexts:
        if tokens > model.max_context_tokens:
            raise InputError(
                f"{tokens:,} tokens, but {model.name} is made for at most {model.max_context_tokens:,}",
                where="--context",
            )
    pools = size_pools(model, node, engine)
    of_lengths = SGLangPools(model, node, engine, pools)
    resident = size_pools(model, node, engine.model_copy(update=_RESIDENT))
    decode = _Decode(model, node, engine)
    rows = []
    for tokens in contexts:
        found = of_lengths.count(tokens)
        per_dp = found.requests
        tpot_s, miss_share = decode.of(of_lengths, per_dp, tokens, output_tokens)
        rows.append(
            SGLangRow(
                tokens,
                per_dp * engine.dp,
                per_dp,
                _WORDS.get(found.limit, found.limit),
                found.gpu,
                found.host,
                (resident.num_gpu_blocks - 1) // ceil_div(tokens, pools.block_size),
                tpot_s,
                per_dp * engine.dp / tpot_s if tpot_s else None,
                miss_share,
            )
        )
    return SGLangAnswer(engine, model, node, pools, tuple(rows))


_RESIDENT = {"mode": "resident", "disaggregation_mode": "null"}
_WORDS = {"hbm": "device_pool", "max_num_seqs": "max_running_requests"}
"""SGLang's names of what limits."""


class SGLangPools(ModePools):
    """One replica's pools, asked for counts at many lengths.

    The device pool holds a hot buffer of each request; where prompts are prefilled in the same engine, one
    of them is there as a whole.
    """

    def __init__(self, model: ModelSpec, node: NodeSpec, engine: EngineSpec, sizes: PoolSizes) -> None:
        super().__init__(engine, kv_layout(model, engine, node), sizes)
        object.__setattr__(self, "_places", places(model, engine, sizes))

    def count(self, tokens: int) -> Count:
        """How many requests of ``tokens`` in all run at once on a replica."""
        sizes, engine = self.sizes, self.engine
        assert sizes is not None
        if tokens > sizes.max_model_len:
            return Count(0, "host_pool" if engine.disaggregation_mode == "decode" else "hbm")
        pages, device = ceil_div(tokens, sizes.block_size), sizes.num_gpu_blocks - 1
        host = None
        gpu = device // pages
        if engine.mode == "hisparse":
            each = self.blocks_per_request(tokens)
            newest = self.admission(tokens)
            gpu = 1 + (device - newest) // each if device >= newest else 0
            host = (sizes.num_host_blocks - 1) // pages
        held = gpu if host is None else min(gpu, host)
        most: int = self._places  # type: ignore[attr-defined]
        if most <= held:
            return Count(most, "max_num_seqs", gpu, host)
        return Count(held, "host_pool" if host is not None and host < gpu else "hbm", gpu, host)

    def blocks_per_request(self, tokens: int) -> int:
        """Device pages of one that decodes."""
        pages = ceil_div(tokens, self.layout.block_size)
        assert self.sizes is not None
        return min(pages, self.sizes.hot_blocks) if self.engine.mode == "hisparse" else pages

    def admission(self, tokens: int) -> int:
        """Device pages of one that has just been let in."""
        if self.engine.disaggregation_mode == "decode":
            return self.blocks_per_request(tokens)
        return ceil_div(tokens, self.layout.block_size)

    def resident_share(self, tokens: int, requests: int) -> float:
        """All rows, or none: a context is read through the hot buffer once it is longer than that."""
        sparse = self.sparse
        return 1.0 if sparse is None or tokens <= sparse.hot_rows else 0.0


class _Decode:
    """Prices full batches, if the node has a profile."""

    def __init__(self, model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> None:
        from hisparse_sim.cost.profile import profile_for
        from hisparse_sim.cost.step import StepCostModel

        self.cost = StepCostModel(model, node, engine, profile_for(node)) if node.calibration else None

    def of(
        self, pools: SGLangPools, requests: int, tokens: int, output_tokens: int
    ) -> tuple[float | None, float | None]:
        """(seconds a token, share of selected rows that miss)."""
        if self.cost is None or not requests:
            return None, None
        misses = self.cost.misses
        resident = pools.resident_share(tokens, requests)
        share = 0.0
        if misses is not None:
            share = misses.mean_share(tokens, max(1, output_tokens), resident_share=resident)
        work = self.cost.decode_work(requests, tokens, resident, miss_share=share)
        return self.cost.step(work).total_s / self.cost.engine.tokens_a_step, share

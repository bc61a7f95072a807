"""How many bytes one block of KV takes, and how HiSparse groups the layers.

Source of the rules: vLLM 0.33's KV-cache layout for HiSparse (vllm/v1/hisparse, PR #53781 and
later), checked against what its own scheduler reports for GLM-5.x, DeepSeek-V3.2 and small models.

A *block* (page) holds ``block_size`` tokens. In resident and offload mode one block is a page of all
layers and all indexers. In HiSparse mode one GPU pool serves three kinds of page, and any block id
can hold one of any kind:

- an *indexer* page: the indexer keys of all layers that have an indexer;
- a *resident* page of one layer set: KV rows that are kept on the GPU;
- a *hot* page of one layer set: slots of a request's hot buffer.

The layer sets are found by packing index groups (a layer with an indexer and the followers that
reuse its selection) greedily into sets no larger than the indexer page.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from hisparse_sim.errors import InputError, UnsupportedModel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

MLA_BLOCK_TOKENS = 64
"""Block size of vLLM's MLA backends, sparse and dense (FlashMLA and FlashInfer MLA force 64)."""

GQA_BLOCK_TOKENS = 16
"""vLLM's default block size for grouped-query attention (CacheConfig)."""

INDEXER_SCALE_BYTES = 4
"""The indexer caches fp8 keys with one fp32 scale a token, whatever the KV dtype (128 + 4 = 132 B
for GLM-5.x and DeepSeek-V3.2)."""

MAX_HOT_ROWS = 32_768
"""Slots of a hot buffer are numbered with int16 pairs: HiSparse refuses more."""

FP8_ROW_FORMAT: dict[tuple[str, str], str] = {
    ("dsa", "hopper"): "fp8_ds_mla",
    ("dsa", "blackwell"): "fp8",
    ("dsa", "blackwell-sm120"): "fp8_ds_mla",
    ("dsa", "cdna4"): "fp8",
}
"""What ``--kv-cache-dtype fp8`` stores for sparse MLA, by GPU generation; dense MLA always stores
plain fp8. From vLLM's attention-backend page (docs/design/attention_backends.md): Hopper's only
sparse backend is FLASHMLA_SPARSE, whose fp8 cache is ``fp8_ds_mla`` (656 B: 512 fp8, four fp32
scales, 64 bf16 rope values); data-centre Blackwell prefers FLASHINFER_MLA_SPARSE for fp8 KV, which
stores one per-tensor scaled fp8 value each (576 B, vLLM PR #35891); RTX-class Blackwell runs
FLASHINFER_MLA_SPARSE_SM120 on ``fp8_ds_mla``; ROCM_AITER_MLA_SPARSE takes plain fp8. Seen in the
field on H200: offloading 138,615 tokens of GLM-5.3 stored 59.76 GB over 8 ranks, 53,893 B a token and
rank (vllm-project/recipes PR #893), which is 78 x 656 + 21 x 132 = 53,940 less a partial block."""


class HiSparseLayout(Struct, frozen=True):
    """The three kinds of page that share HiSparse's GPU pool, and the host's block.

    ``groups``: the layer sets, in order; each is one resident and one hot group.
    ``indexer_page_bytes``: of all indexers, before rounding. ``block_bytes``: of any block of the
    pool. ``host_block_bytes``: one page of all layers on the host, before alignment.
    """

    groups: tuple[tuple[int, ...], ...]
    indexer_page_bytes: int
    block_bytes: int
    host_block_bytes: int
    hot_rows: int
    hot_blocks_per_group: int

    @property
    def resident_groups(self) -> int:
        """Number of layer sets (``R``)."""
        return len(self.groups)

    @property
    def hot_blocks(self) -> int:
        """Blocks that one request's hot buffer takes over all groups (``H``)."""
        return len(self.groups) * self.hot_blocks_per_group


class KVLayout(Struct, frozen=True):
    """Bytes of KV on one rank.

    ``row_bytes``: one token in one layer (MLA: the latent row, the same on every rank; GQA: keys
    and values of the rank's heads). ``indexer_row_bytes``: one token in one indexer, 0 without.
    ``num_layers`` and ``num_indexers`` count the MTP layer when the engine drafts with it.
    ``block_bytes``: one block of resident or offload mode.
    """

    block_size: int
    row_format: str
    row_bytes: int
    indexer_row_bytes: int
    num_layers: int
    num_indexers: int
    block_bytes: int
    hisparse: HiSparseLayout | None

    @property
    def token_bytes(self) -> int:
        """KV and indexer bytes of one token over all layers."""
        return self.block_bytes // self.block_size


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def round_up(value: int, multiple: int) -> int:
    """The next multiple of ``multiple`` that is not below ``value``."""
    return ceil_div(value, multiple) * multiple


def tensor_parallel(node: NodeSpec, engine: EngineSpec) -> int:
    """Tensor-parallel size: what the engine says, else all GPUs of the node."""
    return engine.tp or node.gpus


def kv_layout(model: ModelSpec, engine: EngineSpec, node: NodeSpec) -> KVLayout:
    """The layout of ``model`` under ``engine`` on ``node``; ``hisparse`` is none without an indexer.

    Raises ``InputError`` for a KV dtype, TP size, MTP or hot-buffer setting that vLLM refuses.
    """
    tp = tensor_parallel(node, engine)
    _check_heads(model, tp)
    row_format = _row_format(model, engine, node)
    block_size = engine.block_size or (GQA_BLOCK_TOKENS if model.attention == "gqa" else MLA_BLOCK_TOKENS)
    row_bytes = _row_bytes(model, row_format, tp)
    mtp_layers = _mtp_layers(model, engine)
    num_layers = model.num_layers + mtp_layers
    leaders = model.indexer_layers
    if leaders:
        # The MTP layer selects for itself (GLM-5.2: 79 layers, 22 indexers).
        leaders = (*leaders, *range(model.num_layers, num_layers))
    indexer_row = model.index_head_dim + INDEXER_SCALE_BYTES if leaders else 0
    layout = KVLayout(
        block_size=block_size,
        row_format=row_format,
        row_bytes=row_bytes,
        indexer_row_bytes=indexer_row,
        num_layers=num_layers,
        num_indexers=len(leaders),
        block_bytes=block_size * (row_bytes * num_layers + indexer_row * len(leaders)),
        hisparse=None,
    )
    if model.attention != "dsa":
        return layout
    return replace(layout, hisparse=_hisparse(model, engine, layout, leaders))


def require_hisparse(layout: KVLayout, model: ModelSpec) -> HiSparseLayout:
    """The HiSparse part of ``layout``; ``UnsupportedModel`` when the model has no indexer."""
    if layout.hisparse is None:
        raise UnsupportedModel(
            f"{model.name} has no sparse-attention indexer (index_topk), so HiSparse cannot run it; "
            "use mode resident or offload",
            where="engine.mode",
        )
    return layout.hisparse


@lru_cache(maxsize=256)
def pack_groups(
    leaders: tuple[int, ...], num_layers: int, page_bytes: int, indexer_page_bytes: int
) -> tuple[tuple[int, ...], ...]:
    """Layer sets: index groups in order, a new set when the next would outgrow the indexer page.

    ``page_bytes`` is one layer's KV page. An index group is never split; a set takes at least one.
    """
    bounds = (*leaders[1:], num_layers)
    sets: list[tuple[int, ...]] = []
    current: tuple[int, ...] = ()
    for leader, end in zip(leaders, bounds, strict=True):
        group = tuple(range(leader, end))
        if current and (len(current) + len(group)) * page_bytes > indexer_page_bytes:
            sets.append(current)
            current = ()
        current += group
    return (*sets, current)


def _hisparse(
    model: ModelSpec, engine: EngineSpec, layout: KVLayout, leaders: tuple[int, ...]
) -> HiSparseLayout:
    page = layout.row_bytes * layout.block_size
    indexer_page = layout.indexer_row_bytes * layout.block_size * len(leaders)
    groups = pack_groups(leaders, layout.num_layers, page, indexer_page)
    largest = max(indexer_page, *(len(g) * page for g in groups))
    hot_rows = _hot_rows(model, engine)
    return HiSparseLayout(
        groups=groups,
        indexer_page_bytes=indexer_page,
        # Aligned to one layer's page, so that resident and hot views share addresses.
        block_bytes=round_up(largest, page),
        host_block_bytes=page * layout.num_layers,
        hot_rows=hot_rows,
        hot_blocks_per_group=ceil_div(hot_rows, layout.block_size),
    )


def _hot_rows(model: ModelSpec, engine: EngineSpec) -> int:
    """HiSparse's ``device_buffer_size``: (query length + 1) x top-k by default, at least length x top-k."""
    query_len = engine.mtp + 1
    least = query_len * model.index_topk
    rows = engine.hot_rows or engine.device_buffer_size or (query_len + 1) * model.index_topk
    if engine.mtp and (
        least > MAX_HOT_ROWS
        or ((engine.hot_rows or engine.device_buffer_size) is None and rows > MAX_HOT_ROWS)
    ):
        raise InputError(
            f"{engine.mtp:,} draft tokens need a hot buffer of {rows:,} rows (top-k {model.index_topk:,} x "
            f"{rows // model.index_topk:,}), and it has at most {MAX_HOT_ROWS:,}; "
            f"at most {max(0, MAX_HOT_ROWS // model.index_topk - 2)} draft tokens",
            where="engine.mtp",
        )
    if not least <= rows <= MAX_HOT_ROWS:
        raise InputError(
            f"{rows} rows: a hot buffer needs {least} (top-k {model.index_topk} x {query_len} tokens a "
            f"decode step) to {MAX_HOT_ROWS} rows",
            where="engine.hot_rows" if engine.kind == "vllm" else "engine.device_buffer_size",
        )
    return rows


def _mtp_layers(model: ModelSpec, engine: EngineSpec) -> int:
    if not engine.mtp:
        return 0
    if not model.mtp_layers:
        raise InputError(f"{model.name} has no MTP layer to draft with; leave it at 0", where="engine.mtp")
    return model.mtp_layers


def _check_heads(model: ModelSpec, tp: int) -> None:
    if model.num_heads % tp:
        raise InputError(
            f"{tp} does not divide the {model.num_heads} attention heads of {model.name}; "
            f"use one of {', '.join(str(n) for n in range(1, 17) if model.num_heads % n == 0)}",
            where="engine.tp",
        )
    heads = model.num_kv_heads
    if model.attention == "gqa" and heads % tp and tp % heads:
        raise InputError(
            f"{tp} neither divides nor is divided by the {heads} KV heads of {model.name}", where="engine.tp"
        )


def _row_format(model: ModelSpec, engine: EngineSpec, node: NodeSpec) -> str:
    """``bf16``, ``fp8`` or ``fp8_ds_mla``, as the attention backend stores it."""
    dtype: str = engine.kv_cache_dtype
    if engine.kind == "sglang" and model.attention == "dsa" and dtype != "bf16":
        # Its guide to HiSparse: auto is fp8 from SM100 on and bf16 before; its fp8 pool packs 656 B.
        return "bf16" if dtype == "auto" and node.gpu.generation == "hopper" else "fp8_ds_mla"
    if dtype == "auto":
        dtype = model.kv_dtype_of_checkpoint or "bf16"
    if dtype == "fp8_ds_mla":
        if model.attention != "dsa":
            raise InputError(
                f"fp8_ds_mla is a sparse-MLA format and {model.name} is {model.attention}; use fp8 or bf16",
                where="engine.kv_cache_dtype",
            )
        if node.gpu.vendor != "nvidia":
            raise InputError(
                f"no backend for {node.gpu.name} stores fp8_ds_mla; use fp8 or bf16",
                where="engine.kv_cache_dtype",
            )
        return dtype
    if dtype == "fp8":
        return FP8_ROW_FORMAT.get((model.attention, node.gpu.generation), "fp8")
    return dtype


def _row_bytes(model: ModelSpec, row_format: str, tp: int) -> int:
    if model.attention == "gqa":
        # KV heads are sharded over TP; a rank without a whole head holds a copy of one.
        heads = max(1, model.num_kv_heads // tp)
        return 2 * heads * model.head_dim * (1 if row_format == "fp8" else 2)
    values = model.kv_lora_rank + model.qk_rope_head_dim
    if row_format == "bf16":
        return 2 * values
    if row_format == "fp8":
        return values
    # One fp32 scale for each 128 latent values; the rope part stays bf16.
    return model.kv_lora_rank + 4 * ceil_div(model.kv_lora_rank, 128) + 2 * model.qk_rope_head_dim

"""``--like vllm-calculator``: what vLLM's interactive HiSparse concurrency calculator answers.

Source: the page "HiSparse concurrency calculator" on vllm.ai (published with the blog post of
2026-09-08 on GLM-5.3). It knows one model (GLM-5.3-FP8, no MTP), counts GPU memory by the product's
decimal gigabytes, rounds the KV memory to 0.1 GiB before it goes on, and assumes 4,096 GiB of system
memory and 1,024 sequences a replica. Kept apart from the rest, so that nothing else inherits that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hisparse_sim.errors import InputError
from hisparse_sim.memory.host import GIB
from hisparse_sim.memory.layout import ceil_div
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

SHARED_WEIGHTS_GIB = 19.556
ROUTED_WEIGHTS_GIB = 684.167
OVERHEAD_GIB = 15.0
UTILIZATION = 0.92
SYSTEM_MEMORY_GIB = 4096.0
MAX_SEQUENCES = 1024
BLOCK_TOKENS = 64
HOT_GROUPS = 20
RETAINED_PAGES = 2


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The page's bytes a block: resident, HiSparse pool, host."""

    base_bytes: int
    hisparse_bytes: int
    host_bytes: int


FP8 = PageLayout(3_052_800, 184_320, 2_875_392)
BF16 = PageLayout(5_928_192, 294_912, 5_750_784)


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What the page shows; requests are totals over DP, host GiB of one replica's pool."""

    context_tokens: int
    resident: int
    hisparse: int
    min_host_gib: int
    kv_gib: float
    weights_gib: float
    fits: bool
    host_gib: float
    limit: str


def knows(model: ModelSpec) -> bool:
    """Whether the page is about this model: GLM-5.2 and 5.3 have the same layout and weights."""
    return (
        model.architecture == "GlmMoeDsaForCausalLM"
        and (model.num_layers, model.num_indexers) == (78, 21)
        and model.weights.dtype == "fp8"
    )


def page_answer(
    model: ModelSpec,
    node: NodeSpec,
    engine: EngineSpec,
    context_tokens: int,
    *,
    memory_bytes: int | None = None,
    round_kv: bool = True,
    layout: PageLayout | None = None,
    hot_groups: int = HOT_GROUPS,
    system_memory_gib: float = SYSTEM_MEMORY_GIB,
    max_sequences: int = MAX_SEQUENCES,
) -> PageAnswer:
    """The page's arithmetic; each keyword replaces one of its assumptions (to see what it changes).

    ``engine.available_kv_gib`` goes where the page lets one enter vLLM's own figure. Raises
    ``InputError`` for a model the page does not know.
    """
    if not knows(model):
        raise InputError(
            f"the page knows GLM-5.3-FP8 only, not {model.name}; leave --like out", where="--like"
        )
    tp, dp = engine.tp or node.gpus, engine.dp
    hot_rows = engine.hot_rows or 2 * model.index_topk
    weights = SHARED_WEIGHTS_GIB / tp + ROUTED_WEIGHTS_GIB / (dp * tp if engine.ep else tp)
    usable = (memory_bytes or node.gpu.marketing_bytes) / GIB * UTILIZATION
    fits = weights + OVERHEAD_GIB <= usable
    kv = engine.available_kv_gib or max(0.0, usable - weights - OVERHEAD_GIB)
    if round_kv:
        kv = math.floor(kv * 10 + 0.5) / 10  # toFixed(1), and the rest computes with what is shown
    sizes = layout or (BF16 if engine.kv_cache_dtype == "bf16" else FP8)
    pages = ceil_div(context_tokens, BLOCK_TOKENS)
    base = min(max_sequences, int(kv * GIB / sizes.base_bytes) // pages)
    request_blocks = pages + hot_groups * (ceil_div(hot_rows, BLOCK_TOKENS) + RETAINED_PAGES)
    gpu = int(kv * GIB / sizes.hisparse_bytes) // request_blocks
    need = min(max_sequences, gpu) * pages * sizes.host_bytes / GIB
    min_host = math.ceil(need) if gpu > base else 0
    copies = dp * (1 if engine.shared_host_pool else tp)
    asked = float(min_host) if engine.host_pool_gib == "auto" else engine.host_pool_gib
    host_gib = min(asked, system_memory_gib / copies)
    host = int(int(host_gib * GIB) / sizes.host_bytes) // pages
    hisparse = max(base, min(max_sequences, gpu, host))
    limit = "hbm" if gpu <= host else "host_pool"
    if hisparse == max_sequences:
        limit = "max_num_seqs"
    if not fits and engine.available_kv_gib is None:
        base = hisparse = min_host = 0
        limit = "weights"
    return PageAnswer(context_tokens, base * dp, hisparse * dp, min_host, kv, weights, fits, host_gib, limit)

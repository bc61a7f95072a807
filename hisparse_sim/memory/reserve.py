"""What a GPU needs beside weights and KV: activations of the largest step, CUDA graphs, runtime."""

from __future__ import annotations

from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec

GIB = 2**30

DSA_RESERVE_BYTES = 15 * GIB
"""Sparse MLA: the flat 15 GiB of vLLM's HiSparse calculator page.

Checked on GLM-5.3-FP8, TP8, 8 x H200: vLLM 0.28 leaves 25.94 GiB for KV (vllm-project/recipes PR
#893); 92 % of the driver's 143,771 MiB less 87.97 GiB of weights less 15 GiB is 26.2 GiB, 1 % more.
That start loads 94.46 GiB a rank, so about 6.5 of the 15 GiB are weights that tensor parallelism
copies instead of sharding, and 8.8 GiB are activations and runtime. HiSparse's mirror staging buffers
(layers x max_num_batched_tokens x row bytes: 1.6 GiB at 78 x 32,768 x 656) are counted inside the
15 GiB: the page uses one figure with and without HiSparse, for runs with 32,768 batched tokens."""

RUNTIME_BYTES = GIB
"""Other models: CUDA context and NCCL (0.07-0.35 GiB) and CUDA graphs (0.65-0.69 GiB), as vLLM
0.10 logs of Qwen2-7B (2 x A100) and Qwen3-30B-A3B (H100) print them."""

SAMPLER_BYTES_PER_LOGIT = 38
"""Profiling samples ``max_num_seqs`` rows; copies, sort and indices take 38 B a logit without
FlashInfer (Qwen3-30B-A3B on H100: 5.58 GiB peak with 1,024 rows of 151,936)."""


def reserve_bytes(model: ModelSpec, engine: EngineSpec, tp: int) -> int:
    """Bytes per GPU that are neither weights nor KV; ``engine.reserve_gib`` overrides.

    Sparse MLA: ``DSA_RESERVE_BYTES``. Others: runtime plus the larger of the forward's activations
    and the sampler. Against four start-up logs the rule is 0 to 1.1 GiB high, on the safe side.
    """
    if engine.reserve_gib is not None:
        return int(engine.reserve_gib * GIB)
    if model.attention == "dsa":
        return DSA_RESERVE_BYTES
    sampler = engine.max_num_seqs * model.vocab_size * SAMPLER_BYTES_PER_LOGIT
    return RUNTIME_BYTES + max(sampler, activation_bytes(model, engine, tp))


def activation_bytes(model: ModelSpec, engine: EngineSpec, tp: int) -> int:
    """Peak of one forward over ``max_num_batched_tokens``: bf16, 3 x MLP width and 3 x hidden a token.

    Gate, up and their product live together beside residual, input and output. The dense form gives
    Llama-3.1-8B 110,592 B a token: 2.06 GiB at 20,000 tokens and 2.99 at 29,000, where vLLM's
    profile printed 2.07 and 2.99 (vllm issue #10517). Experts hold ``experts_per_token`` rows each.
    """
    width = 3 * (model.intermediate_size // tp)
    if model.num_experts:
        expert_width = model.moe_intermediate_size // (1 if engine.ep else tp)
        width = max(width, model.experts_per_token * (3 * expert_width + model.hidden_size))
    return 2 * engine.max_num_batched_tokens * (width + 3 * model.hidden_size)

"""Architectures that would be sized wrongly, recognised by what their config.json says.

The KV cache of a sliding-window, hybrid, layer-sharing or block-sparse model does not grow by one row
a token and layer, so such a model is refused with the field that gives it away, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse_sim.errors import UnsupportedModel

_FULL = ("full_attention", "attention", "full")
_LAYER_KINDS = {
    "linear_attention": "hybrid model with linear attention",
    "mamba": "hybrid model with Mamba layers",
    "mamba2": "hybrid model with Mamba layers",
    "recurrent": "hybrid model with recurrent layers",
    "conv": "hybrid model with convolution layers",
    "sliding_attention": "sliding-window attention",
    "chunked_attention": "chunked (local) attention",
}
_TRAITS = {
    "linear_attn_config": "hybrid model with linear attention (KDA)",
    "kda_layers": "hybrid model with linear attention (KDA)",
    "hybrid_override_pattern": "hybrid model with Mamba layers",
    "linear_num_key_heads": "hybrid model with linear attention (gated delta net)",
    "linear_num_value_heads": "hybrid model with linear attention (gated delta net)",
    "full_attention_interval": "hybrid model with linear attention",
    "attn_layer_period": "hybrid model with Mamba layers",
    "attn_layer_indices": "hybrid model with Mamba layers",
    "ssm_state_size": "hybrid model with Mamba layers",
    "mamba_d_state": "hybrid model with Mamba layers",
    "mamba_num_heads": "hybrid model with Mamba layers",
    "attn_type_list": "hybrid model with lightning (linear) attention",
    "conv_L_cache": "hybrid model with convolution layers",
    "compress_ratios": "compressed sparse attention of the DeepSeek-V4 kind",
    "index_kpool": "sparse attention over pooled keys",
    "num_kv_shared_layers": "KV cache shared across layers",
    "use_cla": "KV cache shared across layers",
    "kv_sharing_pattern": "KV cache shared across layers",
    "sparse_attention_config": "block-sparse attention",
    "sparse_attention_freq": "block-sparse attention",
    "sparse_config": "block-sparse attention",
    "moba_config": "block-sparse attention",
    "dual_chunk_attention_config": "dual-chunk attention",
    "attention_chunk_size": "chunked (local) attention",
    "cross_attention_layers": "cross-attention layers",
}


def refuse_unsupported(config: Mapping[str, Any], architecture: str, *, where: str) -> None:
    """Raise UnsupportedModel, naming ``architecture`` and the reason, if ``config`` has one."""

    def refuse(reason: str, key: str) -> None:
        shown = repr(config.get(key))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise UnsupportedModel(
            f"{architecture} is not sized: {reason} ({key}: {shown}); "
            "supported are MLA, sparse MLA with an indexer, and GQA in every layer",
            where=where,
        )

    if str(config.get("model_type", "")).startswith("deepseek_v4") or "DeepseekV4" in architecture:
        refuse("DeepSeek-V4 mixes compressed, sparse and sliding-window attention", "model_type")
    for key, reason in _TRAITS.items():
        value = config.get(key)
        off = isinstance(value, Mapping) and value.get("use_sparse_attention") is False
        if value and not off:
            refuse(reason, key)
    for key in ("layer_types", "layers_block_type", "block_types", "attention_types"):
        kinds = config.get(key)
        for kind in kinds if isinstance(kinds, list) else ():
            if isinstance(kind, str) and kind not in _FULL:
                refuse(_LAYER_KINDS.get(kind, f"layers of kind {kind!r}"), key)
    if config.get("is_encoder_decoder"):
        refuse("encoder-decoder model", "is_encoder_decoder")
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        longest = config.get("max_position_embeddings")
        if not (isinstance(window, int) and isinstance(longest, int) and window >= longest):
            refuse("sliding-window attention", "sliding_window")

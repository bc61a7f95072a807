"""Hugging Face configs written out as far as they matter, and the folders of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "vocab_size": 128256,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
GLM: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_skip_topk_offset": 3,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
GLM_LEADERS = (0, 1, 2, *range(6, 75, 4))


def write(folder: Path, config: Any, name: str = "config.json") -> Path:
    """``config`` as a file of ``folder``."""
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def shared_config(folder: str, name: str) -> Path:
    """A real config.json, or a skip that says why."""
    path = SHARED / folder / name
    if not path.exists():
        pytest.skip(f"no {folder}/{name} beside this checkout")
    return path

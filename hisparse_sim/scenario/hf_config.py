"""A model's Hugging Face ``config.json`` read into a ``ModelSpec``.

Known architectures only: what a config.json leaves unsaid (biases, where an expert layer starts, what
a draft layer shares) is fixed by the architecture's name, so an unknown name is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hisparse_sim.errors import InputError, UnsupportedModel
from hisparse_sim.scenario.base import MOST_COUNT, Sourced, most_of
from hisparse_sim.scenario.hf_refusals import refuse_unsupported
from hisparse_sim.scenario.model import ModelSpec, WeightsSpec
from hisparse_sim.scenario.quantization import read_quantization
from hisparse_sim.scenario.validate import explain
from hisparse_sim.scenario.weights import Extras, checkpoint_weights
from hisparse_sim.scenario.yaml_file import read_text


@dataclass(frozen=True, slots=True)
class _Family:
    """What the name of an architecture says beyond its config.json."""

    mla: bool = False
    experts: bool = False
    qkv_bias: bool | None = None
    """None: as ``attention_bias`` says (default no); MLA has none."""
    output_bias: bool = False
    """Whether the output projection has a bias too when the others do."""
    qk_norm: bool = False


_LLAMA = _Family(output_bias=True)
_DEEPSEEK = _Family(mla=True, experts=True)
_QWEN3 = _Family(qk_norm=True, output_bias=True)
_QWEN3_MOE = _Family(qk_norm=True, output_bias=True, experts=True)
_FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _Family(experts=True),
    "Qwen2ForCausalLM": _Family(qkv_bias=True),
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "Glm4MoeForCausalLM": _Family(experts=True),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "GlmMoeDsaForCausalLM": _DEEPSEEK,
}
_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
}


_MOST_VISION = 10**6


class _Fields:
    """Typed access to a config.json; an error names file and field."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def at(self, name: str) -> str:
        return f"{self.where}: {name}"

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """The first of ``names`` that is there; ``default`` none: required."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{value!r} is not a whole number", where=self.at(name))
            if value < least:
                raise InputError(f"{value} is too small, at least {least}", where=self.at(name))
            if value > (most := most_of(name, value)):  # before anything counts up to it
                raise InputError(f"{value!s:.40} is too large, at most {most:,.0f}", where=self.at(name))
            return value
        if default is None:
            raise InputError("missing from this config.json", where=self.at(" or ".join(names)))
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{value!r} is not true or false", where=self.at(name))
        return value

    def mapping(self, *names: str) -> Mapping[str, Any]:
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise InputError(f"{value!r} is not a mapping", where=self.at(name))
            return value
        return {}


def model_from_config(path: str | Path) -> ModelSpec:
    """The model that a Hugging Face config.json (or the folder that holds it) describes.

    A quantisation given beside it in ``hf_quant_config.json`` is read too, as vLLM does.
    Raises InputError for a file that cannot be read as such a config, UnsupportedModel for an
    architecture or a quantisation that would be sized wrongly.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    where = str(path)
    outer = _read_json(path)
    beside = path.with_name("hf_quant_config.json")
    text = _Fields(outer, where).mapping("text_config", "language_config")
    fields = _Fields(text or outer, f"{where}: text_config" if text else where)
    architecture = _architecture(outer, text, where)
    refuse_unsupported(fields.data, architecture, where=where)
    quantization = text.get("quantization_config") or outer.get("quantization_config")
    if quantization is None and beside.is_file():
        quantization, where_quantization = _read_json(beside), str(beside)
    else:
        where_quantization = f"{where}: quantization_config"
    family = _family(architecture, where)
    quantized = read_quantization(quantization, where=where_quantization)
    shape, dense_ids = _shape(fields, family)
    extras = Extras(
        dense_layer_ids=dense_ids,
        tied_embeddings=fields.flag("tie_word_embeddings", _Fields(outer, where).flag("tie_word_embeddings")),
        attention_bias=family.qkv_bias if family.qkv_bias is not None else fields.flag("attention_bias"),
        output_bias=family.output_bias and fields.flag("attention_bias"),
        qk_norm=family.qk_norm or fields.flag("use_qk_norm"),
        other_bytes=_vision_bytes(outer.get("vision_config"), where),
    )
    try:
        bare = ModelSpec(
            name=_name(path),
            architecture=architecture,
            kv_dtype_of_checkpoint="fp8" if quantized.kv_fp8 else None,
            weights=WeightsSpec(shared_bytes=0, dtype="none"),
            **shape,
        )
        weights = checkpoint_weights(bare, extras, quantized)
    except ValidationError as error:
        raise explain(error, ModelSpec, file=where) from None
    given = tuple(f for f in ModelSpec.model_fields if f not in ("name", "sources", "weights", "hf_id"))
    sources = (
        Sourced(fields=given, source=f"config.json ({path.name})", grade="config"),
        Sourced(fields=("weights",), source="shapes and formats of config.json, summed", grade="derived"),
    )
    return bare.model_copy(update={"weights": weights, "sources": sources})


def _name(path: Path) -> str:
    """What to call a model by its file: the folder's name, or the file's."""
    if path.name != "config.json":
        return path.stem.removesuffix("_config")
    return path.absolute().parent.name or "model"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise InputError("not valid JSON: nested too deeply", where=str(path)) from None
    if not isinstance(data, dict):
        raise InputError(f"a config.json holds a mapping, this is a {type(data).__name__}", where=str(path))
    return data


def _architecture(outer: Mapping[str, Any], text: Mapping[str, Any], where: str) -> str:
    """The name of the language model's architecture."""
    for config in (text, outer) if text else (outer,):
        names = config.get("architectures")
        if names is not None and not (
            isinstance(names, list) and names and all(isinstance(n, str) and n for n in names)
        ):
            raise InputError(f"{names!r} is not a list of names", where=f"{where}: architectures")
        kind = config.get("model_type")
        if names:
            if config is outer and text and names[0] not in _FAMILIES:
                break  # a wrapper's own name says nothing about the model inside
            return str(names[0])
        if kind is not None:
            return _BY_MODEL_TYPE.get(str(kind), f"model_type {kind!r}")
    if text:
        return f"the language model inside {outer.get('architectures', ['?'])[0]}"
    raise InputError("names no architecture: neither architectures nor model_type is there", where=where)


def _family(architecture: str, where: str) -> _Family:
    if architecture not in _FAMILIES:
        raise UnsupportedModel(
            f"{architecture} is an unknown architecture, not sized; known are {', '.join(_FAMILIES)}",
            where=where,
        )
    return _FAMILIES[architecture]


def _shape(fields: _Fields, family: _Family) -> tuple[dict[str, Any], frozenset[int]]:
    """Fields of the ModelSpec, and the ids of layers with a dense MLP."""
    layers = fields.integer("num_hidden_layers", least=1)
    heads = fields.integer("num_attention_heads", least=1)
    hidden = fields.integer("hidden_size", least=1)
    shape: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", default=heads, least=1),
        "intermediate_size": fields.integer("intermediate_size", least=1),
        "vocab_size": fields.integer("vocab_size", least=1),
        "max_context_tokens": _max_context(fields),
        "mtp_layers": fields.integer("num_nextn_predict_layers", default=0),
    }
    if family.mla:
        shape |= _mla(fields, layers)
    else:
        shape |= {
            "attention": "gqa",
            "head_dim": fields.integer("head_dim", default=hidden // heads, least=1),
        }
        if heads % shape["num_kv_heads"]:
            raise InputError(
                f"{shape['num_kv_heads']} KV heads do not divide {heads} attention heads",
                where=fields.at("num_key_value_heads"),
            )
    if not family.experts:
        return shape | {"dense_layers": layers}, frozenset(range(layers))
    dense = _dense_layers(fields, layers)
    experts = fields.integer("n_routed_experts", "num_experts", "num_local_experts", least=1)
    return shape | {
        "dense_layers": len(dense),
        "num_experts": experts,
        "experts_per_token": fields.integer("num_experts_per_tok", "num_experts_per_token", least=1),
        "shared_experts": fields.integer("n_shared_experts", default=0),
        # Mixtral's experts have the plain intermediate size
        "moe_intermediate_size": fields.integer("moe_intermediate_size", "intermediate_size", least=1),
    }, dense


def _mla(fields: _Fields, layers: int) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "attention": "mla",
        "q_lora_rank": fields.integer("q_lora_rank", default=0),
        "kv_lora_rank": fields.integer("kv_lora_rank", least=1),
        "qk_rope_head_dim": fields.integer("qk_rope_head_dim", least=1),
        "qk_nope_head_dim": fields.integer("qk_nope_head_dim", least=1),
        "v_head_dim": fields.integer("v_head_dim", least=1),
    }
    if fields.data.get("index_topk") is None:
        return shape
    return shape | {
        "attention": "dsa",
        "q_lora_rank": fields.integer("q_lora_rank", least=1),
        "index_topk": fields.integer("index_topk", least=1),
        "index_heads": fields.integer("index_n_heads", least=1),
        "index_head_dim": fields.integer("index_head_dim", least=1),
        "indexer_layers": _indexer_layers(fields, layers),
    }


def _indexer_layers(fields: _Fields, layers: int) -> tuple[int, ...]:
    """Layers that compute a top-k of their own, by ``indexer_types``, the pattern or frequency and offset.

    Source: vLLM's DeepSeek-V2 model file (``index_topk_freq``, ``index_skip_topk_offset`` with default
    2, ``index_topk_pattern`` of F and S) and transformers' GlmMoeDsaConfig (``indexer_types`` first).
    """
    kinds, pattern = fields.data.get("indexer_types"), fields.data.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, (str, list)) or any(p not in ("F", "S") for p in pattern):
            raise InputError(f"{pattern!r} is not a row of F and S", where=fields.at("index_topk_pattern"))
        found = tuple(i for i in range(layers) if i >= len(pattern) or pattern[i] == "F")
    else:
        every = fields.integer("index_topk_freq", default=1, least=1)
        offset = fields.integer("index_skip_topk_offset", default=2)
        found = tuple(i for i in range(layers) if max(i - offset + 1, 0) % every == 0)
    if kinds is not None:
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or any(k not in ("full", "shared") for k in kinds)
        ):
            raise InputError(
                f"is not a list of {layers} times full or shared", where=fields.at("indexer_types")
            )
        listed = tuple(i for i, kind in enumerate(kinds) if kind == "full")
        asked = pattern is not None or fields.data.get("index_topk_freq") is not None
        if asked and listed != found:
            raise InputError(
                f"has {len(listed)} full layers, but index_topk_freq/pattern gives {len(found)}",
                where=fields.at("indexer_types"),
            )
        found = listed
    if not found or found[0] != 0:
        raise InputError("the first layer has no indexer to share from", where=fields.at("indexer_types"))
    return found


def _dense_layers(fields: _Fields, layers: int) -> frozenset[int]:
    """Ids of the layers with a dense MLP in a model with experts."""
    kinds = fields.data.get("mlp_layer_types")
    if kinds is not None:
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or any(k not in ("dense", "sparse") for k in kinds)
        ):
            raise InputError(
                f"is not a list of {layers} times dense or sparse", where=fields.at("mlp_layer_types")
            )
        return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")
    first = min(fields.integer("first_k_dense_replace", default=0), layers)
    step = fields.data.get("moe_layer_freq", 1)
    if isinstance(step, list):
        if len(step) != layers:
            raise InputError(
                f"has {len(step)} entries for {layers} layers", where=fields.at("moe_layer_freq")
            )
        return frozenset(i for i, is_moe in enumerate(step) if not is_moe)
    every = fields.integer("moe_layer_freq", default=1, least=1)
    stride = fields.integer("decoder_sparse_step", default=1, least=1)
    listed = fields.data.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise InputError(f"{listed!r} is not a list of layers", where=fields.at("mlp_only_layers"))
    return frozenset(i for i in range(layers) if i < first or i % every or (i + 1) % stride or i in listed)


def _max_context(fields: _Fields) -> int:
    """Longest context in tokens, with RoPE scaling counted as vLLM counts it.

    Source: ``_get_and_verify_max_len`` in vllm/config: yarn multiplies the original length, llama3,
    longrope and su are already counted in ``max_position_embeddings``, others multiply it.
    """
    longest = fields.integer("max_position_embeddings", least=1)
    scaling = fields.mapping("rope_scaling", "rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1.0)
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor < 1e6:
        raise InputError(f"factor {factor!r} is not a positive number", where=fields.at("rope_scaling"))
    if kind in ("default", "mrope", "llama3", "longrope", "su"):
        return longest
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings", longest)
        if isinstance(original, bool) or not isinstance(original, int) or not 1 <= original <= MOST_COUNT:
            raise InputError(
                f"original_max_position_embeddings {original!r:.40} is not a whole number to {MOST_COUNT:g}",
                where=fields.at("rope_scaling"),
            )
        longest = original
    return int(longest * factor)


def _vision_bytes(vision: Any, where: str) -> int:
    """Bytes of a vision tower of the usual kind (attention and a plain MLP), in 16 bits; 0 if unknown."""
    if not isinstance(vision, Mapping):
        return 0

    def first(*names: str) -> int:
        values = (vision.get(n) for n in names)
        found = next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)
        if found > _MOST_VISION:
            raise InputError(
                f"{names[0]} {found!s:.40} is too large, at most {_MOST_VISION:,}",
                where=f"{where}: vision_config",
            )
        return found

    hidden = first("hidden_size", "vt_hidden_size")
    width = first("intermediate_size", "vt_intermediate_size")
    layers = first("num_hidden_layers", "depth", "vt_num_hidden_layers")
    return 2 * layers * (4 * hidden**2 + 2 * hidden * width)

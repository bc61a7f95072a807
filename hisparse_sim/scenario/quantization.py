"""Bytes that a weight matrix takes in a quantised checkpoint, and which matrices are quantised.

Formats are read from ``quantization_config`` of a Hugging Face config.json as vLLM reads it: ``fp8``
(DeepSeek-style blocks), ``compressed-tensors``, ``modelopt``, ``awq`` and ``gptq``. Embeddings, the
LM head, norms and routers stay in 16 bits in all of them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hisparse_sim.errors import InputError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Format:
    """A weight format: ``bits`` a weight, plus one scale of ``scale_bytes`` per block.

    ``block`` is (rows, columns) of the weight matrix that share a scale; 0 means the whole side.
    Sources: DeepSeek-V3 (arXiv 2412.19437) section 3.3 for 128 x 128 blocks with fp32 scales; OCP MX
    v1.0 for mxfp4 (32 weights, one byte); NVFP4: 16 weights, one fp8 scale; compressed-tensors
    pack-quantized int4: a 16-bit scale per group, with 4 bits more per group when asymmetric.
    """

    name: str
    bits: float
    scale_bytes: float = 0.0
    block: tuple[int, int] = (0, 0)

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a ``rows`` x ``columns`` matrix (rows: outputs) with its scales."""
        size = rows * columns * self.bits / 8
        if self.scale_bytes:
            high, wide = (side or whole for side, whole in zip(self.block, (rows, columns), strict=True))
            size += -(-rows // high) * -(-columns // wide) * self.scale_bytes
        return round(size)


BF16 = Format("bf16", 16)


@dataclass(frozen=True, slots=True)
class Quantization:
    """Which linear layers of a checkpoint are stored in which format.

    ``groups`` are (targets, format), tried in order; names in ``kept`` stay in 16 bits.
    """

    groups: tuple[tuple[tuple[str, ...], Format], ...] = ()
    kept: frozenset[str] = frozenset()
    kept_patterns: tuple[re.Pattern[str], ...] = field(default=())
    kv_fp8: bool = False

    def format_of(self, module: str) -> Format:
        """Format of the linear layer called ``module`` (``layers.3.mlp.experts.0.up_proj``)."""
        if self._is_kept(module):
            return BF16
        for targets, fmt in self.groups:
            if any(_matches(target, module) for target in targets):
                return fmt
        return BF16

    def _is_kept(self, module: str) -> bool:
        if self.kept:
            parts = module.split(".")
            if any(".".join(parts[:n]) in self.kept for n in range(1, len(parts) + 1)):
                return True
        return any(p.match(module) or p.match("model." + module) for p in self.kept_patterns)


def _plain(name: str) -> str:
    """A module name without the wrappers' prefixes."""
    for prefix in ("language_model.", "model."):
        name = name.removeprefix(prefix)
    return name


def _matches(target: str, module: str) -> bool:
    if target == "Linear":
        return True
    if target.startswith("re:"):
        pattern = target[3:]
        return bool(re.match(pattern, module) or re.match(pattern, "model." + module))
    return module == _plain(target) or module.startswith(_plain(target) + ".")


def _kept(names: Iterable[str], where: str) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    exact, patterns = set(), []
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{name!r} is not a module name", where=where)
        if name.startswith("re:"):
            try:
                patterns.append(re.compile(name[3:]))
            except re.error as error:
                raise InputError(f"{name!r} is not a regular expression: {error}", where=where) from None
        elif "*" in name:
            patterns.append(re.compile(fnmatch.translate(_plain(name).rstrip("*") + "*")))
        else:
            exact.add(_plain(name))
    return frozenset(exact), tuple(patterns)


def read_quantization(config: Mapping[str, Any] | None, *, where: str) -> Quantization:
    """The quantisation of a checkpoint; ``config`` is its ``quantization_config`` (none: 16 bits).

    Raises UnsupportedModel for a method or format that is not known, InputError for a malformed one.
    """
    if config is None:
        return Quantization()
    if not isinstance(config, Mapping):
        raise InputError(f"{config!r} is not a mapping", where=where)
    inner = config.get("quantization")  # modelopt's hf_quant_config.json nests what it means
    if isinstance(inner, Mapping):
        config = {"quant_method": "modelopt", **inner}
    method = str(config.get("quant_method", "")).replace("_", "-").lower()
    if method == "fp8":
        block = config.get("weight_block_size")
        fmt = Format("fp8", 8, 4, _block(block, where)) if block else Format("fp8", 8)
        groups: tuple[tuple[tuple[str, ...], Format], ...] = ((("Linear",), fmt),)
        ignored = config.get("modules_to_not_convert") or config.get("ignored_layers") or ()
    elif method == "compressed-tensors":
        groups = _compressed_groups(config, where)
        ignored = config.get("ignore") or ()
    elif method.startswith("modelopt"):
        fmt = _modelopt_format(config, where)
        groups = ((("Linear",), fmt),)
        ignored = config.get("exclude_modules") or config.get("ignore") or ()
    elif method in ("awq", "gptq", "gptq-marlin", "awq-marlin"):
        bits, group = config.get("bits", config.get("w_bit", 4)), config.get("group_size", 128)
        if bits not in (4, 8) or not isinstance(group, int):
            raise InputError(f"{method} with bits {bits!r}, group_size {group!r}: not readable", where=where)
        # a 16-bit scale and a packed zero point per group of inputs
        fmt = Format(f"int{bits}", bits, 2 + bits / 8, (1, max(group, 0)))
        groups = ((("Linear",), fmt),)
        ignored = config.get("modules_to_not_convert") or ()
    elif method == "mxfp4":
        groups = ((("re:.*experts.*",), Format("mxfp4", 4, 1, (1, 32))),)
        ignored = config.get("modules_to_not_convert") or ()
    else:
        raise UnsupportedModel(
            f"quantisation {config.get('quant_method')!r} is not sized; "
            "known are fp8, compressed-tensors, modelopt, awq, gptq and mxfp4",
            where=where,
        )
    if not isinstance(ignored, (list, tuple)):
        raise InputError(f"the list of modules left out is {type(ignored).__name__}, not a list", where=where)
    kept, patterns = _kept(ignored, where)
    return Quantization(groups, kept, patterns, kv_fp8=_kv_fp8(config, where))


def _block(value: Any, where: str) -> tuple[int, int]:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(v) is int and v > 0 for v in value):
        return (value[0], value[1])
    raise InputError(f"weight_block_size {value!r} is not two positive whole numbers", where=where)


def _compressed_groups(config: Mapping[str, Any], where: str) -> tuple[tuple[tuple[str, ...], Format], ...]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise InputError("compressed-tensors without config_groups", where=where)
    found = []
    for name, group in groups.items():
        at = f"{where}.config_groups.{name}"
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise InputError("no weights in this group", where=at)
        layout = str(group.get("format") or config.get("format") or "")
        found.append(
            (tuple(map(str, group.get("targets") or ("Linear",))), _compressed_format(weights, layout, at))
        )
    return tuple(found)


def _compressed_format(weights: Mapping[str, Any], layout: str, where: str) -> Format:
    bits, kind, group = weights.get("num_bits"), weights.get("type", "int"), weights.get("group_size") or 0
    if not isinstance(group, int) or group < -1:
        raise InputError(f"group_size {group!r} is not a whole number", where=where)
    if kind == "float" and bits == 4:
        mx = "mxfp4" in layout
        return Format("mxfp4", 4, 1, (1, group or 32)) if mx else Format("nvfp4", 4, 1, (1, group or 16))
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        if weights.get("strategy") == "block" and isinstance(block, (list, tuple)):
            return Format("fp8", 8, 4, _block(block, where))
        return Format("fp8", 8, 4, (1, 0)) if weights.get("strategy") == "channel" else Format("fp8", 8)
    if kind == "int" and bits in (4, 8):
        zero_point = 0.0 if weights.get("symmetric", True) else bits / 8
        return Format(f"int{bits}", bits, 2 + zero_point, (1, max(group, 0)))
    raise UnsupportedModel(f"weights of {bits!r} bits, type {kind!r}, are not sized", where=where)


def _modelopt_format(config: Mapping[str, Any], where: str) -> Format:
    algorithm = str(config.get("quant_algo", "")).upper()
    if not algorithm and isinstance(config.get("config_groups"), Mapping):
        return _compressed_groups(config, where)[0][1]
    known = {
        "FP8": Format("fp8", 8),
        "NVFP4": Format("nvfp4", 4, 1, (1, 16)),
        "FP8_PB_WO": Format("fp8", 8, 4, (128, 128)),
        "MXFP8": Format("mxfp8", 8, 1, (1, 32)),
    }
    if algorithm not in known:
        raise UnsupportedModel(
            f"modelopt quantisation {config.get('quant_algo')!r} is not sized; known are {', '.join(known)}",
            where=where,
        )
    return known[algorithm]


def _kv_fp8(config: Mapping[str, Any], where: str) -> bool:
    """Whether the checkpoint turns on fp8 KV by itself, as vLLM does when the flag is ``auto``."""
    scheme = config.get("kv_cache_scheme")
    algorithm = str(config.get("kv_cache_quant_algo") or "").upper()
    if isinstance(scheme, Mapping):
        if scheme.get("num_bits") != 8:
            raise UnsupportedModel(
                f"kv_cache_scheme of {scheme.get('num_bits')!r} bits is not sized", where=where
            )
        return bool(scheme.get("type", "float") == "float")
    if algorithm in ("", "NONE"):
        return False
    if algorithm != "FP8":
        raise UnsupportedModel(f"kv_cache_quant_algo {algorithm} is not sized", where=where)
    return True

"""Which term prices a row of a published table, and at which variables: the same for fit and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    Array = npt.NDArray[np.float64]

CHUNK_TOKENS = 8192.0
"""Most tokens of a call in SGLang's prefill rows."""
SEQUENCES = 16
"""Most sequences of a prefill call that is modelled; engines rarely start more prompts in a step."""
_MOST, _MOST_OF_ANY = {"new_tokens": 1e8}, 1e18
"""A prefill is priced chunk by chunk, so that tokens without end would take time without end."""
DECODE_ROWS_OF_VLLM = ("fp8_block", "bfloat16")


@dataclass(frozen=True, slots=True)
class Group:
    """Rows (positions in the table) that one term prices, with the variables of its form."""

    term: str
    form: str
    rows: npt.NDArray[np.intp]
    variables: dict[str, Array]

    @property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Which rows can be priced at all: every variable a number, from 0 to what a law can be asked."""
        import numpy as np

        found = np.ones(len(self.rows), dtype=bool)
        for name, values in self.variables.items():
            found &= (values >= 0) & (values <= _MOST.get(name, _MOST_OF_ANY))
        return found


def groups(stem: str, rows: pd.DataFrame) -> Iterator[Group]:
    """The groups of a table. Rows in none are not modelled."""
    reader = _READERS.get(stem)
    if reader is not None:
        yield from reader(rows)


def seconds_of(stem: str, rows: pd.DataFrame) -> Array:
    """Seconds of each row; 0 where the table has none."""
    import numpy as np

    if stem == "deepep_ll_sglang":
        return np.asarray((rows["dispatch_avg_t_us"] + rows["combine_avg_t_us"]).to_numpy(float) / 1e6)
    if stem == "deepep_normal_sglang":
        both = rows["dispatch_transmit_us"] + rows["combine_transmit_us"]
        return np.asarray(both.to_numpy(float) / 1e6)
    return np.asarray(rows["t_s"].to_numpy(float))


def module_term(kind: str, family: str, heads: int, kv: str, gemm: str) -> str:
    """``dsa.decode.indexer.glm.h8.fp8``; attention weights in 16 bits are said at the end."""
    end = ".w16" if gemm == "bfloat16" else ""
    return f"dsa.{kind}.{family}.h{heads}.{'fp8' if kv == 'fp8' else 'bf16'}{end}"


def moe_term(hidden: int, inter: int, experts: int, topk: int, tp: int, ep: int, how: str) -> str:
    """``moe.6144x2048.e256k8.tp1.ep8.power_law_1.2``: fp8 weights."""
    return f"moe.{hidden}x{inter}.e{experts}k{topk}.tp{tp}.ep{ep}.{how}"


def _floats(column: pd.Series) -> Array:
    import numpy as np

    return np.asarray(column.to_numpy(dtype=float))


def _by(rows: pd.DataFrame, names: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Groups with their key as a tuple."""
    for key, part in rows.groupby(names):
        yield tuple(key), part


def _families(models: pd.Series) -> pd.Series:
    return models.str.contains("DeepSeek", na=False).map({True: "deepseek", False: "glm"})


def _decode(rows: pd.DataFrame, kind: pd.Series) -> Iterator[Group]:
    keyed = rows.assign(kind=kind, family=_families(rows["model"]))
    keyed = keyed[keyed["gemm_type"].isin(DECODE_ROWS_OF_VLLM)]
    for key, part in _by(keyed, ["kind", "family", "num_heads", "kv_cache_dtype", "gemm_type"]):
        kind_, family, heads, kv, gemm = key
        yield Group(
            module_term(f"decode.{kind_}", family, heads, kv, gemm),
            "decode_module",
            part.index.to_numpy(),
            {"batch": _floats(part["batch_size"]), "context_tokens": _floats(part["step"] + part["isl"])},
        )


def _decode_vllm(rows: pd.DataFrame) -> Iterator[Group]:
    import pandas as pd

    yield from _decode(rows, pd.Series("vllm", index=rows.index))


def _decode_sglang(rows: pd.DataFrame) -> Iterator[Group]:
    kind = rows["op_name"].str.contains("skip", na=False).map({True: "skip", False: "indexer"})
    yield from _decode(rows, kind)


def _prefill(rows: pd.DataFrame, kind: pd.Series) -> Iterator[Group]:
    keyed = rows.assign(kind=kind, family=_families(rows["model"]))
    for key, part in _by(keyed, ["kind", "family", "num_heads", "kv_cache_dtype", "gemm_type"]):
        kind_, family, heads, kv, gemm = key
        yield Group(
            module_term(f"prefill.{kind_}", family, heads, kv, gemm),
            "prefill_module",
            part.index.to_numpy(),
            {
                "sequences": _floats(part["batch_size"]),
                "new_tokens": _floats(part["isl"]),
                "past_tokens": _floats(part["step"]),
            },
        )


def _prefill_vllm(rows: pd.DataFrame) -> Iterator[Group]:
    import pandas as pd

    some = rows[rows["gemm_type"].isin(DECODE_ROWS_OF_VLLM)]
    yield from _prefill(some, pd.Series("vllm", index=some.index))


def _prefill_sglang(rows: pd.DataFrame) -> Iterator[Group]:
    """Weights in fp8 (16 bits where a GPU has no other rows); short contexts run dense kernels."""
    some = rows[rows["batch_size"] <= SEQUENCES]
    skip = some["op_name"].str.contains("skip", na=False)
    dense = some["kernel_source"].str.contains("dense_mha", na=False)
    sparse_kind = skip.map({True: "skip", False: "indexer"})
    kind = sparse_kind.where(~dense, skip.map({True: "dense_skip", False: "dense"}))
    fp8 = set(kind[some["gemm_type"] == "fp8_block"])
    keep = (some["gemm_type"] == "fp8_block") | ((some["gemm_type"] == "bfloat16") & ~kind.isin(fp8))
    yield from _prefill(some[keep], kind[keep])


def _moe(rows: pd.DataFrame) -> Iterator[Group]:
    some = rows[(rows["moe_dtype"] == "fp8_block") & (rows["inter_size"] == 2048) & (rows["topk"] == 8)]
    some = some[some["hidden_size"].isin((6144, 7168)) & some["num_experts"].isin((256, 384))]
    names = ["hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size", "distribution"]
    for key, part in _by(some, names):
        yield Group(
            moe_term(*key),
            "rising_log_log",
            part.index.to_numpy(),
            {"tokens": _floats(part["num_tokens"])},
        )


def _allreduce(rows: pd.DataFrame) -> Iterator[Group]:
    for key, part in _by(rows, ["backend", "num_gpus"]):
        backend, gpus = key
        name = "allreduce" if backend == "vllm_graph" else f"{backend}.allreduce"
        size = _floats(part["message_size"]) * 2.0  # the table counts bfloat16 elements
        yield Group(f"{name}.gpus{gpus}", "piecewise_linear", part.index.to_numpy(), {"bytes": size})


def _nccl(rows: pd.DataFrame) -> Iterator[Group]:
    for key, part in _by(rows, ["op_name", "num_gpus"]):
        op, gpus = key
        element = part["nccl_dtype"].map({"half": 2.0, "int8": 1.0})
        yield Group(
            f"nccl.{op}.gpus{gpus}",
            "piecewise_linear",
            part.index.to_numpy(),
            {"bytes": _floats(part["message_size"] * element)},
        )


def _deepep(rows: pd.DataFrame, kind: str) -> Iterator[Group]:
    some = rows[(rows["num_topk"] == 8) & (rows["num_experts"] == 256) & (rows["node_num"] == 1)]
    if kind == "normal":
        some = some[(some["dispatch_sms"] == 24) & (some["combine_sms"] == 24)]
    for hidden, part in some.groupby("hidden_size"):
        yield Group(
            f"deepep.{kind}.hidden{hidden}",
            "alpha_beta",
            part.index.to_numpy(),
            {"tokens_per_rank": _floats(part["num_token"])},
        )


def _deepep_low(rows: pd.DataFrame) -> Iterator[Group]:
    yield from _deepep(rows, "low_latency")


def _deepep_normal(rows: pd.DataFrame) -> Iterator[Group]:
    yield from _deepep(rows, "normal")


def _mla_decode(rows: pd.DataFrame) -> Iterator[Group]:
    some = rows[rows["gemm_type"].isin(DECODE_ROWS_OF_VLLM)]
    for key, part in _by(some, ["num_heads", "kv_cache_dtype", "gemm_type"]):
        heads, kv, gemm = key
        end = ".w16" if gemm == "bfloat16" else ""
        yield Group(
            f"mla.decode.vllm.h{heads}.{'fp8' if kv == 'fp8' else 'bf16'}{end}",
            "decode_module",
            part.index.to_numpy(),
            {"batch": _floats(part["batch_size"]), "context_tokens": _floats(part["step"] + part["isl"])},
        )


def _gqa_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["window_size"] == 0) & (rows["head_dim"] == 128)]


def _gqa_decode(rows: pd.DataFrame) -> Iterator[Group]:
    """KV bytes, multiply-adds, and (request, KV head) pairs, each of which is a thread block or more."""
    for kv, part in _gqa_rows(rows).groupby("kv_cache_dtype"):
        batch, heads, kv_heads = (
            _floats(part[name]) for name in ("batch_size", "num_heads", "num_key_value_heads")
        )
        context = _floats(part["step"]) + 1.0
        yield Group(
            f"gqa.decode.{'fp8' if kv == 'fp8' else 'bf16'}",
            "gqa_decode",
            part.index.to_numpy(),
            {
                "read_bytes": batch * context * kv_heads * 256.0 * (1.0 if kv == "fp8" else 2.0),
                "flops": 4.0 * batch * context * heads * 128.0,
                "row_heads": batch * kv_heads,
                "total_tokens": batch * context,
            },
        )


def _gqa_prefill(rows: pd.DataFrame) -> Iterator[Group]:
    for kv, part in _gqa_rows(rows).groupby("kv_cache_dtype"):
        batch, heads, kv_heads, new = (
            _floats(part[name]) for name in ("batch_size", "num_heads", "num_key_value_heads", "isl")
        )
        yield Group(
            f"gqa.prefill.{'fp8' if kv == 'fp8' else 'bf16'}",
            "rates",
            part.index.to_numpy(),
            {
                "read_bytes": batch * new * (2.0 * heads + 2.0 * kv_heads) * 256.0,
                "flops": 2.0 * batch * heads * 128.0 * new * new,
            },
        )


_READERS: dict[str, Callable[[pd.DataFrame], Iterator[Group]]] = {
    "dsa_decode_module_vllm": _decode_vllm,
    "dsa_decode_module_sglang": _decode_sglang,
    "dsa_prefill_module_vllm": _prefill_vllm,
    "dsa_prefill_module_sglang": _prefill_sglang,
    "moe_fp8_sglang": _moe,
    "allreduce_custom_vllm": _allreduce,
    "nccl": _nccl,
    "deepep_ll_sglang": _deepep_low,
    "deepep_normal_sglang": _deepep_normal,
    "mla_decode_module_vllm": _mla_decode,
    "gqa_decode_vllm": _gqa_decode,
    "gqa_prefill_vllm": _gqa_prefill,
}

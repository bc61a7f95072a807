"""The published tables: which files, how their rows are told apart, and which of them no fit may see.

Files are those of NVIDIA's ``aiconfigurator-core`` package (Apache-2.0), in place or copied into one
folder as STEM_VERSION.parquet. ``latency`` is in milliseconds there, columns that end in ``_us`` in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

PACKAGE = "aiconfigurator_core"

_MODULE_KEY = (
    "kernel_source",
    "model",
    "kv_cache_dtype",
    "gemm_type",
    "num_heads",
    "batch_size",
    "isl",
    "tp_size",
    "step",
)
_MOE_KEY = (
    "kernel_source",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
)
_ATTENTION_KEY = (
    "kernel_source",
    "kv_cache_dtype",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "batch_size",
    "isl",
    "step",
    "window_size",
)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: where the package keeps it, and its columns: ``key`` names a row, ``more`` are read, too.

    A row whose key hashes to a multiple of four is kept out of every fit. Without a key (few rows)
    none is, and errors are of each row left out in turn.
    """

    stem: str
    place: str
    file: str
    version: str
    key: tuple[str, ...] = ()
    more: tuple[str, ...] = ("latency",)


def _table(
    stem: str, place: str, file: str, version: str, key: tuple[str, ...] = (), *more: str, timed: bool = True
) -> Table:
    return Table(stem, place, file, version, key, (*more, "latency") if timed else more)


_VLLM, _SGLANG = "0.24.0", "0.5.14"
_SPARSE = "sparse_attention"
_KERNEL_KEY = _MODULE_KEY
_DEEPEP = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
_TEXTS = frozenset(
    ("kernel_source", "model", "op_name", "kv_cache_dtype", "gemm_type", "gemm_dtype", "moe_dtype")
).union(("nccl_dtype", "distribution", "backend", "score_mode"))
"""Columns of text; all others that are read hold numbers."""

TABLES: tuple[Table, ...] = (
    _table("dsa_decode_module_vllm", f"{_SPARSE}/vllm", "dsa_generation_module_perf", _VLLM, _MODULE_KEY),
    _table(
        "dsa_decode_module_sglang",
        f"{_SPARSE}/sglang",
        "dsa_generation_module_perf",
        _SGLANG,
        ("op_name", *_MODULE_KEY),
    ),
    _table(
        "dsa_prefill_module_vllm",
        f"{_SPARSE}/vllm",
        "dsa_context_module_perf",
        _VLLM,
        _MODULE_KEY,
        "op_name",
    ),
    _table(
        "dsa_prefill_module_sglang",
        f"{_SPARSE}/sglang",
        "dsa_context_module_perf",
        _SGLANG,
        ("op_name", *_MODULE_KEY),
    ),
    _table("moe_fp8_sglang", "moe/sglang", "moe_perf", _SGLANG, _MOE_KEY, "moe_dtype", "num_experts"),
    _table(
        "allreduce_custom_vllm",
        "comm/vllm",
        "custom_allreduce_perf",
        _VLLM,
        (),
        "backend",
        "num_gpus",
        "message_size",
    ),
    _table(
        "nccl",
        "comm/nccl",
        "nccl_perf",
        "2.29.2",
        (),
        "op_name",
        "num_gpus",
        "message_size",
        "nccl_dtype",
    ),
    _table(
        "deepep_ll_sglang",
        "comm/sglang",
        "wideep_deepep_ll_perf",
        "0.5.12",
        (),
        *_DEEPEP,
        "dispatch_avg_t_us",
        "combine_avg_t_us",
        timed=False,
    ),
    _table(
        "deepep_normal_sglang",
        "comm/sglang",
        "wideep_deepep_normal_perf",
        "0.5.12",
        (),
        *_DEEPEP,
        "dispatch_sms",
        "combine_sms",
        "dispatch_transmit_us",
        "combine_transmit_us",
        timed=False,
    ),
    _table("mla_decode_module_vllm", "mla/vllm", "mla_generation_module_perf", _VLLM, _MODULE_KEY),
    _table("gqa_decode_vllm", "attention/vllm", "generation_attention_perf", _VLLM, _ATTENTION_KEY),
    _table("gqa_prefill_vllm", "attention/vllm", "context_attention_perf", _VLLM, _ATTENTION_KEY),
    _table("gemm_vllm", "gemm/vllm", "gemm_perf", _VLLM, ("kernel_source", "gemm_dtype", "m", "n", "k")),
    # Single kernels: read by checks only, since modules contain them.
    _table("glm5_dsa_attn_sglang", f"{_SPARSE}/sglang", "glm5_dsa_attn_module_perf", _SGLANG, _KERNEL_KEY),
    _table(
        "glm5_mqa_logits_sglang", f"{_SPARSE}/sglang", "glm5_mqa_logits_module_perf", _SGLANG, _KERNEL_KEY
    ),
    _table(
        "glm5_topk_sglang",
        f"{_SPARSE}/sglang",
        "glm5_topk_module_perf",
        _SGLANG,
        (*_KERNEL_KEY, "score_mode"),
    ),
    _table(
        "dsv4_paged_mqa_logits_sglang",
        f"{_SPARSE}/sglang",
        "dsv4_paged_mqa_logits_module_perf",
        _SGLANG,
        _KERNEL_KEY,
    ),
)
BY_STEM = {table.stem: table for table in TABLES}


def kept_out(rows: pd.DataFrame, key: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Which rows belong to the quarter that no fit may see: SHA-256 of the key, modulo 4."""
    import numpy as np

    if not key:
        return np.zeros(len(rows), dtype=bool)
    # Not ``astype(str)``, which leaves out what is missing.
    first, *others = (rows[name].astype(object).map(str) for name in key)
    texts = first
    for column in others:
        texts = texts + "|" + column
    return np.array([int(sha256(text.encode()).hexdigest(), 16) % 4 == 0 for text in texts], dtype=bool)


class Folder:
    """The tables of one GPU: a folder of copies, or the package's own folder of that GPU.

    ``inputs`` remembers the SHA-256 of every file that was read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inputs: dict[str, str] = {}
        if not path.is_dir():
            raise InputError("no such folder of tables", where=str(path))

    def file(self, table: Table) -> Path | None:
        """Where the table is, if it is there: the version asked for, else the newest."""
        asked = self.path / table.place / table.version / f"{table.file}.parquet"
        if asked.exists():
            return asked
        copies = sorted(self.path.glob(f"{table.stem}_[0-9]*.parquet"))
        versions = sorted((self.path / table.place).glob(f"*/{table.file}.parquet"))
        found = [*versions, *copies]
        return found[-1] if found else None

    def read(self, stem: str) -> pd.DataFrame | None:
        """A table with ``t_s`` (seconds) and ``kept_out``; none if it is not there."""
        table = BY_STEM[stem]
        path = self.file(table)
        if path is None:
            return None
        rows = read_rows(path, table)
        self.inputs[f"{table_name(path, table)}.parquet"] = sha256(path.read_bytes()).hexdigest()
        return rows

    def need(self, stem: str) -> pd.DataFrame:
        """The same. Raises ``InputError`` if it is not there."""
        rows = self.read(stem)
        if rows is None:
            raise InputError(f"no table {stem}_*.parquet", where=str(self.path))
        if rows.empty:
            raise InputError(f"table {stem} holds no rows", where=str(self.path))
        return rows


def read_rows(path: Path, table: Table) -> pd.DataFrame:
    """A parquet file as rows with ``t_s`` and ``kept_out``. Raises ``InputError`` for another table's."""
    import pandas as pd

    try:
        rows = pd.read_parquet(path)
    except Exception as error:  # pyarrow has no common base for what it raises
        text = " ".join(str(error).split())[:120]
        raise InputError(f"is not a readable parquet table: {text}", where=str(path)) from None
    read = dict.fromkeys((*table.key, *table.more))
    lacking = [name for name in read if name not in rows]
    if lacking:
        raise InputError(f"lacks the columns {', '.join(lacking)} of a {table.stem} table", where=str(path))
    for name in read:
        if pd.api.types.is_numeric_dtype(rows[name]) == (name in _TEXTS) and len(rows):
            raise InputError(
                f"column {name} holds {rows[name].dtype}, not {'text' if name in _TEXTS else 'numbers'}",
                where=str(path),
            )
    rows = rows.reset_index(drop=True)
    if "latency" in rows:
        rows["t_s"] = rows["latency"].astype(float) / 1e3
    rows["kept_out"] = kept_out(rows, table.key)
    return rows


def package_folder(system: str) -> Path:
    """The installed package's folder of one GPU. Raises ``InputError`` if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the package aiconfigurator-core is not installed; pip install 'hisparse-sim[aiconfigurator]', "
            "or give a folder of its tables with --tables",
            where="calibrate import",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data" / system


def table_name(path: Path, table: Table) -> str:
    """``moe_fp8_sglang_0.5.14``, whether the file is a copy or lies in the package's own folders."""
    return path.stem if path.stem.startswith(table.stem) else f"{table.stem}_{path.parent.name}"


def recognised(folder: Path) -> Iterator[tuple[Path, Table]]:
    """The tables known here that lie in ``folder``: copies by their name, else the package's by place."""
    inside = Folder(folder)
    if not any(folder.glob("*.parquet")):
        for table in TABLES:
            if (path := inside.file(table)) is not None:
                yield path, table
        return
    for path in sorted(folder.glob("*.parquet")):
        known = [table for table in TABLES if path.name.startswith(table.stem)]
        if known:
            yield path, max(known, key=lambda table: len(table.stem))

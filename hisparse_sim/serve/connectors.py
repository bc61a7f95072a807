"""What ``--kv-transfer-config`` and ``--kv-offloading-size`` set up: HiSparse, offloading, both or others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import nearest
from hisparse_sim.serve.parse import ServeFlags

GIB = 2**30

HISPARSE = "HiSparseConnector"
NATIVE_OFFLOAD = ("OffloadingConnector", "SimpleCPUOffloadConnector")
MULTI = "MultiConnector"
OTHERS = (
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "P2pNcclConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
    "MoRIIOConnector",
    "DecodeBenchConnector",
    "SharedStorageConnector",
    "ExampleConnector",
)
"""Registered in vLLM's connector factory (vllm/distributed/kv_transfer/kv_connector/factory.py)."""
ROLES = ("kv_producer", "kv_consumer", "kv_both")

NAME = "kv-transfer-config"
SIZE = "kv-offloading-size"


@dataclass(frozen=True, slots=True)
class Connectors:
    """Sizes in GiB, of one DP replica.

    ``host_pool_gib``: none when HiSparse is not asked for or names no size. ``offload_gib``: total over
    TP ranks. ``by_size``: ``--kv-offloading-size`` made the offload. ``others``: connectors that are
    known by name only. ``without_role``: of connectors that need ``kv_role`` and have none.
    """

    hisparse: bool = False
    host_pool_gib: float | None = None
    offload_gib: float | None = None
    by_size: bool = False
    multi: bool = False
    others: tuple[str, ...] = ()
    without_role: tuple[str, ...] = ()
    lazy: bool = False


def read_connectors(flags: ServeFlags, tp: int) -> Connectors:
    """Raises ``InputError`` for unknown connectors, roles and sizes that are no numbers."""
    top = flags.mapping(NAME)
    where = flags.place(NAME)
    hisparse, multi, lazy = False, False, False
    pool: float | None = None
    offload: float | None = None
    others: list[str] = []
    roleless: list[str] = []
    for config in _leaves(top, where):
        name = config["kv_connector"]
        role = config.get("kv_role")
        if role is None:
            roleless.append(name)
        elif role not in ROLES:
            raise InputError(f"kv_role {role!r} is none of {', '.join(ROLES)}", where=where)
        extra = config.get("kv_connector_extra_config") or {}
        if not isinstance(extra, Mapping):
            raise InputError(f"kv_connector_extra_config of {name} is no mapping", where=where)
        multi = multi or name != top.get("kv_connector")
        if name == HISPARSE:
            hisparse = True
            pool = _number(extra, "host_pool_gib", where)
        elif name in NATIVE_OFFLOAD:
            lazy = lazy or bool(extra.get("lazy_offload"))
            offload = (offload or 0.0) + _offload_gib(extra, tp, where)
        else:
            others.append(name)
    size = flags.number(SIZE, 0.0)
    if size < 0:
        raise InputError(f"{size:g} GiB is not a size", where=flags.place(SIZE))
    by_size = SIZE in flags.given and size > 0
    if by_size and flags.text("kv-offloading-backend", "native") != "native":
        others.append(flags.text("kv-offloading-backend", ""))
    if by_size and not top:
        offload = size
    return Connectors(hisparse, pool, offload, by_size, multi, tuple(others), tuple(roleless), lazy)


def _leaves(config: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """The connectors that do something: those inside a MultiConnector, which hands its role on."""
    if not config:
        return
    name = config.get("kv_connector")
    if not isinstance(name, str):
        raise InputError(f"names no kv_connector, as in {{'kv_connector': {HISPARSE!r}}}", where=where)
    known = (HISPARSE, MULTI, *NATIVE_OFFLOAD, *OTHERS)
    if name not in known and "kv_connector_module_path" not in config:
        near = nearest(name, known) or f"; known are {', '.join(known)}"
        raise InputError(f"kv_connector {name!r} is unknown{near}", where=where)
    if name != MULTI:
        yield config
        return
    inner = (config.get("kv_connector_extra_config") or {}).get("connectors")
    if not isinstance(inner, list) or not inner or not all(isinstance(c, dict) for c in inner):
        raise InputError(
            f"{MULTI} needs a list of connectors in kv_connector_extra_config.connectors", where=where
        )
    for each in inner:
        yield from _leaves({"kv_role": config.get("kv_role"), **each}, where)


def _number(extra: Mapping[str, Any], key: str, where: str) -> float | None:
    value = extra.get(key)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{key} {value!r} is not a number", where=where) from None


def _offload_gib(extra: Mapping[str, Any], tp: int, where: str) -> float:
    """Total over TP ranks, as vLLM counts ``cpu_bytes_to_use``."""
    total = _number(extra, "cpu_bytes_to_use", where)
    each = _number(extra, "cpu_bytes_to_use_per_rank", where)
    if total is None and each is None:
        raise InputError("an offloading connector needs cpu_bytes_to_use (bytes over all ranks)", where=where)
    size = (total if total is not None else each * tp if each is not None else 0.0) / GIB
    if size <= 0:
        raise InputError(f"cpu_bytes_to_use {size * GIB:,.0f} is not a size", where=where)
    return size

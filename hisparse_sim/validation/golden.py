"""Replay recorded traces of vLLM's own scheduler through this package's, and compare every step.

``python -m hisparse_sim.validation.golden DIR [--only GLOB] [--json]`` takes a folder with
``scenarios/NAME.json`` and ``v033/NAME.jsonl[.gz]``. The clock is the step count; a write-back or
load is reported a fixed number of steps after it began. Exit code 0 only if all traces are equal.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.layout import pack_groups, round_up
from hisparse_sim.memory.offload import OffloadMemory, OffloadSizes
from hisparse_sim.memory.residency import HiSparseMemory, HiSparseSizes
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Decision, Scheduler

ENGINE = {
    "block_size": 64,
    "num_gpu_blocks": None,
    "gpu_kv_bytes": None,
    "host_pool_gib": None,
    "num_host_blocks": None,
    "cpu_offload_gib": None,
    "num_cpu_chunks": None,
    "max_model_len": 8192,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "long_prefill_token_threshold": 0,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "policy": "fcfs",
    "async_scheduling": False,
    "device_buffer_size": None,
    "watermark": 0.0,
    "shared_host_pool": False,
    "delay": 0,
    "store_delay": None,
    "load_delay": None,
    "skip_startup_check": False,
}
"""Engine fields of a scenario, with what an absent one means."""

MODEL = {
    "num_layers": 78,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 2,
    "mla_bytes": 656,
    "indexer_bytes": 132,
}
"""Model fields of a scenario, likewise."""

APART = ("flushed", "ext")
"""Fields compared, but counted apart: the recording does not pin them down fully."""


@dataclass
class Difference:
    """The first step at which a trace and its replay disagree."""

    step: int
    fields: dict[str, tuple[Any, Any]]


@dataclass
class Outcome:
    """How one trace compares. ``difference`` none: equal over ``steps`` steps."""

    name: str
    steps: int
    difference: Difference | None = None
    apart: int = 0
    """Steps at which a field of ``APART`` differs."""
    error: str | None = None


class Replay:
    """One scenario on this package's scheduler, a recorded line at a time."""

    def __init__(self, scenario: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        config = config or {}
        self.engine = {**ENGINE, **config.get("engine", {}), **scenario.get("engine", {})}
        self.model = {**MODEL, **config.get("model", {}), **scenario.get("model", {})}
        self.mode = scenario["mode"]
        self.memory = self._memory()
        engine = self.engine
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=engine["max_model_len"],
                max_num_seqs=engine["max_num_seqs"],
                max_num_batched_tokens=engine["max_num_batched_tokens"],
                long_prefill_token_threshold=engine["long_prefill_token_threshold"],
                chunked_prefill=engine["enable_chunked_prefill"],
                priority_policy=engine["policy"] == "priority",
                async_scheduling=engine["async_scheduling"],
            ),
            self.memory,
        )
        index = ContentIndex(engine["block_size"])
        self.arrivals: deque[tuple[int, Request]] = deque()
        requests = []
        for i, r in enumerate(scenario["requests"]):
            shared = min(r.get("prefix_len") or 0, r["prompt_len"]) if r.get("prefix_group") else 0
            segments = ((r["prefix_group"], 0, shared),) if shared else ()
            total = r["prompt_len"] + r["output_len"]
            request = Request(
                r["id"],
                r["prompt_len"],
                r["output_len"],
                index.of_segments(segments, total),
                arrival=r["arrival_step"] + 1e-6 * i,
                priority=r.get("priority") or 0,
            )
            requests.append((r["arrival_step"], i, request))
        for step, _, request in sorted(requests, key=lambda x: (x[0], x[1])):
            self.arrivals.append((step, request))
        self._adopted = self._lost = self._planned = self._completed = 0
        self._flushed = 0

    def _memory(self) -> ResidentMemory | HiSparseMemory:
        e, m = self.engine, self.model
        size = e["block_size"]
        layers = m["num_layers"]
        freq, offset = m["index_topk_freq"], m["index_skip_topk_offset"]
        leaders = tuple(i for i in range(layers) if max(i - offset + 1, 0) % freq == 0)
        page, key = m["mla_bytes"] * size, m["indexer_bytes"] * size
        if self.mode != "hisparse":
            block = page * layers + key * len(leaders)
            blocks = e["num_gpu_blocks"] or e["gpu_kv_bytes"] // block
            sizes = ResidentSizes(
                size,
                blocks - 1,
                e["max_model_len"],
                int(e["watermark"] * blocks),
                e["enable_prefix_caching"],
            )
            if self.mode == "vanilla":
                return ResidentMemory(sizes)
            chunks = e["num_cpu_chunks"]
            if chunks is None:
                chunks = int(e["cpu_offload_gib"] * 2**30) // round_up(block, 4096)
            store, load = e["store_delay"], e["load_delay"]
            return OffloadMemory(
                OffloadSizes(
                    sizes,
                    chunks,
                    e["delay"] + 1 if store is None else store,
                    e["delay"] if load is None else load,
                )
            )
        groups = pack_groups(leaders, layers, page, key * len(leaders))
        block = round_up(max(key * len(leaders), *(len(g) * page for g in groups)), page)
        blocks = e["num_gpu_blocks"] or e["gpu_kv_bytes"] // block
        host = e["num_host_blocks"]
        if host is None:
            stride = round_up(layers * page, 4096) if e["shared_host_pool"] else layers * page
            host = int(e["host_pool_gib"] * 2**30) // stride
        in_flight = e["max_num_batched_tokens"] * (2 if e["async_scheduling"] else 1)
        hot = -(-(e["device_buffer_size"] or 2 * m["index_topk"]) // size)
        return HiSparseMemory(
            HiSparseSizes(
                block_size=size,
                gpu_blocks=blocks - 1,
                host_blocks=host - 1,
                resident_groups=len(groups),
                hot_blocks_per_group=hot,
                window_pages=-(-min(in_flight, e["max_model_len"]) // size),
                transition_watermark_blocks=max(len(groups) * hot, blocks // 10),
                max_model_len=e["max_model_len"],
                admission_watermark_blocks=int(e["watermark"] * blocks),
                prefix_caching=e["enable_prefix_caching"],
                transfer_delay_steps=e["delay"],
            )
        )

    # -- running --------------------------------------------------------------------------------

    def lines(self) -> Iterator[dict[str, Any]]:
        """The steps, as the trace format records them."""
        scheduler = self.scheduler
        depth = 2 if self.engine["async_scheduling"] else 1
        queue: deque[Decision] = deque()
        step = 0
        while True:
            while self.arrivals and self.arrivals[0][0] <= step:
                scheduler.add(self.arrivals.popleft()[1])
            work = scheduler.has_work
            if not work and not queue:
                if not self.arrivals:
                    return
                step = self.arrivals[0][0]
                continue
            line: dict[str, Any] = {"step": step, "finished": []}
            update = True
            if work:
                decision = scheduler.schedule()
                self._scheduled(line, decision)
                queue.append(decision)
                if len(queue) < depth and (decision or scheduler.has_work):
                    update = False
            else:
                self._scheduled(line, None)
                line["drain"] = True
            if update:
                line["finished"] = [r.id for r in scheduler.update(queue.popleft())]
            self._updated(line)
            yield line
            step += 1

    def _scheduled(self, line: dict[str, Any], decision: Decision | None) -> None:
        line["scheduled"] = {r.id: n for r, n in decision.scheduled.items()} if decision else {}
        for name in ("new", "resumed", "preempted"):
            source = "admitted" if name == "new" else name
            line[name] = [r.id for r in getattr(decision, source)] if decision else []
        line["running"] = decision.running if decision else len(self.scheduler.running)
        line["waiting"] = decision.waiting if decision else len(self.scheduler.waiting)
        line["gpu_free"] = self.memory.gpu.free
        if decision and decision.hits:
            line["hits"] = {r.id: h.tokens for r, h in decision.hits.items()}
        if isinstance(self.memory, HiSparseMemory):
            line["host_free"] = self.memory.host_pool.free
        if isinstance(self.memory, OffloadMemory):
            jobs = self.memory.started
            line["planned"] = len(jobs)
            for name, load in (("loads", True), ("stores", False)):
                blocks: dict[str, int] = {}
                for job in jobs:
                    if job.load is load:
                        r = job.request.id  # type: ignore[attr-defined]
                        blocks[r] = blocks.get(r, 0) + job.blocks
                if blocks:
                    line[name] = blocks
            self.memory.started = []
            if decision and decision.lookups:
                line["ext"] = {
                    r.id: [h.tokens, h.load_tokens, int(h.load_tokens > 0)] for r, h in decision.lookups
                }

    def _updated(self, line: dict[str, Any]) -> None:
        memory = self.memory
        line["gpu_free_end"] = memory.gpu.free
        if isinstance(memory, OffloadMemory):
            line["cpu_free"] = memory.store.free
            line["completed"] = len(memory.completed)
            memory.completed = []
            if memory.flushed > self._flushed:
                line["flushed"] = memory.flushed - self._flushed
                self._flushed = memory.flushed
        if not isinstance(memory, HiSparseMemory):
            return
        line["host_free_end"] = memory.host_pool.free
        states = [s for s in memory.copies.states if s is not None]
        lost = memory.lost_pages + sum(s.lost for s in states)
        for name, total, before in (
            ("planned", memory.planned_pages, self._planned),
            ("completed", memory.completed_pages, self._completed),
            ("lost", lost, self._lost),
            ("adopted", memory.adopted_pages, self._adopted),
        ):
            line[name] = total - before
        self._planned, self._completed = memory.planned_pages, memory.completed_pages
        self._lost, self._adopted = lost, memory.adopted_pages
        rows = {}
        for r in self.scheduler.running:
            s = r.memory
            hot = int(s.hot_blocks == memory.hot_blocks)
            rows[r.id] = [
                s.resident,
                s.unpinned,
                s.host_only,
                hot,
                s.clean_held,
                s.ready,
                s.planned - s.ready,
            ]
        line["reqs"] = rows


def read_trace(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a trace with their line numbers."""
    open_ = gzip.open if path.suffix == ".gz" else open
    try:
        with open_(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    yield number, json.loads(text)
                except json.JSONDecodeError as e:
                    raise InputError(f"not JSON: {e.msg}", where=f"{path}:{number}") from None
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise InputError(f"cannot be read: {e}", where=str(path)) from None


def compare(scenario: dict[str, Any], trace: Iterator[tuple[int, dict[str, Any]]], name: str) -> Outcome:
    """Replay ``scenario`` and compare it with ``trace``, merged steps expanded."""
    _, config = next(trace)
    replay = Replay(scenario, config)
    lines = replay.lines()
    steps = apart = 0
    for _, record in trace:
        if record.get("kind") == "totals":
            extra = None if record.get("error") == "max_steps" else next(lines, None)
            if extra is not None:
                fields = {"step": (None, extra["step"])}
                return Outcome(name, steps, Difference(extra["step"], fields), apart)
            break
        first, last = record.get("steps") or (record["step"], record["step"])
        for step in range(first, last + 1):
            line = next(lines, None)
            fields = _differences({**record, "step": step}, line)
            if any(f in fields for f in APART):
                apart += 1
            fields = {k: v for k, v in fields.items() if k not in APART}
            if fields:
                return Outcome(name, steps, Difference(step, fields), apart)
            steps += 1
    return Outcome(name, steps, None, apart)


def _differences(want: dict[str, Any], got: dict[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    if got is None:
        return {"step": (want["step"], None)}
    fields: dict[str, tuple[Any, Any]] = {}
    for key in (want.keys() | got.keys()) - {"steps", "kind"}:
        a, b = want.get(key), got.get(key)
        if key in ("lost", "adopted"):
            a = sum(a.values()) if a else 0
            b = b or 0
        elif key == "scheduled":
            a, b = list((a or {}).items()), list((b or {}).items())
        elif not a and not b:
            continue
        if a != b:
            fields[key] = (want.get(key), got.get(key))
    return fields


def replay_folder(folder: Path, only: str = "*") -> Iterator[Outcome]:
    """Compare each scenario of ``folder`` with its trace."""
    scenarios = sorted((folder / "scenarios").glob("*.json"))
    if not scenarios:
        raise InputError("no scenarios/*.json here", where=str(folder))
    for path in scenarios:
        name = path.stem
        if not fnmatch.fnmatch(name, only):
            continue
        traces = [folder / "v033" / f"{name}.jsonl{gz}" for gz in (".gz", "")]
        found = next((t for t in traces if t.exists()), None)
        if found is None:
            yield Outcome(name, 0, error="no trace for this engine")
            continue
        try:
            scenario = json.loads(path.read_text(encoding="utf-8"))
            yield compare(scenario, read_trace(found), name)
        except (HiSparseError, KeyError, TypeError, json.JSONDecodeError) as e:
            yield Outcome(name, 0, error=f"{path if not isinstance(e, HiSparseError) else ''}{e!s}")


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hisparse_sim.validation.golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="names to replay (a glob)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    equal = True
    rows = []
    try:
        for o in replay_folder(args.folder, args.only):
            missing = o.error == "no trace for this engine"
            equal &= missing or (o.difference is None and o.error is None)
            if args.json:
                d = o.difference
                rows.append(
                    {
                        "name": o.name,
                        "equal": o.difference is None and o.error is None,
                        "steps": o.steps,
                        "first_difference": d and {"step": d.step, "fields": d.fields},
                        "apart": o.apart,
                        "error": o.error,
                    }
                )
            elif o.error:
                print(f"{o.name}: {o.error}")
            elif o.difference:
                print(f"{o.name}: differs at step {o.difference.step}")
                for field, (want, got) in sorted(o.difference.fields.items()):
                    print(f"  {field}: recorded {want}, replayed {got}")
            else:
                print(f"{o.name}: equal {o.steps} steps" + (f" ({o.apart} apart)" if o.apart else ""))
    except HiSparseError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(rows))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())

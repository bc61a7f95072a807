"""A recorded scenario on this package's own scheduler, a trace line at a time.

The clock is the step count; a write-back or load is reported a fixed number of steps after it
began. Scenario and trace fields are those of traces recorded from vLLM's scheduler.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.memory.base import EngineDied
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.layout import pack_groups, round_up
from hisparse_sim.memory.offload import OffloadMemory, OffloadSizes
from hisparse_sim.memory.residency import ACTIVE_TAIL_PAGES, HiSparseMemory, HiSparseSizes
from hisparse_sim.memory.residency_v030 import HiSparseMemoryV030
from hisparse_sim.memory.resident import ResidentMemory, ResidentSizes
from hisparse_sim.scheduler.config import SchedulerConfig
from hisparse_sim.scheduler.decision import Decision
from hisparse_sim.scheduler.request import Request
from hisparse_sim.scheduler.step import Scheduler
from hisparse_sim.validation.trace_files import TracedEngine, TracedModel


class Replay:
    """One scenario on this package's scheduler, a recorded line at a time."""

    def __init__(
        self, scenario: dict[str, Any], config: dict[str, Any] | None = None, *, version: str = "0.33"
    ) -> None:
        config = config or {}
        self.v030 = version.startswith("0.30")
        self.died: str | None = None
        """What the engine said when it died, if it did."""
        defaults = TracedEngine().model_dump(), TracedModel().model_dump()
        self.engine = {**defaults[0], **config.get("engine", {}), **scenario.get("engine", {})}
        self.model = {**defaults[1], **config.get("model", {}), **scenario.get("model", {})}
        self.mode = scenario["mode"]
        self.facts: dict[str, Any] = {"mode": self.mode, "engine": self.engine, "model": self.model}
        """What this replay makes of the engine, as the trace's first line records it."""
        self.first_token_step: dict[str, int] = {}
        """When the step that samples a request's first token is scheduled."""
        self.arrival_step: dict[str, int] = {}
        """Of the requests that have arrived."""
        self.recomputed_tokens = 0
        """Computed tokens that preempted requests lost."""
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
                threshold_when_alone=self.v030,
                self_preemption_ends_step=self.v030,
                known_by_placeholders=self.v030,
            ),
            self.memory,
        )
        index = ContentIndex(engine["block_size"])
        arrivals: list[tuple[int, Request]] = []
        for i, r in enumerate(scenario["requests"]):
            if r["prompt_len"] > engine["max_model_len"]:
                raise InputError(
                    f"{r['prompt_len']} is more than max_model_len, {engine['max_model_len']}",
                    where=f"requests.{i}.prompt_len",
                )
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
            arrivals.append((r["arrival_step"], request))
        self.arrivals = deque(sorted(arrivals, key=lambda a: a[0]))
        self._adopted = self._lost = self._planned = self._completed = 0
        self._flushed = 0

    def _memory(self) -> ResidentMemory | HiSparseMemory | HiSparseMemoryV030:
        e, m = self.engine, self.model
        size = e["block_size"]
        layers = m["num_layers"]
        freq, offset = m["index_topk_freq"], m["index_skip_topk_offset"]
        leaders = tuple(i for i in range(layers) if max(i - offset + 1, 0) % freq == 0)
        if 0 not in leaders:
            raise InputError(
                f"{offset} leaves layer 0 without an indexer", where="model.index_skip_topk_offset"
            )
        page, key = m["mla_bytes"] * size, m["indexer_bytes"] * size
        in_flight = e["max_num_batched_tokens"] * (2 if e["async_scheduling"] else 1)
        longest = -(-e["max_model_len"] // size)
        self.facts.update(scheduler_block_size=size, hash_block_size=size, max_in_flight_tokens=in_flight)
        if self.mode != "hisparse":
            block = page * layers + key * len(leaders)
            blocks = self._blocks("num_gpu_blocks", "gpu_kv_bytes", block)
            self.facts.update(num_gpu_blocks=blocks, gpu_bytes_per_block=block)
            self._concurrency(blocks / longest)
            self.facts["groups"] = _groups((layers + len(leaders), page, longest, None))
            resident = ResidentSizes(
                size,
                blocks - 1,
                e["max_model_len"],
                int(e["watermark"] * blocks),
                e["enable_prefix_caching"],
            )
            if self.mode == "vanilla":
                return ResidentMemory(resident)
            chunks = self._blocks("num_cpu_chunks", "cpu_offload_gib", round_up(block, 4096))
            store = e["delay"] + 1 if e["store_delay"] is None else e["store_delay"]
            load = e["delay"] if e["load_delay"] is None else e["load_delay"]
            self.facts.update(num_cpu_chunks=chunks, store_delay=store, load_delay=load)
            self.facts.update(cpu_bytes_to_use=chunks * round_up(block, 4096))
            return OffloadMemory(OffloadSizes(resident, chunks, store, load, lru=self.v030))
        groups = pack_groups(leaders, layers, page, key * len(leaders))
        block = round_up(max(key * len(leaders), *(len(g) * page for g in groups)), page)
        blocks = self._blocks("num_gpu_blocks", "gpu_kv_bytes", block)
        stride = round_up(layers * page, 4096) if e["shared_host_pool"] else layers * page
        host = self._blocks("num_host_blocks", "host_pool_gib", stride)
        hot = -(-(e["device_buffer_size"] or 2 * m["index_topk"]) // size)
        sizes = HiSparseSizes(
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
        self.facts.update(
            num_gpu_blocks=blocks,
            gpu_bytes_per_block=block,
            num_host_blocks=host,
            host_block_stride=stride,
            num_resident_groups=len(groups),
            hot_blocks_per_request_total=sizes.hot_blocks,
            transition_watermark=sizes.transition_watermark_blocks,
            max_spill_pages=e["max_model_len"] // size,
        )
        window = longest if self.v030 else sizes.window_pages
        self.facts["groups"] = _groups(
            (layers, page, longest, None),
            (len(leaders), key, longest, None),
            *(
                (len(g), page, window, ("max_admission_blocks_per_request", sizes.window_pages))
                for g in groups
            ),
            *((len(g), page, hot, ("blocks_per_request", hot)) for g in groups),
        )
        first = longest + sizes.resident_groups * window + sizes.hot_blocks
        self._concurrency(min(blocks / first, host / longest))
        if not self.v030:
            each = longest + sizes.resident_groups * min(window, ACTIVE_TAIL_PAGES) + sizes.hot_blocks
            steady = blocks / first if blocks < first else 1 + (blocks - first) / each
            self.facts["steady_state_concurrency"] = min(steady, host / longest)
        return HiSparseMemoryV030(sizes) if self.v030 else HiSparseMemory(sizes)

    def _blocks(self, in_blocks: str, in_bytes: str, block_bytes: int) -> int:
        """The size of a pool, given in blocks, bytes or GiB."""
        blocks, size = self.engine[in_blocks], self.engine[in_bytes]
        if blocks is not None:
            return int(blocks)
        if size is None:
            raise InputError(
                f"missing; mode {self.mode} needs it, or {in_bytes}", where=f"engine.{in_blocks}"
            )
        blocks = int(size * 2**30 if in_bytes.endswith("_gib") else size) // block_bytes
        if not blocks:
            raise InputError(
                f"{size} does not hold one block of {block_bytes} bytes", where=f"engine.{in_bytes}"
            )
        return blocks

    def _concurrency(self, requests: float) -> None:
        """vLLM's "Maximum concurrency" of requests of ``max_model_len``, and as tokens."""
        tokens = int(requests * self.engine["max_model_len"])
        self.facts.update(max_concurrency_logged=requests, kv_cache_size_tokens_logged=tokens)

    # -- running --------------------------------------------------------------------------------

    def lines(self) -> Iterator[dict[str, Any]]:
        """The steps, as the trace format records them."""
        scheduler = self.scheduler
        depth = 2 if self.engine["async_scheduling"] else 1
        queue: deque[Decision] = deque()
        step = 0
        while True:
            while self.arrivals and self.arrivals[0][0] <= step:
                when, request = self.arrivals.popleft()
                scheduler.add(request)
                self.arrival_step[request.id] = when
            work = scheduler.has_work
            if not work and not queue:
                if not self.arrivals:
                    return
                step = self.arrivals[0][0]
                continue
            line: dict[str, Any] = {"step": step, "finished": []}
            update = True
            if work:
                try:
                    decision = scheduler.schedule()
                except EngineDied as e:
                    self.died = f"schedule: ValueError: {e}"
                    return
                self.recomputed_tokens += decision.dropped_tokens
                for request, (_, samples) in decision.epochs.items():
                    if samples:
                        self.first_token_step.setdefault(request.id, step)
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
        scheduled = {} if decision is None else decision.whole(self.scheduler.running)
        line["scheduled"] = {r.id: n for r, n in scheduled.items()}
        for name in ("new", "resumed", "preempted"):
            source = "admitted" if name == "new" else name
            line[name] = [r.id for r in getattr(decision, source)] if decision is not None else []
        line["running"] = len(self.scheduler.running) if decision is None else decision.running
        line["waiting"] = len(self.scheduler.waiting) if decision is None else decision.waiting
        line["gpu_free"] = self.memory.gpu.free
        if decision is not None and decision.hits:
            line["hits"] = {r.id: h.tokens for r, h in decision.hits.items()}
        if isinstance(self.memory, HiSparseMemory | HiSparseMemoryV030):
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
            if decision is not None and decision.lookups:
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
        if not isinstance(memory, HiSparseMemory | HiSparseMemoryV030):
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
                s.in_flight,
            ]
        line["reqs"] = rows


def _groups(*rows: tuple[int, int, int, tuple[str, int] | None]) -> list[dict[str, Any]]:
    """Cache groups: layers, bytes of a page of one, blocks of the longest request, and a bound to them."""
    return [
        {
            "idx": i,
            "host": len(rows) > 1 and not i,
            "layers": layers,
            "page_bytes_one_layer": page,
            "blocks_per_max_len_request": blocks,
            **dict([bound] if bound else []),
        }
        for i, (layers, page, blocks, bound) in enumerate(rows)
    ]


class Totals:
    """The last record of a trace, summed up from its steps."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._max_running = 0
        self._last: dict[str, Any] = {}
        self._requests: dict[str, dict[str, int]] = {}

    def add(self, line: dict[str, Any]) -> None:
        """A step."""
        sums = self._sums
        sums["steps"] += 1
        sums["empty_steps"] += not line["scheduled"]
        sums["scheduled_tokens"] += sum(line["scheduled"].values())
        sums["preemptions"] += len(line["preempted"])
        for total, source in _SUMS.items():
            sums[total] += line.get(source, 0)
        for jobs, blocks, source in _JOBS:
            sums[jobs] += len(line.get(source, ()))
            sums[blocks] += sum(line.get(source, {}).values())
        for request, hit in line.get("hits", {}).items():
            sums["hit_tokens"] += hit
            if request in line["resumed"]:
                sums["resumed_hit_tokens"] += hit
        self._max_running = max(self._max_running, line["running"])
        for request in line["new"]:
            self._requests[request] = {"first_sched_step": line["step"], "preemptions": 0}
        for request in line["preempted"]:
            self._requests[request]["preemptions"] += 1
        for request in line["finished"]:
            self._requests[request]["finish_step"] = line["step"]
            sums["last_finish_step"] = line["step"]
        self._last = line

    def record(self, replay: Replay) -> dict[str, Any]:
        """As a trace has it."""
        requests = {
            name: {
                **self._requests.get(name, {}),
                "arrival": arrival,
                "first_token_step": replay.first_token_step.get(name),
            }
            for name, arrival in replay.arrival_step.items()
        }
        unfinished = sorted(name for name, r in requests.items() if "finish_step" not in r)
        finals = {f"{k}_final": self._last.get(f"{k}_end") for k in ("gpu_free", "host_free")}
        return {
            **self._sums,
            **finals,
            "max_running": self._max_running,
            "recomputed_from_preemption": replay.recomputed_tokens,
            "requests": requests,
            "unfinished": unfinished,
            "error": replay.died,
        }


_SUMS = {
    "adopted_pages": "adopted",
    "lost_pages": "lost",
    "transfers_planned": "planned",
    "transfers_completed": "completed",
}
_JOBS = (("load_jobs", "loaded_blocks", "loads"), ("store_jobs", "stored_blocks", "stores"))

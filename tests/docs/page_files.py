"""The files that pages speak of as the reader's own, small ones, and what a page's blocks are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from hisparse_sim.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIPPED = re.compile(r"<!-- not run by the tests: (.+) -->\n$")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.S | re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``reason``: why it is not run, if it is not. ``shows``: it follows on a command's."""

    kind: str
    text: str
    reason: str
    follows: bool

    @property
    def commands(self) -> list[str]:
        """A line each; a backslash at its end goes on in the next."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(page: Path) -> Iterator[Block]:
    """Those of ``page``, in order."""
    text, end = page.read_text(encoding="utf-8"), 0
    for found in _BLOCK.finditer(text):
        between = text[end : found.start()]
        skipped = SKIPPED.search(between)
        yield Block(found[1], found[2], skipped[1] if skipped else "", not between.strip())
        end = found.end()


SMALL = {
    "name": "mine",
    "model": "glm-5.3",
    "node": "8xh200",
    "engine": {"mode": "hisparse", "host_pool_gib": 384, "max_model_len": 142000},
    "workload": {
        "kind": "stream",
        "concurrency": 4,
        "requests": 8,
        "prompt_tokens": 4000,
        "output_tokens": 50,
    },
}
SERVE = "vllm serve zai-org/GLM-5.3-FP8 -tp 8 -ep --kv-cache-dtype fp8 --max-model-len 142000\n"
LOG = "GPU KV cache size: 400,000 tokens\nMaximum concurrency for 142,000 tokens per request: 2.82x\n"
SCRAPE = "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {}\n" + (
    "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total {}\n"
)
BENCH = {
    "duration": 8.0,
    "completed": 4,
    "total_input_tokens": 16000,
    "total_output_tokens": 200,
    "request_throughput": 0.5,
    "output_throughput": 25.0,
    "total_token_throughput": 2025.0,
    "mean_ttft_ms": 900.0,
    "mean_tpot_ms": 12.0,
    "max_concurrency": 4,
    "request_rate": "inf",
}


def readers_files(folder: Path) -> None:
    """Small ones of every kind that the pages name."""
    rows = [{"arrival_s": float(i), "prompt_tokens": 500 + i, "output_tokens": 20} for i in range(20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    mooncake = "".join(
        json.dumps({"timestamp": 60000 * i, "input_length": 900, "output_length": 9, "hash_ids": [i, i + 1]})
        + "\n"
        for i in range(30)
    )
    bench_text = json.dumps(BENCH) + "\n" + json.dumps(BENCH | {"duration": 9.0}) + "\n"
    compose = {"services": {"decode": {"image": "vllm/vllm-openai:v0.33.0", "command": SERVE}}}
    files = {
        "path/to/requests.jsonl": lines,
        "path/to/kv-cache-tester/traces": lines,  # stands for the folder of recorded sessions
        "traces": lines,
        "mooncake_conversation.jsonl": mooncake,
        "mine.yaml": yaml.safe_dump(SMALL),
        "my-scenario.yaml": yaml.safe_dump(SMALL),
        "points.csv": "workload.concurrency,engine.host_pool_gib\n2,128\n4,256\n",
        "start.sh": f"#!/bin/sh\nexec {SERVE}",
        "compose.yaml": yaml.safe_dump(compose),
        "vllm.log": LOG,
        "result.json": json.dumps(BENCH),
        "out.txt": bench_text,
        "before.prom": SCRAPE.format(100, 10),
        "after.prom": SCRAPE.format(16100, 210),
        "samples.json": json.dumps(_samples()),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def _samples() -> dict[str, object]:
    """Copies at 40 GB/s after 5 us."""
    points = [(2**n, 5e-6 + 2**n / 40e9) for n in range(12, 28)]
    found = [
        {"name": "copy_h2d", "parameters": {"bytes": n}, "unit": "s", "n": 9, "status": "ok"}
        | {"p10_s": s, "median_s": s, "p90_s": s}
        for n, s in points
    ]
    return {"schema": "hisparse-sim/samples/1", "hardware": {"gpu": "NVIDIA H200"}, "samples": found}


def recorded_rows(path: Path) -> None:
    """A recording of selected rows, drawn from a shipped locality."""
    size = ["--steps", "16", "--context", "79000"]
    assert run(["locality", "sample", "glm-5.1", "--out", str(path), *size]) == 0

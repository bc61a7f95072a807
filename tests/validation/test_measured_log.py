"""vLLM's log: settings, memory, the lines of every ten seconds, and a line that is cut."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.engine_log import read_engine_log

ARGS = (
    "(APIServer pid=1) INFO 09-03 10:00:00 [utils.py:326] non-default args: {'model': 'm', "
    "'max_model_len': 16384, 'tensor_parallel_size': 2, "
    "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}\n"
)
START = (
    "(APIServer pid=1) INFO 09-03 10:00:00 [api_server.py:1805] vLLM API server version 0.33.1\n"
    + ARGS
    + "(EngineCore_0 pid=2) INFO 09-03 10:01:00 [gpu_worker.py:276] Available KV cache memory: 12.02 GiB\n"
    "(EngineCore_0 pid=2) INFO 09-03 10:01:01 [kv_cache_utils.py:849] GPU KV cache size: 450,192 tokens\n"
    "(EngineCore_0 pid=2) INFO 09-03 10:01:01 [kv_cache_utils.py:853] Maximum concurrency for 16,384 tokens "
    "per request: 27.48x\n"
    "(APIServer pid=1) INFO 09-03 10:01:09 [loggers.py:142] Engine 000: vllm cache_config_info with "
    "initialization after num_gpu_blocks is: 28137\n"
)


def line(at: str, running: int, waiting: int = 0, usage: float = 10.0, *, engine: int = 0) -> str:
    return (
        f"(APIServer pid=1) INFO 09-03 {at} [loggers.py:123] Engine 00{engine}: Avg prompt throughput: 100.0 "
        f"tokens/s, Avg generation throughput: {20.0 * running:.1f} tokens/s, Running: {running} reqs, "
        f"Waiting: {waiting} reqs, GPU KV cache usage: {usage}%, Prefix cache hit rate: 50.0%, "
        "External prefix cache hit rate: 20.0%\n"
    )


def logged(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_memory_settings_and_gauges_are_read(tmp_path: Path) -> None:
    text = START + line("10:05:00", 0) + line("10:05:10", 4, 2, 30.0) + line("10:05:20", 8, 0, 50.0)
    log = read_engine_log(logged(tmp_path, text))
    assert log.startup is not None
    assert (log.startup.available_kv_gib, log.startup.num_gpu_blocks) == (12.02, 28137)
    assert log.settings == {"max_model_len": 16384, "tp": 2, "mtp": 3}
    assert log.version == "0.33.1"
    assert log.figures["running_mean"] == 6 and log.figures["waiting_mean"] == 1
    assert log.figures["gpu_kv_usage_max"] == 0.5
    assert (log.figures["prefix_hit_rate"], log.figures["external_hit_rate"]) == (0.5, 0.2)
    assert not log.problems


def test_lines_of_the_benchmark_alone_are_used_where_clocks_tell(tmp_path: Path) -> None:
    text = START + line("10:02:00", 100) + line("10:05:10", 4) + line("10:05:20", 8) + line("10:09:00", 90)
    path = logged(tmp_path, text)
    ended = datetime(2026, 9, 3, 10, 5, 25)
    assert read_engine_log(path, ended=ended, duration_s=20).figures["running_mean"] == 6
    later = read_engine_log(path, ended=datetime(2026, 9, 4), duration_s=20)
    assert later.figures["running_mean"] == 50.5
    assert "do the clocks differ?" in later.notes[-1]


def test_two_engines_are_summed_and_named(tmp_path: Path) -> None:
    log = read_engine_log(
        logged(tmp_path, line("10:00:00", 4, usage=20) + line("10:00:00", 8, usage=40, engine=1))
    )
    assert log.figures["running_mean"] == 12
    assert log.figures["gpu_kv_usage_mean"] == pytest.approx(0.3)
    assert "2 engines" in log.notes[-1]


def test_only_the_last_start_counts(tmp_path: Path) -> None:
    log = read_engine_log(logged(tmp_path, START + line("10:05:00", 50) + START + line("10:06:00", 2)))
    assert log.figures["running_mean"] == 2


def test_hisparse_transfers_are_read(tmp_path: Path) -> None:
    text = (
        "INFO KV Transfer metrics: HiSparse hot-buffer hits=75, HiSparse hot-buffer misses=25, HiSparse "
        "host-to-device bytes=1000, HiSparse host pool usage %=12.5\n"
    )
    figures = read_engine_log(logged(tmp_path, START + text * 2)).figures
    assert (figures["hot_hit_rate"], figures["host_usage_max"]) == (0.75, 0.125)
    assert figures["host_to_device_bytes"] == 2000


def test_a_line_that_a_terminal_broke_is_joined(tmp_path: Path) -> None:
    whole = line("10:05:00", 7)
    at = whole.index("Running") + 3
    figures = read_engine_log(logged(tmp_path, START + whole[:at] + "\n" + whole[at:])).figures
    assert figures["running_mean"] == 7


@pytest.mark.parametrize("keep", [30, 46, 62, 70, 93, 120, 160, 200, 232])
def test_a_log_cut_in_the_middle_of_a_line_is_named_and_used(tmp_path: Path, keep: int) -> None:
    path = logged(tmp_path, START + line("10:05:00", 5) + line("10:05:10", 99)[:keep])
    log = read_engine_log(path)
    assert log.figures["running_mean"] == 5
    assert f"{path}:8: ends in the middle of a line" in log.problems[0]


def test_a_log_of_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no start-up line about KV memory"):
        read_engine_log(logged(tmp_path, "nginx: started\n"))


def test_other_bytes_in_a_log_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_bytes(START.encode() + b"user \xff\xfe said\n" + line("10:05:00", 5).encode())
    log = read_engine_log(path)
    assert log.figures["running_mean"] == 5
    assert "vllm.log:7: a line holds bytes that are not UTF-8" in log.problems[0]

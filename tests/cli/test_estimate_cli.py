"""``hisparse-sim estimate`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_sim.cli.main import run

CONFIGS = Path(__file__).resolve().parents[2] / ".." / "shared" / "model_configs"
GLM = ["estimate", "--model", "glm-5.3", "--node", "8xh200"]


def asked(capsys, *args: str) -> dict:
    assert run([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def refused(capsys, *args: str) -> str:
    assert run(list(args)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_the_rows_have_the_promised_names(capsys):
    data = asked(
        capsys,
        *GLM,
        "--tp",
        "8",
        "--dp",
        "1",
        "--ep",
        "--context",
        "8k,128k,1M",
        "--kv-dtype",
        "fp8",
        "--hot-rows",
        "4096",
        "--host-pool",
        "auto",
        "--mtp",
        "0",
    )
    rows = data["rows"]
    assert [r["context_tokens"] for r in rows] == [8192, 131_072, 1_048_576]
    for row in rows:
        assert {
            "resident",
            "offload",
            "hisparse",
            "min_host_gib_per_dp",
            "limit",
            "resident_range",
            "offload_range",
            "hisparse_range",
        } <= set(row)
        assert row["resident"] == row["offload"] < row["hisparse"]
        assert isinstance(row["min_host_gib_per_dp"], int)
    assert (rows[2]["resident"], rows[2]["hisparse"]) == (0, 7)


def test_the_default_context_is_the_models_longest(capsys):
    assert [r["context_tokens"] for r in asked(capsys, *GLM)["rows"]] == [1_048_576]
    capped = asked(capsys, *GLM, "--set", "engine.max_model_len=128k")
    assert [r["context_tokens"] for r in capped["rows"]] == [131_072]


def test_defaults_are_those_promised(capsys):
    engine = asked(capsys, *GLM, "--context", "8k")["engine"]
    named = ("tp", "dp", "ep", "kv_cache_dtype", "host_pool_gib", "mtp")
    assert [engine[k] for k in named] == [None, 1, True, "fp8", "auto", 0]
    assert asked(capsys, *GLM, "--context", "8k")["memory"]["hot_rows"] == 4096


def test_like_the_calculator_gives_its_table(capsys):
    data = asked(capsys, *GLM, "--like", "vllm-calculator", "--context", "8k,64k,80k,128k,1M")
    found = [
        (r["context_tokens"], r["resident"], r["hisparse"], r["min_host_gib_per_dp"]) for r in data["rows"]
    ]
    assert found == [
        (8_192, 48, 71, 25),
        (65_536, 6, 44, 121),
        (81_920, 4, 39, 134),
        (131_072, 3, 30, 165),
        (1_048_576, 0, 5, 220),
    ]
    b200 = asked(
        capsys,
        "estimate",
        "--model",
        "glm-5.3",
        "--node",
        "8xb200",
        "--like",
        "vllm-calculator",
        "--context",
        "128k,1M",
    )
    assert [(r["resident"], r["hisparse"]) for r in b200["rows"]] == [(8, 88), (1, 16)]


def test_what_does_not_fit_is_0_by_weights_and_exit_0(capsys):
    for like in ([], ["--like", "vllm-calculator"]):
        data = asked(capsys, "estimate", "--model", "glm-5.3", "--node", "8xh100", "--context", "8k", *like)
        row = data["rows"][0]
        assert (row["resident"], row["offload"], row["hisparse"], row["limit"]) == (0, 0, 0, "weights")


def test_replicas_span_nodes_and_counts_are_totals(capsys):
    one = asked(capsys, *GLM, "--context", "128k", "--no-ep")
    two = asked(capsys, *GLM, "--context", "128k", "--no-ep", "--dp", "2")
    assert two["nodes"] == 2
    assert two["rows"][0]["hisparse"] == 2 * one["rows"][0]["hisparse"]
    assert two["rows"][0]["min_host_gib_per_dp"] == one["rows"][0]["min_host_gib_per_dp"]


def test_hisparse_is_0_with_a_reason_where_it_cannot_run(capsys):
    kimi = asked(capsys, "estimate", "--model", "kimi-k2", "--node", "8xh200", "--context", "8k")["rows"][0]
    assert (kimi["hisparse"], kimi["min_host_gib_per_dp"]) == (0, None)
    assert "index_topk" in kimi["hisparse_reason"]
    amd = asked(capsys, "estimate", "--model", "glm-5.3", "--node", "8xmi350x", "--context", "8k")
    assert "NVIDIA" in amd["rows"][0]["hisparse_reason"]
    assert amd["rows"][0]["modes"]["resident"]["tpot_s"] is None
    assert not amd["time"]["known"]


def test_users_get_their_longest_context_and_host_memory(capsys):
    data = asked(capsys, *GLM, "--context", "128k", "--users", "20")
    longest = data["users"]["longest_context_tokens"]
    assert longest["resident"] < 131_072 < longest["hisparse"]
    assert data["rows"][0]["users_host_gib_per_dp"] == 126


def test_a_log_replaces_the_derived_memory_and_is_compared(capsys, tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text("Model loading took 94.46 GiB and 60 seconds\nAvailable KV cache memory: 25.94 GiB\n")
    data = asked(capsys, *GLM, "--context", "128k", "--log", str(log))
    assert data["memory"]["kv_gib"] == pytest.approx(25.94)
    assert data["log"]["overrides"] == {"available_kv_gib": 25.94}
    assert any(f["contradicts"] and f["what"].startswith("weights") for f in data["log"]["findings"])
    assert data["rows"][0]["resident_range"][0] == data["rows"][0]["resident"]
    assert run([*GLM, "--context", "128k", "--log", str(log)]) == 0
    assert "  ! weights a GPU, GiB: derived 87.97, the log has 94.46 (+7.4%)" in capsys.readouterr().out


@pytest.mark.skipif(not CONFIGS.exists(), reason="the collected config.json files are not here")
def test_any_config_json_is_a_model(capsys):
    path = CONFIGS / "Qwen--Qwen3-30B-A3B_config.json"
    data = asked(capsys, "estimate", "--model", str(path), "--node", "8xh100", "--tp", "1", "--context", "6k")
    assert data["rows"][0]["resident"] > 0


@pytest.mark.parametrize(
    "args",
    [
        ["--context", "8k,64k,128k,1M", "--users", "20"],
        ["--context", "128k", "--mtp", "3", "--max-num-batched-tokens", "32k"],
        ["--like", "vllm-calculator"],
    ],
)
def test_the_table_fits_100_columns(capsys, args):
    assert run([*GLM, *args]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "nan" not in out.lower()


def test_the_table_says_what_limits_and_what_would_help(capsys):
    assert run([*GLM, "--context", "1M", "--max-num-batched-tokens", "32k"]) == 0
    out = capsys.readouterr().out
    assert "limit: HBM: 134,031 blocks" in out
    assert "max_num_batched_tokens 32,768 -> 8,192 (recommended): +1" in out
    assert "vLLM's calculator page: 0 resident, 5 HiSparse; then" in out
    assert "+64 GiB of host pool" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--context", "2M"], "--context: 2,097,152 tokens"),
        (["--context", "8q"], "--context: '8q' is not a number of tokens"),
        (["--context", ","], "--context"),
        (["--context", "-5"], "--context"),
        (["--host-pool", "5000"], "--host-pool: 5000 GiB"),
        (["--host-pool", "lots"], "--host-pool: 'lots'"),
        (["--kv-dtype", "fp9"], "--kv-dtype: 'fp9'"),
        (["--hot-rows", "100"], "--hot-rows: 100 rows"),
        (["--tp", "3"], "--tp: 3 does not divide the 64 attention heads"),
        (["--tp", "64", "--dp", "0"], "--dp"),
        (["--dp", "-1"], "--dp: -1"),
        (["--users", "0"], "--users"),
        (["--like", "excel"], "--like: 'excel'"),
        (["--set", "engine.foo=1"], "--set engine.foo=1: unknown field"),
        (["--set", "workload.kind=stream"], "--set workload.kind=stream"),
        (["--set", "engine.max_model_len=2000000"], "--set engine.max_model_len=2000000: 2,000,000"),
        (["--set", "engine.kv_tokens=10", "--set", "engine.num_gpu_blocks=5"], "give only one of"),
        (["--log", "no/such.log"], "no/such.log: cannot be read"),
        (["--mtp", "1", "--hot-rows", "2048"], "--hot-rows"),
        (["--mtp", "100"], "--mtp: 100 draft tokens"),
        (["--host-pool", "1e300"], "--host-pool: 1e+300 is not allowed"),
        (["--max-num-batched-tokens", "1"], "--max-num-batched-tokens: 1 is less than max_num_seqs, 256"),
        (["--set", "engine.max_num_seqs=100000"], "engine.max_num_seqs=100000: 100,000 is more than"),
        (["--set", "engine.available_kv_gib=2000"], "available_kv_gib=2000: means 2,000.0 GiB of KV a GPU"),
        (["--set", "engine.indexer_offload_gib=2000"], "--set engine.indexer_offload_gib=2000: 2,000 GiB"),
        (["--context", "8k,,1M"], "--context: '8k,,1M' holds an empty length"),
        (["--output-tokens", "2M"], "--output-tokens: 2,097,152 tokens of output leave no prompt"),
        (["--context", "8k,1M", "--output-tokens", "16k"], "--output-tokens: 16,384"),
        (["--users", "9" * 30], "--users: 9999"),
        (["--like", "vllm-calculator", "--users", "4"], "--users: vllm-calculator knows no such figure"),
        (["--like", "vllm-calculator", "--mtp", "1"], "--mtp: vllm-calculator"),
        (["--like", "vllm-calculator", "--output-tokens", "1k"], "--output-tokens: vllm-calculator"),
    ],
)
def test_bad_input_is_one_line_that_names_flag_and_value(capsys, args, says):
    assert says in refused(capsys, *GLM, *args)


def test_unknown_names_are_refused(capsys):
    assert "--model: unknown model 'glm-9'" in refused(
        capsys, "estimate", "--model", "glm-9", "--node", "8xh200"
    )
    assert "--node: unknown node 'dgx'" in refused(capsys, "estimate", "--model", "glm-5.3", "--node", "dgx")
    assert "GLM-5.3" in refused(
        capsys, "estimate", "--model", "kimi-k2", "--node", "8xh200", "--like", "vllm-calculator"
    )


def test_the_page_knows_no_amd_and_asks_nothing_of_the_token_budget(capsys):
    amd = ["estimate", "--model", "glm-5.3", "--node", "8xmi350x", "--like", "vllm-calculator"]
    assert "not Instinct MI350X of 8xmi350x" in refused(capsys, *amd)
    page = ["--like", "vllm-calculator", "--max-num-batched-tokens", "1"]
    assert asked(capsys, *GLM, "--context", "8k", *page)["rows"]


def test_a_pool_too_small_for_one_request_is_0_and_says_which(capsys):
    for setting, limit, says in (
        ("engine.num_gpu_blocks=3", "hbm", "too small: a GPU pool of"),
        ("engine.host_pool_gib=0.001", "host_pool", "too small: a host pool of 0 blocks"),
        ("engine.block_size=1000000", "hbm", "one KV block of 1,000,000 tokens takes 50.24 GiB"),
    ):
        row = asked(capsys, *GLM, "--context", "8k", "--set", setting)["rows"][0]
        assert (row["hisparse"], row["limit"]) == (0, limit)
        assert run([*GLM, "--context", "8k", "--set", setting]) == 0
        assert says in capsys.readouterr().out


def test_settings_reach_every_record(capsys):
    more = asked(capsys, *GLM, "--context", "128k", "--set", "node.gpu.memory_bytes=200000000000")
    assert more["rows"][0]["resident"] > asked(capsys, *GLM, "--context", "128k")["rows"][0]["resident"]
    less = asked(capsys, *GLM, "--context", "128k", "--set", "engine.max_num_seqs=2")
    assert less["rows"][0]["limit"] == "max_num_seqs"
    small = asked(capsys, *GLM, "--context", "8k", "--set", "model.max_context_tokens=8k")
    assert small["rows"][0]["context_tokens"] == 8192

"""``--serve`` of ``estimate`` and ``run`` as a user types it."""

from __future__ import annotations

import json

from hisparse_sim.cli.main import run

HISPARSE = (
    '\'{"kv_connector":"HiSparseConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"host_pool_gib":384}}\''
)
GLM = "vllm serve zai-org/GLM-5.3-FP8 -tp 8 --enable-expert-parallel --kv-cache-dtype fp8 --port 80"
COMMAND = f"{GLM} --max-num-batched-tokens 32768 --max-num-seqs 256 --kv-transfer-config {HISPARSE}"
AGENTIC = "agentic-13turn-8xh200"
SMALL = ["--concurrency", "2", "--limit", "3", "--set", "workload.first_prompt_tokens=4000", "--no-plots"]


def estimated(capsys, *words):
    code = run(["estimate", *words, "--json"])
    printed, said = capsys.readouterr()
    return code, json.loads(printed), said


def test_the_estimate_of_a_command_is_that_of_its_flags(capsys):
    asked = ["--model", "glm-5.3", "--node", "8xh200", "--host-pool", "384", "--context", "64k"]
    asked += ["--max-num-batched-tokens", "32768", "--set", "engine.max_model_len=1048576"]
    _, by_flags, _ = estimated(capsys, *asked)
    code, by_command, _ = estimated(capsys, "--node", "8xh200", "--context", "64k", "--serve", COMMAND)
    assert code == 0
    assert by_command["rows"] == by_flags["rows"]


def test_findings_ignored_flags_and_defaults_are_said_and_in_the_json(capsys):
    _, data, said = estimated(capsys, "--context", "64k", "--users", "4", "--serve", COMMAND)
    assert "hisparse-slower-at-low-concurrency" in [f["name"] for f in data["serve"]["findings"]]
    assert data["serve"]["ignored"] == [
        {"flag": "--port 80", "reason": "serves HTTP; the engine behind it is the same"}
    ]
    assert "warning: hisparse-slower-at-low-concurrency (" in said
    assert "note: ignored --port 80" in said
    assert "note: no --node given: 8xh200" in said


def test_a_refused_command_is_one_line_exit_code_2_and_json_all_the_same(capsys):
    code, data, said = estimated(capsys, "--serve", GLM)
    assert code == 2
    assert [f["name"] for f in data["serve"]["findings"] if f["kind"] == "refusal"] == ["context-cannot-fit"]
    assert said.splitlines()[-1].startswith("error: --serve: vLLM would not start: context-cannot-fit (")


def test_settings_lie_over_the_command(capsys):
    _, data, _ = estimated(capsys, "--context", "64k", "--set", "engine.max_num_seqs=3", "--serve", COMMAND)
    assert data["rows"][0]["hisparse"] == 3
    _, data, _ = estimated(capsys, "--context", "64k", "--host-pool", "100", "--serve", COMMAND)
    assert data["memory"]["host_pool_gib_per_dp"] == 100


def test_a_wrong_value_names_its_flag(capsys):
    assert run(["estimate", "--serve", f"{COMMAND} --gpu-memory-utilization 1.5"]) == 2
    assert "error: --serve: --gpu-memory-utilization 1.5: 1.5 is not allowed" in capsys.readouterr().err


def test_model_and_node_are_asked_for_without_a_command(capsys):
    assert run(["estimate", "--model", "glm-5.3"]) == 2
    assert "--node: missing" in capsys.readouterr().err
    assert run(["estimate", "--model", "glm-5.3", "--serve", COMMAND]) == 2
    assert "the command names its model" in capsys.readouterr().err


def test_a_run_takes_the_command_for_its_engine_and_the_scenario_for_its_workload(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["run", AGENTIC, "--serve", COMMAND, "--out", str(out), "--json", *SMALL]) == 0
    printed, said = capsys.readouterr()
    summary = json.loads(printed)
    assert printed == (out / "summary.json").read_text()
    assert summary["pools"]["max_model_len"] == 1_048_576
    assert summary["serve"]["command"].startswith("vllm serve zai-org/GLM-5.3-FP8")
    assert "warning: hisparse-slower-at-low-concurrency" in said
    # The scenario that is left behind is whole, and gives the same.
    assert run(["run", str(out / "scenario.yaml"), "--out", str(tmp_path / "again"), "--no-plots"]) == 0
    again = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert {k: v for k, v in summary.items() if k != "serve"} == again


def test_a_run_of_a_command_that_would_not_start_leaves_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["run", AGENTIC, "--serve", GLM, "--out", str(out)]) == 2
    assert "context-cannot-fit" in capsys.readouterr().err
    assert not out.exists()

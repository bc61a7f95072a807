"""``hisparse-sim doctor`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from hisparse_sim.cli.main import run

AGENTIC = "agentic-13turn-8xh200"
DOC = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "doctor.md").read_text(encoding="utf-8")
HOST = DOC.split("```yaml\n")[1].split("```")[0]
"""The host of the document, which has room for the plan."""


def described(tmp_path: Path, **changed: object) -> str:
    text = HOST
    for name, value in changed.items():
        lines = [f"{name}: {value}" if line.startswith(f"{name}:") else line for line in text.splitlines()]
        text = "\n".join(lines)
    (tmp_path / "host.yaml").write_text(text)
    return str(tmp_path / "host.yaml")


def test_the_documents_host_holds_the_shipped_plan(tmp_path, capsys):
    assert run(["doctor", AGENTIC, "--host", described(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "512 GiB pinned" in printed
    assert "PROBLEM" not in printed
    assert all(len(line) <= 100 for line in printed.splitlines())


def test_a_problem_is_exit_code_1_and_in_the_json(tmp_path, capsys):
    host = described(tmp_path, shm_gib=64)
    assert run(["doctor", AGENTIC, "--host", host, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in found["checks"] if c["verdict"] == "problem"] == ["shared-memory"]
    assert found["pinned_bytes"] == 512 * 2**30
    assert found["pinning_s_range"][0] < found["pinning_s_range"][1]


def test_a_command_is_a_plan_too_and_may_ask_for_more_than_the_node_has(tmp_path, capsys):
    config = (
        '\'{"kv_connector":"HiSparseConnector","kv_role":"kv_both",'
        '"kv_connector_extra_config":{"host_pool_gib":3000}}\''
    )
    command = f"vllm serve zai-org/GLM-5.3-FP8 -tp 8 -ep --kv-cache-dtype fp8 --kv-transfer-config {config}"
    assert run(["doctor", "--serve", command, "--host", described(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["pinned_bytes"] == 3000 * 2**30


def test_a_pool_that_is_sized_by_the_host_fits_it(tmp_path, capsys):
    small = described(tmp_path, memory_gib=1024, available_gib=1024)
    assert run(["doctor", AGENTIC, "--host", small, "--set", "engine.host_pool_gib=auto", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 900 < found["pinned_bytes"] / 2**30 < 0.95 * 1024 + 1


def test_this_machine_can_be_described_and_taken_again(tmp_path, capsys):
    assert run(["doctor", "--describe"]) == 0
    (tmp_path / "me.yaml").write_text(capsys.readouterr().out)
    assert run(["doctor", AGENTIC, "--host", str(tmp_path / "me.yaml")]) in (0, 1)
    here = capsys.readouterr().out
    assert run(["doctor", AGENTIC, "--host", str(tmp_path / "me.yaml")]) in (0, 1)
    assert capsys.readouterr().out == here


def test_a_wrong_description_names_field_and_line(tmp_path, capsys):
    assert run(["doctor", AGENTIC, "--host", described(tmp_path, shm_gib="many")]) == 2
    assert "host.yaml:" in (said := capsys.readouterr().err)
    assert "shm_gib: 'many' is not a number" in said
    assert run(["doctor"]) == 2
    assert "SCENARIO: missing" in capsys.readouterr().err

"""Where a command stands: typed, in scripts, compose files and manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.serve.source import find_command

SCRIPT = """#!/bin/bash
# don't stop at apostrophes
export MODEL=zai-org/GLM-5.3-FP8
TP=${TP:-8}   # eight
ARGS=(--enable-expert-parallel
  --max-num-seqs 64)
VLLM_USE_V2_MODEL_RUNNER=1 exec vllm serve "$MODEL" \\
   -tp $TP --api-key a#b \\
   "${ARGS[@]}" \\
   --kv-transfer-config '{"kv_connector":"HiSparseConnector",
      "kv_role":"kv_both"}' > log 2>&1 &
sleep 3; curl localhost:8000
"""
COMPOSE = """
services:
  proxy: {image: nginx, command: [nginx]}
  llm:
    image: vllm/vllm-openai:v0.33.0
    environment: [TP=8]
    command: >
      --model zai-org/GLM-5.3-FP8 --tensor-parallel-size ${TP:-4}
      --max-model-len 142000
"""
MANIFEST = """
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: engine
        image: vllm/vllm-openai:v0.30.0
        command: ["/bin/sh", "-c"]
        args: ["vllm serve zai-org/GLM-5.3-FP8 -tp $(TP)"]
        env: [{name: TP, value: "8"}]
---
kind: Service
spec: {ports: [{port: 80}]}
"""


def in_file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m -tp 8",
        "/opt/bin/vllm serve m -tp 8",
        "HF_HOME=/x CUDA_VISIBLE_DEVICES=0 vllm serve m -tp 8 2>&1 | tee log",
        "srun -n 1 bash -lc 'exec vllm serve m -tp 8'",
        "python3 -m vllm.entrypoints.openai.api_server m -tp 8",
        "docker run --gpus all -v a:b --shm-size 10g vllm/vllm-openai:v0.33.1 m -tp 8",
    ],
)
def test_a_typed_command_is_found_in_whatever_starts_it(text: str) -> None:
    assert find_command(text).words == ("m", "-tp", "8")


def test_a_script_has_comments_variables_arrays_and_quotes_over_lines(tmp_path: Path) -> None:
    found = find_command(in_file(tmp_path, "run.sh", SCRIPT))
    assert found.words[:6] == (
        "zai-org/GLM-5.3-FP8",
        "-tp",
        "8",
        "--api-key",
        "a#b",
        "--enable-expert-parallel",
    )
    assert found.words[6:8] == ("--max-num-seqs", "64")
    assert found.words[-1].endswith('"kv_role":"kv_both"}')
    assert found.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_a_compose_service_gives_words_environment_and_the_images_version(tmp_path: Path) -> None:
    found = find_command(in_file(tmp_path, "compose.yaml", COMPOSE))
    assert found.words == (
        "--model", "zai-org/GLM-5.3-FP8", "--tensor-parallel-size", "8", "--max-model-len", "142000",
    )  # fmt: skip
    assert found.version == "0.33.0"
    assert found.where.endswith("compose.yaml: services.llm")


def test_a_manifest_of_several_documents_and_a_shell_inside_gives_its_command(tmp_path: Path) -> None:
    found = find_command(in_file(tmp_path, "pod.yaml", MANIFEST))
    assert found.words == ("zai-org/GLM-5.3-FP8", "-tp", "8")
    assert found.version == "0.30.0"


def test_a_bare_list_of_arguments_is_a_command(tmp_path: Path) -> None:
    path = in_file(tmp_path, "args.yaml", "- --model=m\n- --tensor-parallel-size=8\n- --trust-remote-code\n")
    assert find_command(path).words == ("--model=m", "--tensor-parallel-size=8", "--trust-remote-code")


def test_one_of_several_commands_is_named_after_the_file(tmp_path: Path) -> None:
    two = COMPOSE + "  other:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model m -tp 2\n"
    path = in_file(tmp_path, "compose.yaml", two)
    with pytest.raises(InputError, match=r"holds 2 vllm serve commands \(services.llm, services.other\)"):
        find_command(path)
    assert find_command(f"{path}#other").words == ("--model", "m", "-tp", "2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" ", "is empty"),
        ("nothing", "neither a file nor a vllm serve command"),
        ("missing.yaml", "missing.yaml: no such file"),
        ("vllm serve 'm", "no closing quotation"),
        ("vllm serve m \\ \n -tp 8", ":1: ends in a backslash and blanks"),
    ],
)
def test_what_is_no_command_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_command(text)

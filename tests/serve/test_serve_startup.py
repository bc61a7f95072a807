"""What vLLM would refuse of a command, and the situations that deserve a warning, by name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.serve.finding import Finding, Refused
from hisparse_sim.serve.parse import parse_flags
from hisparse_sim.serve.rules import RULES
from hisparse_sim.serve.situations import SITUATIONS
from hisparse_sim.serve.startup import check_startup
from hisparse_sim.serve.translate import Served, find_model, translate

GLM = "zai-org/GLM-5.3-FP8 --kv-cache-dtype fp8 -tp 8 -ep"
DOC = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")


def hisparse(pool: float | None = 384, **extra: object) -> str:
    config = {"host_pool_gib": pool} if pool is not None else {}
    whole = {"kv_connector": "HiSparseConnector", "kv_role": "kv_both", "kv_connector_extra_config": config}
    return f" --kv-transfer-config {shlex.quote(json.dumps(whole | extra))}"


def both(pool: float = 384, offload_gib: int = 128) -> str:
    inner = [
        {"kv_connector": "HiSparseConnector", "kv_connector_extra_config": {"host_pool_gib": pool}},
        {
            "kv_connector": "OffloadingConnector",
            "kv_connector_extra_config": {"cpu_bytes_to_use": offload_gib * 2**30},
        },
    ]
    whole = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": inner},
    }
    return f" --kv-transfer-config {shlex.quote(json.dumps(whole))}"


def served(text: str, node: str = "8xh200", environment: dict[str, str] | None = None, **more: str) -> Served:
    flags = parse_flags(shlex.split(text), where="--serve", environment=environment)
    return translate(flags, load_node(node), **more)


def found(
    text: str,
    node: str = "8xh200",
    *,
    concurrency: int | None = None,
    context: int | None = None,
    **more: object,
) -> list[Finding]:
    """Findings, refusals included."""
    command = served(text, node, **more)  # type: ignore[arg-type]
    model = load_model(command.model)
    engine = EngineSpec.model_validate(command.engine)
    try:
        return check_startup(
            command, model, load_node(node), engine, concurrency=concurrency, context=context
        )
    except Refused as error:
        return list(error.findings)


def names(findings: list[Finding], kind: str) -> list[str]:
    return [f.name for f in findings if f.kind == kind]


# -- translation --------------------------------------------------------------------------------


def test_a_hisparse_command_becomes_its_engine() -> None:
    engine = served(GLM + both() + " --max-model-len 142000 --max-num-batched-tokens 32768").engine
    assert {k: engine[k] for k in ("mode", "host_pool_gib", "indexer_offload_gib", "tp", "ep")} == {
        "mode": "hisparse",
        "host_pool_gib": 384.0,
        "indexer_offload_gib": 128.0,
        "tp": 8,
        "ep": True,
    }
    assert (engine["max_model_len"], engine["max_num_batched_tokens"]) == (142_000, 32_768)


@pytest.mark.parametrize(
    "text",
    [
        " --kv-offloading-size 512",
        " --kv-transfer-config.kv_connector OffloadingConnector --kv-transfer-config.kv_role kv_both"
        f" --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use {512 * 2**30}",
        " --kv-transfer-config.kv_connector SimpleCPUOffloadConnector --kv-transfer-config.kv_role kv_both"
        f" --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use_per_rank {64 * 2**30}",
    ],
)
def test_ways_to_offload(text: str) -> None:
    engine = served(GLM + text).engine
    assert (engine["mode"], engine["kv_offload_gib"]) == ("offload", 512)


def test_what_is_not_said_is_vllms_default_on_that_gpu() -> None:
    bare = served("meta-llama/Llama-3.1-8B").engine
    assert (bare["tp"], bare["ep"], bare["max_num_seqs"], bare["max_num_batched_tokens"]) == (
        1, False, 1024, 8192,
    )  # fmt: skip
    assert bare["max_model_len"] == 131_072
    assert served("meta-llama/Llama-3.1-8B --max-model-len auto").engine["max_model_len"] == "auto"


def test_drafts_may_be_given_flag_by_flag() -> None:
    assert served(GLM + " --spec-method mtp --spec-tokens 3").engine["mtp"] == 3
    assert served(GLM + " --max-num-active-seqs 12").engine["max_num_seqs"] == 12


def test_flags_that_cannot_matter_are_named_with_why() -> None:
    ignored = served("meta-llama/Llama-3.1-8B --port 80 --trust-remote-code --max-num-seqs 8").ignored
    assert set(ignored) == {"--port 80", "--trust-remote-code"}
    assert "HTTP" in ignored["--port 80"]


def test_the_images_version_is_the_engines_if_it_is_modelled() -> None:
    assert served(GLM, version="0.30.0").engine["version"] == "0.30.0"
    other = served(GLM, version="0.28.0")
    assert "version" not in other.engine
    assert any("0.28.0" in text for text in other.assumed)


@pytest.mark.parametrize(
    ("given", "name", "stands_in"),
    [
        ("zai-org/GLM-5.3-FP8", "glm-5.3", False),
        ("zai-org/GLM-5.3", "glm-5.3", True),
        ("nvidia/GLM-5.2-NVFP4", "glm-5.2", True),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", True),
        ("glm-5.1", "glm-5.1", False),
    ],
)
def test_models_are_found_by_the_name_vllm_knows(given: str, name: str, stands_in: bool) -> None:
    assert find_model(given, where="--serve") == (name, stands_in)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'zai-org/GLM-5"):
        find_model("zai-org/GLM-5.9-FP8", where="--serve")


# -- what vLLM refuses --------------------------------------------------------------------------

REFUSED = {
    "hisparse-needs-host-pool": GLM + hisparse(None),
    "hisparse-config-without-connector": GLM + " --attention-config.hisparse_config.device_buffer_size 4096",
    "host-pool-in-attention-config": GLM + hisparse() + " -ac.hisparse_config.host_pool_gib 9",
    "connector-needs-role": GLM + " --kv-transfer-config.kv_connector OffloadingConnector"
    " --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 1e12",
    "offloading-size-replaces-connector": GLM + hisparse() + " --kv-offloading-size 128",
    "hisparse-needs-indexer": "moonshotai/Kimi-K2-Instruct -tp 8 -ep" + hisparse(),
    "hisparse-needs-one-stage": GLM + hisparse() + " -pp 2 --nnodes 2",
    "hisparse-needs-whole-context": GLM + hisparse() + " -dcp 2",
    "hisparse-needs-full-isl": GLM + hisparse() + " --no-scheduler-reserve-full-isl",
    "hisparse-needs-hybrid-kv": GLM + hisparse() + " --disable-hybrid-kv-cache-manager",
    "hisparse-full-cudagraph": GLM + hisparse() + " -cc.cudagraph_mode FULL",
    "hot-buffer-size": GLM + hisparse() + " -ac.hisparse_config.device_buffer_size 40000",
    "kv-dtype-not-supported": GLM + hisparse() + " --kv-cache-dtype nvfp4",
    "context-beyond-model": GLM + hisparse() + " --max-model-len 2000000",
    "batched-tokens-too-few": GLM + hisparse() + " --max-num-seqs 9000",
    "world-size-exceeds-gpus": GLM + hisparse() + " -tp 16",
    "heads-not-divisible": GLM + hisparse() + " -tp 7",
    "host-pool-exceeds-ram": GLM + hisparse(3000),
    "host-pool-times-tp": GLM + hisparse(384) + " --distributed-executor-backend ray",
    "offload-exceeds-ram": GLM + " --max-model-len 100000 --kv-offloading-size 4000",
    "context-cannot-fit": GLM,
    "model-does-not-fit": "moonshotai/Kimi-K2-Instruct",
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_command_that_vllm_would_not_start_is_refused_by_name(name: str) -> None:
    findings = found(REFUSED[name])
    assert name in names(findings, "refusal")
    refusal = next(f for f in findings if f.name == name)
    assert refusal.reason
    assert refusal.remedy
    assert refusal.source


def test_hisparse_is_refused_where_it_does_not_run() -> None:
    assert names(found(GLM + hisparse(), "8xmi350x"), "refusal") == ["hisparse-nvidia-only"]
    v1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert names(found(GLM + hisparse(), environment=v1), "refusal") == ["hisparse-needs-runner-v2"]
    # 99 KiB of shared memory a block: the resolver of three drafts takes 89.9, of four 110.
    four = ' -sc \'{"method":"mtp","num_speculative_tokens":4}\' --max-model-len 60000'
    assert "hot-buffer-shared-memory" in names(found(GLM + hisparse() + four, "8xrtxpro6000"), "refusal")
    assert not names(found(GLM + hisparse() + four), "refusal")


def test_a_context_that_does_not_fit_is_refused_in_vllms_words() -> None:
    refusal = found(GLM)[0]
    assert "model's max seq len (1048576), 52.68 GiB KV cache is needed" in refusal.reason
    assert "estimated maximum length is 521,536" in refusal.reason


def test_parallelism_that_is_not_modelled_is_said_to_be_so() -> None:
    with pytest.raises(InputError, match="--pipeline-parallel-size 2: is not modelled"):
        found("meta-llama/Llama-3.1-8B -pp 2")


# -- what starts and disappoints ----------------------------------------------------------------

SHORT = " --max-model-len 100000"
WARNED = {
    "host-pool-times-tp": (GLM + hisparse(100) + SHORT + " --distributed-executor-backend ray", {}),
    "host-memory-tight": (GLM + hisparse(1900), {}),
    "host-pool-below-demand": (GLM + hisparse(100), {"concurrency": 32, "context": 86_000}),
    "offload-smaller-than-gpu-pool": (GLM + SHORT + " --kv-offloading-size 32", {}),
    "offload-below-working-set": (
        GLM + SHORT + " --kv-offloading-size 512",
        {"concurrency": 24, "context": 86_000},
    ),
    "offload-never-read": (GLM + SHORT + " --kv-offloading-size 512 --no-enable-prefix-caching", {}),
    "offload-with-speculation": (
        GLM + SHORT + " --kv-offloading-size 512 -sc.method mtp -sc.num_speculative_tokens 3",
        {},
    ),
    "admission-crash": (GLM + hisparse(), {"version": "0.30.0"}),
    "hisparse-slower-at-low-concurrency": (GLM + hisparse(), {"concurrency": 4, "context": 64_000}),
    "gpu-override-sizes-host-pool": (GLM + hisparse() + " --num-gpu-blocks-override 100000", {}),
    "few-requests-at-full-context": (GLM + " --max-model-len 200000", {}),
    "utilization-leaves-no-room": (GLM + SHORT + " --device-memory-utilization 0.99", {}),
    "requests-beyond-max-model-len": (GLM + SHORT, {"context": 120_000}),
    "checkpoint-stands-in": (GLM.replace("-FP8", "") + SHORT, {}),
    "connector-not-modelled": (
        GLM + SHORT + " --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_both",
        {},
    ),
    "speculation-not-modelled": (GLM + SHORT + " -sc.method ngram -sc.num_speculative_tokens 3", {}),
    "json-flag-replaced": (GLM + SHORT + " -cc.cudagraph_mode NONE -cc '{}'", {}),
    "flag-not-modelled": (GLM + SHORT + " --enforce-eager", {}),
}


@pytest.mark.parametrize("name", sorted(WARNED))
def test_a_command_that_starts_and_disappoints_is_warned_of_by_name(name: str) -> None:
    text, load = WARNED[name]
    findings = found(text, **load)  # type: ignore[arg-type]
    assert not names(findings, "refusal")
    assert name in names(findings, "warning")


@pytest.mark.parametrize(
    ("text", "load", "not_warned"),
    [
        (GLM + hisparse(), {"concurrency": 32, "context": 86_000}, "hisparse-slower-at-low-concurrency"),
        (GLM + hisparse(384), {"concurrency": 32, "context": 86_000}, "host-pool-below-demand"),
        (GLM + hisparse(), {}, "host-pool-times-tp"),
        (GLM + hisparse(), {}, "host-memory-tight"),
        (
            GLM + SHORT + " --kv-offloading-size 512",
            {"concurrency": 8, "context": 86_000},
            "offload-below-working-set",
        ),
        (GLM + SHORT + " --kv-offloading-size 512", {}, "offload-smaller-than-gpu-pool"),
        (GLM + SHORT + " --kv-offloading-size 512", {}, "offload-never-read"),
        (GLM + hisparse(), {"version": "0.33.0"}, "admission-crash"),
        (GLM + SHORT + " --no-enforce-eager", {}, "flag-not-modelled"),
    ],
)
def test_nothing_is_warned_of_that_is_not_so(text: str, load: dict[str, object], not_warned: str) -> None:
    assert not_warned not in names(found(text, **load), "warning")  # type: ignore[arg-type]


def test_the_document_lists_every_name() -> None:
    known = {rule.name for rule in RULES} | set(REFUSED) | set(WARNED)
    assert len(SITUATIONS) <= len(WARNED)
    missing = [name for name in known if f"`{name}`" not in DOC]
    assert not missing

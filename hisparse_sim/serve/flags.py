"""The flags of ``vllm serve``, by what they mean for the answer: data only.

From vLLM's ``EngineArgs`` and its API server's arguments, 0.30 to 0.33, and those that older commands
still carry. Names are with dashes and without the leading two.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VALUES = _names(
    """
    model tensor-parallel-size pipeline-parallel-size data-parallel-size data-parallel-size-local
    decode-context-parallel-size prefill-context-parallel-size nnodes distributed-executor-backend
    gpu-memory-utilization kv-cache-memory-bytes max-model-len max-num-seqs max-num-batched-tokens
    long-prefill-token-threshold watermark block-size kv-cache-dtype num-gpu-blocks-override
    kv-offloading-size kv-offloading-backend scheduling-policy cpu-offload-gb max-num-active-seqs
    spec-method spec-model spec-tokens
    """
)
"""Flags with a value that the answer hangs on."""

SWITCHES = _names(
    """
    enable-expert-parallel enable-prefix-caching enable-chunked-prefill async-scheduling
    scheduler-reserve-full-isl disable-hybrid-kv-cache-manager enable-dbo
    """
)
"""The same with yes and no: ``--x`` and ``--no-x``."""

JSON = _names(
    """
    kv-transfer-config attention-config speculative-config compilation-config hf-overrides
    """
)
"""The same with a JSON mapping, whole or by dotted keys."""

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-q": "--quantization",
    "-asc": "--api-server-count",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dc": "--diffusion-config",
}

OTHER_NAMES = {
    "--model-tag": "--model",
    "--device-memory-utilization": "--gpu-memory-utilization",
}

IGNORED_VALUES: dict[str, str] = {
    "serves HTTP; the engine behind it is the same": """
        host port uds root-path uvicorn-log-level allow-credentials allowed-origins allowed-methods
        allowed-headers api-key ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs ssl-ciphers middleware
        served-model-name chat-template chat-template-content-format response-role api-server-count
        tool-call-parser tool-parser-plugin tool-server reasoning-parser reasoning-parser-plugin
        lora-modules max-log-len log-config-file structured-outputs-config h11-max-incomplete-event-size
        h11-max-header-count default-chat-template-kwargs shutdown-timeout guided-decoding-backend
        stream-interval max-logprobs logprobs-mode generation-config override-generation-config
        io-processor-plugin renderer-num-workers logits-processors fingerprint-mode fingerprint-value
        data-parallel-supervisor-port dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
        dp-supervisor-probe-failure-threshold disable-access-log-for-endpoints watermark-config
        aux-output-config
        """,
    "is about tokens and files, not about memory or time of serving": """
        tokenizer tokenizer-mode tokenizer-revision revision code-revision hf-config-path hf-token
        download-dir load-format model-loader-extra-config ignore-patterns config-format seed runner convert
        task allowed-local-media-path allowed-media-domains safetensors-load-strategy pt-load-map-location
        max-parallel-loading-workers prefix-caching-hash-algo safetensors-prefetch-num-threads
        safetensors-prefetch-block-size model-weights sleep-preserve-parameter-names
        """,
    "says how ranks find each other": """
        data-parallel-rank data-parallel-start-rank data-parallel-address data-parallel-rpc-port
        data-parallel-backend node-rank master-addr master-port distributed-timeout-seconds numa-bind-nodes
        numa-bind-cpus worker-cls worker-extension-cls device-ids cpu-distributed-timeout-seconds
        elastic-ep-max-dp-size fault-tolerance-config
        """,
    "is about metrics, logs and profiles": """
        otlp-traces-endpoint collect-detailed-traces show-hidden-metrics-for-version kv-cache-metrics-sample
        profiler-config kv-events-config per-request-spec-decode-metrics jit-monitor-mode
        """,
    "is of images, audio and video; prompts are counted in tokens": """
        limit-mm-per-prompt media-io-kwargs mm-processor-kwargs mm-processor-cache-gb mm-processor-cache-type
        mm-encoder-tp-mode mm-encoder-attn-backend video-pruning-rate mm-tensor-ipc
        mm-shm-cache-max-object-size-mb mm-encoder-attn-dtype mm-encoder-fp8-scale-path
        mm-encoder-fp8-scale-save-path mm-encoder-fp8-scale-save-margin video-pruning-method
        mm-hasher-algorithm mm-processor-device default-mm-loras ec-manager-config
        """,
    "is of another kind of model": """
        mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode mamba-backend mamba-config
        pooler-config gdn-prefill-backend mamba-ssu-algorithm mamba-cache-philox-rounds
        replayssm-buffer-len kda-prefill-backend kda-decode-backend engram-config diffusion-config
        """,
    "V1 does not use it": "swap-space preemption-mode num-scheduler-steps num-lookahead-slots",
}
"""Flags with a value that cannot change the answer, by why."""

IGNORED_SWITCHES: dict[str, str] = {
    "serves HTTP; the engine behind it is the same": """
        headless enable-auto-tool-choice enable-request-id-headers disable-frontend-multiprocessing
        disable-fastapi-docs enable-prompt-tokens-details enable-server-load-tracking
        enable-force-include-usage enable-tokenizer-info-endpoint return-tokens-as-token-ids
        enable-log-outputs enable-log-requests disable-uvicorn-access-log enable-ssl-refresh log-error-stack
        trust-request-chat-template exclude-tools-when-tool-choice-none enable-reasoning enable-offline-docs
        enable-scale-out enable-flash-late-interaction enable-log-deltas enable-trace-replay grpc
        enable-return-routed-experts return-sampling-mask tokens-only enable-prompt-embeds skip-tokenizer-init
        """,
    "is about tokens and files, not about memory or time of serving": """
        trust-remote-code use-tqdm-on-load enable-sleep-mode allow-deprecated-quantization
        enable-cumem-allocator enable-nccl-comm-suspend
        """,
    "says how ranks find each other": """
        data-parallel-hybrid-lb data-parallel-external-lb data-parallel-multi-port-external-lb numa-bind
        ray-workers-use-nsight enable-fault-tolerance
        """,
    "is about metrics, logs and profiles": """
        disable-log-stats disable-log-requests kv-cache-metrics cudagraph-metrics
        enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details
        aggregate-engine-logging enable-mm-processor-stats fail-on-environ-validation
        jit-monitor-verbose
        """,
    "is of images, audio and video; prompts are counted in tokens": """
        language-model-only skip-mm-profiling enable-mm-embeds interleave-mm-strings mm-encoder-only
        disable-chunked-mm-input mm-device-do-normalize
        """,
    "is of another kind of model": """
        disable-sliding-window disable-cascade-attn kv-sharing-fast-prefill swa-bounded-replay
        use-replayssm enable-mamba-shared-prefix-checkpoint enable-mamba-fine-grained-prefix-cache
        """,
    "V1 does not use it": "use-v2-block-manager multi-step-stream-outputs",
}
"""The same with yes and no."""

UNMODELLED_VALUES = _names(
    """
    quantization quantization-config dtype max-loras max-lora-rank max-cpu-loras lora-dtype
    moe-backend all2all-backend eplb-config expert-placement-strategy attention-backend kernel-config
    optimization-level performance-mode max-num-partial-prefills max-long-partial-prefills
    max-seq-len-to-capture cuda-graph-sizes cudagraph-capture-sizes max-cudagraph-capture-size
    cp-kv-cache-interleave-size dcp-kv-cache-interleave-size dcp-comm-backend offload-backend
    offload-group-size offload-num-in-group offload-prefetch-step ubatch-size dbo-decode-token-threshold
    dbo-prefill-token-threshold scheduler-cls kv-cache-dtype-skip-layers additional-config
    ec-transfer-config weight-transfer-config reasoning-config model-impl override-attention-dtype
    prefix-cache-retention-interval num-redundant-experts max-num-scheduled-tokens max-num-queued-reqs
    max-num-queued-tokens prefill-schedule-interval prefix-match-unit dp-sync-interval linear-backend
    sparse-indexer-topk-backend ir-op-priority cpu-offload-params offload-params model-class-overrides
    lora-target-modules mm-ipc-gpu-memory-gb
    """
)
"""Flags with a value that may change the answer and are not modelled: a warning names them."""

UNMODELLED_SWITCHES = _names(
    """
    enforce-eager enable-lora fully-sharded-loras enable-eplb enable-elastic-ep enable-ep-weight-filter
    disable-custom-all-reduce calculate-kv-scales enable-flashinfer-autotune
    disable-nccl-for-dp-synchronization enable-mamba-cache-stochastic-rounding use-fp64-gumbel
    enable-batch-sharded-sampling long-prefill-token-threshold-adaptive dcp-q-replicate
    enable-tower-connector-lora specialize-active-lora enable-mixed-moe-lora-format
    enable-moe-shared-loras
    """
)
"""The same with yes and no."""

MANY = _names(
    """
    served-model-name lora-modules middleware allowed-local-media-path ignore-patterns numa-bind-nodes
    numa-bind-cpus collect-detailed-traces cuda-graph-sizes cudagraph-capture-sizes
    kv-cache-dtype-skip-layers logits-processors api-key device-ids lora-target-modules
    cpu-offload-params offload-params sleep-preserve-parameter-names
    """
)
"""Flags that take several values."""


def ignored_because() -> dict[str, str]:
    """Why each flag that cannot change the answer cannot."""
    tables = (*IGNORED_VALUES.items(), *IGNORED_SWITCHES.items())
    return {name: why for why, names in tables for name in names.split()}


def values() -> frozenset[str]:
    """Every flag that takes a value that is not read as JSON."""
    ignored = {name for names in IGNORED_VALUES.values() for name in names.split()}
    return VALUES | ignored | UNMODELLED_VALUES


def switches() -> frozenset[str]:
    """Every flag of yes and no."""
    ignored = {name for names in IGNORED_SWITCHES.values() for name in names.split()}
    return SWITCHES | ignored | UNMODELLED_SWITCHES

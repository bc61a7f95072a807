"""The scheduler's own knobs."""

from __future__ import annotations

from msgspec import Struct


class SchedulerConfig(Struct, frozen=True):
    """See ``EngineSpec`` for the meaning of each field."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    chunked_prefill: bool = True
    priority_policy: bool = False
    async_scheduling: bool = False
    cohort: bool = True
    """Count requests that only decode together (``scheduler.cohort``); the decisions are the same without."""
    drafts: int = 0
    """Tokens drafted for a request after each step that samples, and verified by its next; no ``cohort``."""
    give_up_after: int = 0
    """Preemptions after which the last victim is dropped if no request got further than ever before
    between them: they would go on for ever. 0: never, as vLLM."""
    threshold_when_alone: bool = False
    """0.30: ``long_prefill_token_threshold`` binds even a request that is alone."""
    self_preemption_ends_step: bool = False
    """0.30, priority policy: a request that preempts itself ends the running loop."""
    prefill_first: bool = False
    """SGLang: a step that prefills runs no decode (get_next_batch_to_run), unless chunks are mixed."""
    retracts: bool = False
    """SGLang: who has decoded least is preempted, of several the longest prompt (retract_decode), and waits
    behind the others."""
    known_by_placeholders: bool = False
    """0.30, asynchronous: after a batch the tokens known are ``computed - placeholders``."""

"""What one engine step has to do, and what it costs: the two records of this room's border."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import astuple, replace


class StepWork(Struct, frozen=True):
    """The work of one engine step on one DP replica, as the scheduler decided it.

    Counts are of the whole replica; its TP ranks share them. Lookups, staging and mirroring are 0
    outside HiSparse.
    """

    decode_requests: int = 0
    decode_context_tokens: int = 0
    """Tokens in context, summed over the decodes."""
    prefills: tuple[tuple[int, int], ...] = ()
    """(new tokens, past tokens) of each prefill chunk."""
    draft_tokens: int = 0
    """Drafted tokens that the decodes verify, in all."""
    sampled: int = 0
    """Rows that go through the language-model head."""
    lookup_rows: float = 0.0
    """Selected rows per layer that lie in no resident page, summed over the decodes."""
    miss_rows: float = 0.0
    """Those of them that no hot buffer holds, expected."""
    miss_rows_max: float = 0.0
    """The largest of one request."""
    staged_tokens: int = 0
    """Past tokens of the prefills whose rows come from host memory, in each layer."""
    mirrored_tokens: int = 0
    """Tokens whose rows are written to host memory in this step."""
    group_tokens: int = 0
    """Tokens of all DP replicas that run their experts together; 0: as many on each as here."""

    @property
    def tokens(self) -> int:
        """Tokens through the model."""
        return self.decode_requests + self.draft_tokens + sum(new for new, _ in self.prefills)


class StepCost(Struct, frozen=True):
    """Seconds of one step by part, each on the step's critical path, and the bytes it moves.

    Parts add up to :attr:`total_s`: what is hidden behind another part is not in them.
    """

    attention_s: float = 0.0
    """Attention modules of all layers: projections, indexer, top-k, attention."""
    moe_s: float = 0.0
    """Routed and shared experts."""
    dense_s: float = 0.0
    """Dense MLP layers."""
    allreduce_s: float = 0.0
    head_s: float = 0.0
    """Language-model head and sampling's GPU part."""
    overhead_s: float = 0.0
    """Host and launch share that the GPU waits for."""
    resolve_s: float = 0.0
    gather_s: float = 0.0
    """Gathers of missed rows that no layer's compute hides."""
    staging_s: float = 0.0
    mirror_s: float = 0.0
    """What is left of the mirror's copy once the step's compute is over."""
    draft_s: float = 0.0
    """The MTP layer, drafting for the next step."""
    peers_s: float = 0.0
    """Waiting for the slowest of the DP replicas, whose steps begin and end together."""
    h2d_bytes: float = 0.0
    """Host to device, per GPU link."""
    d2h_bytes: float = 0.0
    """Device to host, on the link of the rank that mirrors."""
    misses_rows: float = 0.0
    """Expected rows x layers read from host memory."""
    lookups_rows: float = 0.0
    """Rows x layers looked up in the hot buffers."""

    def with_attention(self, attention_s: float) -> StepCost:
        """The same cost with another attention."""
        return replace(self, attention_s=attention_s)

    @property
    def parts_s(self) -> tuple[float, ...]:
        """Seconds by part, in the order of the fields."""
        return astuple(self)[:PARTS]

    @property
    def others_s(self) -> float:
        """Seconds of the step without its attention."""
        return (
            self.moe_s + self.dense_s + self.allreduce_s + self.head_s + self.overhead_s + self.resolve_s
            + self.gather_s + self.staging_s + self.mirror_s + self.draft_s + self.peers_s
        )  # fmt: skip

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return self.attention_s + self.others_s


PARTS = StepCost.__struct_fields__.index("h2d_bytes")
"""How many of its fields, from the first on, are seconds of the step."""

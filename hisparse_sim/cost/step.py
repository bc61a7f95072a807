"""Seconds of one engine step: every part priced from its term, in one place."""

from __future__ import annotations

from math import ceil, hypot
from sys import maxsize
from typing import NamedTuple

from msgspec.structs import replace

from hisparse_sim.cost.dense_attention import DenseAttention
from hisparse_sim.cost.domain import Domain, Limit, Outside
from hisparse_sim.cost.drafting import Drafting, mtp_layer
from hisparse_sim.cost.experts import Exchange, Experts
from hisparse_sim.cost.hardware import same_gpu
from hisparse_sim.cost.locality import MissModel, misses_of
from hisparse_sim.cost.machine import Machine
from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.sparse_attention import SparseAttention
from hisparse_sim.cost.term import GRADE_UNCERTAINTY, Term
from hisparse_sim.cost.tiers import NOTHING, Tiers
from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.memory.layout import kv_layout, require_hisparse, tensor_parallel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec


class CostRow(NamedTuple):
    """A part of a step: its seconds, how sure they are, whence they come, whether they were measured.

    ``uncertainty_s``: one standard deviation; outside the measured it grows with how far outside.
    """

    part: str
    seconds: float
    uncertainty_s: float
    source: str
    grade: str
    in_domain: bool
    beyond: tuple[Limit, ...] = ()
    """Variables outside what was measured."""


class StepAnswer(NamedTuple):
    """What one step costs, in parts, and whether all of it lies inside what was measured."""

    seconds: float
    uncertainty_s: float
    in_domain: bool
    parts: tuple[CostRow, ...]


class StepCostModel:
    """Prices steps of one model on one node under one engine setting.

    ``profile`` may be of another GPU than the node's (:attr:`warnings` then says so): fitted terms
    are used as they are, rooflines take the node's datasheet rates. ``locality``: a name or file, or a
    fixed share of looked-up rows that miss; none: the model's own. Raises ``InputError`` for an engine
    setting that vLLM refuses, for terms that the profile lacks and for a locality that cannot be used.

    A mixed step runs its experts once on all its tokens, and so the projections of dense attention.
    Costs never fall when tokens, context, lookups or mirrored tokens are added.
    """

    def __init__(
        self,
        model: ModelSpec,
        node: NodeSpec,
        engine: EngineSpec,
        profile: Profile,
        *,
        locality: str | float | None = None,
    ) -> None:
        self.model, self.node, self.engine, self.profile = model, node, engine, profile
        self.tp = tp = tensor_parallel(node, engine)
        layout = kv_layout(model, engine, node)
        machine = Machine(node, profile, model.weights.dtype)
        self.attention: SparseAttention | DenseAttention
        kv = "bf16" if layout.row_format == "bf16" else "fp8"
        if model.attention == "dsa":
            self.attention = SparseAttention(model, profile, tp=tp, kv=kv)
        else:
            self.attention = DenseAttention(model, machine, profile, tp=tp, row_bytes=layout.row_bytes, kv=kv)
        self.experts = Experts(model, node, engine, profile, tp)
        self.exchange = Exchange(model, engine, profile, tp)
        self._machine = machine
        moe_layers = model.moe_layers
        dense_layers = model.num_layers - moe_layers
        width = 3.0 * model.hidden_size / tp
        self._shared_weights = width * model.shared_experts * model.moe_intermediate_size
        self._dense_weights = width * model.intermediate_size
        self._moe_layers, self._dense_layers = moe_layers, dense_layers
        # The head stays in 16 bits in all quantised checkpoints of the catalogue.
        head = float(model.vocab_size) * model.hidden_size / tp
        self._head_read_s = 2.0 * head * machine.byte_s
        self._head_row_s = 2.0 * head * machine.bf16_flop_s
        self._overhead_s = model.num_layers * profile.term("overhead.layer").value()
        self._layers = model.num_layers
        self._follower_s = getattr(self.attention, "follower_decode_s", 0.0)
        self._tiers: Tiers | None = None
        self.misses: MissModel | None = None
        """Of the hot buffers; none outside HiSparse."""
        if engine.mode == "hisparse":
            self._tiers = Tiers(
                node,
                profile,
                layers=layout.num_layers,
                leaders=layout.num_indexers if engine.index_share else layout.num_layers,
                row_bytes=layout.row_bytes,
                ranks=tp * engine.dp,
                swap_in=engine.kind == "sglang",
            )
            hot_rows = require_hisparse(layout, model).hot_rows
            self.misses = misses_of(
                model,
                locality,
                hot_rows=hot_rows,
                queries=engine.mtp + 1,
                accepted=engine.tokens_a_step,
                # hisparse_coordinator: a staged prompt leaves its first rows, an imported one none.
                start="first_rows" if engine.prefills_into_buffer else "empty",
            )
        self.drafting: Drafting | None = None
        """After each step that samples; none without MTP."""
        if engine.mtp:
            layer, alone = mtp_layer(model, engine)
            self.drafting = Drafting(StepCostModel(layer, node, alone, profile).step, engine.mtp)
        self.stands_in = (*self.attention.stands_in, *self.experts.stands_in, *self.exchange.stands_in)
        if self.misses is not None and self.misses.outside:
            self.stands_in += (self.misses.outside,)
        domain = self.attention.domain.within(self.experts.domain).within(self.exchange.domain)
        self.outside = Outside(domain)
        """How many steps so far were priced outside what was measured."""
        self._most_batch, self._most_context, self._most_pairs, *tokens = domain
        self._most_tokens, self._most_past, self._most_group = tokens
        self._always = bool(self.stands_in)
        most_decodes = min(self._most_batch, self._most_tokens, self._most_group / self.engine.dp)
        self._most_decodes = 0 if self._always else most_decodes
        """Most requests of a step that only decodes and can lie inside."""
        self._chunk_tokens = getattr(self.attention, "chunk_tokens", 0) or maxsize
        self._of_tokens: dict[int, tuple[float, float, float]] = {}
        self._decodes: dict[int, tuple[StepCost, float]] = {}
        """Costs of steps that only decode, by how many do; without tiers only their attention differs."""
        self.warnings = tuple(_warnings(profile, node, engine, self.stands_in))

    def step(self, work: StepWork) -> StepCost:
        """Seconds by part, and traffic, of one step. An empty step costs nothing."""
        batch = work.decode_requests
        tokens = batch + work.draft_tokens
        context = work.decode_context_tokens
        longest, chunk = 0, self._chunk_tokens
        for new, past in work.prefills:
            tokens += new
            if new > chunk:
                past = reached(new, past, chunk)
            if past > longest:
                longest = past
        if not tokens:
            return StepCost()
        group = work.group_tokens or tokens * self.engine.dp
        if (
            context > batch * self._most_context
            or tokens > self._most_tokens
            or longest > self._most_past
            or context > self._most_pairs
            or batch > self._most_batch
            or group > self._most_group
            or self._always
        ):
            self.outside.note(batch, context, tokens, longest, group)
        return self._priced(work, tokens)

    def unnoted(self, work: StepWork) -> StepCost:
        """``step`` that counts nowhere as outside."""
        tokens = work.tokens
        return self._priced(work, tokens) if tokens else StepCost()

    def _priced(self, work: StepWork, tokens: int) -> StepCost:
        batch, drafts = work.decode_requests, work.draft_tokens
        attention = self.attention.step_s(batch, work.decode_context_tokens, work.prefills, drafts)
        decodes = self._tiers is None and batch == tokens == work.sampled and not work.group_tokens
        if decodes and (alike := self._decodes.get(batch)) is not None:
            return alike[0].with_attention(attention)
        cost = self._by_parts(work, tokens, attention)
        if decodes and self.drafting is None:
            self._decodes[batch] = cost, cost.others_s
        return cost

    def _by_parts(self, work: StepWork, tokens: int, attention: float) -> StepCost:
        moe, dense, allreduce = self._of_tokens.get(tokens) or self._by_tokens(tokens)
        if work.group_tokens:
            moe = self._moe_s(tokens, work.group_tokens)
        head = max(self._head_read_s, self._head_row_s * work.sampled) if work.sampled else 0.0
        tier = NOTHING
        if self._tiers is not None:
            compute = attention + moe + dense + allreduce + head + self._overhead_s
            follower = self._follower_s + (moe + allreduce) / self._layers
            tier = self._tiers.step(work, compute, follower)
        return StepCost(
            attention,
            moe,
            dense,
            allreduce,
            head,
            self._overhead_s,
            tier.resolve_s,
            tier.gather_s,
            tier.staging_s,
            tier.mirror_s,
            self.drafting.step_s(work) if self.drafting is not None else 0.0,
            0.0,
            tier.h2d_bytes,
            tier.d2h_bytes,
            tier.misses_rows,
            tier.lookups_rows,
        )

    def decoding(self, work: StepWork) -> tuple[StepCost, float]:
        """What ``work``, which only decodes, costs, and its ``others_s``; counts nothing as outside.

        Its attention may be that of another step with as many decodes, a guess at its own.
        """
        found = self._decodes.get(work.decode_requests)
        if found is None:
            cost = self.unnoted(work)
            found = cost, cost.others_s
        return found

    def decodes_s(self, work: StepWork, steps: int) -> list[float]:
        """``attention_s`` of ``work`` and the steps after it, to the last bit.

        ``work`` only decodes, and with each step every context grows by one token. Counts nothing as outside.
        """
        batch, context = work.decode_requests, work.decode_context_tokens
        return self.attention.decodes_s(batch, range(context, context + steps * batch, batch))

    def note_decodes(self, work: StepWork, steps: int) -> None:
        """Steps priced by ``decodes_s`` are taken: count those that lie outside."""
        batch = work.decode_requests
        last = work.decode_context_tokens + (steps - 1) * batch
        most, outside = batch * self._most_context, steps
        if most > self._most_pairs:
            most = self._most_pairs
        if batch <= self._most_decodes:
            if last <= most:
                return
            outside = min(steps, ceil((last - most) / batch))
        self.outside.note(batch, last, batch, 0, batch * self.engine.dp, steps=outside)

    def _by_tokens(self, tokens: int) -> tuple[float, float, float]:
        """Experts, dense layers and exchange of ``tokens``, which depend on nothing else; remembered."""
        moe = self._moe_s(tokens, tokens * self.engine.dp)
        dense = 0.0
        if self._dense_layers:
            dense = self._dense_layers * self._machine.matrices_s(self._dense_weights, tokens)
        if len(self._of_tokens) >= _REMEMBERED:
            self._of_tokens.clear()
        found = self._of_tokens[tokens] = moe, dense, self.exchange.step_s(tokens)
        return found

    def _moe_s(self, tokens: int, group_tokens: int) -> float:
        """Routed experts on the tokens of all DP replicas, and this one's shared experts on its own."""
        moe = self.experts.step_s(group_tokens)
        if self._shared_weights:
            moe += self._moe_layers * self._machine.matrices_s(self._shared_weights, tokens)
        return moe

    def beside(self, work: StepWork, cost: StepCost, group_tokens: int) -> StepCost:
        """``cost`` of ``work`` once it is known what the other DP replicas bring to the same experts."""
        now = self.step(replace(work, group_tokens=group_tokens))
        return replace(
            cost, moe_s=now.moe_s, gather_s=now.gather_s, mirror_s=now.mirror_s, draft_s=now.draft_s
        )

    def decode_work(
        self,
        batch: int,
        context_tokens: float,
        resident_share: float = 1.0,
        *,
        miss_share: float | None = None,
    ) -> StepWork:
        """A step of ``batch`` decodes alike, ``resident_share`` of each one's rows in resident pages.

        ``miss_share``: of the other rows; none: what is expected long after their buffers were empty.
        """
        rows = missed = 0.0
        drafts = batch * self.engine.mtp
        if self.misses is not None:
            rows = self.misses.looked_up(context_tokens) * (1.0 - resident_share)
            if miss_share is None:
                miss_share = self.misses.share(context_tokens, resident_share=resident_share)
            missed = rows * miss_share
        return StepWork(
            decode_requests=batch,
            decode_context_tokens=round(batch * context_tokens),
            draft_tokens=drafts,
            sampled=batch + drafts,
            lookup_rows=batch * rows,
            miss_rows=batch * missed,
            miss_rows_max=missed,
            mirrored_tokens=batch + drafts if self.misses is not None else 0,
        )

    def decode_tpot_s(self, batch: int, context_tokens: float, resident_share: float = 1.0) -> float:
        """Seconds a token of ``batch`` requests of ``context_tokens`` each that only decode."""
        step_s = self.step(self.decode_work(batch, context_tokens, resident_share)).total_s
        return step_s / self.engine.tokens_a_step

    def hidden_s(self, work: StepWork) -> tuple[float, float]:
        """Seconds of gathers and of the mirror's copy that other work of the step covers; zeros without."""
        return self._tiers.hidden_s(work, self.step(work)) if self._tiers is not None else (0.0, 0.0)

    def query(self, work: StepWork) -> StepAnswer:
        """One step with the uncertainty, source and domain of each part; it counts nowhere.

        Uncertainties are one standard deviation, of parts independent of each other; outside what was
        measured a part's grows in proportion to how many times beyond it is (a convention).
        """
        cost, profile = self.unnoted(work), self.profile
        batch, context, tokens = work.decode_requests, work.decode_context_tokens, work.tokens
        past = max((reached(*prefill, self._chunk_tokens) for prefill in work.prefills), default=0)
        rows: list[CostRow] = []

        def row(part: str, seconds: float, relative: float, source: str, grade: str,
                domain: Domain = UNBOUNDED, stands_in: bool = False) -> None:  # fmt: skip
            group = work.group_tokens or tokens * self.engine.dp
            beyond = domain.beyond(batch, context, tokens, past, group)
            relative *= max((limit.beyond for limit in beyond), default=1.0)
            inside = not beyond and not stands_in
            rows.append(CostRow(part, seconds, relative * seconds, source, grade, inside, beyond))

        def fixed(part: str, seconds: float, *terms: Term) -> None:
            worst = max(terms, key=lambda term: term.uncertainty)
            row(part, seconds, worst.uncertainty, worst.source, worst.grade)

        attention, experts, exchange = self.attention, self.experts, self.exchange
        relative = attention.uncertainty(bool(batch), bool(work.prefills))
        row("attention", cost.attention_s, relative, attention.source, attention.grade,
            attention.domain, bool(attention.stands_in))  # fmt: skip
        if experts.term is not None:
            term = experts.term
            row("moe", cost.moe_s, term.uncertainty, term.source, term.grade,
                experts.domain, bool(experts.stands_in))  # fmt: skip
        rates = [profile.term(f"roofline.{name}_share") for name in ("hbm", "bf16", "fp8")]
        fixed("dense", cost.dense_s, *rates)
        if exchange.terms:
            worst = max(exchange.terms, key=lambda term: term.uncertainty)
            row("allreduce", cost.allreduce_s, worst.uncertainty, worst.source, worst.grade,
                exchange.domain, bool(exchange.stands_in))  # fmt: skip
        fixed("head", cost.head_s, *rates[:2])
        fixed("overhead", cost.overhead_s, profile.term("overhead.layer"))
        if self._tiers is not None:
            tiers, misses = self._tiers, self.misses
            assert misses is not None
            fixed("resolve", cost.resolve_s, profile.term("hisparse.resolve"))
            source = f"locality {misses.id}; {tiers.link.gather_source}"
            row("gather", cost.gather_s, misses.uncertainty, source, "published",
                stands_in=bool(misses.outside))  # fmt: skip
            of_link = GRADE_UNCERTAINTY["published"]
            row("staging", cost.staging_s, of_link, tiers.link.gather_source, "published")
            row("mirror", cost.mirror_s, of_link, tiers.link.gather_source, "published")
        if self.drafting is not None:
            row("draft", cost.draft_s, relative, attention.source, "derived", stands_in=True)
        total = hypot(*(r.uncertainty_s for r in rows))
        return StepAnswer(cost.total_s, total, all(r.in_domain for r in rows), tuple(rows))


def reached(new_tokens: int, past_tokens: int, chunk_tokens: int) -> int:
    """Past tokens of the last of the chunks of ``chunk_tokens`` that a prefill is priced as."""
    return past_tokens + (new_tokens - 1) // chunk_tokens * chunk_tokens if new_tokens else past_tokens


UNBOUNDED = Domain()
_REMEMBERED = 65_536
"""Token counts whose prices are kept; a step's budget is rarely as large."""


def _warnings(profile: Profile, node: NodeSpec, engine: EngineSpec, stands_in: tuple[str, ...]) -> list[str]:
    found = [
        f"profile {name} was measured on {gpu}, the node has {node.gpu.name}"
        for name, gpu in profile.layers
        if not same_gpu(gpu, node.gpu.name)
    ]
    found += [f"not measured: {what}" for what in dict.fromkeys(stands_in)]
    if engine.mtp:
        found.append(
            f"engine.mtp {engine.mtp}: a step brings {engine.tokens_a_step:.2f} tokens a request by "
            "mtp_acceptance, which depends on the text; verifying is priced as reading each context once"
        )
    return found

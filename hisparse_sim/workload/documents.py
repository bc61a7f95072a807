"""Questions about long documents: a corpus that sessions come back to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.scenario.workload import DocumentsSpec
from hisparse_sim.workload.draws import Draws
from hisparse_sim.workload.request import RequestSpec, Segment, Session
from hisparse_sim.workload.starts import expected_requests, session_count, session_starts_s
from hisparse_sim.workload.tenants import Tenant, Tenants

_CORPUS = 2**32 - 1
"""Draws of document k are those of a session with this number, and k inside."""


class Documents:
    """Each session asks a few questions about one document.

    A prompt is the prefix, the document, all questions and answers before, and the question. A document
    has one length and one content whoever asks; behind tenants' own prefixes it is not shared, as a
    prefix cache would have it.
    """

    def __init__(self, spec: DocumentsSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.notes: list[str] = []
        self.concurrency: int | None = spec.concurrency
        self.limit: int | None = spec.limit
        self._count = session_count(spec.sessions, spec)

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """By what the first sessions have."""
        return expected_requests(self._count, sessions, requests)

    def sessions(self) -> Iterator[Session]:
        """The visits, in order."""
        spec = self.spec
        weights = np.arange(1, spec.documents + 1, dtype=np.float64) ** -spec.popularity
        ends = np.cumsum(weights) / weights.sum()
        tenants = Tenants(spec.tenants, spec.shared_prefix_tokens)
        width = len(str((self._count or 10**6) - 1))
        for index, start_s in enumerate(session_starts_s(spec, self._count, self.seed)):
            draws = Draws(self.seed, index)
            tenant = tenants.of(draws)
            level = draws.generator("document").random()
            document = min(int(np.searchsorted(ends, level, side="right")), spec.documents - 1)
            name = f"visit-{index:0{width}d}"
            requests = tuple(self._questions(name, document, draws, tenant))
            yield Session(id=name, requests=requests, start_s=start_s, tags=tenant.tags)

    def _questions(self, name: str, document: int, draws: Draws, tenant: Tenant) -> Iterator[RequestSpec]:
        spec, prefix = self.spec, tenant.prefix
        tokens = int(Draws(self.seed, _CORPUS, document).counts(spec.document_tokens, "document", 1)[0])
        before = (Segment(prefix.stream, 0, prefix.tokens),) if prefix.tokens else ()
        before = (*before, Segment(f"document-{document}", 0, tokens))
        count = int(draws.counts(spec.questions, "turns", 1)[0])
        questions = draws.counts(spec.question_tokens, "new", count).tolist()
        answers = draws.counts(spec.output_tokens, "output", count).tolist()
        pauses_s = draws.seconds(spec.think_time_s, "pause", count).tolist()
        said_tokens, last = 0, ""
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
            request = RequestSpec(
                id=f"{name}/{number}",
                prompt_tokens=prefix.tokens + tokens + said_tokens + question,
                output_tokens=answer,
                content=(*before, Segment(name, 0, said_tokens + question + answer)),
                after=(last,) if last else (),
                delay_s=pauses_s[number - 1] if last else 0.0,
                priority=tenant.priority,
            )
            yield request
            said_tokens += question + answer
            last = request.id

"""Drafts beside what the target then emitted: the ranks along each draft, up to and including the first miss."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NOT_AMONG: Final = -1


class Drafted(NamedTuple):
    """One request's draft of K tokens, and at each the drafter's best guesses, `ids [K][top]`, with probabilities."""

    tokens: list[int]
    ids: list[list[int]]
    probabilities: list[list[float]]


class Verified(NamedTuple):
    """One request's part of a verification.

    Args:
        request: its name in the engine, which is never written down.
        drafted: the draft tokens that were verified.
        emitted: what came out: the accepted ones, then the target's own; empty where the engine threw it away.
        prompt: tokens of its prompt.
    """

    request: str
    drafted: list[int]
    emitted: list[int]
    prompt: int
    temperature: float


@dataclass
class DraftLog:
    """Matches drafts with their verification one step later; holds no text, and of token ids only a draft's own.

    A row says where the target's tokens stood in the drafter's order: 0 for its best guess, -1 beyond the `top` that
    were kept. It ends at the first token that was not the draft's: what the drafter would have said behind
    its wrong guess is unknown.
    """

    _drafts: dict[str, Drafted] = field(default_factory=dict)
    _lengths: dict[str, int] = field(default_factory=dict)
    _documents: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def drafted(self, requests: Sequence[str], drafts: Sequence[Drafted]) -> None:
        """What was drafted in this step, for the next one."""
        self._drafts = dict(zip(requests, drafts, strict=True))

    def verified(self, step: Sequence[Verified]) -> list[str]:
        """The rows of a step, as JSON lines: one for each draft that was verified as it was drafted."""
        rows = []
        for one in step:
            before = self._lengths.get(one.request, one.prompt)
            self._lengths[one.request] = before + len(one.emitted)
            known = self._drafts.pop(one.request, None)
            # Not of the step before (a step that was not recorded), or shortened since (a grammar, a limit).
            if known is None or not one.drafted or not one.emitted or known.tokens[: len(one.drafted)] != one.drafted:
                continue
            rows.append(self._row(one, known, running=len(step), context=before))
        return rows

    def forget(self, alive: Container[str]) -> None:
        """Drop what is known of requests that are over."""
        for table in (self._lengths, self._documents, self._drafts):
            for request in [name for name in table if name not in alive]:
                del table[request]

    def _row(self, one: Verified, known: Drafted, *, running: int, context: int) -> str:
        document = self._documents.get(one.request)
        if document is None:
            document = self._documents[one.request] = self._count
            self._count += 1
        ranks, chances, right = [], [], True
        for depth, token in enumerate(one.emitted[: len(one.drafted)]):
            right = known.tokens[depth] == token
            listed = known.ids[depth]
            rank = listed.index(token) if token in listed else NOT_AMONG
            ranks.append(rank)
            chances.append(round(known.probabilities[depth][rank], 6) if rank >= 0 else None)
            if not right:
                break
        row = {
            "document": document,
            "running": running,
            "context": context,
            "temperature": one.temperature,
            "drafted": len(one.drafted),
            "accepted": len(ranks) - (not right),
            "ranks_to_miss": ranks,
            "probability": chances,
        }
        return json.dumps(row, separators=(",", ":")) + "\n"

"""Decoding: draft, verify, accept, compact, emit; plain decoding is the tree that has only its root.

The invariant between steps: all tokens of a request but the last are in the target's cache. The last one, whose keys
and values are not there yet, is the root of the next tree.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from treeopt.arrays import IntArray
from treeopt.decode.batch import TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.drafting import DraftedTokens, TreeDrafter, draft
from treeopt.decode.draws import RandomDraws
from treeopt.decode.models import CausalModel, distributions, likeliest
from treeopt.decode.reports import Emission, StepReport, StepTimes
from treeopt.decode.rules import Rule, rule_named
from treeopt.decode.step import prune, text_step, tree_step
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify, end_at
from treeopt.errors import InputError
from treeopt.tree import DraftTree

TreeChoice = Callable[[Sequence[int]], Sequence[DraftTree]]
"""From the numbers of the running requests to the tree of each."""


def same_tree(tree: DraftTree) -> TreeChoice:
    """One tree for all requests; `DraftTree(())` decodes plainly, `DraftTree.chain(k)` drafts chains."""
    return lambda requests: [tree] * len(requests)


def tree_by_batch(tree_for: Callable[[int], DraftTree]) -> TreeChoice:
    """The tree for the number of running requests, as a plan's `tree_for` gives it."""
    return lambda requests: [tree_for(len(requests))] * len(requests)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to decode; `compaction` says how the accepted nodes' keys and values are moved together.

    Raises:
        InputError: a temperature that the rule cannot have, or no token to emit.
    """

    rule: Rule = field(default_factory=lambda: rule_named("greedy"))
    temperature: float = 0.0
    max_new_tokens: int = 64
    end_tokens: frozenset[int] = frozenset()
    seed: int = 0
    compaction: Literal["in-place", "copy", "kernel"] = "in-place"

    def __post_init__(self) -> None:
        if self.rule.samples and self.temperature <= 0:
            raise InputError(f"{self.rule.name} at temperature {self.temperature}", hint="give a temperature above 0")
        if not self.rule.samples and self.temperature != 0:
            raise InputError(f"greedy at temperature {self.temperature}", hint="greedy decoding has temperature 0")
        if self.max_new_tokens < 1:
            raise InputError(f"{self.max_new_tokens} new tokens", hint="ask for at least one")


@dataclass(kw_only=True, eq=False)
class _Request:
    number: int
    row: int
    text: list[int]  # the prompt and what was emitted
    prompt_length: int

    def emit(self, tokens: Sequence[int], decoding: Decoding) -> bool:
        """Append tokens; returns whether the request is finished."""
        self.text.extend(tokens)
        full = len(self.text) - self.prompt_length >= decoding.max_new_tokens
        return full or tokens[-1] in decoding.end_tokens


class Decoder:
    """A target, a drafter and a way to decode; a drafter is needed only where trees have more than a root."""

    def __init__(
        self, target: CausalModel, drafter: TreeDrafter | None = None, *, decoding: Decoding | None = None
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.decoding = decoding or Decoding()

    def generate(self, prompts: Sequence[Sequence[int]], trees: TreeChoice, *, batch: int = 1) -> list[list[int]]:
        """The continuation of every prompt, in their order."""
        written: list[list[int]] = [[] for _ in prompts]
        for emission in self.stream(prompts, trees, batch=batch):
            written[emission.request].extend(emission.tokens)
        return written

    def stream(self, prompts: Sequence[Sequence[int]], trees: TreeChoice, *, batch: int = 1) -> Iterator[Emission]:
        """The same, as it is emitted."""
        for report in self.steps(prompts, trees, batch=batch):
            for parts in zip(report.requests, report.emitted, report.finished, strict=True):
                yield Emission(*parts)

    def steps(self, prompts: Sequence[Sequence[int]], trees: TreeChoice, *, batch: int = 1) -> Iterator[StepReport]:
        """Decode at most `batch` prompts at a time; a finished request makes room for the next one.

        Raises:
            InputError: an empty prompt, no room in the batch, or trees without a drafter.
        """
        if batch < 1 or not all(len(prompt) for prompt in prompts):
            raise InputError("a batch without room, or an empty prompt", hint="give batch >= 1 and non-empty prompts")
        waiting = deque(enumerate(prompts))
        running: list[_Request] = []
        session = _Session(self)
        while waiting or running:
            free = sorted(set(range(batch)) - {request.row for request in running})
            admitted = [_admit(*waiting.popleft(), row=row) for row in free[: len(waiting)]]
            if admitted:
                report = session.prefill(admitted)
                running += [r for r, done in zip(admitted, report.finished, strict=True) if not done]
            else:
                report = session.verify(running, trees([request.number for request in running]))
                running = [r for r, done in zip(running, report.finished, strict=True) if not done]
            running.sort(key=lambda request: request.row)
            yield report


def _admit(number: int, prompt: Sequence[int], *, row: int) -> _Request:
    return _Request(number=number, row=row, text=[int(token) for token in prompt], prompt_length=len(prompt))


class _Session:
    """One run of a decoder: the target's cache and the random numbers."""

    def __init__(self, decoder: Decoder) -> None:
        self._target, self._drafter, self._decoding = decoder.target, decoder.drafter, decoder.decoding
        self._cache = SlotCache()
        self._draws = RandomDraws(np.random.default_rng(decoder.decoding.seed))

    def prefill(self, requests: list[_Request]) -> StepReport:
        """Read the prompts and emit the first token of each."""
        began = time.perf_counter()
        step = text_step(
            [r.text for r in requests], lengths=np.zeros(len(requests), dtype=np.int64), rows=_rows(requests)
        )
        logits = self._target.forward(step, self._cache, at=step.counts - 1)[:, None]
        trees = TreeBatch.repeat(DraftTree(()), len(requests))
        verdict = self._judge(trees, DraftedTokens(np.zeros((len(requests), 1), dtype=np.int64), None), logits)
        times = StepTimes(verify_s=time.perf_counter() - began)
        return self._report("prefill", requests, verdict, [(int(t),) for t in verdict.token], step.counts, times)

    def verify(self, requests: list[_Request], chosen: Sequence[DraftTree]) -> StepReport:
        """One step: a tree per request."""
        decoding, rows = self._decoding, _rows(requests)
        limits = [decoding.max_new_tokens - len(r.text) + r.prompt_length for r in requests]
        trees = TreeBatch.of([prune(tree, left) for tree, left in zip(chosen, limits, strict=True)])
        clock = [time.perf_counter()]
        drafted = self._draft(trees, requests)
        clock.append(time.perf_counter())
        lengths = np.array([len(r.text) - 1 for r in requests])
        step = tree_step(trees, drafted.tokens, lengths=lengths, rows=rows)
        logits = self._target.forward(step, self._cache)
        evidence = self._evidence(trees, drafted, logits)
        clock.append(time.perf_counter())
        verdict = end_at(decoding.rule.judge(evidence, self._draws), drafted.tokens, decoding.end_tokens)
        emitted = emissions(verdict, drafted.tokens)
        clock.append(time.perf_counter())
        self._compact(verdict, lengths, rows)
        clock.append(time.perf_counter())
        return self._report("verify", requests, verdict, emitted, step.counts, StepTimes(*np.diff(clock).tolist()))

    def _draft(self, trees: TreeBatch, requests: list[_Request]) -> DraftedTokens:
        if trees.nodes == 1:
            return DraftedTokens(np.array([[r.text[-1]] for r in requests]), None)
        if self._drafter is None:
            raise InputError("a tree without a drafter", hint="give the decoder a drafter, or decode plainly")
        texts = [r.text for r in requests]
        siblings = self._decoding.rule.siblings
        return draft(self._drafter, trees, texts, rows=_rows(requests), siblings=siblings, draws=self._draws)

    def _compact(self, verdict: AcceptedPaths, lengths: IntArray, rows: IntArray) -> None:
        cache = self._cache
        ways = {"in-place": cache.compact, "copy": cache.compact_by_copy, "kernel": cache.compact_by_kernel}
        ways[self._decoding.compaction](verdict.path, lengths=lengths, rows=rows)

    def _judge(self, trees: TreeBatch, drafted: DraftedTokens, logits: Any) -> AcceptedPaths:
        return self._decoding.rule.judge(self._evidence(trees, drafted, logits), self._draws)

    def _evidence(self, trees: TreeBatch, drafted: DraftedTokens, logits: Any) -> StepToVerify:
        if not self._decoding.rule.samples:
            return StepToVerify(trees=trees, tokens=drafted.tokens, best=likeliest(logits))
        p = distributions(logits, self._decoding.temperature)
        q = np.zeros_like(p) if drafted.q is None else drafted.q
        return StepToVerify(trees=trees, tokens=drafted.tokens, p=p, q=q)

    def _report(
        self,
        kind: Literal["prefill", "verify"],
        requests: list[_Request],
        verdict: AcceptedPaths,
        emitted: list[tuple[int, ...]],
        nodes: IntArray,
        times: StepTimes,
    ) -> StepReport:
        finished = [r.emit(tokens, self._decoding) for r, tokens in zip(requests, emitted, strict=True)]
        return StepReport(
            kind=kind,
            requests=tuple(r.number for r in requests),
            nodes=tuple(nodes.tolist()),
            accepted=tuple(verdict.accepted.tolist()),
            emitted=tuple(emitted),
            finished=tuple(finished),
            times=times,
        )


def emissions(verdict: AcceptedPaths, tokens: IntArray) -> list[tuple[int, ...]]:
    """What each request emits: the accepted nodes' tokens without the root, which an earlier step emitted, then the
    token that follows them, unless the text ended on the path."""
    found = []
    for b, path in enumerate(verdict.path):
        accepted = [int(tokens[b, node]) for node in path[1:] if node >= 0]
        found.append((*accepted, *([int(verdict.token[b])] if verdict.token[b] >= 0 else [])))
    return found


def _rows(requests: list[_Request]) -> IntArray:
    return np.array([request.row for request in requests])

"""One tree behind one prefix, and what plain decoding says about every path of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.decoder import emissions
from treeopt.decode.draws import RandomDraws
from treeopt.decode.models import CausalModel, as_float64, distributions, likeliest
from treeopt.decode.rules import RULES
from treeopt.decode.step import text_step, tree_step
from treeopt.decode.verdicts import StepToVerify
from treeopt.extras import require
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump

_TOKEN_COLUMNS: Final = 64  # of a vocabulary that is too wide to write down


def own_dump(case: Case) -> StepDump:
    """The step of a case whose last node's path is what the target wants, so that a path is accepted.

    Along that path, what the target wants most and the path's token have exchanged their logits.
    """
    L, row, trees = len(case.prefix), np.zeros(1, dtype=np.int64), TreeBatch.of([case.tree])
    logits, cache = case.run()
    path = case.path(len(case.tree) - 1)
    logits = _exchanged(logits, path[:-1], case.tokens[path[1:]])
    target = likeliest(logits)
    target[path[:-1]] = case.tokens[path[1:]]  # of equally likely ones
    evidence = StepToVerify(trees=trees, tokens=case.tokens[None], best=target[None])
    verdict = RULES[0].judge(evidence, RandomDraws(np.random.default_rng(0)))
    step = tree_step(trees, case.tokens[None], lengths=row + L, rows=row)
    judged = _judged(case, logits)
    before = _slots(cache, L + len(case.tree))
    cache.compact(verdict.path, lengths=row + L, rows=row)
    return StepDump(
        prefix_len=L,
        parents=case.tree.parents,
        ranks=case.tree.ranks,
        tokens=case.tokens,
        mask=step.mask[0],
        positions=step.positions[0],
        target_tokens=target,
        accepted=verdict.path[0][verdict.path[0] >= 0],
        next_token=int(verdict.token[0]),
        emitted=np.array(emissions(verdict, case.tokens[None])[0]),
        kv_before=before,
        kv_after=_slots(cache, L + int(verdict.accepted[0]) + 1),
        probabilities=judged.distributions,
        node_probability=judged.by,
    )


def _exchanged(logits: Any, nodes: IntArray, tokens: IntArray) -> Any:
    """Logits `[N, V]` with those of each node's likeliest token and of the one given exchanged."""
    best, found = likeliest(logits)[nodes], copy.deepcopy(logits)
    found[nodes, tokens], found[nodes, best] = logits[nodes, best], logits[nodes, tokens]
    return found


class _Judged(NamedTuple):
    distributions: FloatArray | None  # [N, V]
    by: FloatArray | None  # [N]


def _judged(case: Case, logits: Any) -> _Judged:
    """What nodes were judged by, with the distributions where the vocabulary is small enough to be written down."""
    if case.model.vocabulary_size > _TOKEN_COLUMNS * len(case.tree):
        return _Judged(None, None)
    p = distributions(logits, 1.0)
    return _Judged(p, p[np.maximum(case.tree.parents, 0), case.tokens])


def _slots(cache: SlotCache, slots: int) -> FloatArray:
    """`[slots, W]` keys and values of the first layer."""
    keys, values = cache.committed(0, slots)[0]
    return np.concatenate([as_float64(part.swapaxes(0, 1)).reshape(slots, -1) for part in (keys, values)], axis=1)


NOISE_FACTOR: Final = 8.0
EPSILONS: Final = 8.0
PLAIN_EPSILONS: Final = 64.0  # two plain ways were 4 to 13 apart, from a toy in float64 to SmolLM2-135M in float32


class Plain(NamedTuple):
    """What plain decoding says: `logits [N, V]` after each node, from passes over whole texts without a cache;
    `stepwise [N, V]` the same token by token through a cache; the `cache` of that, with one row per leaf; and
    `at_once`, the cache of one pass over each leaf's text."""

    logits: FloatArray
    stepwise: FloatArray
    cache: SlotCache
    at_once: SlotCache


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A tree with tokens `[N]`, the root's first, behind a prefix `[L]` of committed tokens.

    With `kernels` the compaction kernel is checked too; which attention runs is the model's matter.
    """

    model: CausalModel
    tree: DraftTree
    prefix: IntArray
    tokens: IntArray
    kernels: bool = False

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The nodes without children: their paths cover the tree."""
        return tuple(node for node, kids in enumerate(self.tree.children) if not kids)

    def path(self, node: int) -> IntArray:
        """The nodes from the root to a node, both included."""
        return np.flatnonzero(self.tree.ancestor_mask[node])

    def row_of(self, node: int) -> int:
        """The first leaf below a node, as a row of the plain cache."""
        below = [i for i, leaf in enumerate(self.leaves) if self.tree.ancestor_mask[leaf, node]]
        return below[0]

    @cached_property
    def plain(self) -> Plain:
        """Plain decoding along every path."""
        texts = [[*self.prefix.tolist(), *self.tokens[self.path(leaf)].tolist()] for leaf in self.leaves]
        L, rows = len(self.prefix), np.arange(len(texts))
        none = np.zeros(len(texts), dtype=np.int64)
        logits = np.zeros((len(self.tree), self.model.vocabulary_size))
        stepwise = np.zeros_like(logits)
        for leaf, text in zip(self.leaves, texts, strict=True):
            logits[self.path(leaf)] = as_float64(self.model.reference(np.array(text))[L:])
        at_once, cache = SlotCache(), SlotCache()
        for row, text in zip(rows[:, None], texts, strict=True):  # one by one: masks and scores grow with L x L
            self.model.forward(text_step([text], lengths=none[row], rows=row), at_once, at=none[row])
            if L:
                self.model.forward(text_step([text[:L]], lengths=none[row], rows=row), cache, at=none[row])
        for depth in range(self.tree.depth + 1):
            running = np.array([i for i, text in enumerate(texts) if L + depth < len(text)])
            step = text_step([[texts[i][L + depth]] for i in running], lengths=none[running] + L + depth, rows=running)
            found = as_float64(self.model.forward(step, cache))[:, 0]
            stepwise[[self.path(self.leaves[i])[depth] for i in running]] = found
        return Plain(logits, stepwise, cache, at_once)

    @cached_property
    def noise(self) -> float:
        """What two plain ways to compute the logits differ by: at once without a cache, and token by token with one."""
        return float(np.abs(self.plain.logits - self.plain.stepwise).max())

    @cached_property
    def allowed_noise(self) -> float:
        """What they may differ by: if they differ by more, plain decoding itself is wrong."""
        return PLAIN_EPSILONS * self._epsilon * float(np.abs(self.plain.logits).max())

    @cached_property
    def allowed_logits(self) -> float:
        """What a tree may differ by: some times what two plain ways do, or some roundings of the largest logit."""
        least = EPSILONS * self._epsilon * float(np.abs(self.plain.logits).max())
        return max(least, NOISE_FACTOR * min(self.noise, self.allowed_noise))

    @cached_property
    def allowed_cache(self) -> float:
        """The same for keys and values, between the two plain caches."""
        plain, lengths = self.plain, [len(self.prefix) + len(self.path(leaf)) for leaf in self.leaves]
        noise = largest = 0.0
        for row, length in enumerate(lengths):
            noise = max(noise, cache_difference(plain.cache, row, plain.at_once, row, length))
            for layer in plain.cache.committed(row, length):
                largest = max(largest, *(float(abs(values).max()) for values in layer))
        least, most = (n * self._epsilon * largest for n in (EPSILONS, PLAIN_EPSILONS))
        return max(least, NOISE_FACTOR * min(noise, most))

    @property
    def _epsilon(self) -> float:
        dtype = self.model.dtype
        return float((np if isinstance(dtype, np.dtype) else require("torch", extra="gpu")).finfo(dtype).eps)

    def run(self, tokens: IntArray | None = None) -> TreeRun:
        """The tree step, behind a prefilled prefix."""
        chosen = self.tokens if tokens is None else tokens
        cache, row, L = SlotCache(), np.zeros(1, dtype=np.int64), len(self.prefix)
        if L:
            self.model.forward(text_step([self.prefix.tolist()], lengths=row, rows=row), cache, at=row)
        step = tree_step(TreeBatch.of([self.tree]), chosen[None], lengths=row + L, rows=row)
        return TreeRun(self.model.forward(step, cache)[0], cache)


class TreeRun(NamedTuple):
    """Logits `[N, V]` (torch) and the cache right after a tree step, with one row."""

    logits: Any
    cache: SlotCache


def cache_difference(a: SlotCache, row_a: int, b: SlotCache, row_b: int, length: int) -> float:
    """The largest difference between two requests' first `length` slots."""
    pairs = zip(a.committed(row_a, length), b.committed(row_b, length), strict=True)
    worst = [float(abs(x - y).max()) for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True)]
    return float(np.max(worst))  # not Python's, which passes over what is not a number

"""A dump of this decoder's own step: the example of a right one, and what the mask and position checks look at."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.decode.batch import TreeBatch
from treeopt.decode.cache import SlotCache
from treeopt.decode.decoder import emissions
from treeopt.decode.draws import RandomDraws
from treeopt.decode.models import as_float64, likeliest
from treeopt.decode.rules import RULES
from treeopt.decode.step import tree_step
from treeopt.decode.verdicts import Evidence
from treeopt.verify.case import Case
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
    evidence = Evidence(trees=trees, tokens=case.tokens[None], best=target[None])
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
    best, found = likeliest(logits)[nodes], logits.clone()
    found[nodes, tokens], found[nodes, best] = logits[nodes, best], logits[nodes, tokens]
    return found


class _Judged(NamedTuple):
    distributions: FloatArray | None  # [N, V]
    by: FloatArray | None  # [N]


def _judged(case: Case, logits: Any) -> _Judged:
    """What nodes were judged by, with the distributions where the vocabulary is small enough to be written down."""
    if case.model.vocabulary_size > _TOKEN_COLUMNS * len(case.tree):
        return _Judged(None, None)
    p = as_float64(logits.double().softmax(-1))
    return _Judged(p, p[np.maximum(case.tree.parents, 0), case.tokens])


def _slots(cache: SlotCache, slots: int) -> FloatArray:
    """`[slots, W]` keys and values of the first layer."""
    keys, values = cache.committed(0, slots)[0]
    return np.concatenate([as_float64(part.transpose(0, 1).flatten(1)) for part in (keys, values)], axis=1)

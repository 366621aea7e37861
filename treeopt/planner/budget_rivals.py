"""What stands beside the best budget of a batch size: static trees, chains, plain decoding, adaptive chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.adaptive import ConfidentChains
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray
from treeopt.cost.step import ModelStep
from treeopt.draft_family import chain_length
from treeopt.files.typed import Count
from treeopt.planner.inputs import Inputs
from treeopt.solve.options import Option
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.solve.search import search

_STEPS: Final = 3000  # requests' steps of a simulated batch
# Drafters whose guesses depend on the guess before them: a path's score is no product.
CONDITIONAL: Final = {
    "dspark": "its Markov head conditions every guess on the one before it",
    "dflash2": "its selector scores pairs of neighbouring guesses",
}


class BudgetRival(NamedTuple):
    """Another way to draft at the same batch size: what it is, its E, and the tokens/s of the whole batch."""

    nodes: Count
    acceptance_length: float
    tokens_per_s: float


def fixed_rivals(inputs: Inputs, point: Point, nodes: int) -> tuple[BudgetRival | None, BudgetRival, BudgetRival]:
    """The best static tree of the evidence, the best chain, and plain decoding."""
    deepest = inputs.kernels.deepest
    question = Problem(
        batches=(point.batch,),
        context=point.context,
        limits=Limits(max_nodes=max(nodes, 64), max_depth=deepest),
        only_listed=True,
    )
    (bucket,) = search(question, inputs.evidence, inputs.cost)
    assert bucket.plain is not None
    static = None
    if chain_length(bucket.draft) is None and inputs.kernels.drafter.kind not in CONDITIONAL:
        static = BudgetRival(len(bucket.tree), bucket.acceptance_length.value, bucket.tokens_per_s.value)
    return static, _rival(bucket.best_chain), _rival(bucket.plain)


def _rival(option: Option) -> BudgetRival:
    return BudgetRival(option.nodes, option.acceptance_length.value, option.tokens_per_s.value)


class AdaptiveRival(NamedTuple):
    """Chains whose lengths are chosen per step, and the share that they gain over the best fixed length."""

    rival: BudgetRival
    gain: float


def confident_chains(trace: Trace, inputs: Inputs) -> list[ConfidentChains]:
    """Chains of every length that the engine may be started with."""
    deepest = inputs.kernels.deepest
    longest = trace.depth if deepest is None else min(deepest, trace.depth)
    return [ConfidentChains.of(trace, length) for length in range(1, longest + 1)]


def adaptive_rival(inputs: Inputs, chains: Sequence[ConfidentChains], point: Point, seed: int) -> AdaptiveRival | None:
    """The batch whose lengths are chosen per step, over the best fixed length, each as long as it is best drafted."""
    if not chains or inputs.cost is not inputs.kernels:
        return None
    batch, steps = point.batch, max(_STEPS // point.batch, 50)
    by_step, fixed = [], []
    for own in chains:
        time_s = _by_tokens(inputs.kernels, own.length, point)
        by_step.append(own.adaptive(batch, time_s, steps=steps, seed=seed))
        fixed.append(own.fixed(batch, own.length, time_s, steps=steps, seed=seed).tokens_per_s)
    best = max(by_step, key=lambda run: run.tokens_per_s)
    rival = BudgetRival(max(round(best.verified_per_request), 1), best.tokens_per_step, best.tokens_per_s)
    return AdaptiveRival(rival, best.tokens_per_s / max(fixed) - 1.0)


def _by_tokens(kernels: ModelStep, drafted: int, point: Point) -> FloatArray:
    """`[B K + 1]` seconds of a step that drafts chains of K and verifies B + T tokens, by T.

    Attention goes by the mean tokens per request; the rest is of the padded size, so the engine's stairs stay.
    """
    K, B = drafted, point.batch
    lengths = np.arange(1, K + 1)
    whole = kernels.step_time_s(B, lengths + 1, lengths, (np.arange(K) < lengths[:, None]).astype(int), point.context)
    draft = np.array([kernels.drafting_s(batch=B, length=int(k), context=point.context) for k in lengths])
    engine = kernels.engine
    bare = float(kernels.step_time_s(B, 1, 0, np.zeros(1, dtype=np.int64), point.context))
    verify = np.concatenate([[bare + engine.speculative_step_s + engine.speculative_request_s * B], whole - draft])
    sizes = engine.padded(np.arange(B, B * (K + 1) + 1, dtype=np.float64)) / B
    return np.asarray(np.interp(sizes, np.arange(1, K + 2), verify) + draft[-1], dtype=np.float64)

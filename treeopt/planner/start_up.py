"""What an engine must be told when it starts: how many tokens a drafter of blocks guesses per pass.

The width of the pass is fixed then: vLLM drafts B (1 + K_max) rows whatever K its schedule picks, and SGLang verifies
as many tokens as it drafts. So K_max is chosen before the lengths per batch size are: the one whose best schedule is
fastest, as the geometric mean over the batch sizes that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.drafter import OnePass
from treeopt.cost.step import ModelStep
from treeopt.draft_family import Chains, chain_length
from treeopt.planner.inputs import Inputs
from treeopt.solve.bucket import Bucket
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Objective, Point, Problem
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from treeopt.planner.for_engine import Target


class Started(NamedTuple):
    """A question and its inputs as the engine would be started for them, and what a reader must know of that."""

    question: Problem
    inputs: Inputs
    notes: tuple[str, ...] = ()


def started(question: Problem, inputs: Inputs, target: Target | None) -> Started:
    """The question no deeper than the drafter guesses, and K_max where an engine fixes it; else as it was.

    Step times of the user's own were measured with one K_max, which nothing here knows: they stay.
    """
    kernels, deepest = inputs.kernels, inputs.kernels.deepest
    if deepest is None or inputs.cost is not kernels:
        return Started(question, inputs)
    cap = question.limits.max_depth
    limits = replace(question.limits, max_depth=deepest if cap is None else min(cap, deepest))
    question = replace(question, limits=limits)
    chains = _chains_of(target)
    if chains is None or not isinstance(kernels.drafter, OnePass) or question.objective is Objective.LENGTH:
        return Started(question, inputs)
    longest = min(question.caps.max_depth or deepest, chains.max_length or deepest, question.limits.max_nodes - 1)
    rates = _rates(question, inputs, kernels.drafter, longest, per_batch=chains.per_batch)
    best = float(rates.max())
    K = int(np.flatnonzero(rates >= best + np.log1p(-TIE))[0]) + 1
    return Started(
        replace(question, limits=replace(limits, max_depth=K)),
        _with_masks(inputs, K),
        tuple(_notes(K, deepest, rates, chains)),
    )


def off_notes(buckets: Sequence[Bucket], inputs: Inputs) -> Iterator[str]:
    """What K = 0 in a schedule costs beyond a server without a drafter, which plain decoding is priced as."""
    for bucket in buckets:
        if bucket.speculate or bucket.plain is None or inputs.cost is not inputs.kernels:
            continue
        batch, context = bucket.batch.max, bucket.context.max
        plain_s = bucket.plain.step_time_s
        idle_s = inputs.kernels.idle_s(batch=batch, context=context)
        if idle_s <= TIE * plain_s:
            continue
        said = (
            f"K = 0 at batch {batch} is not plain decoding: the drafter still takes verified tokens into its cache, "
            f"{idle_s * 1e3:.2f} ms per step ({idle_s / plain_s:.0%})"
        )
        chain = bucket.best_chain
        if chain.tokens_per_s.value > batch / (plain_s + idle_s):
            said += f"; a chain of {chain.depth} is faster than that: leave --allow-off out"
        yield said


def branch_notes(buckets: Sequence[Bucket], inputs: Inputs) -> Iterator[str]:
    """What trees cost a target with linear attention beyond their price: each branch has a state of its own."""
    if inputs.model.linear is None or inputs.cost is not inputs.kernels:
        return
    trees = [bucket for bucket in buckets if chain_length(bucket.draft) is None]
    if trees:
        chain = max(bucket.best_chain.tokens_per_s.value / bucket.tokens_per_s.value for bucket in trees)
        yield (
            f"{inputs.model.name} has linear-attention layers, which need a state per branch: a tree is priced with "
            "one written for every node, but engines run it without captured graphs, where a chain was 46 % faster "
            f"(vLLM pull request 42910); the best chain has {chain:.0%} of the tree's priced tokens/s"
        )


def _chains_of(target: Target | None) -> Chains | None:
    """The chains that an engine loads, of the format with one per batch size if it has such."""
    if target is None:
        return None
    found = [form.limits for form in target.engine.formats if isinstance(form.limits, Chains)]
    return max(found, key=lambda limits: limits.per_batch, default=None)


def _with_masks(inputs: Inputs, K: int) -> Inputs:
    kernels = _step_with(inputs.kernels, K)
    drafter = replace(inputs.sources.drafter, num_speculative_tokens=K)
    return replace(
        inputs,
        names=replace(inputs.names, masks=K),
        kernels=kernels,
        cost=kernels,
        sources=replace(inputs.sources, drafter=drafter),
    )


def _step_with(kernels: ModelStep, K: int) -> ModelStep:
    assert isinstance(kernels.drafter, OnePass)
    return replace(kernels, drafter=kernels.drafter.starting_with(K))


def _rates(question: Problem, inputs: Inputs, drafter: OnePass, longest: int, *, per_batch: bool) -> FloatArray:
    """`[longest]` mean log tokens/s over the batch sizes, by K_max = 1, 2, ...; each batch has its best K <= K_max."""
    point = Point(question.batches[-1], question.context)
    chains = [DraftTree.chain(k) for k in range(1, longest + 1)]
    known = max(part.profile.model().depth for part in inputs.evidence.parts)
    reach = [chain for chain in chains if chain.depth <= max(known, 1)]
    E = np.array([price(chain, inputs.evidence, inputs.kernels, point).acceptance_length.value for chain in reach])
    found = []
    for K in range(1, len(reach) + 1):
        step = _step_with(inputs.kernels, K)
        rate = E[:K, None] / _times_s(step, question.batches, K, question.context)
        found.append(float(np.log(rate.max(axis=0) if per_batch else rate[-1]).mean()))
    return np.array(found)


def _times_s(step: ModelStep, batches: Sequence[int], K: int, context: int) -> FloatArray:
    """`[K, B]` step times of chains of 1 to K."""
    depth = np.arange(1, K + 1)[:, None]
    widths = (np.arange(K) < depth).astype(np.int64)[:, None]
    return step.step_time_s(np.array(batches, dtype=np.int64), depth + 1, depth, widths, context)


def _notes(K: int, trained: int, rates: FloatArray, chains: Chains) -> Iterator[str]:
    """What was chosen, what the widest pass would have cost, and what is not known of a narrower one."""
    rest = "shorter lengths in the schedule draft as much and verify less" if chains.per_batch else "all are verified"
    yield f"start the engine with {K} tokens per pass (num_speculative_tokens, the root not counted): {rest}"
    lost = 1.0 - float(np.exp(rates[-1] - rates[K - 1]))
    if len(rates) > K and lost > TIE:
        yield f"started with {len(rates)} it would be {lost:.1%} slower on average over these batch sizes"
    if trained > K:
        yield (
            f"the drafter guesses {trained} tokens as trained; with {K} masks its acceptance is taken to be that of "
            "the longer pass, cut short: measure it at the K that you start with"
        )

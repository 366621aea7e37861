"""Trees by confidence within a budget: which budget each batch size verifies, and what else would do there.

The drafts are those that an engine shapes anew in every step (`treeopt.acceptance.budget_tree`). Beside the best budget
stand the best static tree, the best chain, plain decoding, and chains whose lengths the engine chooses per step
(`treeopt.acceptance.adaptive`), all valued on the same trace and priced by the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from treeopt.acceptance.adaptive import ConfidentChains
from treeopt.acceptance.budget_law import length_at
from treeopt.acceptance.budget_tree import BudgetRule, BudgetValues
from treeopt.acceptance.intervals import tokens_interval
from treeopt.acceptance.trace import Trace
from treeopt.answer import Estimate, Note
from treeopt.arrays import FloatArray
from treeopt.cost.drafter import OnePass
from treeopt.errors import InputError
from treeopt.files.typed import Count, Positive, Whole
from treeopt.planner.budget_rivals import CONDITIONAL, BudgetRival, adaptive_rival, confident_chains, fixed_rivals
from treeopt.planner.inputs import Inputs
from treeopt.solve.problem import Point
from treeopt.solve.report import estimate

_TIE: Final = 0.005
_BLIND: Final = ("medusa", "dflash", "jetspec", "peagle", "pard")


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """The best budget at one batch size and context, and its rivals.

    `budget` is the engine's count, `nodes` N with the root. `adaptive_gain` is the share that choosing lengths per step
    gains over the best fixed chain, `None` where no confidence was recorded.
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("batch", "context", "budget", "nodes", "depth", "acceptance_length", "step_time_s", "tokens_per_s"),
        *("static_tree", "chain", "plain", "adaptive", "adaptive_gain", "best"),
    )
    batch: Count
    context: Whole
    budget: Whole
    nodes: Count
    depth: Whole
    acceptance_length: Estimate
    step_time_s: Positive
    tokens_per_s: Positive
    static_tree: BudgetRival | None
    chain: BudgetRival
    plain: BudgetRival
    adaptive: BudgetRival | None
    adaptive_gain: float | None

    @property
    def best(self) -> str:
        """The fastest of all; of those within a tie the one that asks least of the engine."""
        ways = {
            "plain decoding": self.plain.tokens_per_s,
            "chain": self.chain.tokens_per_s,
            **({"static tree": self.static_tree.tokens_per_s} if self.static_tree else {}),
            **({"adaptive chain": self.adaptive.tokens_per_s} if self.adaptive else {}),
            "budget": self.tokens_per_s,
        }
        most = max(ways.values())
        return next(name for name, rate in ways.items() if rate >= most * (1 - _TIE))


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """The best budgets by one rule."""

    FORMAT: ClassVar[str] = "treeopt.budgets/1"
    WRITTEN: ClassVar[tuple[str, ...]] = ("rule", "drafter", "rows", "confidence_auc", "notes")
    rule: str
    drafter: str
    rows: tuple[BudgetRow, ...]
    confidence_auc: float | None
    notes: tuple[Note, ...]


class _Valued(NamedTuple):
    """`[D, N]` E of budgets by depth and nodes (from 0), and how to tell the interval of one."""

    tokens: FloatArray
    values: BudgetValues | None
    known: Mapping[int, float]
    rule: BudgetRule

    def length(self, depth: int, nodes: int, seed: int) -> Estimate:
        """E of one budget with its interval."""
        if self.values is None:
            return length_at(self.rule.budget(nodes), self.known)
        replay = self.values.deeper(depth).replay(nodes)
        return estimate(replay.tokens_per_step, tokens_interval(replay, seed=seed))


def best_budgets(
    inputs: Inputs,
    rule: BudgetRule,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    most: int,
    topk: int | None = None,
    known: Mapping[int, float] | None = None,
    one_for_all: bool = False,
    seed: int = 0,
) -> Budgets:
    """The budget with the most tokens/s at every batch size and context.

    Args:
        inputs: acceptance with recorded confidence, and the price; with `known` acceptance of any kind.
        rule: how the engine builds its trees.
        batches: batch sizes.
        contexts: committed tokens per request.
        most: the largest budget, as the engine counts it.
        topk: guesses per depth; None is as many as were recorded.
        known: published E by budget, in place of a trace.
        one_for_all: the same budget everywhere, of the largest mean of log tokens/s.
        seed: of the intervals and of the simulated batches.

    Raises:
        InputError: a drafter whose trees no product of confidences scores; no confidence and nothing known; or a number
            out of range.
    """
    kind = inputs.kernels.drafter.kind
    if kind in CONDITIONAL and topk != 1:
        raise InputError(
            f"no tree by products of confidences for {kind}: {CONDITIONAL[kind]}",
            hint="add --topk 1 for chains and adaptive lengths; SGLang pull request 36196 searches beams of DFlash2's "
            "own scores",
        )
    rule = rule if kind in _BLIND else rule._replace(per_branch=True)
    trace = _trace_of(inputs) if known is None else None
    valued = _valued(inputs, trace, rule, rule.nodes(most), topk, known or {})
    chains = [] if trace is None else confident_chains(trace, inputs)
    points = [Point(batch, context) for context in contexts for batch in batches]
    guesses = 1 if valued.values is None else valued.values.guesses
    priced = [_times_s(inputs, rule, valued.tokens, guesses, point) for point in points]
    rates = [np.maximum(valued.tokens, 0.0) / times_s for times_s in priced]  # 0 where nothing is valued
    together = np.log(np.maximum(rates, np.finfo(np.float64).tiny)).mean(axis=0)
    choices = [together if one_for_all else rate for rate in rates]
    rows = tuple(
        _row(inputs, rule, valued, chains, point, times_s, choice, seed)
        for point, times_s, choice in zip(points, priced, choices, strict=True)
    )
    last = max(row.nodes for row in rows)
    return Budgets(
        rule=rule.name,
        drafter=kind,
        rows=rows,
        confidence_auc=chains[-1].auc if chains else None,
        notes=(*_notes(inputs, rule, valued), *inputs.notes(max(batches), max(contexts), last)),
    )


def _trace_of(inputs: Inputs) -> Trace:
    parts = inputs.evidence.parts
    if len(parts) != 1 or parts[0].trace is None:
        raise InputError(
            "a budget is valued on one trace with the drafter's confidence (topk_prob)",
            hint="give --ranks TRACE, or published lengths: --lengths 64=7.16,256=9.81",
        )
    return parts[0].trace


def _valued(
    inputs: Inputs, trace: Trace | None, rule: BudgetRule, most: int, topk: int | None, known: Mapping[int, float]
) -> _Valued:
    deepest = inputs.kernels.deepest
    if trace is None:
        if not isinstance(inputs.kernels.drafter, OnePass):
            raise InputError(
                "published lengths by budget do not tell what shorter trees accept, and the drafter pays for depth",
                hint="give a trace, or a drafter that guesses a block in one pass",
            )
        reach = [n for n in range(2, most + 1) if min(known) <= rule.budget(n) <= 2 * max(known)]
        tokens = np.full((1, most + 1), -np.inf)
        tokens[0, reach] = [length_at(rule.budget(n), known).value for n in reach]
        return _Valued(tokens, None, known, rule)
    depth = trace.depth if deepest is None else min(trace.depth, deepest)
    values = BudgetValues(trace=trace, rule=rule, most=most, depth=depth, topk=topk)
    # A block's depth is free; where each level has its own pass or head every depth is a choice.
    depths = [depth] if isinstance(inputs.kernels.drafter, OnePass) else range(1, depth + 1)
    tokens = np.full((depth, most + 1), -np.inf)
    for d in depths:
        own = values if d == depth else values.deeper(d)
        for n in range(2, most + 1):
            tokens[d - 1, n] = own.replay(n).tokens_per_step
    return _Valued(tokens, values, known, rule)


def _row(
    inputs: Inputs,
    rule: BudgetRule,
    valued: _Valued,
    chains: Sequence[ConfidentChains],
    point: Point,
    times_s: FloatArray,
    choice: FloatArray,
    seed: int,
) -> BudgetRow:
    d, nodes = np.unravel_index(int(np.argmax(choice)), choice.shape)
    depth, N = int(d) + 1 if valued.values else inputs.kernels.deepest or 0, int(nodes)
    static, chain, plain = fixed_rivals(inputs, point, N)
    adaptive = adaptive_rival(inputs, chains, point, seed)
    return BudgetRow(
        batch=point.batch,
        context=point.context,
        budget=rule.budget(N),
        nodes=N,
        depth=depth,
        acceptance_length=valued.length(depth, N, seed),
        step_time_s=float(times_s[d, nodes]),
        tokens_per_s=point.batch * float(valued.tokens[d, nodes] / times_s[d, nodes]),
        static_tree=static,
        chain=chain,
        plain=plain,
        adaptive=None if adaptive is None else adaptive.rival,
        adaptive_gain=None if adaptive is None else adaptive.gain,
    )


def _times_s(inputs: Inputs, rule: BudgetRule, tokens: FloatArray, topk: int, point: Point) -> FloatArray:
    """`[D, N]` step times; infinite for N below 2."""
    D, size = tokens.shape
    nodes = np.arange(2, size)
    found = np.full((D, size), np.inf)
    for d in range(1, D + 1):
        if not np.isfinite(tokens[d - 1]).any():
            continue
        depth = inputs.kernels.deepest or d if isinstance(inputs.kernels.drafter, OnePass) else d
        level = np.arange(depth)
        # Every pass of a drafter that runs per branch is as wide as the tree may be there.
        most = np.minimum(float(topk) ** level, nodes[:, None] - 1)
        wide = most if rule.per_branch else np.ones((len(nodes), depth))
        found[d - 1, 2:] = inputs.cost.step_time_s(point.batch, nodes, depth, wide.astype(np.int64), point.context)
    return found


def _notes(inputs: Inputs, rule: BudgetRule, valued: _Valued) -> Iterator[Note]:
    if valued.values is None:
        yield Note.warning(
            "E is interpolated between published budgets by the law of docs/drafters.md, not measured on your texts"
        )
    elif rule.per_branch:
        yield Note.note(
            "below wrong guesses the drafter is taken to be as sure as below right ones, depth by depth: a trace does "
            "not hold what it would have guessed there"
        )
    if inputs.model.linear is not None:
        yield Note.warning(
            f"{inputs.model.name} has linear-attention layers, which need a state per branch of a tree: one written "
            "for every node is priced, but engines run such trees without captured graphs, where a chain was 46 % "
            "faster than a tree (vLLM pull request 42910): take the chain"
        )
    yield Note.note(
        "trees of a DFlash drafter by confidence are in no release: vLLM pull request 42910, SGLang pull request 29907 "
        "(--speculative-ddtree-budget, the root not counted, one for all batch sizes)"
    )

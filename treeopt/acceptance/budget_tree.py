"""Trees built anew in every step by confidence within a budget of nodes, valued on a recorded trace.

The drafter lists k guesses per depth with its own probabilities; the score of a rank path is the product of those
along it. Best first: the N - 1 paths with the largest scores are verified beside the root. Scores never rise along a
path or a row of siblings, so these are a tree, trees of rising N are nested, and no tree of N nodes has a larger sum.

A drafter of blocks or of parallel heads never sees which branch it is on: its probabilities of a depth are the same
below all nodes, and the target's own continuation is one rank path whatever was verified. The value is then exact,
joint over depths. A drafter that runs per branch (EAGLE, a model) was recorded below right guesses alone: below wrong
ones it is taken to be as sure, depth by depth (`Assumption.ESTIMATE` of `treeopt.acceptance.dynamic_trace`).

A rank path that is verified has all paths of ranks no larger before it, so within N nodes only paths with
sum over j of prod over i <= j of (r_i + 1) < N can stand: one list for all steps, in the order that decides ties.

Sources: DDTree, arXiv 2604.12989, `ddtree.py` @c96427a1 (ties: smaller rank path first; vLLM pull request 42910 orders
alike); OPT-Tree, 2406.17276; JetSpec, 2606.18394, `accum_logp.py` @2c7b3fae.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.replay import Replay, replay_accepted
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray, IntArray
from treeopt.errors import InputError, named

MAX_BUDGET: Final = 1024  # nodes; above, no engine has a kernel
_NEVER: Final = np.iinfo(np.int64).max
_CHUNK_CELLS: Final = 1 << 23


class BudgetRule(NamedTuple):
    """How an engine builds a tree of N nodes, N its own count of them.

    Attributes:
        name: what it is asked for by.
        counts_root: whether its budget counts the root: SGLang's and JetSpec's do, DDTree's does not.
        whole_rows: it adds all k guesses below the best node at once, not one node at a time.
        per_branch: the drafter runs for every branch, N nodes wide per pass.
    """

    name: str
    counts_root: bool = False
    whole_rows: bool = False
    per_branch: bool = False

    def nodes(self, budget: int) -> int:
        """N with the root of a budget as the engine counts it: 64 of DDTree are 65."""
        return budget + (not self.counts_root)

    def budget(self, nodes: int) -> int:
        """The engine's count of N nodes."""
        return nodes - (not self.counts_root)


DDTREE: Final = BudgetRule("ddtree")
JETSPEC: Final = BudgetRule("jetspec", counts_root=True, whole_rows=True)
OPT_TREE: Final = BudgetRule("opt-tree", per_branch=True)
RULES: Final = (DDTREE, JETSPEC, OPT_TREE)


def budget_rule(name: str) -> BudgetRule:
    """The rule of that name.

    Raises:
        UnknownNameError: there is none.
    """
    return named("rule", name, RULES)


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetValues:
    """What trees of every budget accept on a trace, by one rule.

    Args:
        trace: with `topk_prob`.
        rule: how trees are built.
        most: largest N, the root included.
        depth: deepest node; at most the trace's.
        topk: guesses per depth; at most those that the trace records.

    Raises:
        EvidenceError: the trace has no `topk_prob`.
        InputError: a number out of range.
    """

    trace: Trace
    rule: BudgetRule = DDTREE
    most: int = 64
    depth: int | None = None
    topk: int | None = None
    _found: list[IntArray] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.trace.topk_prob is None:
            raise EvidenceError(
                "the trace has no 'topk_prob' [T, D, K]",
                keys=("topk_prob",),
                hint="record the drafter's probabilities of its best guesses, or give --lengths BUDGET=E,BUDGET=E",
            )
        if not 2 <= self.most <= MAX_BUDGET:
            raise InputError(f"a budget of {self.most} nodes is out of range", hint=f"give 2 to {MAX_BUDGET}")
        for name, value, high in (("depth", self.depth, self.trace.depth), ("topk", self.topk, self._recorded)):
            if value is not None and not 1 <= value <= high:
                raise InputError(f"{name} {value} is out of range", hint=f"the trace records {high}")

    @property
    def deepest(self) -> int:
        """The deepest node."""
        return self.trace.depth if self.depth is None else self.depth

    @property
    def guesses(self) -> int:
        """Guesses per depth, k."""
        return self._recorded if self.topk is None else self.topk

    def accepted(self, nodes: int) -> IntArray:
        """`[T]` true tokens that the tree of N nodes holds at each position."""
        return np.asarray((self.needed <= nodes).sum(axis=1), dtype=np.int64)

    def replay(self, nodes: int) -> Replay:
        """What a decoder gets from trees of N nodes: drafts start where the last one ended."""
        return replay_accepted(self.trace, self.accepted(nodes))

    def deeper(self, depth: int) -> BudgetValues:
        """The same no deeper than `depth`."""
        return replace(self, depth=depth, _found=[])

    @property
    def needed(self) -> IntArray:
        """`[T, D]` the smallest N whose tree holds the target's own path down to each depth."""
        if not self._found:
            self._found.append(self._needed())
        return self._found[0]

    @property
    def _recorded(self) -> int:
        assert self.trace.topk_prob is not None
        return int(self.trace.topk_prob.shape[2])

    def _needed(self) -> IntArray:
        assert self.trace.topk_prob is not None
        rank = self.trace.rank[:, : self.deepest].astype(np.int64)
        found = np.full((len(rank), self.trace.depth), _NEVER)
        chunk = max(_CHUNK_CELLS // max(len(self._paths.parent), 1), 1)
        for start in range(0, len(rank), chunk):
            rows = slice(start, start + chunk)
            prob = self.trace.topk_prob[rows, : self.deepest, : self.guesses].astype(np.float64)
            found[rows, : self.deepest] = _places(rank[rows], prob, self._paths, self.rule)
        return found

    @cached_property
    def _paths(self) -> _Paths:
        if self.rule.whole_rows:  # what is listed are the nodes that get children
            return _listed(-(-self.most // self.guesses), self.deepest - 1, self.guesses)
        return _listed(self.most - 1, self.deepest, self.guesses)


class _Paths(NamedTuple):
    """The rank paths that trees of a size can hold, smaller paths first; the root is the last row's parent, C.

    `parent [C]` and `child [C + 1, k]` hold places in the list, -1 for none; `depth [C]` from 1, `rank [C]` the last
    rank. A parent stands before its children.
    """

    parent: IntArray
    depth: IntArray
    rank: IntArray
    child: IntArray


def _listed(nodes: int, depth: int, topk: int) -> _Paths:
    """Paths that have fewer than `nodes` others before them whatever the probabilities."""
    found: list[tuple[int, int, int]] = []

    def grow(parent: int, level: int, width: int, before: int) -> None:
        if level > depth:
            return
        for rank in range(topk):
            own = width * (rank + 1)
            if before + own > nodes:
                return
            found.append((parent, level, rank))
            grow(len(found) - 1, level + 1, own, before + own)

    grow(-1, 1, 1, 0)
    parent, levels, ranks = np.array(found, dtype=np.int64).reshape(-1, 3).T
    child = np.full((len(found) + 1, topk), -1)
    child[parent, ranks] = np.arange(len(found))  # the root's, -1, is the last row
    return _Paths(parent, levels, ranks, child)


def _places(rank: IntArray, prob: FloatArray, paths: _Paths, rule: BudgetRule) -> IntArray:
    """`[n, D]` the smallest N that holds the true path down to each depth, of n steps."""
    n, D, topk = prob.shape
    score = _scores(prob, paths)
    needed = np.full((n, D), _NEVER)
    at = np.full(n, len(paths.parent))  # the true path's place: the root
    before = np.zeros(n, dtype=np.int64)
    alive = np.arange(n)
    for d in range(D):
        own = rank[alive, d]
        listed = (own >= 0) & (own < topk)
        alive, own = alive[listed], own[listed]
        if rule.whole_rows:  # the parent's row of k, after those of all better parents
            needed[alive, d] = before[alive] * topk + own + 2
        at[alive] = paths.child[at[alive], own]
        alive = alive[at[alive] >= 0]
        if not len(alive):
            break
        before[alive] = _before(score[alive], at[alive]) + 1
        if not rule.whole_rows:
            needed[alive, d] = before[alive] + 1
    return np.maximum.accumulate(needed, axis=1)


def _scores(prob: FloatArray, paths: _Paths) -> FloatArray:
    """`[n, C]` products along every path."""
    score = np.ones((len(prob), len(paths.parent) + 1))
    for c, (parent, depth, rank) in enumerate(zip(paths.parent, paths.depth, paths.rank, strict=True)):
        score[:, c] = score[:, parent] * prob[:, depth - 1, rank]
    return score[:, :-1]


def _before(score: FloatArray, at: IntArray) -> IntArray:
    """`[n]` paths that come before the one at `at [n]`: larger scores, and equal ones that stand before it."""
    own = np.take_along_axis(score, at[:, None], axis=1)
    earlier = np.arange(score.shape[1]) < at[:, None]
    return np.asarray(((score > own) | ((score == own) & earlier)).sum(axis=1), dtype=np.int64)


def tree_by_confidence(prob: FloatArray, nodes: int, rule: BudgetRule = DDTREE) -> list[tuple[int, ...]]:
    """The rank paths of one step's tree of N nodes, in the order in which they enter it.

    Args:
        prob: `[D, K]` the drafter's probabilities of its guesses, best first.
        nodes: N, the root included.
        rule: how the tree is built.
    """
    D, topk = prob.shape
    within = -(-nodes // topk) if rule.whole_rows else nodes - 1
    paths = _listed(within, D - rule.whole_rows, topk)
    score = _scores(prob[None], paths)[0]
    order = np.argsort(-score, kind="stable")
    if not rule.whole_rows:
        return [_path(paths, c) for c in order[: nodes - 1].tolist()]
    rows = [(), *(_path(paths, c) for c in order.tolist())]
    return [(*parent, r) for parent in rows for r in range(topk)][: nodes - 1]


def _path(paths: _Paths, c: int) -> tuple[int, ...]:
    return () if c < 0 else (*_path(paths, int(paths.parent[c])), int(paths.rank[c]))

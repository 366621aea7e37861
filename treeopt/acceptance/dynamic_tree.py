"""Trees that the engine builds anew in every step from the drafter's confidence, described by three numbers.

EAGLE-2's rule (Li et al. 2024, section 4), as SGLang, TensorRT-LLM and OpenVINO GenAI run it with their own names for
the numbers: the drafter lists its k best guesses of the next token; in each of S - 1 further steps the k candidates of
the last level with the largest product of confidences ("beams") get k guesses each; of all k + (S - 1) k^2 candidates
the N - 1 with the largest products are verified.

Products never rise along a path, and a parent is numbered before its children, so with ties decided for the lower
number the N - 1 best are a tree, and the trees of one (S, k) are nested in N. That makes the search over all of them
exact at the price of one sort per (S, k).

Where only ranks were measured, the drafter's confidence is taken to be the acceptance (a calibrated drafter that is as
sure in every step as on average): the tree is then the same in every step, and what the engine gains by choosing anew
is left out. `treeopt.acceptance.dynamic_trace` values them from recorded confidence instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from treeopt.acceptance.model import ModelOver, PathModel
from treeopt.arrays import FloatArray, IntArray
from treeopt.draft_family import SGLANG, DynamicTree
from treeopt.errors import SearchError
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class DynamicTreeCaps:
    """The largest S, k and N that a search tries.

    Raises:
        SearchError: one that leaves nothing.
    """

    num_steps: int = 8
    topk: int = 10
    num_draft_tokens: int = 64

    def __post_init__(self) -> None:
        if min(self.num_steps, self.topk) < 1 or self.num_draft_tokens < 2:
            numbers = f"{self.num_steps} steps, topk {self.topk}, {self.num_draft_tokens} nodes"
            raise SearchError(
                f"limits of {numbers} leave no dynamic tree", hint="give 1 step, 1 guess and --max-nodes 2 at least"
            )

    def within(self, *, depth: int, ranks: int) -> DynamicTreeCaps:
        """The same, no deeper and no wider than the evidence."""
        return replace(self, num_steps=min(self.num_steps, depth), topk=min(self.topk, ranks))


class DynamicTreeValues(Protocol):
    """Expected tokens of every dynamic tree that the evidence reaches."""

    @property
    def limits(self) -> DynamicTreeCaps:
        """The dynamic trees that have a value."""

    @property
    def basis(self) -> str:
        """What the values rest on, in a few words for a report."""

    def tokens(self, steps: int, topk: int) -> FloatArray:
        """`[limits.num_draft_tokens + 1]` E by N; where N exceeds the pool it is that of the whole pool."""


@dataclass(frozen=True, kw_only=True)
class ModelValues:
    """E of the trees that a drafter of confidence `draft` gets built, accepted as `accept` says."""

    draft: PathModel
    accept: PathModel
    limits: DynamicTreeCaps

    @classmethod
    def of(cls, model: PathModel, limits: DynamicTreeCaps, *, draft: PathModel | None = None) -> ModelValues:
        """From measured acceptance; without `draft` the drafter's confidence is taken to be the acceptance."""
        draft = model if draft is None else draft
        depth, ranks = min(model.depth, draft.depth), min(model.ranks, draft.ranks)
        return cls(draft=draft, accept=model, limits=limits.within(depth=depth, ranks=ranks))

    @property
    def basis(self) -> str:
        """See `DynamicTreeValues`."""
        if self.draft is self.accept:
            return "from ranks; the drafter's confidence is taken to be the acceptance, the same in every step"
        return "from ranks and the drafter's mean confidence, the same in every step"

    def tokens(self, steps: int, topk: int) -> FloatArray:
        """See `DynamicTreeValues`."""
        pool = candidates(self.draft, steps=steps, topk=topk, accept=self.accept)
        best = pool.accepted[pool.order][: self.limits.num_draft_tokens - 1]
        tokens = np.concatenate([[0.0, 1.0], 1.0 + np.cumsum(best)])
        return np.pad(tokens, (0, self.limits.num_draft_tokens + 1 - len(tokens)), mode="edge")


@dataclass(frozen=True)
class ValuedModel(ModelOver):
    """f of static trees, with the E of dynamic ones and the confidence that shapes them on average."""

    values: DynamicTreeValues
    confidence: PathModel


class NodePool(NamedTuple):
    """All candidates in the engine's numbering: `[n, S]` rank paths (-1 behind their end), `[n]` confidence and f."""

    paths: IntArray
    confidence: FloatArray
    accepted: FloatArray

    @property
    def order(self) -> IntArray:
        """`[n]` candidates by confidence, the lower number first among equals."""
        return np.argsort(-self.confidence, kind="stable")


def candidates(draft: PathModel, *, steps: int, topk: int, accept: PathModel | None = None) -> NodePool:
    """What the drafter lists in S steps of k guesses, level by level."""
    accept = draft if accept is None else accept
    beams = np.zeros((1, 0), dtype=np.int64)
    confidence, accepted = np.ones(1), np.ones(1)
    levels = []
    for step in range(steps):
        paths = np.concatenate([np.repeat(beams, topk, axis=0), np.tile(np.arange(topk), len(beams))[:, None]], axis=1)
        value = (confidence[:, None] * _rows(draft, beams, topk)).ravel()
        f = (accepted[:, None] * _rows(accept, beams, topk)).ravel()
        levels.append(NodePool(np.pad(paths, ((0, 0), (0, steps - step - 1)), constant_values=-1), value, f))
        kept = np.argsort(-value, kind="stable")[:topk]
        beams, confidence, accepted = paths[kept], value[kept], f[kept]
    return NodePool(*(np.concatenate(parts) for parts in zip(*levels, strict=True)))


def _rows(model: PathModel, paths: IntArray, topk: int) -> FloatArray:
    """`[n, k]` the model's rows below these paths, 0 beyond its depth and ranks."""
    n, depth = paths.shape
    rows = np.zeros((n, topk))
    if depth < model.depth:
        inside = (paths < model.ranks).all(axis=1)
        width = min(topk, model.ranks)
        rows[inside, :width] = model.conditional(paths[inside])[:, :width]
    return rows


def dynamic_tree_shape(draft: PathModel, dynamic: DynamicTree) -> DraftTree:
    """The tree that the engine builds from a drafter's confidence.

    Guesses beyond the evidence's depth and ranks have no confidence: they only fill places that are left.

    Raises:
        InputError: one that no engine builds.
    """
    SGLANG.check(dynamic)
    pool = candidates(draft, steps=dynamic.num_steps, topk=dynamic.topk)
    chosen = pool.paths[pool.order[: dynamic.num_draft_tokens - 1]].tolist()
    return DraftTree(tuple(tuple(rank for rank in path if rank >= 0) for path in chosen))


def dynamic_tree_widths(steps: IntArray | int, topk: IntArray | int, *, levels: int) -> IntArray:
    """`[..., levels]` nodes with children by depth: the root, then k beams in every further step, 0 behind the last.

    Args:
        steps: `[...]` S; 0 for nothing.
        topk: `[...]` k.
        levels: how many depths to list.

    Source: sgl-project/sglang 0.5.23, `select_top_k_tokens`.
    """
    level = np.arange(levels)
    beams = np.where(level == 0, 1, np.asarray(topk)[..., None])
    return np.asarray(np.where(level < np.asarray(steps)[..., None], beams, 0), dtype=np.int64)

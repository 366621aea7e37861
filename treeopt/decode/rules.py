"""Acceptance rules: how far along its tree a request gets, and which token follows.

Row i of the target's output is the law of the token AFTER node i. So a node is judged by its parent's row, and the row
of the last accepted node gives the token that follows: the correction where a guess failed, the bonus at a leaf.

    greedy                                 exact: the output of greedy decoding
    target-sample                          exact: sample the target at the node, follow the child that holds the token
    recursive-rejection                    exact, for distinct draws from the drafter (Sequoia)
    recursive-rejection-with-replacement   exact, for independent draws from the drafter (SpecInfer)
    block                                  exact, for chains drawn from the drafter: all of it judged together
    typical                                APPROXIMATE: the output does not follow the target's law (Medusa)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from treeopt.acceptance.rules import (
    BLOCK,
    EXACT_RULES,
    GREEDY,
    INDEPENDENT_REJECTION,
    RECURSIVE_REJECTION,
    TARGET_SAMPLE,
    TYPICAL,
)
from treeopt.arrays import BoolArray, IntArray
from treeopt.decode.batch import NOTHING, TreeBatch, at
from treeopt.decode.block import block
from treeopt.decode.draws import Draws
from treeopt.decode.rejection import reject
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify, needed
from treeopt.errors import UnknownNameError

TYPICAL_EPSILON: Final = 0.09  # Medusa's released defaults: posterior_threshold and posterior_alpha
TYPICAL_DELTA: Final = 0.3


class Siblings(Enum):
    """How a node's children must have been chosen for a rule to be what it says."""

    BEST = "the drafter's best guesses"
    DISTINCT = "draws without replacement"
    INDEPENDENT = "draws with replacement"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An acceptance rule; one of `chains_only` never accepts a node that is not a first child."""

    name: str
    siblings: Siblings
    judge: Callable[[StepToVerify, Draws], AcceptedPaths]
    chains_only: bool = False

    @property
    def exact(self) -> bool:
        """Whether the output follows the target's law."""
        return self.name in EXACT_RULES

    @property
    def samples(self) -> bool:
        """Whether it needs distributions, and so a temperature above 0."""
        return self.name != GREEDY

    @property
    def label(self) -> str:
        """The name, and that it is approximate if it is."""
        return self.name if self.exact else f"{self.name} (approximate)"


def greedy(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """Walk while a child holds the target's likeliest token, then emit that token; nothing is drawn."""
    wanted = needed(evidence.best, "best")
    return _walk(evidence, lambda node, walking: at(wanted, node))


def target_sample(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """Sample the target after each node and follow the child that holds the sample.

    Every emitted token is a sample from the target given the text before it, whatever the drafter guessed: exact for
    any drafts that do not look at the samples.
    """
    p = needed(evidence.p, "p")
    return _walk(evidence, lambda node, walking: draws.choose(at(p, node), walking))


def distinct_rejection(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """Recursive rejection over siblings drawn without replacement (Sequoia, arXiv:2402.12374, algorithm 2)."""
    return reject(evidence, draws, replacement=False)


def independent_rejection(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """Recursive rejection over siblings drawn with replacement (SpecInfer, arXiv:2305.09781, algorithm 2)."""
    return reject(evidence, draws, replacement=True)


def typical(evidence: StepToVerify, draws: Draws) -> AcceptedPaths:
    """APPROXIMATE: accept what the target finds likely enough (Medusa, arXiv:2401.10774, section 2.3.1).

    A token passes if p(token) > min(epsilon, delta exp(-H(p))), with p its parent's row. The deepest node whose whole
    path passes is taken, the likeliest path among equals; the token after it is drawn from what passes of its row.
    """
    p, trees, tokens = needed(evidence.p, "p"), evidence.trees, evidence.tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=2)
    threshold = np.minimum(TYPICAL_EPSILON, TYPICAL_DELTA * np.exp(-entropy))
    B, N = tokens.shape
    passes, score = np.zeros((B, N), dtype=np.bool_), np.zeros((B, N))
    passes[:, 0] = True
    for node in range(1, N):
        parent = trees.parents[:, node]
        chance = np.take_along_axis(at(p, parent), np.maximum(tokens[:, node, None], 0), axis=1)[:, 0]
        there = (parent >= 0) & (tokens[:, node] >= 0) & at(passes, parent)
        passes[:, node] = there & (chance > at(threshold, parent))
        score[:, node] = at(score, parent) + np.log(np.maximum(chance, 1e-300))
    depth = np.where(passes, trees.depths, -1)
    deepest = depth == depth.max(axis=1, keepdims=True)
    last = np.argmax(np.where(deepest, score, -np.inf), axis=1)
    law = at(p, last)
    kept = np.where(law > at(threshold, last)[:, None], law, 0.0)
    kept = np.where(kept.any(axis=1, keepdims=True), kept, law)
    return AcceptedPaths(_path_to(trees, last), draws.choose(kept, np.ones(B, dtype=np.bool_)))


RULES: Final[tuple[Rule, ...]] = (
    Rule(name=GREEDY, siblings=Siblings.BEST, judge=greedy),
    Rule(name=TARGET_SAMPLE, siblings=Siblings.BEST, judge=target_sample),
    Rule(name=RECURSIVE_REJECTION, siblings=Siblings.DISTINCT, judge=distinct_rejection),
    Rule(name=INDEPENDENT_REJECTION, siblings=Siblings.INDEPENDENT, judge=independent_rejection),
    Rule(name=BLOCK, siblings=Siblings.DISTINCT, judge=block, chains_only=True),
    Rule(name=TYPICAL, siblings=Siblings.BEST, judge=typical),
)


def rule_named(name: str) -> Rule:
    """The rule of a name.

    Raises:
        UnknownNameError: there is none.
    """
    known = {rule.name: rule for rule in RULES}
    if name not in known:
        raise UnknownNameError("rule", name, known)
    return known[name]


def _walk(evidence: StepToVerify, wanted: Callable[[IntArray, BoolArray], IntArray]) -> AcceptedPaths:
    """Follow the child that holds the wanted token, from the root to where there is none."""
    trees, B = evidence.trees, len(evidence.trees)
    path = np.full((B, trees.depth + 1), NOTHING)
    path[:, 0] = 0
    node, token = np.zeros(B, dtype=np.int64), np.full(B, NOTHING)
    walking = np.ones(B, dtype=np.bool_)
    for depth in range(trees.depth + 1):
        token = np.where(walking, wanted(node, walking), token)
        kids = at(trees.children, node)
        held = np.take_along_axis(evidence.tokens, np.maximum(kids, 0), axis=1)
        right = (kids >= 0) & (held == token[:, None])
        walking = walking & right.any(axis=1)
        if not walking.any():
            break
        node = np.where(walking, np.take_along_axis(kids, right.argmax(axis=1)[:, None], axis=1)[:, 0], node)
        path[walking, depth + 1] = node[walking]
    return AcceptedPaths(path, token)


def _path_to(trees: TreeBatch, node: IntArray) -> IntArray:
    path = np.full((len(node), trees.depth + 1), NOTHING)
    while (node >= 0).any():
        rows = np.flatnonzero(node >= 0)
        path[rows, at(trees.depths, np.maximum(node, 0))[rows]] = node[rows]
        node = np.where(node >= 0, at(trees.parents, np.maximum(node, 0)), NOTHING)
    return path

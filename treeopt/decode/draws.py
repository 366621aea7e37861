"""Randomness for the acceptance rules: everything that a rule draws goes through two primitives.

A rule that draws through `Draws` can be sampled with a generator, and it can be enumerated: a test hands it a source
that takes every branch in turn and keeps the exact probability of each.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from treeopt.arrays import BoolArray, FloatArray, IntArray


class Draws(Protocol):
    """A source of decisions, one per request; what an inactive request gets is never used."""

    def choose(self, weights: FloatArray, active: BoolArray) -> IntArray:
        """`[B, V]` weights to `[B]` tokens, each with probability proportional to its weight."""

    def accept(self, probability: FloatArray, active: BoolArray) -> BoolArray:
        """`[B]` probabilities to `[B]` yes or no."""


class RandomDraws:
    """Decisions from a pseudorandom generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, weights: FloatArray, active: BoolArray) -> IntArray:
        """See `Draws`."""
        chosen = np.zeros(len(weights), dtype=np.int64)
        rows = np.flatnonzero(active)
        if not len(rows):
            return chosen
        listed = weights[rows]
        cumulative = np.cumsum(listed, axis=1)
        threshold = self._rng.random(len(rows)) * cumulative[:, -1]
        found = np.count_nonzero(cumulative <= threshold[:, None], axis=1)
        last = listed.shape[1] - 1 - np.argmax(listed[:, ::-1] > 0, axis=1)
        chosen[rows] = np.minimum(found, last)  # the product may round up to the sum
        return chosen

    def accept(self, probability: FloatArray, active: BoolArray) -> BoolArray:
        """See `Draws`."""
        return active & (self._rng.random(len(probability)) < probability)


def draw_siblings(q: FloatArray, count: int, draws: Draws, *, replacement: bool) -> IntArray:
    """`[n, V]` drafter's distributions to `[n, count]` tokens, in the order in which they were drawn.

    Without replacement a distribution that lists fewer tokens than are asked for leaves the rest at -1.
    """
    left = q.copy()
    drawn = np.full((len(q), count), -1)
    for index in range(count):
        active = left.sum(axis=1) > 0
        drawn[:, index] = np.where(active, draws.choose(left, active), -1)
        if not replacement:
            rows = np.flatnonzero(active)
            left[rows, drawn[rows, index]] = 0.0
    return drawn

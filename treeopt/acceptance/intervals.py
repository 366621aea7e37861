"""95 % intervals for E: by document where a trace has documents, by draft where there are only counts.

Tokens of one document are alike (one repeats itself, the next one does not), so a document is drawn whole or not at
all: the cluster bootstrap (Davison and Hinkley 1997, section 3.8). E is the ratio of the drawn documents' tokens to
their steps. The percentile interval of a bootstrap is too narrow for few documents, by the factor sqrt((n - 1) / n)
and by normal in place of Student quantiles; Hesterberg (2015, "What teachers should know about the bootstrap",
section 5.3) takes further percentiles instead of 2.5 and 97.5, which is done here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.chain import SHARES as TURN_SHARES
from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.model import expected_tokens, non_increasing, path_probabilities
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import FALLS, SHARES, Guess, MeanLength, PositionSurvival
from treeopt.acceptance.profile import RankEvidence
from treeopt.acceptance.replay import Replay
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.arrays import FloatArray, quantiles
from treeopt.tree import DraftTree

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054  # of the normal distribution at (1 + CONFIDENCE) / 2
REPLICATES = 1000
MIN_DOCUMENTS = 8  # below, the expanded percentiles are further out than 1,000 replicates can tell
_KEPT_CELLS = 1 << 25
_CHUNK_CELLS = 1 << 20


class Interval(NamedTuple):
    """Both ends of a 95 % interval."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance of the ends."""
        return (self.high - self.low) / 2

    @property
    def includes_zero(self) -> bool:
        """For a difference: whether the two sides tie."""
        return self.low <= 0.0 <= self.high


def tokens_interval(replay: Replay, *, replicates: int = REPLICATES, seed: int = 0) -> Interval | None:
    """The interval of `replay.tokens_per_step`; None below `MIN_DOCUMENTS` documents."""
    drawn = bootstrap_tokens([replay], replicates=replicates, seed=seed)
    return interval_of(drawn[:, 0], _documents(replay))


def bootstrap_tokens(
    replays: Sequence[Replay], *, replicates: int = REPLICATES, seed: int | tuple[int, ...] = 0
) -> FloatArray:
    """`[replicates, len(replays)]` E of redrawn documents; all replays see the same draws, so rows are paired.

    Whatever follows from E (a speedup, a plan over several trees) has the interval of the same function of the rows.
    """
    used = np.flatnonzero(replays[0].steps)
    tokens, steps = (np.stack([getattr(r, name)[used] for r in replays], axis=1) for name in ("tokens", "steps"))
    return bootstrap_ratios(tokens, steps, replicates=replicates, seed=seed)


def bootstrap_ratios(
    above: npt.NDArray[np.number],
    below: npt.NDArray[np.number],
    *,
    replicates: int = REPLICATES,
    seed: int | tuple[int, ...] = 0,
) -> FloatArray:
    """`[replicates, C]` sums of `above [documents, C]` over those of `below`, of documents redrawn for all alike."""
    n, columns = above.shape
    sums = np.concatenate([above, below], axis=1).astype(np.float64)
    drawn = (_times_drawn if n * replicates <= _KEPT_CELLS else _draw)(n, replicates, seed)
    chunk = max(_CHUNK_CELLS // n, 1)  # as numbers with a fraction they take eight times the memory
    total = np.concatenate([drawn[i : i + chunk].astype(np.float64) @ sums for i in range(0, replicates, chunk)])
    return np.asarray(total[:, :columns] / total[:, columns:])


def _draw(documents: int, replicates: int, seed: int | tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """`[replicates, documents]` how often each document is drawn: once on average, far below 255 times."""
    rng, each = np.random.default_rng(seed), np.full(documents, 1.0 / documents)
    chunk = max(_CHUNK_CELLS // documents, 1)
    sizes = [min(chunk, replicates - start) for start in range(0, replicates, chunk)]
    return np.concatenate([rng.multinomial(documents, each, size=size).astype(np.uint8) for size in sizes])


@lru_cache(maxsize=4)
def _times_drawn(documents: int, replicates: int, seed: int | tuple[int, ...]) -> npt.NDArray[np.uint8]:
    # Paired trees see the same draws; drawing them is most of the work.
    return _draw(documents, replicates, seed)


def counted_interval(
    evidence: RankEvidence, tree: DraftTree, *, replicates: int = REPLICATES, seed: int = 0
) -> Interval | None:
    """The interval of E(tree) from evidence without documents; None where it holds rates only.

    The counts of one multinomial are redrawn from its Dirichlet posterior under Perks' prior, one observation spread
    over all outcomes: the ranks of a depth for a table, the accepted length for counted paths and positions. Drafts are
    taken as independent, which within a document they are not: the interval is too narrow (on the project's own traces
    by a factor of 2.4 to 3.8 for drafts, 3.3 to 6.5 for all positions) and says how much is unknown at the least.

    A mean alone says nothing of single positions: its interval holds E(tree) for all falls of acceptance that published
    tables have (`FALLS`), each with the measured mean. For the whole chain that ran it is a point, widened by the
    drafts behind it where they were counted.
    """
    rng = np.random.default_rng(seed)
    if isinstance(evidence, MeanLength):
        return _spread(evidence, tree)
    if isinstance(evidence, ChainRanks):
        return _of_chain(evidence, tree, replicates, seed)
    if isinstance(evidence, PositionSurvival):
        if evidence.drafts is None:
            return None
        drawn = _draw_lengths(_reached(evidence.survival, tree), evidence.drafts, replicates, rng)
    elif isinstance(evidence, PathCounts):
        f = path_probabilities(SmoothedPaths(evidence), tree)
        drawn = _draw_lengths(np.bincount(tree.depths, f)[1:].astype(np.float64), evidence.starts, replicates, rng)
    elif evidence.counts is None or evidence.reached is None:
        return None
    else:
        drawn = _draw_from_table(evidence.counts, evidence.reached, tree, replicates, rng)
    return Interval(*quantiles(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))


def _reached(survival: FloatArray, tree: DraftTree) -> FloatArray:
    """`[depth of the tree]` probability that its first guesses are accepted to each depth; 0 beyond the evidence."""
    depths = {len(path) for path in tree.paths if not any(path)}
    return np.array([survival[d - 1] if d in depths and d <= len(survival) else 0.0 for d in range(1, tree.depth + 1)])


def _draw_lengths(survival: FloatArray, starts: float, replicates: int, rng: np.random.Generator) -> FloatArray:
    """`[replicates]` E, from the probability `[D]` of accepting 1, 2, ... tokens or more."""
    reached = np.concatenate([[1.0], survival])
    length = np.maximum(reached - np.append(reached[1:], 0.0), 0.0)
    drawn = rng.dirichlet(starts * length + 1 / len(length), size=replicates)
    return np.asarray(1.0 + drawn @ np.arange(len(length)))


def _spread(evidence: MeanLength, tree: DraftTree) -> Interval:
    shares = SHARES if evidence.tree is not None else (1.0,)
    models = [evidence.model(Guess(fall, share)) for fall in FALLS for share in shares]
    tokens = [expected_tokens(path_probabilities(model, tree)) for model in models]
    error = 0.0
    if evidence.drafts is not None:
        reached = np.concatenate([[1.0], _reached(evidence.survival, tree)])
        second = float(np.sum((2 * np.arange(1, len(reached)) - 1) * reached[1:]))  # the mean of the length's square
        error = NORMAL_QUANTILE * math.sqrt(max(second - (reached.sum() - 1.0) ** 2, 0.0) / evidence.drafts)
    return Interval(max(min(tokens) - error, 1.0), max(tokens) + error)


def _of_chain(evidence: ChainRanks, tree: DraftTree, replicates: int, seed: int) -> Interval | None:
    if evidence.groups < MIN_DOCUMENTS:
        return None
    turns = any(any(path[:-1]) for path in tree.paths)
    width = None if turns else int(tree.ranks.max()) + 1  # behind a wrong turn the whole row counts, which is at most 1
    drawn = _times_drawn(evidence.groups, replicates, seed)
    reached = drawn @ evidence.group_reached
    counts = np.tensordot(drawn, evidence.group_counts[..., :width], axes=1)
    rates = np.divide(counts, reached[..., None], out=np.zeros_like(counts), where=reached[..., None] > 0)
    ends = [
        interval_of(_tokens_by_depth(rates.transpose(1, 0, 2), tree, share), evidence.groups)
        for share in (TURN_SHARES if turns else (1.0,))
    ]
    found = [interval for interval in ends if interval is not None]
    return Interval(min(i.low for i in found), max(i.high for i in found))


def _draw_from_table(
    counts: FloatArray, reached: FloatArray, tree: DraftTree, replicates: int, rng: np.random.Generator
) -> FloatArray:
    K = counts.shape[1]
    outcomes = np.concatenate([counts, np.maximum(reached - counts.sum(axis=1), 0.0)[:, None]], axis=1) + 1 / (K + 1)
    rates = np.stack([non_increasing(rng.dirichlet(row, size=replicates)[:, :K]) for row in outcomes])
    return _tokens_by_depth(rates, tree)


def _tokens_by_depth(rates: FloatArray, tree: DraftTree, share: float = 1.0) -> FloatArray:
    """`[replicates]` E of the tree from rates `[D, replicates, K]`; behind a wrong turn `share` of them."""
    depths, replicates, ranks = rates.shape
    behind = rates * np.minimum(share, 1.0 / np.maximum(rates.sum(axis=2, keepdims=True), np.finfo(np.float64).tiny))
    f = np.zeros((len(tree), replicates))
    f[0] = 1.0
    for node in range(1, len(tree)):
        depth, rank, parent = tree.depths[node] - 1, tree.ranks[node], tree.parents[node]
        if depth < depths and rank < ranks:
            f[node] = f[parent] * (behind if any(tree.nodes[parent]) else rates)[depth, :, rank]
    return np.asarray(f.sum(axis=0))


def _documents(replay: Replay) -> int:
    return int(np.count_nonzero(replay.steps))


def interval_of(drawn: FloatArray, documents: int) -> Interval | None:
    """The interval from `[replicates]` bootstrap values over that many documents; None below `MIN_DOCUMENTS`."""
    if documents < MIN_DOCUMENTS:
        return None
    tail = _expanded_tail(documents)
    return Interval(*quantiles(drawn, [tail, 1 - tail]))


def _expanded_tail(documents: int) -> float:
    return _normal_cdf(-math.sqrt(documents / (documents - 1)) * _student_quantile(documents - 1))


def _normal_cdf(z: float) -> float:
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def _student_quantile(freedom: int) -> float:
    """The quantile of Student's t for CONFIDENCE: Abramowitz and Stegun (1964), 26.7.5, to 1e-4 from 7 degrees on.

    scipy.special has it exactly, but its import alone takes longer than a whole search.
    """
    z = NORMAL_QUANTILE
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(sum(term / freedom**k for k, term in enumerate(terms)))

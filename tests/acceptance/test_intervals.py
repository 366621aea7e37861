from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from traces import shipped_trace, shuffled

from treeopt.acceptance import intervals
from treeopt.acceptance.intervals import (
    Interval,
    bootstrap_tokens,
    counted_interval,
    interval_of,
    tokens_interval,
)
from treeopt.acceptance.paths import PathCount, PathCounts
from treeopt.acceptance.replay import Replay, replay
from treeopt.acceptance.table import DepthRanks
from treeopt.tree import DraftTree


def of_sums(tokens: np.ndarray, steps: np.ndarray) -> Replay:
    return Replay(phases=1, tokens=tokens, steps=steps, position_tokens=tokens, positions=steps)


def documents(rng: np.random.Generator, n: int) -> Replay:
    """Documents of different lengths and different acceptance: E = 1 + sum of 2/5 to the d, d = 1..4, on average."""
    steps = rng.integers(20, 80, n)
    rate = rng.choice([0.2, 0.6], n)
    accepted = [np.minimum(rng.geometric(1 - r, s) - 1, 4).sum() for r, s in zip(rate, steps, strict=True)]
    return of_sums(steps + np.array(accepted), steps)


TRUE_TOKENS = 1 + np.mean([sum(rate**d for d in range(1, 5)) for rate in (0.2, 0.6)])


def hits(n: int, repeats: int = 300) -> int:
    rng = np.random.default_rng(n)
    found = [tokens_interval(documents(rng, n), replicates=400) for _ in range(repeats)]
    return sum(i.low <= TRUE_TOKENS <= i.high for i in found if i is not None)


@pytest.mark.parametrize("n", [12, 40])
def test_the_interval_covers(n: int) -> None:
    assert 0.915 <= hits(n) / 300 <= 0.985  # 95 % with two standard errors of 300 repeats


def test_the_width_is_that_of_the_linearised_ratio() -> None:
    """Cochran (1977), equation 6.13, with Student's quantile: a second way to the same half width."""
    sample = documents(np.random.default_rng(1), 60)
    residual = sample.tokens - sample.tokens_per_step * sample.steps
    se = np.sqrt(60 / 59 * np.sum(residual**2)) / sample.steps.sum()
    found = tokens_interval(sample, replicates=4000)
    assert found is not None
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 59) * se, rel=0.04)
    assert found.low < sample.tokens_per_step < found.high


@pytest.mark.parametrize(
    ("documents", "tail"),
    [
        (8, 0.00574),  # Student 2.3646 at 7 degrees x sqrt(8 / 7) = 2.5279; the normal table there
        (21, 0.01628),  # 2.0860 at 20 degrees x sqrt(21 / 20) = 2.1375
        (1001, 0.02480),  # 1.9623 at 1000 degrees x sqrt(1001 / 1000) = 1.9633
    ],
)
def test_percentiles_are_further_out_for_few_documents(documents: int, tail: float) -> None:
    found = interval_of(np.linspace(0.0, 1.0, 1001), documents)  # the quantile q of these values is q
    assert found is not None
    assert list(found) == pytest.approx([tail, 1.0 - tail], abs=1e-5)


def test_documents_that_are_all_alike_leave_no_doubt() -> None:
    found = tokens_interval(of_sums(np.full(20, 30), np.full(20, 10)))
    assert found == Interval(3.0, 3.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    sample = documents(np.random.default_rng(2), 30)
    assert tokens_interval(sample) == tokens_interval(sample)
    assert tokens_interval(sample) != tokens_interval(sample, seed=1)


def test_drawing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = documents(np.random.default_rng(3), 30)
    whole = bootstrap_tokens([sample])
    monkeypatch.setattr(intervals, "_CHUNK_CELLS", 1000)
    assert bootstrap_tokens([sample]).tolist() == whole.tolist()


def test_few_documents_give_no_interval() -> None:
    sample = documents(np.random.default_rng(4), 7)
    assert tokens_interval(sample) is None
    unused = of_sums(np.append(sample.tokens, [0, 0]), np.append(sample.steps, [0, 0]))
    assert tokens_interval(unused) is None  # documents too short to be replayed count as none


def test_pairing_by_document() -> None:
    trace = shipped_trace()
    chain, tree = replay(trace, DraftTree.chain(3)), replay(trace, DraftTree(((0,), (1,), (0, 0))))
    drawn = bootstrap_tokens([tree, chain, tree])
    paired = interval_of(drawn[:, 0] - drawn[:, 1], trace.documents)
    alone = [tokens_interval(replayed) for replayed in (tree, chain)]
    assert paired is not None
    assert paired.half_width < np.hypot(*(interval.half_width for interval in alone if interval)) / 2
    assert paired.low < tree.tokens_per_step - chain.tokens_per_step < paired.high
    assert (drawn[:, 0] == drawn[:, 2]).all()


def test_the_order_of_documents_changes_nothing() -> None:
    trace = shipped_trace()
    other = shuffled(trace, np.random.default_rng(0).permutation(trace.documents).tolist())
    tree = DraftTree.chain(3)
    assert tokens_interval(replay(trace, tree)) == tokens_interval(replay(other, tree))


def test_a_table_of_one_rank_has_the_binomial_interval() -> None:
    table = DepthRanks.from_counts(reached=np.array([1000.0]), counts=np.array([[300.0]]))
    found = counted_interval(table, DraftTree.chain(1), replicates=20_000)
    assert found is not None
    jeffreys = 1 + stats.beta(300.5, 700.5).ppf([0.025, 0.975])  # for two outcomes Perks' prior is Jeffreys'
    assert list(found) == pytest.approx(jeffreys, abs=0.001)


def test_a_table_and_the_drafts_behind_it_agree() -> None:
    """1,000 drafts that each depth stops by itself: counted as drafts or as a table, the doubt about E is the same."""
    counts = {(0,): 600, (1,): 200, (0, 0): 360, (0, 1): 120, (1, 0): 120, (1, 1): 40}
    drafts = PathCounts.from_items(1000, [PathCount(p, c, c) for p, c in counts.items()])
    table = DepthRanks.from_counts(reached=np.array([1000.0, 800.0]), counts=np.array([[600.0, 200.0], [480.0, 160.0]]))
    tree = DraftTree(tuple(counts))
    one = counted_interval(drafts, tree, replicates=20_000)
    other = counted_interval(table, tree, replicates=20_000)
    assert one is not None
    assert other is not None
    assert one.half_width == pytest.approx(other.half_width, rel=0.03)
    length = {0: 0.2, 1: 0.16, 2: 0.64}
    variance = sum(p * a**2 for a, p in length.items()) - sum(p * a for a, p in length.items()) ** 2
    assert one.half_width == pytest.approx(1.96 * np.sqrt(variance / 1000), rel=0.03)
    assert list(one) == pytest.approx(list(other), abs=0.01)


def test_nodes_beyond_the_table_add_nothing() -> None:
    table = DepthRanks.from_counts(reached=np.array([100.0]), counts=np.array([[60.0, 20.0]]))
    inside, beyond = DraftTree(((0,),)), DraftTree(((0,), (5,), (0, 0)))
    assert counted_interval(table, inside) == counted_interval(table, beyond)


def test_rates_without_counts_give_no_interval() -> None:
    assert counted_interval(DepthRanks(rates=np.array([[0.6, 0.2]])), DraftTree.chain(1)) is None

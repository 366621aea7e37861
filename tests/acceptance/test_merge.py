from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from treeopt.acceptance.merge import merge
from treeopt.acceptance.path_trie import PathCounter
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankEvidence, RankProfile
from treeopt.acceptance.table import DepthRanks
from treeopt.errors import InputError


def profile(name: str, evidence: RankEvidence, **conditions: object) -> RankProfile:
    return RankProfile(
        name=name,
        evidence=evidence,
        conditions=Conditions(**conditions),  # type: ignore[arg-type]
        sha256=name,
        documents=3,
    )


def counted(rank: np.ndarray) -> PathCounts:
    counter = PathCounter(rank.shape[1])
    counter.add(rank)
    return counter.result()


def test_merged_tries_equal_counting_everything_at_once_in_any_order() -> None:
    rank = np.random.default_rng(0).integers(-2, 4, (300, 3))
    parts = [profile(str(i), counted(rank[i::3])) for i in range(3)]
    whole = counted(rank)
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = merge([parts[i] for i in order], name="all")
        assert isinstance(merged.evidence, PathCounts)
        assert merged.evidence.starts == whole.starts
        assert list(merged.evidence) == list(whole)
        assert merged.documents == 9


def test_tables_add_count_by_count() -> None:
    a = DepthRanks.from_counts(reached=np.array([10.0, 6.0]), counts=np.array([[5.0, 1.0], [3.0, 0.0]]))
    b = DepthRanks.from_counts(reached=np.array([20.0]), counts=np.array([[9.0, 2.0, 4.0]]))
    merged = merge([profile("a", a), profile("b", b)], name="ab").evidence
    assert isinstance(merged, DepthRanks)
    assert merged.reached is not None
    assert merged.counts is not None
    assert merged.reached.tolist() == [30, 6]
    assert merged.counts.tolist() == [[14, 3, 4], [3, 0, 0]]


def test_positions_add_when_the_chains_are_as_long() -> None:
    a = PositionSurvival.from_counts(drafts=10, accepted=np.array([6.0, 2.0]))
    b = PositionSurvival.from_counts(drafts=30, accepted=np.array([9.0, 3.0]))
    merged = merge([profile("a", a), profile("b", b)], name="ab").evidence
    assert isinstance(merged, PositionSurvival)
    assert merged.survival.tolist() == [15 / 40, 5 / 40]
    short = PositionSurvival.from_counts(drafts=30, accepted=np.array([9.0]))
    with pytest.raises(InputError, match="chains of 2 drafts"):
        merge([profile("a", a), profile("b", short)], name="ab")


RATES = DepthRanks(rates=np.array([[0.5]]))
TABLE = DepthRanks.from_counts(reached=np.array([10.0]), counts=np.array([[5.0]]))


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([profile("a", TABLE)], "nothing to merge"),
        ([profile("a", TABLE), profile("a", TABLE)], "given twice"),
        ([profile("a", TABLE), profile("b", counted(np.zeros((3, 1), dtype=int)))], "different kinds"),
        ([profile("a", TABLE), profile("b", RATES)], "without counts"),
        (
            [
                profile("a", MeanLength(mean_accepted_length=2, draft_tokens=3)),
                profile("b", MeanLength(mean_accepted_length=2.5, draft_tokens=3)),
            ],
            "means cannot be added",
        ),
        ([profile("a", TABLE, temperature=0), profile("b", TABLE, temperature=0.8)], "temperature differs"),
        ([profile("a", TABLE, rule="greedy"), profile("b", TABLE, rule="typical")], "rule differs"),
        ([profile("a", TABLE, drafter="x"), profile("b", TABLE, drafter="y")], "drafter differs: x in a, y in b"),
    ],
)
def test_what_does_not_merge(profiles: list[RankProfile], message: str) -> None:
    with pytest.raises(InputError, match=message):
        merge(profiles, name="merged")


def test_force_merges_other_conditions_and_says_both() -> None:
    a = profile("a", TABLE, drafter="x", temperature=0.0, dataset="code", rule="greedy")
    b = profile("b", TABLE, drafter="y", temperature=1.0, rule="typical")
    merged = merge([a, b], name="ab", force=True)
    assert merged.conditions == Conditions(drafter="x + y", temperature=None, dataset="code")
    same = merge([a, replace(a, sha256="other")], name="aa")
    assert same.conditions == a.conditions

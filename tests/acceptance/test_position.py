from __future__ import annotations

import contextlib
import csv
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from treeopt.acceptance.dynamic_tree import dynamic_tree_shape
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.intervals import counted_interval
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.position import FALLS, LIKELY, Guess, MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.draft_family import DynamicTree
from treeopt.errors import FileFormatError
from treeopt.files.typed import yaml_text
from treeopt.tree import DraftTree

CHAIN = DraftTree.chain(3)
HEAD = "format: treeopt.ranks/1\nname: x\nconditions: {}\n"


def profile(evidence: PositionSurvival | MeanLength) -> RankProfile:
    return RankProfile(name="x", evidence=evidence, conditions=Conditions(), sha256="")


def test_a_chain_gets_what_was_counted_and_a_second_guess_nothing() -> None:
    evidence = PositionSurvival.from_counts(drafts=1000, accepted=np.array([650.0, 440.0, 280.0]))
    model = evidence.model()
    assert (model.depth, model.ranks, model.product_form, evidence.trials) == (3, 1, True, 1000)
    assert path_probabilities(model, CHAIN).tolist() == pytest.approx([1.0, 0.65, 0.44, 0.28])
    assert expected_tokens(path_probabilities(model, CHAIN)) == pytest.approx(2.37)
    wide = DraftTree(((0,), (1,), (1, 0)))
    assert path_probabilities(model, wide).tolist() == pytest.approx([1.0, 0.65, 0.0, 0.0])


def test_a_mean_is_spread_with_falling_acceptance() -> None:
    evidence = MeanLength(mean_accepted_length=2.46, draft_tokens=3)
    assert evidence.model().rates.ravel().round(4).tolist() == [0.7, 0.6624, 0.6393]
    log_odds = [math.log(c / (1 - c)) for c in evidence.model().rates.ravel()]
    assert log_odds[1] - log_odds[0] == pytest.approx(-0.25 * math.log(2))
    assert log_odds[2] - log_odds[0] == pytest.approx(-0.25 * math.log(3))
    assert expected_tokens(path_probabilities(evidence.model(), CHAIN)) == pytest.approx(2.46)


@given(st.integers(1, 12), st.floats(0.0, 1.0), st.sampled_from(FALLS))
def test_the_mean_comes_back_for_any_fall(K: int, part: float, fall: float) -> None:
    evidence = MeanLength(mean_accepted_length=1.0 + part * K, draft_tokens=K)
    model = evidence.model(Guess(fall))
    assert expected_tokens(path_probabilities(model, DraftTree.chain(K))) == pytest.approx(1.0 + part * K, abs=1e-6)


TREES = st.sampled_from([DynamicTree(3, 4, 16), DynamicTree(2, 2, 5), DynamicTree(5, 8, 32), DynamicTree(1, 4, 4)])


@settings(max_examples=20, deadline=None)
@given(TREES, st.floats(0.02, 0.98))
def test_the_mean_of_a_tree_comes_back_as_the_engine_builds_it(tree: DynamicTree, part: float) -> None:
    mean = 1.0 + part * tree.num_steps
    evidence = MeanLength(mean_accepted_length=mean, draft_tokens=tree.num_draft_tokens - 1, tree=tree)
    shape = dynamic_tree_shape(evidence.model(), tree)
    assert len(shape) == tree.num_draft_tokens
    assert expected_tokens(path_probabilities(evidence.model(), shape)) == pytest.approx(mean, abs=1e-6)


def test_a_guess_carries_the_interval_that_it_deserves() -> None:
    evidence = MeanLength(mean_accepted_length=2.46, draft_tokens=3)
    whole, one = (counted_interval(evidence, DraftTree.chain(K)) for K in (3, 1))
    assert whole is not None
    assert one is not None
    assert (whole.low, whole.high) == (pytest.approx(2.46), pytest.approx(2.46))
    # A first position of 0.666 that stays as good gives the same mean as one of 0.774 behind which acceptance falls.
    assert (round(one.low, 3), round(one.high, 3)) == (1.666, 1.774)
    counted = counted_interval(replace(evidence, drafts=1000), CHAIN)
    assert counted is not None
    lengths = np.array([0.3, 0.2364, 0.1672, 0.2964])  # of 0, 1, 2 and 3 accepted, by hand from the rates above
    spread = float(np.sqrt(lengths @ np.arange(4) ** 2 - (lengths @ np.arange(4)) ** 2))
    assert counted.half_width == pytest.approx(1.96 * spread / 1000**0.5, rel=1e-3)


def test_positions_with_counts_have_an_interval_and_rates_none() -> None:
    evidence = PositionSurvival.from_counts(drafts=1000, accepted=np.array([650.0, 440.0, 280.0]))
    found = counted_interval(evidence, CHAIN)
    assert found is not None
    spread = float(np.sqrt(np.array([0.35, 0.21, 0.16, 0.28]) @ np.arange(4) ** 2 - 1.37**2))
    assert found.low == pytest.approx(2.37 - 1.96 * spread / 1000**0.5, abs=0.01)
    assert found.high == pytest.approx(2.37 + 1.96 * spread / 1000**0.5, abs=0.01)
    assert counted_interval(PositionSurvival(survival=evidence.survival), CHAIN) is None


@needs_shared
def test_the_fall_is_that_of_published_tables() -> None:
    tables: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for file, keys in (
        ("measured/acceptance_by_position.csv", ("method", "target", "dataset", "temperature", "kind")),
        ("drafters/positions.csv", ("source", "drafter_kind", "drafter", "workload", "k", "rate_kind")),
    ):
        for row in csv.DictReader((SHARED / "data" / file).read_text().splitlines()):
            with contextlib.suppress(ValueError):  # a rate that is a range
                table = tables.setdefault(tuple(row[key] for key in keys), [])
                table.append((int(row["position"]), float(row["rate"])))
    falls = [fall for key, table in tables.items() if (fall := fitted_fall(sorted(table), key[-1])) is not None]
    assert len(falls) == 34
    assert np.median(falls) == pytest.approx(LIKELY.fall, abs=0.01)
    low, high = np.quantile(falls, [0.025, 0.975])
    assert (low, high) == (pytest.approx(FALLS[0], abs=0.05), pytest.approx(FALLS[2], abs=0.05))


def fitted_fall(table: list[tuple[int, float]], kind: str) -> float | None:
    """Slope of log-odds over log position, weighted by how well each position is known."""
    rate = np.array([r for _, r in table])
    if [p for p, _ in table] != list(range(1, len(table) + 1)) or len(table) < 3:
        return None
    rate = rate if kind == "conditional" else rate / np.concatenate([[1.0], rate[:-1]])
    weight = np.concatenate([[1.0], np.cumprod(rate)[:-1]]) * rate * (1 - rate)
    return float(np.polyfit(np.log(np.arange(1, len(rate) + 1)), np.log(rate / (1 - rate)), 1, w=np.sqrt(weight))[0])


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.booleans())
def test_positions_survive_the_file(histogram: list[int], counted: bool) -> None:
    drafts, accepted = sum(histogram) + 1, np.cumsum(histogram[::-1])[::-1].astype(np.float64)
    evidence = PositionSurvival.from_counts(drafts=drafts, accepted=accepted)
    written = evidence if counted else PositionSurvival(survival=evidence.survival)
    read = reread(profile(written)).evidence
    assert isinstance(read, PositionSurvival)
    assert read.survival.tolist() == evidence.survival.tolist()
    assert (None if read.accepted is None else read.accepted.tolist()) == (accepted.tolist() if counted else None)


@pytest.mark.parametrize("drafts", [None, 4816])
@pytest.mark.parametrize("tree", [None, DynamicTree(3, 4, 8)])
def test_a_mean_survives_the_file(drafts: int | None, tree: DynamicTree | None) -> None:
    evidence = MeanLength(mean_accepted_length=3.535, draft_tokens=7, drafts=drafts, tree=tree)
    assert reread(profile(evidence)).evidence == evidence


def reread(written: RankProfile) -> RankProfile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_text(yaml_text(written))
        return load_profile(path)


def test_the_bonus_token_is_added_where_it_was_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + "evidence: mean\nmean_accepted_length: 2.535\ndraft_tokens: 7\nbonus_counted: false\n")
    assert load_profile(path).evidence == MeanLength(mean_accepted_length=3.535, draft_tokens=7)


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("evidence: position\ndrafts: 10\naccepted:\n- 5\n- 6\n", 8, "6 at position 1 is more than 5"),
        ("evidence: position\ndrafts: 10\naccepted:\n- 11\n", 7, "11 at position 0: expected 0 to 10"),
        ("evidence: position\ndrafts: 10\naccepted:\n- 5\n- -1\n", 8, "-1 at position 1"),
        ("evidence: position\ndrafts: 0\naccepted: [0]\n", 5, "0 drafts"),
        ("evidence: position\nprobabilities:\n- .nan\n", 6, "not a finite number"),
        ("evidence: position\nprobabilities:\n- 0.5\n- 0.6\n", 7, "0.6 at position 1"),
        ("evidence: position\nprobabilities:\n- 43.7\n", 6, "43.7 at position 0: expected 0 to 1"),
        ("evidence: position\nprobabilities: []\n", 5, "1 to 1024 positions"),
        (
            "evidence: mean\nmean_accepted_length: 5.2\ndraft_tokens: 3\nbonus_counted: true\n",
            5,
            "3 drafts give 1 to 4",
        ),
        (
            "evidence: mean\nmean_accepted_length: 0.9\ndraft_tokens: 3\nbonus_counted: true\n",
            5,
            "3 drafts give 1 to 4",
        ),
        ("evidence: mean\nmean_accepted_length: 2\ndraft_tokens: 0\nbonus_counted: true\n", 6, "out of range"),
        ("evidence: mean\nmean_accepted_length: 2\ndraft_tokens: 3\n", 1, "'bonus_counted' is missing"),
    ],
)
def test_what_no_drafter_can_have_done_is_refused_at_its_line(tmp_path: Path, body: str, line: int, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + body)
    with pytest.raises(FileFormatError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


def test_lengths_that_would_exhaust_memory_are_refused() -> None:
    with pytest.raises(EvidenceError, match="draft tokens"):
        MeanLength(mean_accepted_length=2.0, draft_tokens=10**9)

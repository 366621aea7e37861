from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.profile_file import profile_document
from treeopt.errors import FileFormatError
from treeopt.files.documents import dump_yaml
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


def test_a_mean_is_one_acceptance_for_every_draft() -> None:
    evidence = MeanLength(mean_accepted_length=1 + 0.5 + 0.25 + 0.125, draft_tokens=3)
    assert evidence.assumed_acceptance == pytest.approx(0.5)
    assert evidence.survival.tolist() == pytest.approx([0.5, 0.25, 0.125])
    assert evidence.model().rates.tolist() == [[pytest.approx(0.5)]] * 3
    assert expected_tokens(path_probabilities(evidence.model(), CHAIN)) == pytest.approx(1.875)


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
def test_a_mean_survives_the_file(drafts: int | None) -> None:
    evidence = MeanLength(mean_accepted_length=3.535, draft_tokens=7, drafts=drafts)
    assert reread(profile(evidence)).evidence == evidence


def reread(written: RankProfile) -> RankProfile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_text(dump_yaml(profile_document(written)))
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

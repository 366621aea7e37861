"""Recorded chains: what is counted at a miss, what is guessed behind one, and intervals by document."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeopt.acceptance.chain import LIKELY_SHARE, MOST_GROUPS, ChainCounter, ChainModel, ChainRanks
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.intervals import counted_interval
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.merge import merge
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.replay import accepted_lengths
from treeopt.errors import FileFormatError
from treeopt.files.documents import parse_document
from treeopt.files.typed import yaml_text
from treeopt.tree import DraftTree

FOUR = [[0, 0, 0], [0, 0, -1], [0, 2], [1]]


def counted(*drafts: tuple[int, list[int]]) -> ChainRanks:
    counter = ChainCounter()
    for document, ranks in drafts:
        counter.add(document, ranks)
    return counter.result()


def test_by_hand() -> None:
    evidence = counted(*((i % 2, ranks) for i, ranks in enumerate(FOUR)))
    assert evidence.reached is not None
    assert evidence.reached.tolist() == [4, 3, 2]
    assert evidence.group_reached.tolist() == [[2, 2, 1], [2, 1, 1]]
    assert evidence.group_counts[0].tolist() == [[2, 0, 0], [1, 0, 1], [1, 0, 0]]
    tree = DraftTree(((0,), (1,), (0, 0), (1, 0)))
    f = path_probabilities(evidence.model(), tree)
    assert f.tolist() == pytest.approx([1, 3 / 4, 1 / 4, 3 / 4 * 2 / 3, 1 / 4 * 2 / 3 * LIKELY_SHARE])


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), min_size=1, max_size=60))
def test_siblings_at_a_miss_are_counted_and_not_modelled(rows: list[list[int]]) -> None:
    """E is the mean over the recorded drafts of what each would have accepted of the wider tree."""
    drafts = [row[: next((d for d, rank in enumerate(row) if rank), 2) + 1] for row in rows]
    evidence = counted(*enumerate(drafts))
    tree = DraftTree(((0,), (0, 0), (0, 0, 0), (1,), (2,), (0, 1), (0, 0, 3), (0, 0, 1), (0, 0, 2)))
    padded = np.array([[*draft, -1, -1, -1][:3] for draft in drafts])
    expected = 1 + accepted_lengths(padded, tree).mean()
    model = ChainModel(evidence.rates, 1.0)  # as counted: not levelled where a worse rank was right more often
    assert expected_tokens(path_probabilities(model, tree)) == pytest.approx(expected)


def test_many_documents_are_redrawn_in_groups_of_them() -> None:
    evidence = counted(*((i, FOUR[i % 4]) for i in range(3 * MOST_GROUPS)))
    assert evidence.groups == MOST_GROUPS
    assert evidence.trials == 3 * MOST_GROUPS


def test_the_interval_is_that_of_documents() -> None:
    """400 drafts that are alike within each of 20 documents tell as much as 20: 0.5 +- 0.22, not +- 0.05."""
    drafts = [(document, [0] if document % 2 else [-1]) for document in range(20) for _ in range(20)]
    interval = counted_interval(counted(*drafts), DraftTree(((0,),)))
    assert interval is not None
    assert interval.half_width == pytest.approx(2.093 * (0.25 / 19) ** 0.5, abs=0.03)
    assert counted_interval(counted(*drafts[:140]), DraftTree(((0,),))) is None  # seven documents


def test_behind_a_wrong_turn_the_interval_holds_what_traces_had() -> None:
    evidence = counted(*((i, ranks) for i in range(20) for ranks in ([0, 0], [0, 0], [1], [1])))  # all documents alike
    along = counted_interval(evidence, DraftTree(((0,), (0, 0), (1,))))
    assert along == pytest.approx((2.5, 2.5))
    turned = counted_interval(evidence, DraftTree(((0,), (0, 0), (1,), (1, 0))))
    assert turned == pytest.approx((2.5 + 0.5 * 0.5, 2.5 + 0.5 * 1.0))  # a row is at most 1


def profile(evidence: ChainRanks, name: str = "chain") -> RankProfile:
    return RankProfile(name=name, evidence=evidence, conditions=Conditions(), sha256=name)


def test_files_hold_the_groups() -> None:
    evidence = counted(*((i, ranks) for i, ranks in enumerate(FOUR)))
    text = yaml_text(profile(evidence).document())
    read = load_text(text)
    assert isinstance(read.evidence, ChainRanks)
    assert read.kind == "chain"
    for name in ("group_reached", "group_counts", "rates", "reached"):
        np.testing.assert_array_equal(getattr(read.evidence, name), getattr(evidence, name))


def load_text(text: str) -> RankProfile:
    from treeopt.acceptance.profile_file import read_profile

    return read_profile(parse_document(text, name="ranks.yaml", what="rank profile"))


@pytest.mark.parametrize("groups", ["[]", "[{reached: [1], counts: [[2]]}]", "[{reached: [2], counts: [[1], [1]]}]"])
def test_groups_that_cannot_be_are_refused(groups: str) -> None:
    with pytest.raises(FileFormatError):
        load_text(f"format: treeopt.ranks/1\nname: a\nevidence: chain\ngroups: {groups}\nconditions: {{}}\n")


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(EvidenceError, match="no draft was recorded"):
        ChainCounter().result()


def test_merged_groups_stay_apart_while_there_is_room() -> None:
    a, b = counted((0, [0, 0]), (1, [1])), counted((0, [3]))
    joined = merge([profile(a, "a"), profile(b, "b")], name="both").evidence
    assert isinstance(joined, ChainRanks)
    assert joined.group_reached.tolist() == [[1, 1], [1, 0], [1, 0]]
    assert joined.group_counts[2, 0].tolist() == [0, 0, 0, 1]
    many = counted(*((i, [0]) for i in range(MOST_GROUPS)))
    assert many.joined(many).group_reached[:, 0].tolist() == [2] * MOST_GROUPS


def shard(path: Path, run: str, *rows: tuple[int, list[int]]) -> None:
    lines = [{"treeopt_recorded": 1, "run": run, "engine": "vllm"}]
    for document, ranks in rows:
        accepted = sum(rank == 0 for rank in ranks)
        lines.append({"document": document, "drafted": 3, "accepted": accepted, "ranks_to_miss": ranks})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_folder_of_shards_is_evidence(tmp_path: Path) -> None:
    """Shards of two engines, and two of one: a document goes on in the next shard of its engine."""
    shard(tmp_path / "vllm-1-0000.jsonl", "a", (0, [0, 1]), (1, [2]))
    shard(tmp_path / "vllm-2-0000.jsonl", "b", (0, [0, 0]))
    (source,) = read_evidence([tmp_path]).sources
    assert (source.tally.drafts, source.tally.accepted_tokens) == (3, 3)
    assert source.profile.documents == 3
    loaded = load_profile(tmp_path)
    assert isinstance(loaded.evidence, ChainRanks)
    assert loaded.evidence.counts is not None
    assert loaded.evidence.counts.tolist() == [[2, 0, 1], [1, 1, 0]]
    both = io.StringIO()
    for name in ("vllm-1-0000.jsonl", "vllm-1-0000.jsonl", "vllm-2-0000.jsonl"):
        both.write((tmp_path / name).read_text())
    joined = tmp_path / "joined.jsonl"
    joined.write_text(both.getvalue())
    found = replace(load_profile(joined), name="")
    assert found.documents == 3
    assert found.evidence.trials == 5

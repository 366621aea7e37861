from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import accepted, decode, shipped_trace, shuffled, trace_of, traces, trees

from treeopt.acceptance.replay import (
    ALL_POSITIONS_FLATTER,
    accepted_lengths,
    accepted_on,
    draft_starts,
    replay,
)
from treeopt.acceptance.trace import Trace
from treeopt.errors import InputError
from treeopt.tree import DraftTree


def check_against_decoder(trace: Trace, tree: DraftTree) -> None:
    found = replay(trace, tree)
    for number in range(trace.documents):
        ranks = trace.rank[trace.document == number].tolist()
        assert (found.tokens[number], found.steps[number]) == decode(ranks, tree)
    tokens = [accepted(row, tree) + 1 for row in trace.rank.tolist() if -2 not in row]
    assert found.all_position_tokens == sum(tokens) / len(tokens)


@given(traces(), trees())
def test_the_replay_is_what_a_decoder_does(trace: Trace, tree: DraftTree) -> None:
    check_against_decoder(trace, tree)


@given(traces(), trees())
def test_the_trie_of_a_trace_says_what_its_rows_do(trace: Trace, tree: DraftTree) -> None:
    assert accepted_on(trace, tree).tolist() == [accepted(row, tree) for row in trace.rank.tolist()]


def test_ranks_beyond_the_trie() -> None:
    rank = np.array([[300, 0], [0, 300], [254, 0], [0, 0]], dtype=np.int16)
    trace = Trace(rank=rank, doc_id=np.zeros(4, dtype=np.int64), pos=np.arange(4))
    assert accepted_on(trace, DraftTree(((0,), (300,), (300, 0)))).tolist() == [2, 1, 0, 1]
    assert accepted_on(trace, DraftTree(((0,), (254,), (0, 0)))).tolist() == [0, 1, 1, 2]


def test_a_long_document() -> None:
    rng = np.random.default_rng(0)
    trace = trace_of([rng.choice([-1, 0, 0, 0, 1], size=(5000, 4))])
    check_against_decoder(trace, DraftTree(((0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0))))


def test_a_real_trace() -> None:
    trace = shipped_trace()
    tree = DraftTree(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    check_against_decoder(trace, tree)
    found = replay(trace, tree)
    assert 1.02 < found.all_position_tokens / found.tokens_per_step < 1.06  # decoders skip what is easy


def test_by_hand() -> None:
    trace = trace_of([np.array([[0, 0], [0, -1], [-1, 0], [0, 1], [1, 0], [0, 0], [0, 0]])])
    tree = DraftTree(((0,), (0, 0)))
    assert accepted_lengths(trace.rank, tree).tolist() == [2, 1, 0, 1, 0, 1, 0]
    # Rows 0 to 4 are complete. From 0: rows 0, 3. From 1: rows 1, 3. Row 3 jumps to 5, where the depth is cut.
    assert draft_starts(trace, accepted_lengths(trace.rank, tree)).tolist() == [1, 1, 0, 2, 0, 0, 0]
    found = replay(trace, tree)
    assert (found.tokens.tolist(), found.steps.tolist(), found.phases) == ([3 + 2 + 2 * 2], [4], 2)
    assert found.tokens_per_step == 9 / 4
    assert found.steps_per_phase == 2.0
    assert found.all_position_tokens == (3 + 2 + 1 + 2 + 1) / 5


def test_a_document_is_decoded_by_itself() -> None:
    """A draft accepted in full at the last complete row lands where the next document begins."""
    documents = [np.zeros((4, 2)), np.zeros((9, 2))]
    both = replay(trace_of(documents), DraftTree.chain(2))
    assert both.steps.tolist() == [1 + 1, 3 + 2]  # rows 0; 1 of the first, 0, 3, 6; 1, 4 of the second
    assert both.tokens.tolist() == [6, 15]


def test_plain_decoding_takes_every_position() -> None:
    found = replay(trace_of([np.zeros((9, 3))]), DraftTree(()))
    assert found.tokens_per_step == found.all_position_tokens == 1.0


def test_the_end_of_a_document_causes_no_bias() -> None:
    """All documents of five complete rows, weighted by their probability: exactly E of the process, in every phase."""
    chance = {(-1, -1): Fraction(1, 2), (0, -1): Fraction(1, 3), (0, 0): Fraction(1, 6)}
    expected = 1 + Fraction(1, 3) + 2 * Fraction(1, 6)
    tokens = steps = Fraction(0)
    for rows in product(chance, repeat=5):
        found = replay(trace_of([np.array([*rows, (0, 0), (0, 0)])]), DraftTree.chain(2))
        p = np.prod([chance[row] for row in rows])
        tokens += p * int(found.tokens.sum())
        steps += p * int(found.steps.sum())
    assert tokens / steps == expected


@given(traces(), trees(), trees())
def test_adding_nodes_never_lowers_the_all_position_mean(trace: Trace, tree: DraftTree, more: DraftTree) -> None:
    larger = DraftTree(tuple({*tree.paths, *more.paths}))
    assert replay(trace, larger).all_position_tokens >= replay(trace, tree).all_position_tokens


@given(traces(), trees(), st.randoms(use_true_random=False))
def test_the_order_of_documents_changes_nothing(trace: Trace, tree: DraftTree, random: Random) -> None:
    order = list(range(trace.documents))
    random.shuffle(order)
    one, other = replay(trace, tree), replay(shuffled(trace, order), tree)
    for name in ("tokens", "steps", "position_tokens", "positions"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_a_tree_deeper_than_the_trace() -> None:
    with pytest.raises(InputError, match="the tree is 3 tokens deep, the trace records 2") as caught:
        replay(trace_of([np.zeros((9, 2))]), DraftTree.chain(3))
    assert "--max-depth 2" in caught.value.hint


def test_documents_too_short_to_replay() -> None:
    with pytest.raises(InputError, match="no document is longer than the 3 recorded depths"):
        replay(trace_of([np.zeros((3, 3)), np.zeros((2, 3))]), DraftTree.chain(1))


def test_how_much_all_positions_flatter_is_what_the_published_table_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "acceptance.md").read_text()
    found = []
    for block in text.split("\n\n"):
        header, *rows = [[cell.strip() for cell in line.split("|")] for line in block.strip().splitlines()]
        if "all positions" in header:
            found += [float(row[header.index("all positions")].removesuffix(" %")) for row in rows[1:]]
    assert len(found) >= 20
    assert f" {min(found):.1f} to {max(found):.1f} % above" in ALL_POSITIONS_FLATTER

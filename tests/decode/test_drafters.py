from __future__ import annotations

import numpy as np
import pytest
from decode.fixed import FixedDrafter
from decode.models import BUSHY, noisy, toy
from hypothesis import given
from hypothesis import strategies as st

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.decode.batch import TreeBatch
from treeopt.decode.copying import CopyDrafter
from treeopt.decode.drafters import LookupDrafter, ModelDrafter
from treeopt.decode.drafting import DraftLevel, draft
from treeopt.decode.draws import RandomDraws
from treeopt.decode.rules import Siblings
from treeopt.tree import DraftTree

TEXTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
ROWS = np.arange(3)
V = 16


def test_ranks_go_to_their_nodes() -> None:
    """A tree with rank gaps gets the guesses of its ranks; the root is the last committed token."""
    tree = DraftTree(((0,), (2,), (2, 1)))
    found = draft(FixedDrafter([7, 5, 3], vocabulary_size=V), TreeBatch.of([tree]), [[1, 9]], rows=np.array([0]))
    assert found.tokens.tolist() == [[9, 7, 3, 5]]
    assert found.q is None


def test_nothing_follows_a_guess_that_is_not_there() -> None:
    found = draft(
        FixedDrafter([7], vocabulary_size=V),
        TreeBatch.of([DraftTree(((0,), (1,), (1, 0), (0, 0)))]),
        [[1]],
        rows=np.array([0]),
    )
    assert found.tokens.tolist() == [[1, 7, -1, 7, -1]]


def test_drawn_siblings_differ_without_replacement() -> None:
    trees = TreeBatch.repeat(DraftTree.from_widths([3, 2]), 50)
    drafter = FixedDrafter([1, 2, 3, 4], vocabulary_size=V)
    draws = RandomDraws(np.random.default_rng(0))
    texts, rows = [[0]] * 50, np.arange(50)
    distinct = draft(drafter, trees, texts, rows=rows, siblings=Siblings.DISTINCT, draws=draws)
    independent = draft(drafter, trees, texts, rows=rows, siblings=Siblings.INDEPENDENT, draws=draws)
    assert all(len(set(row[1:4])) == 3 for row in distinct.tokens)
    assert any(len(set(row[1:4])) < 3 for row in independent.tokens)
    assert distinct.q is not None
    assert np.allclose(distinct.q[:, :4, 1:5], np.array([8, 4, 2, 1]) / 15)
    assert not distinct.q[:, 4:].any()  # leaves have drawn nothing


@pytest.mark.parametrize("rows", [np.arange(3), np.array([2, 0, 5])])
def test_a_model_drafts_what_it_would_say_to_the_whole_text(rows: np.ndarray) -> None:
    """With its cache, over several steps that accept different paths, against passes over whole texts."""
    pytest.importorskip("torch")
    model = toy(3)
    drafter = ModelDrafter(model, vocabulary_size=V)
    texts = [list(text) for text in TEXTS]
    chosen = [BUSHY, DraftTree.chain(3), DraftTree(((0,), (1,), (1, 0), (1, 1), (1, 1, 0)))]
    rng = np.random.default_rng(0)
    for _ in range(4):
        trees = TreeBatch.of(chosen)
        found = draft(drafter, trees, texts, rows=rows).tokens
        for b, tree in enumerate(chosen):
            for node in range(1, len(tree)):
                path = np.flatnonzero(tree.ancestor_mask[node])
                before = [*texts[b], *found[b, path[1:-1]].tolist()]
                order = np.argsort(-model.reference(np.array(before))[-1].numpy())
                assert found[b, node] == order[tree.ranks[node]]
            node = int(rng.integers(len(tree)))  # accept any path, and a bonus that nobody guessed
            texts[b] += [*found[b, np.flatnonzero(tree.ancestor_mask[node])[1:]].tolist(), int(rng.integers(V))]


def test_a_row_may_get_another_text() -> None:
    pytest.importorskip("torch")
    model = toy(3)
    drafter, trees = ModelDrafter(model, vocabulary_size=V), TreeBatch.of([DraftTree.chain(2)])
    for text in ([1, 2, 3], [1, 2, 3], [1, 2], [5, 6, 7, 8], [5]):
        (found,) = draft(drafter, trees, [text], rows=np.array([0])).tokens
        assert found[1] == model.reference(np.array(text))[-1].argmax()


def level(text: list[int]) -> DraftLevel:
    zero = np.zeros(1, dtype=np.int64)
    return DraftLevel(
        rows=zero,
        texts=[text],
        trees=TreeBatch.of([DraftTree.chain(1)]),
        tokens=np.array([[text[-1], -1]]),
        depth=0,
        request=zero,
        node=zero,
    )


def test_lookup_by_hand() -> None:
    # After 1 2 came 3 twice and 4 once.
    guesses = LookupDrafter(longest=2, vocabulary_size=V).guesses(level([1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 1, 2]))
    assert guesses.top(3).tolist() == [[3, 4, -1]]
    assert guesses.distribution()[0, [3, 4]].tolist() == pytest.approx([2 / 3, 1 / 3])
    nothing = LookupDrafter(longest=2, vocabulary_size=V).guesses(level([1, 2]))
    assert nothing.top(2).tolist() == [[-1, -1]]


def test_noise_depends_on_the_text_alone() -> None:
    pytest.importorskip("torch")
    one, other = noisy(toy(3)), noisy(toy(3))
    first = one.guesses(level([1, 2, 3])).distribution()
    one.guesses(level([4]))
    assert (other.guesses(level([1, 2, 3])).distribution() == first).all()
    assert (one.guesses(level([1, 2, 4])).distribution() != first).any()


def look_up(text: list[int], *, longest: int) -> list[float]:
    """What is guessed behind a text: the probabilities of tokens 0..15."""
    guesses = LookupDrafter(longest=longest, vocabulary_size=V).guesses(level(text))
    return guesses.distribution()[0].tolist()


def test_lookup_takes_the_longest_run_that_stood_before() -> None:
    # It ends with 1 2. That run was followed by 3 once; a lone 2 was followed by 5 twice more.
    text = [1, 2, 3, 0, 2, 5, 7, 2, 5, 1, 2]
    assert np.flatnonzero(look_up(text, longest=2)).tolist() == [3]
    alone = look_up(text, longest=1)
    assert alone[5] == 2 / 3
    assert alone[3] == 1 / 3


def test_lookup_ranks_by_frequency_then_by_recency() -> None:
    drafter = LookupDrafter(longest=1, vocabulary_size=V)
    text = [1, 4, 1, 5, 1, 6, 1, 4, 1]  # after 1: 4 twice, then 6 more recently than 5
    assert drafter.guesses(level(text)).top(4).tolist() == [[4, 6, 5, -1]]
    for token, rank in ((4, 0), (6, 1), (5, 2), (7, -1)):
        (guesses,) = drafter.along(np.array([*text, token]), first=9, depth=1)
        assert guesses.ranks(np.array([token])).tolist() == [rank]


@pytest.mark.parametrize("kind", ["model", "lookup", "noisy", "fixed"])
def test_along_a_text_it_guesses_what_it_guesses_behind_each_token(kind: str) -> None:
    """The trace of a text and the drafts of a run come from the same drafter."""
    pytest.importorskip("torch")
    drafter = {
        "model": ModelDrafter(toy(3), vocabulary_size=V),
        "lookup": LookupDrafter(longest=3, vocabulary_size=V),
        "noisy": noisy(toy(3)),
        "fixed": FixedDrafter([7, 5, 3], vocabulary_size=V),
    }[kind]
    text = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    (along,) = drafter.along(np.array(text), first=2, depth=3)
    behind = [drafter.guesses(level(text[:end])) for end in range(2, len(text))]
    assert along.top(5).tolist() == [guesses.top(5)[0].tolist() for guesses in behind]
    np.testing.assert_allclose(along.distribution(), [guesses.distribution()[0] for guesses in behind], atol=1e-9)


TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=40)
LOOKUPS = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(
    lambda n: PromptLookup(rule="vllm", shortest=n[0], longest=n[0] + n[1])
)


def copied(text: list[int], lookup: PromptLookup, depth: int) -> list[int]:
    """The rule in words: of the longest run that ends the text and stood before, the earliest place; what followed."""
    n = len(text)
    for run in range(lookup.longest, lookup.shortest - 1, -1):
        for start in range(n - run):
            if text[start : start + run] == text[n - run :]:
                return text[start + run : start + run + depth]
    return []


@given(text=TOKENS, lookup=LOOKUPS)
def test_a_copied_draft_is_what_followed_the_earliest_match(text: list[int], lookup: PromptLookup) -> None:
    drafter, chain = CopyDrafter(lookup, vocabulary_size=5), DraftTree.chain(3)
    found = draft(drafter, TreeBatch.of([chain]), [text], rows=np.array([0])).tokens[0, 1:]
    assert [token for token in found if token != -1] == copied(text, lookup, 3)


@given(text=TOKENS, lookup=LOOKUPS, first=st.integers(1, 10))
def test_along_a_text_the_copies_are_those_of_its_draft_starts(
    text: list[int], lookup: PromptLookup, first: int
) -> None:
    levels = CopyDrafter(lookup, vocabulary_size=5).along(np.array(text), first=first, depth=3)
    for d, guesses in enumerate(levels):
        ends = range(first, len(text) - d)  # what is committed with each root whose token at depth d + 1 is there
        wanted = [copied(text[:end], lookup, 3)[d : d + 1] or [-1] for end in ends]
        assert guesses.top(1).tolist() == wanted


def test_of_several_rules_each_answers_alike_along_a_text_and_step_by_step() -> None:
    rng, chain = np.random.default_rng(14), DraftTree.chain(3)
    for rule in ("vllm", "llamacpp", "sglang"):
        lookup = PromptLookup(rule=rule, shortest=2 if rule == "llamacpp" else 1, longest=2)
        text = rng.integers(0, 3, 40).tolist()
        levels = CopyDrafter(lookup, vocabulary_size=5).along(np.array(text), first=5, depth=3)
        drafter = CopyDrafter(lookup, vocabulary_size=5)
        for i, end in enumerate(range(5, len(text) - 2)):
            found = draft(drafter, TreeBatch.of([chain]), [text[:end]], rows=np.array([0])).tokens[0, 1:]
            assert found[0] == levels[0].top(1)[i]
            if found[0] == text[end]:  # further down the text's own tokens are the path
                assert found[1] == levels[1].top(1)[i]


def test_only_the_copied_chain_is_followed() -> None:
    """A tree's other nodes have no token, so nothing follows them."""
    lookup = PromptLookup(rule="vllm", shortest=1, longest=3)
    tree = DraftTree(((0,), (1,), (0, 0), (1, 0)))
    drafter = CopyDrafter(lookup, vocabulary_size=10)
    found = draft(drafter, TreeBatch.of([tree]), [[5, 1, 2, 9, 1, 2]], rows=np.array([0]))
    assert found.tokens.tolist() == [[2, 9, -1, 1, -1]]

from __future__ import annotations

import numpy as np

from treeopt.collect.guesses import DenseGuesses, Listed, ListedGuesses
from treeopt.collect.ngram import NgramDrafter


def test_dense_ranks_are_places_in_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.integers(1, 6, size=(200, 9)).astype(np.float32)  # many ties
    order = np.argsort(-probabilities, axis=1, kind="stable")
    tokens = rng.integers(0, 9, size=200)
    expected = [order[i].tolist().index(token) for i, token in enumerate(tokens.tolist())]
    assert DenseGuesses(probabilities).ranks(tokens).tolist() == expected


def test_dense_best_is_sorted_and_padded_with_zeros() -> None:
    guesses = DenseGuesses(np.array([[0.2, 0.5, 0.3]], dtype=np.float32))
    np.testing.assert_array_equal(guesses.best(2), np.array([[0.5, 0.3]], dtype=np.float32))
    np.testing.assert_array_equal(guesses.best(4), np.array([[0.5, 0.3, 0.2, 0]], dtype=np.float32))


def test_listed_guesses_rank_by_their_list() -> None:
    places = [Listed((4, 1), (0.75, 0.25)), Listed((), ())]
    guesses = ListedGuesses(places, vocabulary_size=6)
    assert guesses.ranks(np.array([1, 1])).tolist() == [1, -1]
    assert guesses.ranks(np.array([4, 0])).tolist() == [0, -1]
    assert guesses.best(3).tolist() == [[0.75, 0.25, 0], [0, 0, 0]]
    assert guesses.distribution(0).tolist() == [0, 0.25, 0, 0, 0.75, 0]
    assert guesses.distribution(1).tolist() == [0] * 6


def look_up(tokens: list[int], *, longest: int) -> list[float]:
    """What is guessed for the last token: the guessed probabilities of tokens 0..9."""
    drafter = NgramDrafter(longest=longest, vocabulary_size=10)
    (guesses,) = drafter.guesses(np.array(tokens), first=len(tokens) - 1, depth=1)
    return guesses.distribution(0).tolist()


def test_ngram_takes_the_longest_run_that_stood_before() -> None:
    # Before the last token stands 1 2. That run was followed by 3 once; a lone 2 was followed by 5 twice more.
    text = [1, 2, 3, 0, 2, 5, 7, 2, 5, 1, 2, 9]
    assert np.flatnonzero(look_up(text, longest=2)).tolist() == [3]
    alone = look_up(text, longest=1)
    assert alone[5] == 2 / 3
    assert alone[3] == 1 / 3


def test_ngram_ranks_by_frequency_then_by_recency() -> None:
    drafter = NgramDrafter(longest=1, vocabulary_size=10)
    text = np.array([1, 4, 1, 5, 1, 6, 1, 4, 1, 0])  # after 1: 4 twice, then 6 more recently than 5
    for token, rank in ((4, 0), (6, 1), (5, 2), (7, -1)):
        text[-1] = token
        (guesses,) = drafter.guesses(text, first=9, depth=1)
        assert guesses.ranks(text[9:]).tolist() == [rank]


def test_ngram_sees_only_what_stands_before() -> None:
    drafter = NgramDrafter(longest=3, vocabulary_size=10)
    text = np.array([1, 2, 3, 1, 2, 3, 1, 2])
    (whole,) = drafter.guesses(text, first=1, depth=1)
    for end in range(2, len(text)):
        (part,) = drafter.guesses(text[:end], first=1, depth=1)
        assert part.ranks(text[1:end]).tolist() == whole.ranks(text[1:]).tolist()[: end - 1]
    # 2 3 1: nothing stood before them; from the second round on all is known.
    assert whole.ranks(text[1:]).tolist() == [-1, -1, -1, 0, 0, 0, 0]

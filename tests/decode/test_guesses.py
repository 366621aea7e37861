from __future__ import annotations

import numpy as np
import pytest

from treeopt.decode.guesses import Guesses, Listed, ListedGuesses, LogitGuesses

torch = pytest.importorskip("torch", reason="logits are torch's")


def of(probabilities: np.ndarray, **options: int) -> LogitGuesses:
    return LogitGuesses(torch.tensor(probabilities).log(), vocabulary_size=probabilities.shape[1], temperature=0.0)


def test_ranks_are_places_in_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 6, size=(200, 9)).astype(np.float32)  # many ties
    order = np.argsort(-weights, axis=1, kind="stable")
    tokens = rng.integers(0, 9, size=200)
    expected = [order[i].tolist().index(token) for i, token in enumerate(tokens.tolist())]
    assert of(weights).ranks(tokens).tolist() == expected


def test_best_is_sorted_and_padded_with_zeros() -> None:
    guesses = of(np.array([[0.2, 0.5, 0.3]]))
    np.testing.assert_allclose(guesses.best(2), [[0.5, 0.3]], rtol=1e-6)
    np.testing.assert_allclose(guesses.best(4), [[0.5, 0.3, 0.2, 0]], rtol=1e-6)
    assert guesses.top(4).tolist() == [[1, 2, 0, -1]]


@pytest.mark.parametrize(
    "guesses",
    [
        ListedGuesses([Listed((4, 1), (0.75, 0.25)), Listed((), ())], vocabulary_size=6),
        # A head of two tokens, which are the target's 4 and 1; its second row is asked for other tokens.
        LogitGuesses(
            torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log(),
            vocabulary_size=6,
            temperature=1.0,
            tokens=np.array([4, 1]),
        ),
    ],
)
def test_few_tokens_are_ranked_among_themselves(guesses: Guesses) -> None:
    assert guesses.ranks(np.array([1, 3])).tolist() == [1, -1]
    assert guesses.ranks(np.array([4, 0])).tolist() == [0, -1]
    assert guesses.top(3)[0].tolist() == [4, 1, -1]
    np.testing.assert_allclose(guesses.best(3)[0], [0.75, 0.25, 0], rtol=1e-6)
    np.testing.assert_allclose(guesses.distribution(slice(0, 1)), [[0, 0.25, 0, 0, 0.75, 0]], rtol=1e-6)


def test_a_place_without_guesses() -> None:
    guesses = ListedGuesses([Listed((), ())], vocabulary_size=3)
    assert guesses.top(2).tolist() == [[-1, -1]]
    assert guesses.best(2).tolist() == guesses.distribution()[:, :2].tolist() == [[0, 0]]


def test_a_wider_or_narrower_drafter_is_fitted_to_the_target() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0]])
    cut = LogitGuesses(logits, vocabulary_size=3, temperature=1.0)
    padded = LogitGuesses(logits, vocabulary_size=6, temperature=1.0)
    assert cut.top(1).tolist() == [[2]]
    np.testing.assert_allclose(cut.distribution().sum(), 1.0)
    assert padded.distribution()[0, 4:].tolist() == [0, 0]


def test_lists_of_a_law_break_ties_by_token() -> None:
    assert Listed.of(np.array([0.25, 0.5, 0.25, 0.0])) == Listed((1, 0, 2), (0.5, 0.25, 0.25))

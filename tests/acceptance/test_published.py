"""The shipped catalogue of published pairs, and which of them a target and a drafter get."""

from __future__ import annotations

import numpy as np
import pytest

from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.position import MeanLength, PositionSurvival
from treeopt.acceptance.published import Pair, nearest_pair, published_profiles, supports
from treeopt.errors import UnknownNameError
from treeopt.files.shipped import locate, shipped_names


def test_every_published_profile_says_whose_numbers_it_holds() -> None:
    profiles = published_profiles()
    assert len(profiles) == len(shipped_names("ranks", folder="published"))
    for profile in profiles:
        assert profile.source, profile.name
        assert profile.note.startswith("published: "), profile.name
        drafter = profile.conditions.drafter
        assert drafter is not None
        assert profile.name.startswith("sequoia" if drafter == "model" else f"{drafter}-")


# By hand from the sources: EAGLE's Table 2 multiplies 0.79, 0.74, 0.72, 0.73, 0.67; Medusa's first head, top-1.
def test_numbers_are_the_published_ones() -> None:
    eagle = load_profile(locate("ranks", "eagle-vicuna-7b-mt-bench").path).evidence
    assert isinstance(eagle, PositionSurvival)
    np.testing.assert_allclose(eagle.survival, np.cumprod([0.79, 0.74, 0.72, 0.73, 0.67]), atol=5e-5)
    medusa = load_profile(locate("ranks", "medusa-vicuna-7b").path).model()
    root = medusa.conditional(np.zeros((1, 0), dtype=np.int64))[0]
    assert root[0] == pytest.approx(0.560388)
    assert (medusa.ranks, medusa.depth) == (5, 5)
    mean = load_profile(locate("ranks", "dspark-qwen3-8b-mt-bench-t1").path).evidence
    assert isinstance(mean, MeanLength)
    assert (mean.mean_accepted_length, mean.draft_tokens) == (3.72, 7)


@pytest.mark.parametrize(
    ("target", "drafter", "pair"),
    [
        ("llama-3.1-8b", "eagle3", Pair("eagle3-llama-3.1-8b-mt-bench", exact=True)),
        ("meta-llama/Llama-3.1-8B-Instruct", "eagle3", Pair("eagle3-llama-3.1-8b-mt-bench", exact=True)),
        ("llama-3.3-70b", "eagle3", Pair("eagle3-llama-3.1-8b-mt-bench", exact=False)),
        ("vicuna-7b", "medusa", Pair("medusa-vicuna-7b", exact=True)),
        ("qwen3-8b", "eagle3", Pair("eagle3-qwen3-8b-gsm8k", exact=True)),
        ("llama-3.1-8b", "ngram", None),
    ],
)
def test_the_pair_that_a_target_and_a_drafter_get(target: str, drafter: str, pair: Pair | None) -> None:
    assert nearest_pair(target, drafter) == pair


def test_a_shorter_name_is_not_a_longer_one() -> None:
    """Qwen3-4B is no Qwen3-40B: the name ends where the data set begins."""
    found = nearest_pair("qwen3-1", "eagle3")
    assert found is not None
    assert not found.exact


def test_listing_is_by_target_and_drafter() -> None:
    names = [p.name for p in published_profiles(target="Qwen3-8B", drafter="peagle")]
    assert names == ["peagle-qwen3-8b-gsm8k", "peagle-qwen3-8b-gsm8k-k4"]
    assert published_profiles(target="no such model") == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("medusa-vicuna-7b", "trees: 5 ranks, depth 5"),
        ("eagle3-llama-3.1-8b-mt-bench", "chains to 7"),
        ("dspark-qwen3-8b-mt-bench-t1", "chains to 7, from one mean"),
    ],
)
def test_what_each_supports(name: str, words: str) -> None:
    assert supports(load_profile(locate("ranks", name).path)) == words


def test_an_unknown_name_lists_near_ones_and_not_all() -> None:
    with pytest.raises(UnknownNameError) as caught:
        locate("ranks", "eagle3-llama-3.1-8b")
    assert "did you mean eagle3-llama-3.1-8b-mt-bench?" in caught.value.hint
    assert "treeopt ranks list" in caught.value.hint
    assert len(caught.value.hint) < 500

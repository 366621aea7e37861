"""Expert coverage against every possible routing, and against simulated skewed ones."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from shared import SHARED, needs_shared

from treeopt.cost import Experts

QWEN = Experts(count=128, per_token=8, intermediate=768, shared_intermediate=0, dense_layers=0, skew=0.0)


@pytest.mark.parametrize(("count", "per_token", "tokens"), [(4, 2, 3), (5, 1, 4), (6, 3, 2), (3, 3, 2)])
def test_visited_experts_is_the_mean_over_every_routing(count: int, per_token: int, tokens: int) -> None:
    choices = list(itertools.combinations(range(count), per_token))
    routings = list(itertools.product(choices, repeat=tokens))
    mean = np.mean([len(set().union(*routing)) for routing in routings])
    experts = Experts(count=count, per_token=per_token, intermediate=1, shared_intermediate=0, dense_layers=0, skew=0.0)
    assert experts.visited(np.array(float(tokens))) == pytest.approx(mean, rel=1e-12)


def test_one_token_visits_its_own_experts_and_many_visit_all() -> None:
    assert QWEN.visited(np.array([1.0, 1e4])) == pytest.approx([8, 128])
    skewed = replace(QWEN, skew=1.0)
    assert skewed.visited(np.array(1.0)) == pytest.approx(8, rel=1e-9)


@pytest.mark.parametrize("skew", [0.5, 1.2])
def test_skewed_visits_are_those_of_simulated_choices_of_one(skew: float) -> None:
    # one expert per token, so that a draw by popularity is exactly the law
    experts = Experts(count=20, per_token=1, intermediate=1, shared_intermediate=0, dense_layers=0, skew=skew)
    popularity = np.arange(1, 21) ** -skew
    draws = np.random.default_rng(0).choice(20, size=(20_000, 12), p=popularity / popularity.sum())
    distinct = np.array([len(set(row)) for row in draws.tolist()])
    error = distinct.std() / np.sqrt(len(distinct))
    assert experts.visited(np.array(12.0)) == pytest.approx(distinct.mean(), abs=4 * error)


def test_skew_makes_fewer_distinct_visits() -> None:
    visited = [float(replace(QWEN, skew=skew).visited(np.array(16.0))) for skew in (0.0, 0.5, 1.0, 2.0)]
    assert visited == sorted(visited, reverse=True)
    assert visited[0] == pytest.approx(128 * (1 - (120 / 128) ** 16))


@needs_shared
def test_coverage_explains_the_published_growth_from_two_tokens_on_but_not_the_jump_to_two() -> None:
    # GLM-4.5-Air in llama.cpp's fork: 5.88 ms for one token, 17.93 to 30.07 ms for 2 to 8.
    numbers = json.loads((SHARED / "data" / "inputs" / "report_numbers.json").read_text())
    (steps,) = (value for key, value in find_key(numbers, "GLM4.5-Air"))
    ms = {int(tokens): value for tokens, value in steps.items()}
    assert ms[2] / ms[1] == pytest.approx(3.05, abs=0.01)
    air = Experts(count=128, per_token=8, intermediate=1408, shared_intermediate=1408, dense_layers=1, skew=0.0)
    tokens = np.array([t for t in sorted(ms) if t > 1])
    visited, measured = air.visited(tokens.astype(np.float64)), np.array([ms[t] for t in tokens])
    slope, start = np.polyfit(visited, measured, 1)
    assert start + slope * visited == pytest.approx(measured, rel=0.015)
    # Experts cannot cost more than 1.94 times as much for two tokens; the line through the others leads to 15.6 ms for
    # one. The rest of the jump is another kernel for a single token, which no law of coverage knows.
    assert air.visited(np.array([1.0, 2.0])) == pytest.approx([8, 15.5])
    assert start + slope * 8 > 2.5 * ms[1]


def find_key(value: object, part: str) -> list[tuple[str, dict[str, float]]]:
    """Every entry of nested mappings whose key holds `part`."""
    if not isinstance(value, dict):
        return []
    here = [(key, found) for key, found in value.items() if part in key]
    return here + [found for inner in value.values() for found in find_key(inner, part)]

"""Steps in which requests draft at times: laws by enumeration, prices against every step that there can be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_steps import jagged_step_of, step_of

from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.cost import EngineSteps, ModelStep, Term
from treeopt.cost.part_drafts import token_law

EVERY_TOKEN = (Term.LAYERS, Term.LM_HEAD, Term.ELEMENTWISE, Term.ALL_REDUCE, Term.SAMPLING)
ENGINE = EngineSteps(
    step_s=1e-3,
    speculative_step_s=5e-4,
    speculative_request_s=1e-5,
    verified_token_s=1e-6,
    capture_tokens=(1, 2, 4, 8),
    eager_s=0.02,
)


@st.composite
def lengths(draw: st.DrawFn) -> DraftLengths:
    shares = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=1, max_size=4))
    return DraftLengths(tuple(sorted(shares, reverse=True)))


def probability(own: DraftLengths, length: int, longest: int) -> float:
    """That a draft of at most `longest` tokens has exactly so many, from the shares as they are said."""

    def at_least(d: int) -> float:
        if d == 0:
            return 1.0
        return 0.0 if d > longest else own.at_least[min(d, len(own.at_least)) - 1]

    return at_least(length) - at_least(length + 1)


def every_step(own: DraftLengths, batch: int, nodes: int) -> list[tuple[tuple[int, ...], float]]:
    """The lengths of all requests' drafts, and how likely each such step is."""
    found = []
    for drafts in product(range(nodes), repeat=batch):
        share = float(np.prod([probability(own, d, nodes - 1) for d in drafts]))
        if share:
            found.append((drafts, share))
    return found


@given(lengths(), st.integers(1, 4), st.integers(1, 4))
def test_the_law_is_that_of_all_steps(own: DraftLengths, batch: int, nodes: int) -> None:
    by_tokens: Counter[int] = Counter()
    for drafts, share in every_step(own, batch, nodes):
        by_tokens[batch + sum(drafts)] += share  # type: ignore[assignment]
    law = token_law(own, batch, nodes)
    assert law.tokens.tolist() == sorted(n for n, share in by_tokens.items() if share > 1e-12)
    assert law.shares == pytest.approx([by_tokens[int(n)] for n in law.tokens], abs=1e-12)


def one_step(step: ModelStep, drafts: tuple[int, ...], context: int) -> float:
    """A step as it is: all tokens in one pass, each request's attention as in a step of its like, the engine."""
    batch, tokens = len(drafts), len(drafts) + sum(drafts)

    def terms(of: int, nodes: int) -> dict[Term, float]:
        found = step.terms(batch=of, nodes=nodes, depth=nodes - 1, widths=[1] * (nodes - 1) or [0], context=context)
        return {term: found.of(term) for term in Term}

    total = sum(terms(1, tokens)[term] for term in EVERY_TOKEN)
    total += sum(terms(batch, 1 + d)[Term.ATTENTION] for d in drafts) / batch
    engine = ENGINE.step_s + ENGINE.verified_token_s * tokens + ENGINE.eager_s * (tokens > 8)
    return total + engine + ENGINE.speculative_step_s * any(drafts)


@given(lengths(), st.integers(1, 3), st.integers(2, 4), st.sampled_from([100, 3000]))
def test_the_price_is_the_mean_over_all_steps(own: DraftLengths, batch: int, nodes: int, context: int) -> None:
    always = replace(step_of("llama-3.1-8b", "ngram", 2), engine=ENGINE)
    at_times = replace(always, lengths=own)
    found = float(at_times.step_time_s(batch, nodes, nodes - 1, np.ones(nodes - 1, dtype=np.int64), context))
    every = every_step(own, batch, nodes)
    looked_up = batch * ENGINE.speculative_request_s  # in every step, whatever is found
    assert found == pytest.approx(looked_up + sum(s * one_step(always, d, context) for d, s in every), rel=1e-9)


@pytest.mark.parametrize("make", [step_of, jagged_step_of])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_drafts_that_are_always_there_cost_what_drafts_cost(make, model: str) -> None:  # type: ignore[no-untyped-def]
    step = make(model, "ngram", 2)
    always = replace(step, lengths=DraftLengths((1.0,)))
    batch, nodes = np.array([1, 3, 16])[:, None], np.arange(1, 9)
    widths = (np.arange(7) < (nodes - 1)[:, None]).astype(np.int64)
    ours, theirs = (s.step_time_s(batch, nodes, nodes - 1, widths, 500) for s in (always, step))
    assert ours == pytest.approx(theirs, rel=1e-9)


@given(lengths(), st.integers(1, 40))
def test_the_price_rises_with_the_draft_and_lies_between_plain_and_full(own: DraftLengths, batch: int) -> None:
    full = step_of("llama-3.1-8b", "ngram", 2)
    nodes = np.arange(1, 9)
    widths = (np.arange(7) < (nodes - 1)[:, None]).astype(np.int64)
    mean, most = (s.step_time_s(batch, nodes, nodes - 1, widths, 500) for s in (replace(full, lengths=own), full))
    assert np.all(np.diff(mean) >= -1e-12)
    assert np.all(mean <= most * (1 + 1e-9))
    assert mean[0] == pytest.approx(most[0], rel=1e-12)


def test_beyond_what_is_enumerated_the_mean_stands_for_all() -> None:
    own = DraftLengths((0.3, 0.2))
    law = token_law(own, 100_000, 3)
    assert law.tokens == pytest.approx([150_000.0])
    near = token_law(own, 10_000, 3)
    assert near.tokens @ near.shares == pytest.approx(15_000.0)
    step = replace(step_of("llama-3.1-8b", "ngram", 2), lengths=own)
    assert float(step.step_time_s(100_000, 3, 2, np.ones(2, dtype=np.int64), 100)) > 0.0


def test_the_reader_is_told_what_a_step_verifies() -> None:
    step = replace(step_of("llama-3.1-8b", "ngram", 2), lengths=DraftLengths((0.3, 0.2)))
    (said,) = [note for note in step.notes(batch=4, nodes=3, context=100) if "proposes" in note]
    assert "30%" in said
    assert "1.50 on average" in said

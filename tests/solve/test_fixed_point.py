from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costs import FakeCost

from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.mixture import Mixture
from treeopt.acceptance.model import exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.replay import replay
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.errors import InputError
from treeopt.files.shipped import locate
from treeopt.planner.traffic_input import load_traffic
from treeopt.solve import fixed_point
from treeopt.solve.buckets import Sharing
from treeopt.solve.fixed_point import held_out_tokens, settled_search
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.search import price_tree, search
from treeopt.solve.time_limit import TimeLimit, steps_needed
from treeopt.tree import DraftTree


def rising(token_s: float = 0.01, context_s: float = 0.0) -> FakeCost:
    """A step that gets dearer with every token."""
    return FakeCost(step_s=1.0, token_s=token_s, pass_s=0.02, context_s=context_s)


@pytest.fixture(scope="module")
def shipped() -> Traffic:
    return load_traffic("smollm2-135m-eagle")[0]


def table(rates: list[list[float]], reached: list[float] | None = None) -> Part:
    profile = load_profile(locate("ranks", "example").path)
    evidence = DepthRanks(rates=np.array(rates), reached=None if reached is None else np.array(reached))
    return Part(name="table", weight=1.0, profile=type(profile)(**{**vars(profile), "evidence": evidence}))


def test_the_number_is_what_a_decoder_gets_and_the_interval_holds_it(shipped: Traffic) -> None:
    (settled,) = settled_search(Problem(batches=(8,)), shipped, rising())
    trace = shipped.parts[0].trace
    assert trace is not None
    replayed = replay(trace, settled.choice.tree)
    assert settled.choice.best.expected_tokens == pytest.approx(replayed.tokens_per_step, rel=0.005)
    assert replayed.tokens_per_step < replayed.all_position_tokens  # what the correction is for
    assert settled.tokens is not None
    assert settled.tokens.low < replayed.tokens_per_step < settled.tokens.high


def test_counts_without_a_trace_stay_as_measured() -> None:
    evidence = Traffic(parts=(table([[0.6, 0.2], [0.5, 0.2]], [1000.0, 800.0]),))
    (settled,) = settled_search(Problem(batches=(8,)), evidence, rising())
    (plain,) = search(Problem(batches=(8,)), evidence.all_positions, rising())
    assert settled.choice.tree == plain.tree
    assert settled.tokens is not None
    assert settled.tokens.low < plain.best.expected_tokens < settled.tokens.high
    (rates,) = settled_search(Problem(batches=(8,)), Traffic(parts=(table([[0.6, 0.2]]),)), rising())
    assert rates.tokens is None


def test_trees_that_the_trace_cannot_tell_apart_go_to_the_smallest(shipped: Traffic) -> None:
    trace = shipped.parts[0].trace
    assert trace is not None
    few = trace.select(np.arange(trace.documents) < 12)
    profile = shipped.parts[0].profile
    part = Part(name="few", weight=1.0, profile=type(profile)(**{**vars(profile), "evidence": few.count()}), trace=few)
    (settled,) = settled_search(Problem(batches=(1,)), Traffic(parts=(part,)), rising())
    largest = settled.choice.runner_up
    assert largest is not None
    assert settled.choice.best.nodes < largest.option.nodes
    assert -0.02 <= largest.loss < 0.0


@pytest.mark.parametrize(("loss", "nodes"), [(0.019, 1), (0.021, 2)])
def test_a_tie_goes_to_the_smaller_tree_within_2_percent(
    shipped: Traffic, monkeypatch: pytest.MonkeyPatch, loss: float, nodes: int
) -> None:
    """One guess or none: a step with the guess takes (1 + f) (1 - loss), so drafting nothing loses just that."""
    monkeypatch.setattr(fixed_point, "paired_gain", lambda *_, **__: Interval(-1.0, 1.0))  # nothing can be told apart
    one = DraftTree.chain(1)
    with_guess_s = expected_tokens(path_probabilities(shipped.model_under(one), one)) * (1.0 - loss)

    cost = FakeCost(table=np.array([[np.nan] * 3, [np.nan, 1.0, with_guess_s]]))
    (settled,) = settled_search(Problem(batches=(1,), limits=Limits(max_nodes=2)), shipped, cost)
    assert settled.choice.best.nodes == nodes


def test_each_category_is_told_what_the_common_tree_costs_it() -> None:
    sure, unsure = table([[0.9, 0.05]] * 3), table([[0.3, 0.3]] * 3)
    parts = tuple(
        Part(name=n, weight=w, profile=p.profile) for n, w, p in (("code", 0.25, sure), ("chat", 0.75, unsure))
    )
    evidence = Traffic(parts=parts)
    assert isinstance(evidence.all_positions, Mixture)
    (settled,) = settled_search(Problem(batches=(2,)), evidence, rising())
    code, chat = settled.categories
    for category, part in ((code, parts[0]), (chat, parts[1])):
        model = part.profile.model()
        assert category.acceptance_length == pytest.approx(
            expected_tokens(path_probabilities(model, settled.choice.tree))
        )
        (own,) = search(Problem(batches=(2,)), model, rising())
        common = 2 * category.acceptance_length / settled.choice.best.step_time_s
        assert category.loss == pytest.approx(max(1.0 - common / own.best.tokens_per_s, 0.0))
    mean = 0.25 * code.acceptance_length + 0.75 * chat.acceptance_length
    assert settled.choice.best.expected_tokens == pytest.approx(mean)


def test_held_out_documents_take_no_part_in_the_search(shipped: Traffic) -> None:
    here, there = shipped.split(0.25, seed=1)
    first, second = here.parts[0].trace, there.parts[0].trace
    assert first is not None
    assert second is not None
    assert (first.documents, second.documents) == (120, 40)
    assert not set(first.doc_id.tolist()) & set(second.doc_id.tolist())
    (settled,) = settled_search(Problem(batches=(8,)), here, rising())
    tokens, interval = held_out_tokens(settled.choice.tree, there)
    assert tokens == pytest.approx(replay(second, settled.choice.tree).tokens_per_step)
    assert interval is not None
    assert interval.low < tokens < interval.high


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan"), 0.001])
def test_shares_that_hold_nothing_out(shipped: Traffic, share: float) -> None:
    with pytest.raises(InputError):
        shipped.split(share, seed=0)
    with pytest.raises(InputError, match="no documents"):
        Traffic(parts=(table([[0.5]]),)).split(0.5, seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("example=0.5,example=0.6", "sum to 1.1"),
        ("example=x,example=0.5", "not a share"),
        ("example=0,example=1", "not a share"),
        ("=1", "not a share"),
        ("exmaple=1", "unknown rank profile"),
    ],
)
def test_mixtures_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_traffic(text)


def test_a_range_whose_ends_want_different_trees_says_what_sharing_costs() -> None:
    evidence = Traffic(parts=(table([[0.7, 0.15]] * 6),))
    question = Problem(batches=(2, 64))
    first, wide = settled_search(question, evidence, rising())
    assert (wide.choice.batch_min, wide.choice.batch_max) == (3, 64)
    losses = []
    for batch in (3, 64):
        (alone,) = search(Problem(batches=(batch,)), evidence.all_positions, rising())
        ours = price_tree(wide.choice.tree, evidence.all_positions, rising(), batch=batch, context=2048)
        best = max(alone.best.tokens_per_s, alone.runner_up.option.tokens_per_s if alone.runner_up else 0.0)
        losses.append(1.0 - ours.tokens_per_s / best)
    assert wide.choice.sharing_loss == pytest.approx(max(losses), abs=1e-9)
    assert first.choice.sharing_loss <= 0.005


def test_the_loss_of_a_range_holds_at_draft_starts(shipped: Traffic) -> None:
    question = Problem(batches=(2, 32))
    _, wide = settled_search(question, shipped, rising())
    for batch in (3, 32):
        (alone,) = settled_search(Problem(batches=(batch,)), shipped, rising())
        tree = wide.choice.tree
        ours = price_tree(tree, shipped.model_under(tree), rising(), batch=batch, context=2048)
        assert ours.tokens_per_s >= alone.choice.best.tokens_per_s * (1.0 - wide.choice.sharing_loss - 0.001)


def test_a_tie_within_a_range_is_no_reason_to_lose_more_than_was_asked_for(shipped: Traffic) -> None:
    def settle(max_loss: float) -> tuple[int, float]:
        question = Problem(batches=(2, 4), sharing=Sharing(max_loss=max_loss, max_trees=1))
        (settled,) = settled_search(question, shipped, rising(token_s=0.001))
        return settled.choice.best.nodes, settled.choice.sharing_loss

    strict, loose = settle(0.0), settle(0.05)
    assert strict[0] > loose[0]
    assert strict[1] < loose[1] < 0.05


@pytest.mark.parametrize(("token_s", "allowed"), [(0.03, 0.001), (0.03, 0.01), (0.001, 0.005), (0.01, 0.01)])
@pytest.mark.parametrize("batches", [(1, 2, 3, 4, 6, 8, 12, 16), (4, 6, 8, 12, 16, 24, 32)])
def test_no_bucket_that_can_be_divided_loses_more_than_was_allowed(
    shipped: Traffic, batches: tuple[int, ...], token_s: float, allowed: float
) -> None:
    question = Problem(batches=batches, sharing=Sharing(max_loss=allowed), limits=Limits(max_nodes=32))
    settled = settled_search(question, shipped, rising(token_s))
    assert [b for s in settled for b in s.question.batches] == list(batches)
    assert all(s.choice.sharing_loss <= allowed for s in settled if len(s.question.batches) > 1)
    two = replace(question, sharing=Sharing(max_loss=allowed, max_trees=2))
    assert len(settled_search(two, shipped, rising(token_s))) == 2


def test_the_time_per_token_is_that_of_the_settled_tree(shipped: Traffic) -> None:
    latency = TimeLimit(output_tokens=100)
    (settled,) = settled_search(Problem(batches=(8,), time_limit=latency), shipped, rising())
    choice = settled.choice
    assert settled.time_per_token.mean_s == pytest.approx(choice.best.step_time_s / choice.best.expected_tokens)
    steps = steps_needed(exact_lengths(choice.tree, choice.path_probabilities)[None], 100)[0]
    assert settled.time_per_token.p99_s == pytest.approx(steps * choice.best.step_time_s / 100)
    assert choice.meets_limit
    replayed = shipped.replays(choice.tree)[0]
    waits = sorted(replayed.steps / replayed.tokens * choice.best.step_time_s)
    assert settled.time_per_token.documents_p99_s is not None
    assert waits[-3] <= settled.time_per_token.documents_p99_s <= waits[-1]  # 160 documents
    assert settled.time_per_token.documents_p99_s > settled.time_per_token.p99_s
    tight = TimeLimit(max_p99_s=0.9 * settled.time_per_token.p99_s, output_tokens=100)
    (over,) = settled_search(Problem(batches=(8,), time_limit=tight), shipped, rising())
    assert not over.choice.meets_limit


def test_a_range_of_contexts_says_what_sharing_costs(shipped: Traffic) -> None:
    cost = rising(context_s=1e-5)
    question = Problem(batches=(8,), context=30_000, first_context=0)
    (settled,) = settled_search(question, shipped, cost)
    tree = settled.choice.tree
    for context in (0, 30_000):
        (alone,) = settled_search(Problem(batches=(8,), context=context), shipped, cost)
        ours = price_tree(tree, shipped.model_under(tree), cost, batch=8, context=context)
        assert ours.tokens_per_s >= alone.choice.best.tokens_per_s * (1.0 - settled.choice.sharing_loss - 0.001)
    assert settled.choice.best.step_time_s == pytest.approx(
        price_tree(tree, shipped.model_under(tree), cost, batch=8, context=30_000).step_time_s
    )

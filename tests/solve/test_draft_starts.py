from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traces import trace_of

import treeopt.solve.search as searching
from treeopt.acceptance.intervals import Interval
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.mixture import Mixture
from treeopt.acceptance.model import exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.replay import replay
from treeopt.acceptance.table import DepthRanks
from treeopt.acceptance.traffic import Part, Traffic
from treeopt.draft_family import ANY_TREE, Chains, DraftFamily
from treeopt.errors import InputError, SearchError
from treeopt.files.shipped import locate
from treeopt.planner.traffic_input import load_traffic
from treeopt.solve.best_trees import best_trees
from treeopt.solve.buckets import Sharing
from treeopt.solve.choose import paired_gain
from treeopt.solve.price import price
from treeopt.solve.problem import TIE, Limits, Point, Problem
from treeopt.solve.report import held_out_length
from treeopt.solve.search import search
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
    (settled,) = search(Problem(batches=(8,)), shipped, rising())
    trace = shipped.parts[0].trace
    assert trace is not None
    replayed = replay(trace, settled.tree)
    assert settled.acceptance_length.value == pytest.approx(replayed.tokens_per_step, rel=0.005)
    assert replayed.tokens_per_step < replayed.all_position_tokens  # what the correction is for
    assert settled.acceptance_length.low is not None
    assert settled.acceptance_length.high is not None
    assert settled.acceptance_length.low < replayed.tokens_per_step < settled.acceptance_length.high


def test_counts_without_a_trace_stay_as_measured() -> None:
    evidence = Traffic(parts=(table([[0.6, 0.2], [0.5, 0.2]], [1000.0, 800.0]),))
    (settled,) = search(Problem(batches=(8,)), evidence, rising())
    (plain,) = search(Problem(batches=(8,)), evidence, rising())
    assert settled.tree == plain.tree
    assert settled.acceptance_length.low is not None
    assert settled.acceptance_length.high is not None
    assert settled.acceptance_length.low < plain.acceptance_length.value < settled.acceptance_length.high
    (rates,) = search(Problem(batches=(8,)), Traffic(parts=(table([[0.6, 0.2]]),)), rising())
    assert rates.acceptance_length.low is None


def test_trees_that_the_trace_cannot_tell_apart_go_to_the_smallest(shipped: Traffic) -> None:
    trace = shipped.parts[0].trace
    assert trace is not None
    few = trace.select(np.arange(trace.documents) < 12)
    profile = shipped.parts[0].profile
    part = Part(name="few", weight=1.0, profile=type(profile)(**{**vars(profile), "evidence": few.count()}), trace=few)
    (settled,) = search(Problem(batches=(1,)), Traffic(parts=(part,)), rising())
    largest = settled.runner_up
    assert largest is not None
    assert settled.nodes < largest.nodes
    assert -0.02 <= settled.loss_of(largest) < 0.0


@pytest.mark.parametrize(("loss", "nodes"), [(0.019, 1), (0.021, 2)])
def test_a_tie_goes_to_the_smaller_tree_within_2_percent(
    shipped: Traffic, monkeypatch: pytest.MonkeyPatch, loss: float, nodes: int
) -> None:
    """One guess or none: a step with the guess takes (1 + f) (1 - loss), so drafting nothing loses just that."""
    monkeypatch.setattr(searching, "paired_gain", lambda *_, **__: Interval(-1.0, 1.0))  # nothing can be told apart
    one = DraftTree.chain(1)
    with_guess_s = expected_tokens(path_probabilities(shipped.model_under(one), one)) * (1.0 - loss)

    cost = FakeCost(table=np.array([[np.nan] * 3, [np.nan, 1.0, with_guess_s]]))
    (settled,) = search(Problem(batches=(1,), limits=Limits(max_nodes=2)), shipped, cost)
    assert settled.nodes == nodes


def test_each_category_is_told_what_the_common_tree_costs_it() -> None:
    sure, unsure = table([[0.9, 0.05]] * 3), table([[0.3, 0.3]] * 3)
    parts = tuple(
        Part(name=n, weight=w, profile=p.profile) for n, w, p in (("code", 0.25, sure), ("chat", 0.75, unsure))
    )
    evidence = Traffic(parts=parts)
    assert isinstance(evidence.all_positions, Mixture)
    (settled,) = search(Problem(batches=(2,)), evidence, rising())
    code, chat = settled.categories
    for category, part in ((code, parts[0]), (chat, parts[1])):
        model = part.profile.model()
        assert category.acceptance_length == pytest.approx(expected_tokens(path_probabilities(model, settled.tree)))
        (own,) = search(Problem(batches=(2,)), Traffic(parts=(replace(part, weight=1.0),)), rising())
        common = 2 * category.acceptance_length / settled.step_time_s
        assert category.loss == pytest.approx(max(1.0 - common / own.tokens_per_s.value, 0.0))
    mean = 0.25 * code.acceptance_length + 0.75 * chat.acceptance_length
    assert settled.acceptance_length.value == pytest.approx(mean)


def test_held_out_documents_take_no_part_in_the_search(shipped: Traffic) -> None:
    here, there = shipped.split(0.25, seed=1)
    first, second = here.parts[0].trace, there.parts[0].trace
    assert first is not None
    assert second is not None
    assert (first.documents, second.documents) == (120, 40)
    assert not set(first.doc_id.tolist()) & set(second.doc_id.tolist())
    (settled,) = search(Problem(batches=(8,)), here, rising())
    told = held_out_length(settled.tree, there)
    assert told.value == pytest.approx(replay(second, settled.tree).tokens_per_step)
    assert told.low is not None
    assert told.high is not None
    assert told.low < told.value < told.high


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
    question = Problem(batches=(2, 64), only_listed=True)
    first, wide = search(question, evidence, rising())
    assert (wide.batch.min, wide.batch.max) == (3, 64)
    losses = []
    for batch in (3, 64):
        (alone,) = search(Problem(batches=(batch,)), evidence, rising())
        ours = price(wide.tree, evidence, rising(), Point(batch, 2048))
        best = max(alone.tokens_per_s.value, alone.runner_up.tokens_per_s.value if alone.runner_up else 0.0)
        losses.append(1.0 - ours.tokens_per_s.value / best)
    assert wide.sharing_loss == pytest.approx(max(losses), abs=1e-9)
    assert first.sharing_loss <= 0.005


def test_the_loss_of_a_range_holds_at_draft_starts(shipped: Traffic) -> None:
    question = Problem(batches=(2, 32), only_listed=True)
    _, wide = search(question, shipped, rising())
    for batch in (3, 32):
        (alone,) = search(Problem(batches=(batch,)), shipped, rising())
        tree = wide.tree
        ours = price(tree, shipped, rising(), Point(batch, 2048))
        assert ours.tokens_per_s.value >= alone.tokens_per_s.value * (1.0 - wide.sharing_loss - 0.001)


def test_a_tie_within_a_range_is_no_reason_to_lose_more_than_was_asked_for(shipped: Traffic) -> None:
    def settle(max_loss: float) -> tuple[int, float]:
        question = Problem(batches=(2, 4), only_listed=True, sharing=Sharing(max_loss=max_loss, max_trees=1))
        (settled,) = search(question, shipped, rising(token_s=0.001))
        return settled.nodes, settled.sharing_loss

    strict, loose = settle(0.0), settle(0.05)
    assert strict[0] > loose[0]
    assert strict[1] < loose[1] < 0.05


@pytest.mark.parametrize(("token_s", "allowed"), [(0.03, 0.001), (0.03, 0.01), (0.001, 0.005), (0.01, 0.01)])
@pytest.mark.parametrize("batches", [(1, 2, 3, 4, 6, 8, 12, 16), (4, 6, 8, 12, 16, 24, 32)])
def test_no_bucket_that_can_be_divided_loses_more_than_was_allowed(
    shipped: Traffic, batches: tuple[int, ...], token_s: float, allowed: float
) -> None:
    limits = Limits(max_nodes=32)
    question = Problem(batches=batches, sharing=Sharing(max_loss=allowed), limits=limits, only_listed=True)
    settled = search(question, shipped, rising(token_s))
    assert [at.batch for s in settled for at in s.by_batch] == list(batches)
    assert all(s.changes_loss <= allowed + 1e-9 for s in settled)
    two = replace(question, sharing=Sharing(max_loss=allowed, max_trees=2))
    assert len(search(two, shipped, rising(token_s))) == 2


def test_the_time_per_token_is_that_of_the_settled_tree(shipped: Traffic) -> None:
    latency = TimeLimit(output_tokens=100)
    (settled,) = search(Problem(batches=(8,), time_limit=latency), shipped, rising())
    choice = settled
    assert settled.time_per_token.mean_s == pytest.approx(choice.step_time_s / choice.acceptance_length.value)
    steps = steps_needed(exact_lengths(choice.tree, choice.path_probabilities)[None], 100)[0]
    assert settled.time_per_token.p99_s == pytest.approx(steps * choice.step_time_s / 100)
    assert choice.meets_limit is None  # none was asked
    replayed = shipped.replays(choice.tree)[0]
    waits = sorted(replayed.steps / replayed.tokens * choice.step_time_s)
    assert settled.time_per_token.documents_p99_s is not None
    assert waits[-3] <= settled.time_per_token.documents_p99_s <= waits[-1]  # 160 documents
    assert settled.time_per_token.documents_p99_s > settled.time_per_token.p99_s
    tight = TimeLimit(max_p99_s=0.9 * settled.time_per_token.p99_s, output_tokens=100)
    with pytest.raises(SearchError, match="the fastest takes"):
        search(Problem(batches=(8,), time_limit=tight), shipped, rising())


def test_a_range_of_contexts_says_what_sharing_costs(shipped: Traffic) -> None:
    cost = rising(context_s=1e-5)
    question = Problem(batches=(8,), context=30_000, first_context=0)
    (settled,) = search(question, shipped, cost)
    tree = settled.tree
    for context in (0, 30_000):
        (alone,) = search(Problem(batches=(8,), context=context), shipped, cost)
        ours = price(tree, shipped, cost, Point(8, context))
        assert ours.tokens_per_s.value >= alone.tokens_per_s.value * (1.0 - settled.sharing_loss - 0.001)
    assert settled.step_time_s == pytest.approx(price(tree, shipped, cost, Point(8, 30_000)).step_time_s)


def strong(seed: int, documents: int = 12) -> Traffic:
    """A trace whose drafts are right for long at some places and wrong for long at others, as prompt lookup's are."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(documents):
        easy, found = bool(rng.integers(2)), []
        for _ in range(120):
            easy = easy if rng.random() < 0.85 else not easy
            right = rng.random((4,)) < (0.92 if easy else 0.15)
            found.append(np.where(right, 0, rng.integers(-1, 3, size=4)))
        rows.append(np.array(found))
    trace = trace_of(rows)
    profile = RankProfile(
        name="strong", evidence=trace.count(), conditions=Conditions(), sha256="0" * 64, documents=documents
    )
    return Traffic(parts=(Part(name="strong", weight=1.0, profile=profile, trace=trace),))


def random_cost(rng: np.random.Generator) -> FakeCost:
    stair = int(rng.integers(1, 20))
    return FakeCost(step_s=1.0, token_s=rng.uniform(0, 0.02), stair=stair, stair_s=rng.uniform(0, 0.2), pass_s=0.03)


def drafts_of(family: DraftFamily, traffic: Traffic, rng: np.random.Generator) -> list[DraftTree]:
    """All chains, the best trees of every size under several drafts' starts, and some random ones."""
    found = [DraftTree.chain(k) for k in range(5)]
    if isinstance(family, Chains):
        return found
    for start in (None, DraftTree.chain(1), DraftTree.chain(4), DraftTree.from_widths([3, 1])):
        trees = best_trees(traffic.model_under(start), Limits(max_nodes=16))
        found += [own.tree(n) for own in trees for n in range(2, len(own.expected_tokens) + 1)]
    paths = [p for d in range(1, 5) for p in product(range(3), repeat=d)]
    for _ in range(20):
        kept: set[tuple[int, ...]] = set()
        for path in paths:
            if rng.random() < 0.3 and (len(path) == 1 or path[:-1] in kept) and len(kept) < 15:
                kept.add(path)
        found.append(DraftTree(tuple(kept)))
    return found


# The same examples every time: lists and neighbours find the best of chains, and of trees nearly always.
@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([ANY_TREE, Chains(may_be_off=True)]), st.booleans())
@example(3, ANY_TREE, True)
def test_no_draft_of_the_family_beats_the_answer_beyond_its_interval(
    seed: int, family: DraftFamily, several: bool
) -> None:
    """Each rival at its own draft starts; what a plan gives up for fewer changes is stated for every batch size."""
    rng = np.random.default_rng(seed)
    traffic, cost = strong(seed), random_cost(rng)
    batches = (1, 3, 8, 20) if several else (int(rng.integers(1, 30)),)
    problem = Problem(batches=batches, family=family, limits=Limits(max_nodes=16))
    rivals = drafts_of(family, traffic, rng)
    for bucket in search(problem, traffic, cost):
        if not several:
            assert bucket.changes_loss == 0.0
        for at in bucket.by_batch:
            point = Point(at.batch, problem.context)
            ours = price(bucket.draft, traffic, cost, point)
            assert at.tokens_per_s == pytest.approx(ours.tokens_per_s.value)
            for draft in rivals:
                theirs = price(draft, traffic, cost, point)
                gain = 1.0 - ours.tokens_per_s.value / theirs.tokens_per_s.value
                if gain > max(at.loss, TIE) + 1e-9:  # documents are redrawn only where they decide
                    interval = paired_gain(draft, theirs.step_time_s, bucket.draft, ours.step_time_s, traffic)
                    assert interval is not None
                    assert interval.low <= at.loss, (draft, gain, at.loss)


def test_a_tree_that_no_list_holds() -> None:
    """One leaf less than what the lists bring gives 1 % more: the winner's neighbours are replayed too."""
    beats = test_no_draft_of_the_family_beats_the_answer_beyond_its_interval.hypothesis.inner_test  # type: ignore[attr-defined]
    beats(1296, ANY_TREE, True)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_chain_is_the_best_at_its_own_starts(seed: int) -> None:
    traffic, cost = strong(seed), random_cost(np.random.default_rng(seed))
    (bucket,) = search(Problem(batches=(6,)), traffic, cost)
    chains = [price(DraftTree.chain(k), traffic, cost, Point(6, 2048)) for k in range(1, 5)]
    assert not bucket.optimality.exact  # trees are listed, and one that no list holds may be better
    assert bucket.optimality.listed_only
    assert bucket.best_chain is not None
    assert bucket.best_chain.tokens_per_s.value == pytest.approx(max(c.tokens_per_s.value for c in chains))
    (only,) = search(Problem(batches=(6,), family=Chains()), traffic, cost)
    assert only.optimality == (True, 0.0, False)


def test_the_order_of_a_mixture_changes_no_interval() -> None:
    parts = [replace(strong(seed).parts[0], name=str(seed), weight=w) for seed, w in ((1, 0.2), (2, 0.3), (3, 0.5))]
    parts = [replace(p, profile=replace(p.profile, sha256=str(i) * 64)) for i, p in enumerate(parts)]
    draft = DraftTree(((0,), (1,), (0, 0)))
    there, back = Traffic(parts=tuple(parts)), Traffic(parts=tuple(reversed(parts)))
    assert there.drawn_tokens(draft, 0).tolist() == back.drawn_tokens(draft, 0).tolist()

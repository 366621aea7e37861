from __future__ import annotations

import pytest
from decode.models import BUSHY, toy, written_plainly

from treeopt.tree import DraftTree

pytest.importorskip("torch", reason="decoding needs torch")

from bench.world import STEP_S, TOKEN_S, lanes, random_prompts, subject_of

from treeopt.bench.runs import RunPlan, run_side_by_side

WAYS = (DraftTree(()), DraftTree.chain(3), BUSHY)


def test_every_way_writes_the_same_texts_and_every_token_is_counted_once() -> None:
    prompts = random_prompts(5)
    subject = subject_of(prompts, tokens=16)
    passes = run_side_by_side(subject, lanes(WAYS, 2))
    expected = tuple(tuple(written_plainly(toy(7), list(prompt), 16)) for prompt in prompts)
    for own in passes:
        assert own.written == expected
        # Every token but the first of each text comes from a step.
        assert sum(entry.emitted for step in own.steps for entry in step.entries) == 5 * 15
        for request in range(5):
            entries = [entry for step in own.steps for entry in step.entries if entry.request == request]
            written = 1
            for entry in entries:
                assert entry.written == written
                written += entry.emitted


def test_full_steps_take_the_price_of_the_whole_batch_and_tree() -> None:
    for own in run_side_by_side(subject_of(random_prompts(4), tokens=20), lanes(WAYS, 2)):
        full = [step for step in own.steps if step.full]
        assert len(full) > 0
        assert len(full) < len(own.steps) or len(own.tree) == 1  # at the end of texts trees are pruned
        for step in full:
            assert step.time_s == pytest.approx(STEP_S + TOKEN_S * 2 * len(own.tree), rel=1e-9)


def test_the_way_that_is_behind_goes_first() -> None:
    """No way is ever further ahead than one step's tokens, so all are measured at the same time and context."""
    prompts, batch = random_prompts(4), 2
    told: list[int] = []
    subject = subject_of(prompts, tokens=24)
    passes = run_side_by_side(subject, lanes(WAYS, batch), advance=told.append)
    assert sum(told) == sum(own.tokens for own in passes) == 3 * 4 * 24
    most = batch * (BUSHY.depth + 1)
    for share in (0.25, 0.5, 0.75):
        end = share * passes[0].tokens
        reached = [max(step.progress for step in own.steps if step.progress <= end) for own in passes]
        assert max(reached) - min(reached) <= most


def test_contexts_are_the_committed_tokens() -> None:
    prompts = [(1, 2, 3), (4, 5, 6, 7, 8)]
    (plain,) = run_side_by_side(subject_of(prompts, tokens=4), [RunPlan(DraftTree(()), 2)], warm_up=0)
    # The root, token 1 of each text, is not committed yet: 3 and 5 tokens are.
    assert [step.context for step in plain.steps] == [4.0, 5.0, 6.0]


def test_a_batch_larger_than_the_prompts_takes_them_again() -> None:
    subject = subject_of([(1, 2), (3, 4), (5,)], tokens=6)
    (plain,) = run_side_by_side(subject, [RunPlan(DraftTree(()), 4)])
    assert len(plain.written) == 4
    assert plain.written[3] == plain.written[0]
    assert [subject.document(request) for request in range(4)] == [0, 1, 2, 0]

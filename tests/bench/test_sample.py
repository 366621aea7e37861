from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decode.models import BUSHY, noisy, toy

from treeopt.tree import DraftTree

pytest.importorskip("torch", reason="decoding needs torch")

from bench.world import STEP_S, TOKEN_S, lanes, random_prompts, subject_of

from treeopt.acceptance.replay import accepted_lengths
from treeopt.bench.runs import Run, StepEntry, TimedStep, run_side_by_side
from treeopt.bench.sample import draw_all, take_samples
from treeopt.collect.record import DecodedText, record_trace
from treeopt.decode.rules import rule_named
from treeopt.errors import InputError

WAYS = (DraftTree(()), DraftTree.chain(2), BUSHY)


def test_tokens_per_step_are_those_of_the_recorded_ranks() -> None:
    """The same drafts followed by hand through the recorded ranks, from the first token of each text on."""
    prompts = random_prompts(6, seed=3)
    subject = subject_of(prompts, tokens=24)
    passes = run_side_by_side(subject, lanes(WAYS, 3))
    samples = take_samples([passes], subject, batch=3)
    texts = [DecodedText(prompt, written) for prompt, written in zip(prompts, passes[0].written, strict=True)]
    trace = record_trace(texts, noisy(toy(7), scale=0.5), rule=rule_named("greedy"), depth=BUSHY.depth)
    for tree, sample in zip(WAYS, samples, strict=True):
        accepted = accepted_lengths(trace.rank, tree)
        tokens = steps = 0
        for document in range(6):
            own = accepted[trace.document == document]
            at = 0  # token `at` is the root; tokens at + 1 .. at + depth must lie before the last one
            while at + 1 + BUSHY.depth < len(own):
                tokens, steps, at = tokens + int(own[at]) + 1, steps + 1, at + int(own[at]) + 1
        assert (sample.replay.tokens.sum(), sample.replay.steps.sum()) == (tokens, steps)
    assert samples[0].tokens_per_step == 1.0 < samples[1].tokens_per_step < samples[2].tokens_per_step


def test_tokens_per_s_are_batch_times_tokens_over_the_step() -> None:
    subject = subject_of(random_prompts(6), tokens=24)
    passes = run_side_by_side(subject, lanes(WAYS, 3))
    for own, sample in zip(passes, take_samples([passes], subject, batch=3), strict=True):
        assert sample.step_time_s == pytest.approx(STEP_S + TOKEN_S * 3 * len(own.tree), rel=1e-9)
        assert sample.tokens_per_s == pytest.approx(3 * sample.tokens_per_step / sample.step_time_s)
        assert sample.full_steps == sum(step.full for step in own.steps)


def test_repeats_add_blocks_and_change_no_tokens_per_step() -> None:
    subject = subject_of(random_prompts(6), tokens=24)
    passes = [run_side_by_side(subject, lanes(WAYS, 2)) for _ in range(3)]
    once, thrice = (take_samples(passes[:n], subject, batch=2) for n in (1, 3))
    for one, three in zip(once, thrice, strict=True):
        assert len(three.block_times_s) == 3 * len(one.block_times_s)
        assert three.tokens_per_step == one.tokens_per_step


def slowed(own: Run, slow: range) -> Run:
    """Steps at some places of the texts take ten times as long: another job ran on the machine."""
    steps = [dataclasses.replace(s, time_s=s.time_s * (10.0 if s.progress in slow else 1.0)) for s in own.steps]
    return dataclasses.replace(own, steps=tuple(steps))


def test_a_slow_spell_hits_all_ways_alike_and_moves_no_median() -> None:
    subject = subject_of(random_prompts(4), tokens=40)
    passes = run_side_by_side(subject, lanes(WAYS, 2))
    calm = take_samples([passes], subject, batch=2)
    busy = take_samples([[slowed(own, range(60, 110)) for own in passes]], subject, batch=2)
    slow_blocks = [np.flatnonzero(sample.block_times_s > 5 * sample.step_time_s) for sample in busy]
    assert len(slow_blocks[0]) > 0
    for before, after in zip(calm, busy, strict=True):
        assert after.step_time_s == pytest.approx(before.step_time_s)
    # Two ways that took the same times see the same redraws: their ratio has no noise.
    first, second = draw_all([busy[1], busy[1]], seed=0)
    assert (first.step_time_s == second.step_time_s).all()
    assert (first.tokens == second.tokens).all()
    assert len(np.unique(first.step_time_s)) > 1


def steps_of(rng: np.random.Generator, documents: int, rates: np.ndarray) -> Run:
    """A way whose document d emits 2 tokens with its own probability, else 1, for 30 tokens."""
    steps, written = [], []
    progress = 0
    for document in range(documents):
        length = 1
        while length < 30:
            emitted = 1 + int(rng.random() < rates[document])
            entry = StepEntry(document, length, emitted)
            time_s = float(rng.lognormal(-3.0, 0.2))
            steps.append(TimedStep(time_s=time_s, full=True, progress=progress, context=1.0, entries=(entry,)))
            length, progress = length + emitted, progress + emitted
        written.append((0,) * length)
    return Run(tree=DraftTree.chain(1), steps=tuple(steps), written=tuple(written))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """E of documents with rates r is 1 / mean(1 / (1 + r)), as every text has as many tokens."""
    rng = np.random.default_rng(5)
    population = rng.beta(2.0, 2.0, 100_000)
    truth = 1.0 / np.mean(1.0 / (1.0 + population))
    subject = subject_of(random_prompts(16))
    covered = {"tokens": 0, "time": 0}
    rounds = 100
    for _ in range(rounds):
        own = steps_of(rng, 16, rng.choice(population, 16))
        (sample,) = take_samples([[own]], subject, batch=1)
        (drawn,) = draw_all([sample], seed=1)
        tokens = sample.estimate(sample.tokens_per_step, drawn.tokens)
        time_s = sample.estimate(sample.step_time_s, drawn.step_time_s)
        assert tokens.low is not None
        assert tokens.high is not None
        assert time_s.low is not None
        assert time_s.high is not None
        covered["tokens"] += tokens.low <= truth <= tokens.high
        covered["time"] += bool(time_s.low <= np.exp(-3.0) <= time_s.high)
    assert 0.88 * rounds <= covered["tokens"] <= rounds
    assert 0.88 * rounds <= covered["time"] <= rounds


def test_texts_that_end_too_soon_are_refused() -> None:
    subject = subject_of(random_prompts(2), tokens=4)
    passes = run_side_by_side(subject, lanes([DraftTree(()), BUSHY], 2))
    with pytest.raises(InputError, match="the texts end before a step is measured"):
        take_samples([passes], subject, batch=2)

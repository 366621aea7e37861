from __future__ import annotations

import numpy as np
import pytest
from decode.models import BUSHY, noisy, toy, written_plainly

from treeopt.decode.decoder import Decoding
from treeopt.decode.reports import StepReport
from treeopt.decode.run import run_each
from treeopt.tree import DraftTree

pytest.importorskip("torch", reason="decoding needs torch")

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [3, 3, 3], [2, 2]]
WAYS = {"plain": DraftTree(()), "chain": DraftTree.chain(3), "tree": BUSHY}


def test_every_way_writes_the_same_and_counts_its_steps() -> None:
    target = toy(7)
    seen: list[tuple[str, StepReport]] = []
    runs = run_each(
        target,
        noisy(target, scale=0.5),
        PROMPTS,
        WAYS,
        batch=2,
        decoding=Decoding(max_new_tokens=16),
        advance=lambda name, report: seen.append((name, report)),
    )
    expected = tuple(tuple(written_plainly(target, prompt, 16)) for prompt in PROMPTS)
    assert [run.name for run in runs] == ["plain", "chain", "tree"]
    assert all(run.written == expected for run in runs)
    assert [run.steps for run in runs] == [tuple(report for name, report in seen if name == run.name) for run in runs]
    plain, chain, tree = runs
    assert plain.tokens_per_step == 1.0
    assert 1.0 < chain.tokens_per_step < 4.0
    assert chain.tokens_per_step < tree.tokens_per_step
    for run in runs:
        assert {step.nodes for step in run.full_steps} == {(len(run.tree),) * 2}
        tokens = sum(len(e) for step in run.full_steps for e in step.emitted)
        assert run.tokens_per_step == pytest.approx(tokens / len(run.full_steps) / 2)
        assert run.tokens_per_s == pytest.approx(tokens / run.step_times_s.sum())
        assert run.step_time_s == np.median([step.times.total_s for step in run.full_steps])
        assert (run.step_times_s > 0).all()
    # Every token but the first of each text comes from a step.
    assert [sum(len(e) for step in run.steps for e in step.emitted) for run in runs] == [5 * 15] * 3


def test_a_batch_that_is_never_full_has_no_numbers() -> None:
    target = toy(7)
    (run,) = run_each(target, noisy(target), [[1]], {"tree": BUSHY}, batch=2, decoding=Decoding(max_new_tokens=4))
    assert run.full_steps == ()
    assert np.isnan([run.tokens_per_step, run.step_time_s, run.tokens_per_s]).all()

"""Engine constants: recovered where they are known, chosen by held-out batches, refused on too little."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from costs import FakeCost
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import needs_shared
from smooth_h100 import CONTEXT, SmoothH100, vllm_rows

from treeopt.cost.fit.engine_steps import CONSTANTS, MIN_ROWS, fit_engine_steps
from treeopt.cost.served.step import ServedStep
from treeopt.errors import FileFormatError, InputError
from treeopt.files.evidence_lines import Line

BATCHES, KS = (1, 16, 32, 64), (0, 1, 3, 5, 7)
# 5 ms of weights, 2 us per token, 0.5 ms per drafter pass.
KERNELS = FakeCost(step_s=5e-3, token_s=2e-6, pass_s=0.5e-3)


def served(time_s: Callable[[int, int], float], batches: Iterable[int] = BATCHES, ks: Iterable[int] = KS):
    return [
        ServedStep(
            batch=batch,
            nodes=K + 1,
            depth=K,
            widths=(1,) * K,
            step_time_s=time_s(batch, K),
            place=Line(name="steps.csv", number=i, text="", complete=True),
        )
        for i, (batch, K) in enumerate(((b, k) for b in batches for k in ks), start=2)
    ]


def kernels_s(batch: int, K: int) -> float:
    return 5e-3 + 2e-6 * batch * (K + 1) + 0.5e-3 * K


def with_constants(step: float, token: float, speculative: float, draft: float, request: float = 0.0):
    return lambda b, K: kernels_s(b, K) + step + token * b * (K + 1) + (speculative + request * b) * (K > 0) + draft * K


@settings(max_examples=20)
@given(st.tuples(*[st.floats(min_value=1e-5, max_value=2e-3)] * 3), st.floats(min_value=1e-6, max_value=2e-5))
def test_known_constants_come_back(extra: tuple[float, float, float], token: float) -> None:
    rows = served(with_constants(1e-3, token, *extra))
    fit = fit_engine_steps(rows, KERNELS, context=300)
    assert fit.held_out.max < 1e-6 or len(fit.chosen.constants) < len(CONSTANTS)
    assert fit.candidates[-1].held_out.max < 1e-6
    if fit.chosen.constants == CONSTANTS:
        assert fit.values == pytest.approx((1e-3, token, *extra), rel=1e-4)


def test_a_complete_kernel_model_needs_no_constants() -> None:
    fit = fit_engine_steps(served(kernels_s), KERNELS, context=300)
    assert fit.chosen.constants == ()
    assert set(fit.values) == {0.0}


def test_constants_that_only_follow_noise_are_left_out() -> None:
    noise = np.random.default_rng(5).normal(0.0, 0.02, size=(65, 8))
    rows = served(lambda b, K: (kernels_s(b, K) + 1e-3) * (1.0 + noise[b, K]))
    fit = fit_engine_steps(rows, KERNELS, context=300)
    assert len(fit.chosen.constants) <= 2
    assert fit.step_s == pytest.approx(1e-3, rel=0.3)
    # 2 % of noise: nothing can predict a left-out step better than about 1.6 % on average.
    assert 0.01 < fit.held_out.mean < 0.025


def test_held_out_errors_are_those_of_fits_without_the_batch_size() -> None:
    """The second way: least squares by hand for one constant, one batch size left out at a time."""
    rows = served(lambda b, K: kernels_s(b, K) + 1e-3 + 4e-6 * b)
    fit = fit_engine_steps(rows, KERNELS, context=300)
    errors = []
    for batch in BATCHES:
        inside = [row for row in rows if row.batch != batch]
        weights = np.array([1.0 / row.step_time_s for row in inside])
        missing = np.array([row.step_time_s - kernels_s(row.batch, row.depth) for row in inside]) * weights
        constant = float(weights @ missing / (weights @ weights))
        errors += [
            abs((kernels_s(row.batch, row.depth) + constant) / row.step_time_s - 1.0)
            for row in rows
            if row.batch == batch
        ]
    assert fit.candidates[1].constants == ("step_s",)
    assert fit.candidates[1].held_out.mean == pytest.approx(np.mean(errors), rel=1e-9)
    assert fit.candidates[1].held_out.max == pytest.approx(max(errors), rel=1e-9)


def test_a_step_out_of_graph_capture_is_named_and_kept_out() -> None:
    time_s = with_constants(1e-3, 6e-6, 4e-4, 5e-5)
    rows = served(lambda b, K: time_s(b, K) + (0.1 if b * (K + 1) >= 512 else 0.0))
    fit = fit_engine_steps(rows, KERNELS, context=300)
    assert fit.eager is not None
    assert (fit.eager.captured_tokens, fit.eager.eager_tokens) == (384, 512)
    assert fit.eager_s == pytest.approx(0.1, rel=1e-6)
    assert fit.values == pytest.approx((1e-3, 6e-6, 4e-4, 5e-5, 0.0), rel=1e-6, abs=1e-12)
    assert "steps.csv:21: batch 64 K=7 (512 tokens) takes 1" in fit.eager.findings()[0]


def test_an_outlier_below_the_most_tokens_is_not_taken_for_eager() -> None:
    time_s = with_constants(1e-3, 6e-6, 4e-4, 5e-5)
    rows = served(lambda b, K: time_s(b, K) * (3.0 if (b, K) == (16, 3) else 1.0))
    assert fit_engine_steps(rows, KERNELS, context=300).eager is None


def test_what_the_rows_cannot_tell_apart_stays_zero() -> None:
    rows = served(with_constants(1e-3, 6e-6, 4e-4, 0.0), ks=(3,), batches=(1, 2, 4, 8, 16, 32, 64, 128))
    fit = fit_engine_steps(rows, KERNELS, context=300)
    assert (fit.speculative_step_s, fit.draft_pass_s, fit.speculative_request_s) == (0.0, 0.0, 0.0)
    assert sum("do not tell it from" in note for note in fit.notes) == 3
    assert any("8 step times are few" in note for note in fit.notes)


def test_too_few_rows_are_refused() -> None:
    rows = served(kernels_s)[: MIN_ROWS - 1]
    with pytest.raises(InputError, match="7 step times are too few"):
        fit_engine_steps(rows, KERNELS, context=300)


def test_one_batch_size_is_refused() -> None:
    with pytest.raises(InputError, match="all steps are of batch 8"):
        fit_engine_steps(served(kernels_s, batches=(8,), ks=range(10)), KERNELS, context=300)


@pytest.mark.parametrize(("factor", "unit"), [(1e3, "1000 times smaller"), (1e-3, "a larger unit")])
def test_a_whole_file_in_another_unit_is_refused(factor: float, unit: str) -> None:
    with pytest.raises(FileFormatError, match=unit):
        fit_engine_steps(served(lambda b, K: factor * kernels_s(b, K)), KERNELS, context=300)


@needs_shared
def test_the_published_vllm_steps_are_predicted_within_three_percent_at_left_out_batch_sizes() -> None:
    fit = fit_engine_steps(vllm_rows(), SmoothH100(), context=CONTEXT)
    assert len(fit.rows) == 23
    assert fit.held_out.mean <= 0.03
    assert fit.reselected.mean <= 0.03
    assert fit.kernels_only.mean > 0.15
    assert fit.eager is not None
    assert (fit.eager.captured_tokens, fit.eager.eager_tokens) == (384, 512)
    assert fit.eager_s == pytest.approx(0.0994, rel=0.03)

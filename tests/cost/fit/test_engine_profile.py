"""From files of step times to a hardware profile: drafters of one pass, captures, and the evidence that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from treeopt.cost import Drafter, Eagle, EngineSteps, Hardware, Medusa, ModelShape, ModelStep, Ngram
from treeopt.cost.fit.engine_profile import Served, fit_served

BATCHES, KS = (1, 8, 32, 64), (0, 1, 3, 5)


@pytest.fixture
def served(shipped_model: Callable[[str], ModelShape], round_gpu: Hardware) -> Callable[..., Served]:
    def of(drafter: Drafter, **others: object) -> Served:
        return Served(hardware=round_gpu, model=shipped_model("llama-3.1-8b"), drafter=drafter, context=300, **others)

    return of


def write_steps(path: Path, served: Served, engine: EngineSteps) -> Path:
    """What the step model itself says with these constants."""
    step = ModelStep(model=served.model, times=served.hardware.kernel_times(), drafter=served.drafter, engine=engine)
    lines = ["batch,k,step_s"]
    for batch in BATCHES:
        for K in KS:
            widths = np.ones(max(K, 1), dtype=np.int64) * (K > 0)
            lines.append(f"{batch},{K},{float(step.step_time_s(batch, K + 1, K, widths, 300))!r}")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("drafter", [Eagle(), Medusa()])
def test_a_pass_is_charged_as_the_step_model_charges_it(drafter: Drafter, served, tmp_path: Path) -> None:
    truth = EngineSteps(step_s=1e-3, verified_token_s=5e-6, speculative_step_s=4e-4, draft_pass_s=3e-4)
    what = served(drafter)
    fitted = fit_served([write_steps(tmp_path / "steps.csv", what, truth)], what, name="mine")
    engine = fitted.hardware.engine_steps
    assert engine is not None
    # Parallel heads run in one pass: it cannot be told from the speculative step, and their sum is what counts.
    alone = not isinstance(drafter, Medusa)
    assert engine.draft_pass_s == pytest.approx(3e-4 if alone else 0.0, rel=1e-5, abs=1e-9)
    assert engine.speculative_step_s == pytest.approx(4e-4 if alone else 7e-4, rel=1e-5)
    assert engine.step_s == pytest.approx(1e-3, rel=1e-5)
    assert any("draft_pass_s stays 0" in finding for finding in fitted.warnings) != alone


def test_what_runs_no_pass_is_charged_none(served, tmp_path: Path) -> None:
    what = served(Ngram())
    truth = EngineSteps(step_s=1e-3, verified_token_s=5e-6, speculative_step_s=4e-4, speculative_request_s=3e-5)
    fitted = fit_served([write_steps(tmp_path / "steps.csv", what, truth)], what, name="mine")
    assert fitted.fit.draft_pass_s == 0.0
    assert fitted.hardware.engine_steps.speculative_request_s == pytest.approx(3e-5, rel=1e-6)
    assert fitted.fit.held_out.max < 1e-6


def test_steps_are_padded_to_captured_sizes_before_they_are_fitted(served, tmp_path: Path) -> None:
    sizes = (1, 8, 64, 256, 512)
    truth = EngineSteps(step_s=1e-3, verified_token_s=5e-6, capture_tokens=sizes)
    path = write_steps(tmp_path / "steps.csv", served(Eagle()), truth)
    padded = fit_served([path], served(Eagle(), capture_tokens=sizes), name="mine")
    assert padded.fit.held_out.max < 1e-6
    assert padded.hardware.engine_steps is not None
    assert padded.hardware.engine_steps.capture_tokens == sizes
    assert fit_served([path], served(Eagle()), name="mine").fit.held_out.max > 1e-3


def test_the_evidence_says_what_the_constants_are_good_for(served, tmp_path: Path) -> None:
    what = served(Eagle())
    path = write_steps(tmp_path / "steps.csv", what, EngineSteps(step_s=1e-3))
    evidence = fit_served([path], what, name="mine").hardware.engine_steps.evidence
    assert (evidence.model, evidence.drafter, evidence.source) == ("llama-3.1-8b", "eagle", "steps.csv")
    assert (evidence.rows, evidence.max_tokens) == (16, 64 * 6)
    assert evidence.median < 1e-6

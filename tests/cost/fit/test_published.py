"""What the tool says of published sweeps: see docs/cost-steps.md for the tables, tests/published.py for the numbers."""

from __future__ import annotations

import published
import pytest
from published import TIE
from shared import needs_shared
from smooth_h100 import CONTEXT, SmoothH100, vllm_rows

from treeopt.cost import Eagle, ModelStep, load_hardware, load_model
from treeopt.cost.fit.engine_steps import fit_engine_steps
from treeopt.files.shipped import locate, shipped_names

pytestmark = needs_shared


@pytest.mark.parametrize("name", [name for name in shipped_names("hardware") if name.startswith("h100-sxm-vllm")])
def test_measured_kernels_predict_the_vllm_steps_within_three_percent_at_left_out_batch_sizes(name: str) -> None:
    hardware = load_hardware(locate("hardware", name).path)
    model = load_model(locate("models", "llama-3.1-8b").path)
    kernels = ModelStep(model=model, times=hardware.kernel_times(), drafter=Eagle())
    fit = fit_engine_steps(vllm_rows(), kernels, context=CONTEXT)
    assert len(fit.rows) == 23
    assert fit.held_out.mean <= 0.03
    assert fit.reselected.mean <= 0.035  # which constants to have is chosen without the batch size too


def test_autospec_best_k_is_found_from_the_table_whatever_the_acceptance() -> None:
    sweep = published.autospec()
    assert sweep.best == [4, 4, 3, 4, 4, 3, 2]
    for survival in published.qwen_acceptances().values():
        everything = published.autospec_predictions(sweep, survival)[0]
        assert max(everything.losses) < 0.001


def test_autospec_best_k_is_predicted_from_eight_cells_of_42_within_the_scatter() -> None:
    sweep = published.autospec()
    median, rms = sweep.scatter
    assert median < TIE < 2 * rms  # a tie is what two cells differ by by chance
    survival = published.qwen_acceptances()[published.DRAFTER, "mtbench"]
    held_out = {p.what: p for p in published.autospec_predictions(sweep, survival)}
    for what in (
        "K = 1, 6 of each batch size; K = 2..5 held out",
        "batch 1, 4, 16, 64 only; 2, 8, 32 held out",
        "K = 1, 6 of batch 1, 4, 16, 64: 8 cells of 42",
    ):
        assert held_out[what].ties == 7
    # Batch 64 wants fewer drafts than batch 1: the table and the acceptance say so.
    assert held_out["K = 1, 6 of batch 1, 4, 16, 64: 8 cells of 42"].ks[-1] == 2


def test_autospec_predictions_lose_little_with_any_published_acceptance() -> None:
    sweep = published.autospec()
    losses = [
        loss
        for survival in published.qwen_acceptances().values()
        for predicted in published.autospec_predictions(sweep, survival)[1:]
        for loss in predicted.losses
    ]
    assert sum(losses) / len(losses) < 0.01
    assert max(losses) < 0.04


@pytest.mark.parametrize("method", ["EAGLE-1", "EAGLE-3"])
def test_vllm_best_k_is_predicted_without_the_batch_size(method: str) -> None:
    for found in published.vllm_best_k(method, SmoothH100()):
        assert found.loss <= TIE
        # The search prices K = 2 too, which was not measured; among measured ones it takes the best.
        assert found.searched in (found.measured, 2)


@pytest.mark.parametrize(("method", "best"), [("EAGLE-1", 3), ("EAGLE-3", 4)])
def test_best_k_of_vllm_20780_follows_from_two_steps_and_another_reports_acceptance(method: str, best: int) -> None:
    found = published.vllm_20780(method)
    assert (found.measured, found.chosen, found.loss) == (best, best, 0.0)


def test_do_not_speculate_where_the_measurements_say_so() -> None:
    verdicts = published.specforge_verdicts()
    assert [round(v.break_even_tokens, 2) for v in verdicts[:6]] == [2.59, 2.83, 2.13, 2.92, 3.14, 4.01]
    assert not any(v.pays for v in verdicts)
    assert published.specforge_search() == {1: False, 4: False}
    for verdict in published.speed_bench_verdicts():
        assert verdict.pays == (verdict.speedup > 1.0)


def test_a_tree_pays_over_a_chain_by_less_and_less_as_the_batch_grows() -> None:
    found = published.tree_or_chain()
    assert [t.batch for t in found] == [1, 8, 16]
    margins = [t.length_ratio / t.step_ratio for t in found]
    assert margins == sorted(margins, reverse=True)
    assert margins == pytest.approx([128.63 / 114.27, 902.72 / 847.38, 1640.95 / 1567.5])


def test_the_second_token_of_a_mixture_of_experts() -> None:
    measured, coverage = published.moe_jump()
    assert round(measured, 2) == 3.05
    assert 1.4 < coverage < 1.5  # coverage alone does not explain it


def test_longer_chains_cost_what_the_slope_of_other_data_sets_says() -> None:
    found = {r.target: r for r in published.specbundle()}
    assert found["Llama-3.1-8B-Instruct"].mean_error < 0.01
    assert found["Llama-3.3-70B-Instruct"].mean_error < 0.02
    assert all(r.mean_error < 0.05 for r in found.values() if r.ratios[0] > 1.0)

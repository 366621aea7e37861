"""Reports that were misread once, each with its right value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shared import DATA, needs_shared

from treeopt.cost import Drafter, Dtype, Eagle3, ModelStep, Mtp, Ngram, load_hardware, load_model
from treeopt.cost.fit.engine_profile import Served, fit_served
from treeopt.cost.hardware import save_hardware
from treeopt.errors import FileFormatError
from treeopt.files.shipped import locate
from treeopt.plan.plan import Plan
from treeopt.planner.search import search

FAULTS = DATA / "faults"
pytestmark = needs_shared


def step_of(hardware: str, model: str, drafter: Drafter, dtype: str | None = None, tp: int = 1) -> ModelStep:
    profile = load_hardware(locate("hardware", hardware).path)
    return ModelStep(
        model=load_model(locate("models", model).path),
        times=profile.kernel_times(),
        drafter=drafter,
        dtype=dtype,
        tp=tp,
        engine=profile.engine(),
    )


def plain_ms(step: ModelStep, batch: int, context: int) -> float:
    return 1e3 * step.terms(batch=batch, nodes=1, depth=0, widths=[0], context=context).total_s


def by_table(file: str, *batches: int, ranks: str | None = None, **inputs: object) -> Plan:
    given = {} if ranks is None else {"ranks": str(FAULTS / ranks)}
    return search(batches, cost=str(FAULTS / file), **given, **inputs)  # type: ignore[arg-type]


def ks(plan: Plan) -> list[int]:
    return [bucket.num_speculative_tokens if bucket.speculate else 0 for bucket in plan.buckets]


@pytest.mark.parametrize(
    ("file", "ranks", "batches"),
    [("no_plain_row.csv", "specforge339_mean.yaml", (1, 4)), ("spark343_cost.csv", "spark343_k2.yaml", (1, 8))],
)
def test_without_a_plain_row_no_gain_is_known(file: str, ranks: str, batches: tuple[int, ...]) -> None:
    plan = by_table(file, *batches, ranks=ranks)
    assert [(b.speedup, b.plain) for b in plan.buckets] == [(None, None)] * len(plan.buckets)
    if file.startswith("spark"):
        assert set(ks(plan)) == {2}


def test_rows_of_trees_beside_chains_leave_the_chains_their_say() -> None:
    plan = by_table("specforge339.csv", 1, 4)
    assert set(ks(plan)) == {0}
    assert any("6 of 10 rows are of trees" in note.text for note in plan.notes)


def test_tokens_per_second_alone_give_the_best_measured_draft() -> None:
    plan = by_table("glm_tok_s_only.csv", 1, 2, 4, 8, 16, 32, 64)
    sizes = (1, 2, 4, 8, 16, 32, 64)
    best = [next(b for b in plan.buckets if b.batch.min <= size <= b.batch.max) for size in sizes]
    assert [b.num_speculative_tokens for b in best] == [4, 4, 4, 4, 3, 3, 3]
    assert best[-1].tokens_per_s.value == pytest.approx(4106, rel=1e-3)


def test_the_best_measured_block_and_budget() -> None:
    assert ks(by_table("mlxcel_tok_s.csv", 1)) == [4]
    plan = by_table("lucebox_budgets_as_k.csv", 1)
    assert ks(plan) == [22]
    assert plan.buckets[0].speedup is None


def test_a_model_without_a_price_is_answered_by_a_table() -> None:
    plan = by_table("mlxcel_tok_s.csv", 1, model=str(FAULTS / "configs" / "mamba.json"))
    assert ks(plan) == [4]
    assert plan.sources.model.name == "mamba"
    assert any("the model has no price" in note.text for note in plan.notes)


def test_measured_steps_need_not_fit_a_gpu_that_nobody_named() -> None:
    model = str(FAULTS / "configs" / "qwen3-next-80b.json")
    plan = by_table("mlxcel_tok_s.csv", 1, model=model)
    assert ks(plan) == [4]
    assert not any("GB per GPU" in note.text for note in plan.notes)
    named = by_table("mlxcel_tok_s.csv", 1, model=model, hardware="l4")
    assert any("GB per GPU, l4 has" in note.text for note in named.notes)


def test_a_fit_keeps_whether_the_measured_drafts_pay(tmp_path: Path) -> None:
    served = Served.named("h100-sxm-sglang-0.5.14", "qwen3-30b-a3b", "eagle3", tp=2, context=500)
    fitted = fit_served([FAULTS / "specforge339.csv"], served, name="hw")
    assert (fitted.fit.judged, fitted.fit.misjudged) == (8, 0)
    assert not any(payoff.pays for payoff in fitted.payoffs)
    file = tmp_path / "hw.yaml"
    save_hardware(file, fitted.hardware)
    plan = search(
        (1, 4),
        hardware=str(file),
        model="qwen3-30b-a3b",
        tp=2,
        drafter="eagle3",
        context=500,
        ranks=str(FAULTS / "specforge339_mean.yaml"),
    )
    assert set(ks(plan)) == {0}


def test_experts_in_blocks_are_not_those_per_tensor() -> None:
    deepseek = step_of("h200-sxm-vllm-0.24", "deepseek-v3", Mtp(), "fp8", 8)
    assert 15 < plain_ms(deepseek, 16, 1024) < 25
    assert deepseek.formats == (Dtype.FP8, Dtype.FP8_BLOCK)
    terms = deepseek.terms(batch=16, nodes=2, depth=1, widths=[1], context=1024)
    assert 1.815 / (1e3 * terms.total_s / plain_ms(deepseek, 16, 1024)) > 1.2  # 1.63 were measured
    wide, narrow = (step_of("h200-sxm-vllm-0.24", "qwen3-30b-a3b", Eagle3(), dtype) for dtype in ("bf16", "fp8"))
    assert plain_ms(narrow, 32, 1024) < 0.8 * plain_ms(wide, 32, 1024)


def test_a_mean_of_one_draft_pays_on_block_scaled_experts() -> None:
    """1.63x was measured; the plain step takes 15 to 25 ms in three engines."""
    (bucket,) = search(
        16,
        ranks=str(FAULTS / "mean_k1_081.yaml"),
        model="deepseek-v3",
        tp=8,
        dtype="fp8",
        hardware="h200-sxm-vllm-0.24",
        drafter="mtp",
        context=1024,
    ).buckets
    assert bucket.speculate
    assert bucket.plain is not None
    assert 0.015 < bucket.plain.step_time_s < 0.025
    assert bucket.speedup is not None
    assert bucket.speedup.low < 1.63 < bucket.speedup.high  # type: ignore[operator]


def test_block_scaled_gemms_take_their_own_rows() -> None:
    # 36 layers of 6144, 4096, 12288, 12288 and 4096 outputs at one token, as the rows of vLLM have them: 11.7 ms with
    # the LM head; gate and up are one GEMM of a step, so four of five remain.
    step = step_of("h100-sxm-vllm-0.24", "qwen3-8b", Ngram(), "fp8_block")
    assert 0.8 * 11.7 < plain_ms(step, 1, 0) < 11.7


@pytest.mark.parametrize(
    ("config", "layers", "vocab", "dtype"),
    [
        ("gemma-3-27b-it", 62, 262_208, "bf16"),
        ("qwen3-next-80b", 48, 151_936, "bf16"),
        ("../qwen3_next_config", 48, 151_936, "bf16"),
        ("deepseek-v3", 61, 129_280, "fp8_block"),
        ("llama-3.1-8b-awq", 32, 128_256, "int4"),
        ("gpt-oss-120b", 36, 201_088, "bf16/mxfp4"),
    ],
)
def test_a_config_gives_its_sizes_and_formats(config: str, layers: int, vocab: int, dtype: str) -> None:
    model = load_model(FAULTS / "configs" / f"{config}.json")
    assert (model.layers, model.vocab, str(model.formats())) == (layers, vocab, dtype)
    step = step_of("h200-sxm-vllm-0.24", str(FAULTS / "configs" / f"{config}.json"), Ngram())
    assert plain_ms(step, 8, 1000) > 0


def test_mxfp4_experts_pay_as_published() -> None:
    model = str(FAULTS / "gptoss120b_config.json")
    plan = search(
        (1, 8, 32, 64, 128),
        ranks=str(FAULTS / "gptoss_pos.yaml"),
        model=model,
        hardware="h200-sxm-vllm-0.24",
        drafter="eagle3",
        context=1500,
    )
    assert all(bucket.speculate for bucket in plan.buckets)
    assert set(ks(plan)) <= {2, 3, 4}  # published: 2 to 3; 4 only where it is within 3 % of those
    assert all(b.num_speculative_tokens in (2, 3) or -0.03 < b.loss_of(b.best_chain) < 0 for b in plan.buckets)
    assert all(bucket.break_even_length > 1.1 for bucket in plan.buckets)


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "gemma"
    folder.mkdir()
    (folder / "config.json").write_bytes((FAULTS / "configs" / "gemma-3-27b-it.json").read_bytes())
    inputs = {"hardware": "h200-sxm-vllm-0.24", "ranks": str(FAULTS / "gptoss_pos.yaml")}
    plan = search(8, model=str(folder), **inputs)  # type: ignore[arg-type]
    file = search(8, model=str(FAULTS / "configs" / "gemma-3-27b-it.json"), **inputs)  # type: ignore[arg-type]
    assert plan.sources.model.name == "gemma"
    assert plan.buckets[0].tokens_per_s == file.buckets[0].tokens_per_s


def test_a_cache_of_8_bits_is_half_as_much_to_read_and_to_hold() -> None:
    """At 30,000 tokens of 8 requests the cache is most of a step's bytes: 2 x 32 x 8 x 128 x 2 B x 240,000 = 31 GB."""
    wide = step_of("h200-sxm-vllm-0.24", "llama-3.1-8b", Ngram())
    narrow = replace(wide, kv_dtype="fp8")
    assert wide.kv_bytes(30_000) == pytest.approx(2 * 32 * 8 * 128 * 2 * 30_000, rel=0.01)
    assert narrow.kv_bytes(30_000) == pytest.approx(wide.kv_bytes(30_000) / 2)
    saved = plain_ms(wide, 8, 30_000) - plain_ms(narrow, 8, 30_000)
    least = 1e3 * 8 * wide.kv_bytes(30_000) / 2 / 4.8e12  # to read what is saved, by the data sheet
    assert 0.5 * least < saved < 1.6 * least  # converting takes some of it


def test_a_model_that_does_not_fit_is_an_error_to_see_first() -> None:
    plan = search(8, model=str(FAULTS / "configs" / "deepseek-v3.json"), drafter="mtp")
    (first, *_) = [note for note in plan.notes if note.level == "error"]
    assert "GB per GPU" in first.text


@pytest.mark.parametrize("file", ["tflops.yaml", "gbs.yaml"])
def test_rates_in_another_unit_are_refused(file: str) -> None:
    with pytest.raises(FileFormatError, match="no hardware has it"):
        load_hardware(FAULTS / "break" / file)


def test_numbers_that_no_model_or_step_has_are_refused() -> None:
    from treeopt.cost.tables.loading import load_cost_table

    with pytest.raises(FileFormatError, match="shared_intermediate: 1e\\+308 is out of range"):
        load_model(FAULTS / "break" / "model_huge_number.yaml")
    with pytest.raises(FileFormatError, match="1e\\+308 is out of range"):
        load_cost_table(FAULTS / "break" / "sps_1e308.json")

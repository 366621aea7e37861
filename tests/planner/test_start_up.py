"""K_max, which an engine is told when it starts, against every K tried by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from treeopt.acceptance.loading import load_profile
from treeopt.cost import BlockHeads, ModelStep, load_hardware, load_model
from treeopt.cost.served.published import served_constants
from treeopt.draft_family import chain_length
from treeopt.files.shipped import locate
from treeopt.planner.search import search

RATES = [0.8, 0.62, 0.47, 0.36, 0.28, 0.21, 0.16, 0.12, 0.09, 0.07, 0.05, 0.04, 0.03, 0.02, 0.01]


def written(path: Path, rates: list[float]) -> str:
    """Survival by position, as counters of an engine give it."""
    path.write_text(
        f"format: treeopt.ranks/1\nname: mine\nevidence: position\nprobabilities: {rates}\n"
        "conditions: {drafter: dflash, temperature: 0, rule: greedy}\n",
        encoding="utf-8",
    )
    assert load_profile(path).model().depth == len(rates)
    return str(path)


@pytest.fixture
def ranks(tmp_path: Path) -> str:
    return written(tmp_path / "ranks.yaml", RATES)


def tokens_per_s(K_max: int, K: int, batch: int) -> float:
    """Of one chain length at one batch size, from the step's parts."""
    hardware = load_hardware(locate("hardware", "h100-sxm").path)
    step = ModelStep(
        model=load_model(locate("models", "qwen3-8b").path),
        times=hardware.kernel_times(),
        drafter=BlockHeads(masks=K_max),
        engine=served_constants(hardware, "dflash").steps,
    )
    time_s = step.terms(batch=batch, nodes=K + 1, depth=K, widths=[1] * K, context=2048).total_s
    return batch * (1 + sum(RATES[:K])) / time_s


@pytest.mark.parametrize("batches", [(1,), (8, 64), (256,), (1, 16, 512)])
def test_the_engine_is_started_with_the_best_of_all(batches: tuple[int, ...], ranks: str) -> None:
    plan = search(
        batches, ranks=ranks, model="qwen3-8b", hardware="h100-sxm", drafter="dflash", engine="vllm", only_listed=True
    )
    found = plan.sources.drafter.num_speculative_tokens
    assert found is not None

    def mean(K_max: int) -> float:
        best = [max(tokens_per_s(K_max, K, batch) for K in range(1, K_max + 1)) for batch in batches]
        return float(np.exp(np.mean(np.log(best))))

    by_start = {K_max: mean(K_max) for K_max in range(1, 16)}
    assert by_start[found] >= 0.99 * max(by_start.values())
    assert all((chain_length(b.draft) or 0) <= found for b in plan.buckets)


def test_without_an_engine_a_pass_guesses_what_it_was_trained_for(ranks: str) -> None:
    plan = search(1, ranks=ranks, model="qwen3-8b", hardware="h100-sxm", drafter="dflash")
    assert plan.sources.drafter.num_speculative_tokens is None
    assert not [note for note in plan.notes if "start the engine" in note.text]


def test_a_draft_is_no_deeper_than_the_block(ranks: str) -> None:
    plan = search(1, ranks=ranks, model="qwen3-8b", hardware="h100-sxm", drafter="dspark")
    assert plan.buckets[0].depth <= 7
    assert plan.limits is not None
    assert plan.limits.max_depth == 7


def test_off_in_a_schedule_tells_what_the_drafter_still_does(tmp_path: Path) -> None:
    ranks = written(tmp_path / "poor.yaml", [0.3, 0.1, 0.03])
    plan = search(
        (1, 1024), ranks=ranks, model="qwen3-8b", hardware="h100-sxm", drafter="dflash", engine="vllm", allow_off=True
    )
    off = [b for b in plan.buckets if not b.speculate]
    told = [note.text for note in plan.notes if note.text.startswith("K = 0 at batch")]
    assert off
    assert len(told) == len(off)
    assert "is not plain decoding" in told[0]


@pytest.mark.parametrize(("ranks", "told"), [("example", True), ("dflash-qwen3-8b-gsm8k", False)])
def test_a_tree_of_a_target_with_linear_attention_is_warned_of(ranks: str, told: bool, tmp_path: Path) -> None:
    """Every fourth layer attends, as in Qwen3-Next; ranks of positions alone give chains."""
    sizes = {
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 8,
        "vocab_size": 32_000,
        "head_dim": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "full_attention_interval": 4,
        "tie_word_embeddings": False,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    plan = search(1, ranks=ranks, model=str(tmp_path), hardware="h100-sxm", drafter="medusa")
    notes = [note.text for note in plan.notes if "need a state per branch" in note.text]
    assert (chain_length(plan.buckets[0].draft) is None) == told
    assert bool(notes) == told

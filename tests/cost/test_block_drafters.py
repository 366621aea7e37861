"""Drafters that guess a block in one pass: their prices by hand, in bytes and in seconds of the round GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cost.test_drafter import attention_s, between_s, gemm_s, head_s, stream_s
from treeopt.cost import BlockHead, BlockHeads, Drafter, Eagle3, Hardware, ModelShape, ModelStep, ParallelEagle, Pard
from treeopt.cost.block_drafters import Convolution, Selector

Shipped = Callable[[str], ModelShape]
# A layer of Qwen3-8B: q, k, v and o of 32 heads over 8 of 128 channels, and a feed-forward block 12288 wide.
LAYER = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 12288


def step_of(model: ModelShape, hardware: Hardware, drafter: Drafter) -> ModelStep:
    return ModelStep(model=model, times=hardware.kernel_times(), drafter=drafter)


def drafter_s(step: ModelStep, *, batch: int, depth: int, widths: list[int] | None = None) -> float:
    widths = widths or [1] * depth
    return step.terms(batch=batch, nodes=depth + 1, depth=depth, widths=widths, context=1000).drafter_s


def layers_s(tokens: int, layers: int) -> float:
    """So many dense layers of Qwen3-8B without attention, and what runs before and after them."""
    one = gemm_s(tokens, 6144, 4096) + gemm_s(tokens, 4096, 4096)
    one += gemm_s(tokens, 2 * 12288, 4096) + gemm_s(tokens, 4096, 12288) + stream_s(3 * tokens * 12288)
    return layers * one + between_s(tokens, 4096, layers, 32 * 128, 2 * 8 * 128)


def entry_s(tokens: int, layers: int) -> float:
    """Five states of the target fused, then keys and values of all layers in one GEMM."""
    found = gemm_s(tokens, 4096, 5 * 4096) + gemm_s(tokens, layers * 2048, 4096)
    return found + stream_s(2 * tokens * 4096) + stream_s(2 * tokens * layers * 2048)


def test_bytes_of_the_qwen3_8b_drafters(shipped_model: Shipped, round_gpu: Hardware) -> None:
    """DFlash reads 1.05 B weights and 0.62 B of the shared head: 3.34 GB; P-EAGLE 1.86 GB and 0.10 for the entry."""
    target = shipped_model("qwen3-8b")
    dflash = step_of(target, round_gpu, BlockHeads())
    own = dflash.memory_bytes - target.weight_bytes()
    assert own == 2 * (5 * LAYER + 5 * 4096 * 4096)
    assert own + 2 * 151936 * 4096 == pytest.approx(3.34e9, rel=2e-3)
    # 14 % of the target's 147,456 B of KV per token
    assert dflash.kv_bytes(1) == 147_456 + 20_480
    peagle = step_of(target, round_gpu, ParallelEagle())
    entry = 2 * 3 * 4096 * 4096
    assert peagle.memory_bytes - target.weight_bytes() - entry == pytest.approx(1.86e9, rel=3e-3)
    eagle3 = step_of(target, round_gpu, Eagle3())
    assert eagle3.memory_bytes - target.weight_bytes() - entry == pytest.approx(0.70e9, rel=5e-3)


def test_draft_kv_and_weights_lower_the_largest_batch(shipped_model: Shipped, round_gpu: Hardware) -> None:
    target = shipped_model("qwen3-8b")
    plain = step_of(target, round_gpu, BlockHeads(kind="dflash"))
    left = 80e9 - (8_190_427_136 + 5 * LAYER + 5 * 4096 * 4096) * 2
    assert target.parameters == 8_190_427_136
    assert plain.largest_batch(2048, 80e9) == left // (2048 * (147_456 + 20_480))
    assert plain.largest_batch(2048, 1e9) == 0


@pytest.mark.parametrize("kind", ["dflash", "jetspec"])
@pytest.mark.parametrize("batch", [1, 8])
def test_dflash_is_one_pass_whatever_the_depth(
    kind: str, batch: int, shipped_model: Shipped, round_gpu: Hardware
) -> None:
    rows = batch * 16
    expected = entry_s(rows, 5) + layers_s(rows, 5) + 5 * attention_s(batch, 16, 1016, 32, 8, 128)
    expected += head_s(batch * 15, 151936, 4096)
    step = step_of(shipped_model("qwen3-8b"), round_gpu, BlockHeads(kind=kind))
    found = [drafter_s(step, batch=batch, depth=depth) for depth in (1, 7, 15)]
    assert found == pytest.approx([expected] * 3, rel=1e-12)
    assert drafter_s(step, batch=batch, depth=2, widths=[1, 9]) == pytest.approx(expected, rel=1e-12)
    assert step.deepest == 15


def test_the_engine_may_start_with_fewer_masks(shipped_model: Shipped, round_gpu: Hardware) -> None:
    step = step_of(shipped_model("qwen3-8b"), round_gpu, BlockHeads().starting_with(4))
    expected = entry_s(8 * 5, 5) + layers_s(8 * 5, 5) + 5 * attention_s(8, 5, 1005, 32, 8, 128)
    assert drafter_s(step, batch=8, depth=2) == pytest.approx(expected + head_s(8 * 4, 151936, 4096), rel=1e-12)
    assert step.deepest == 4
    # a step that drafts nothing still projects all rows into the drafter's cache
    assert step.idle_s(batch=8, context=1000) == pytest.approx(entry_s(8 * 5, 5), rel=1e-12)
    assert drafter_s(step, batch=8, depth=0, widths=[0]) == 0.0


def test_a_dflash_head_by_its_own_sizes(shipped_model: Shipped, round_gpu: Hardware) -> None:
    """SpecForge's head for Qwen3.5-35B-A3B: h 2048, dense 6144 beside a target with experts, 16 over 2 heads of 256."""
    target = shipped_model("qwen3-30b-a3b")
    shape = replace(shipped_model("qwen3-8b"), hidden=2048, intermediate=6144, layers=5, vocab=248_320, experts=None)
    shape = replace(shape, attention=replace(shape.attention, heads=16, kv_heads=2, head_dim=256))
    step = step_of(target, round_gpu, BlockHeads(head=BlockHead(model=shape, drafts=15, states=5 * 2048)))
    assert step.kv_bytes(1) - step_of(target, round_gpu, BlockHeads(head=None)).kv_bytes(0) >= 5 * 2 * 2 * 256 * 2
    tokens = 16
    one = gemm_s(tokens, 16 * 256 + 2 * 2 * 256, 2048) + gemm_s(tokens, 2048, 16 * 256)
    one += gemm_s(tokens, 2 * 6144, 2048) + gemm_s(tokens, 2048, 6144) + stream_s(3 * tokens * 6144)
    expected = 5 * one + between_s(tokens, 2048, 5, 16 * 256, 2 * 2 * 256)
    expected += gemm_s(tokens, 2048, 5 * 2048) + gemm_s(tokens, 5 * 1024, 2048)
    expected += stream_s(2 * tokens * 2048) + stream_s(2 * tokens * 5 * 1024)
    expected += 5 * attention_s(1, 16, 1016, 16, 2, 256) + head_s(15, 248_320, 2048)
    assert drafter_s(step, batch=1, depth=3) == pytest.approx(expected, rel=1e-12)


def test_dspark_reads_its_markov_head_once_per_guess(shipped_model: Shipped, round_gpu: Hardware) -> None:
    step = step_of(shipped_model("qwen3-8b"), round_gpu, BlockHeads(kind="dspark"))
    rows = 4 * 7  # the root's row guesses too
    expected = entry_s(4 * 8, 5) + layers_s(rows, 5) + 5 * attention_s(4, 7, 1007, 32, 8, 128)
    expected += gemm_s(rows, 151936, 4096)
    # 78 MB of the 256 -> V matrix per guess, and base logits and corrections read
    expected += 7 * (gemm_s(4, 151936, 256) + stream_s(2 * 4 * 151936))
    assert drafter_s(step, batch=4, depth=5) == pytest.approx(expected, rel=1e-12)


def test_dflash2_adds_convolutions_and_a_selector(shipped_model: Shipped, round_gpu: Hardware) -> None:
    target = shipped_model("qwen3-8b")
    head = BlockHead(
        model=replace(target, layers=5),
        drafts=7,
        states=5 * 4096,
        convolution=Convolution(taps=2, group=16),
        selector=Selector(rank=256, top_k=16),
    )
    rows, guesses = 8, 7
    expected = entry_s(rows, 5) + layers_s(rows, 5) + 5 * attention_s(1, 8, 1008, 32, 8, 128)
    expected += 10 * gemm_s(rows, 2 * 2 * 4096 // 16, 4096)
    expected += (
        head_s(guesses, 151936, 4096) + gemm_s(guesses, 256, 4096) + stream_s(guesses * (2 * 16 * 256 + 16 * 16))
    )
    for drafter in (BlockHeads(kind="dflash2", head=head), BlockHeads(kind="dflash2")):
        step = step_of(target, round_gpu, drafter)
        assert drafter_s(step, batch=1, depth=7) == pytest.approx(expected, rel=1e-12)


def test_peagle_takes_in_what_was_verified_and_masks(shipped_model: Shipped, round_gpu: Hardware) -> None:
    step = step_of(shipped_model("qwen3-8b"), round_gpu, ParallelEagle())
    rows = 8 * 14  # 8 that may have been accepted, 6 masks
    expected = gemm_s(8 * 8, 4096, 3 * 4096) + layers_s(rows, 4) + gemm_s(rows, 6144, 4096)
    expected += 4 * attention_s(8, 14, 1014, 32, 8, 128) + head_s(8 * 7, 32000, 4096)
    assert drafter_s(step, batch=8, depth=7) == pytest.approx(expected, rel=1e-12)
    idle = gemm_s(8, 4096, 3 * 4096) + layers_s(8, 4) + gemm_s(8, 6144, 4096) + 4 * attention_s(8, 1, 1001, 32, 8, 128)
    assert step.idle_s(batch=8, context=1000) == pytest.approx(idle, rel=1e-12)


def test_pard_is_a_whole_model_in_one_pass(shipped_model: Shipped, round_gpu: Hardware) -> None:
    small = shipped_model("llama-3.2-1b")
    step = step_of(shipped_model("llama-3.1-8b"), round_gpu, Pard(model=small))
    rows = 2 * 25
    one = gemm_s(rows, (32 + 2 * 8) * 64, 2048) + gemm_s(rows, 2048, 2048)
    one += gemm_s(rows, 2 * 8192, 2048) + gemm_s(rows, 2048, 8192) + stream_s(3 * rows * 8192)
    expected = 16 * (one + attention_s(2, 25, 1025, 32, 8, 64)) + between_s(rows, 2048, 16, 32 * 64, 2 * 8 * 64)
    assert drafter_s(step, batch=2, depth=12) == pytest.approx(expected + head_s(24, 128256, 2048), rel=1e-12)
    assert step.deepest == 12


def test_the_fusion_is_copied_to_every_gpu_and_the_injection_shares_out(
    shipped_model: Shipped, round_gpu: Hardware
) -> None:
    one, two = (
        ModelStep(model=shipped_model("qwen3-8b"), times=round_gpu.kernel_times(), drafter=BlockHeads(), tp=tp)
        for tp in (1, 2)
    )
    expected = gemm_s(16, 4096, 5 * 4096) + gemm_s(16, 5 * 1024, 4096)
    expected += stream_s(2 * 16 * 4096) + stream_s(2 * 16 * 5 * 1024)
    assert two.idle_s(batch=1, context=10) == pytest.approx(expected, rel=1e-12)
    halves = one.memory_bytes - 2 * 5 * 4096 * 4096, two.memory_bytes - 2 * 5 * 4096 * 4096
    assert halves[0] == pytest.approx(2 * halves[1], rel=1e-6)

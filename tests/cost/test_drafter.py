"""Drafters: their prices by hand, and the names they are asked for by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from treeopt.cost import (
    Drafter,
    DraftModel,
    Eagle,
    Hardware,
    Medusa,
    ModelShape,
    Mtp,
    Ngram,
    RooflineStep,
    parse_drafter,
)
from treeopt.errors import InputError, UnknownNameError

Shipped = Callable[[str], ModelShape]
US = 1e-6


def gemm_s(tokens: int, outputs: int, inputs: int) -> float:
    """The round GPU in bf16: 1e12 B/s, 2e14 operations/s, 1 us."""
    traffic_bytes = 2 * outputs * inputs + 2 * tokens * (outputs + inputs)
    return max(traffic_bytes / 1e12, 2 * tokens * outputs * inputs / 2e14) + US


def attention_s(batch: int, queries: int, keys: int, heads: int, kv_heads: int, head_dim: int) -> float:
    traffic_bytes = batch * keys * 2 * kv_heads * head_dim * 2
    return max(traffic_bytes / 1e12, 4 * batch * queries * heads * head_dim * keys / 2e14) + US


def drafter_s(model: ModelShape, hardware: Hardware, drafter: Drafter, *, batch: int, widths: list[int]) -> float:
    step = RooflineStep(model=model, hardware=hardware, drafter=drafter)
    depth = sum(width > 0 for width in widths)
    return step.terms(batch=batch, nodes=sum(widths) + 2, depth=depth, widths=widths, context=1000).drafter_s


@pytest.mark.parametrize("batch", [1, 4, 256])
def test_eagle_by_hand(batch: int, shipped_model: Shipped, round_gpu: Hardware) -> None:
    expected = 0.0
    drafted = 0
    for width in [1, 3, 2]:
        tokens = batch * width
        drafted += width
        expected += gemm_s(tokens, 4096, 2 * 4096)  # fusion
        expected += gemm_s(tokens, (32 + 2 * 8) * 128, 4096) + gemm_s(tokens, 4096, 4096)
        expected += attention_s(batch, width, 1000 + drafted, 32, 8, 128)
        expected += gemm_s(tokens, 2 * 14336, 4096) + gemm_s(tokens, 4096, 14336)
        expected += gemm_s(tokens, 128256, 4096)
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Eagle(), batch=batch, widths=[1, 3, 2, 0, 0])
    assert found == pytest.approx(expected, rel=1e-12)


def test_eagle_for_a_model_of_experts_is_dense(shipped_model: Shipped, round_gpu: Hardware) -> None:
    expected = gemm_s(2, 2048, 2 * 2048) + gemm_s(2, (32 + 2 * 4) * 128, 2048) + gemm_s(2, 2048, 4096)
    expected += attention_s(2, 1, 1001, 32, 4, 128)
    expected += gemm_s(2, 2 * 6144, 2048) + gemm_s(2, 2048, 6144) + gemm_s(2, 151936, 2048)
    found = drafter_s(shipped_model("qwen3-30b-a3b"), round_gpu, Eagle(), batch=2, widths=[1])
    assert found == pytest.approx(expected, rel=1e-12)


def test_mtp_runs_a_layer_with_experts(shipped_model: Shipped, round_gpu: Hardware) -> None:
    tokens = 2
    expected = gemm_s(tokens, 2048, 2 * 2048) + gemm_s(tokens, (32 + 2 * 4) * 128, 2048) + gemm_s(tokens, 2048, 4096)
    expected += attention_s(2, 1, 1001, 32, 4, 128)
    expected += gemm_s(tokens, 128, 2048)  # router
    visited = 128 * (1 - (1 - 8 / 128) ** tokens)
    activations = tokens * 8 * (2048 + 2 * 768 + 768 + 2048)
    expected += (2 * visited * 3 * 2048 * 768 + 2 * activations) / 1e12 + 2 * US
    expected += gemm_s(tokens, 151936, 2048)
    found = drafter_s(shipped_model("qwen3-30b-a3b"), round_gpu, Mtp(), batch=2, widths=[1])
    assert found == pytest.approx(expected, rel=1e-12)


def test_mtp_of_deepseek_has_experts_though_the_first_layers_are_dense(
    shipped_model: Shipped, round_gpu: Hardware
) -> None:
    model = shipped_model("deepseek-v3")
    dense = drafter_s(model, round_gpu, Eagle(), batch=64, widths=[1])
    experts = drafter_s(model, round_gpu, Mtp(), batch=64, widths=[1])
    # at 64 tokens 256 (1 - (1 - 8/256)^64) = 222.4 experts are streamed, plus the shared one and the router,
    # where EAGLE streams one dense block
    visited = 256 * (1 - (1 - 8 / 256) ** 64)
    values = 64 * 8 * (7168 + 2 * 2048 + 2048 + 7168)
    routed = (2 * visited * 3 * 7168 * 2048 + 2 * values) / 1e12 + 2 * US
    shared = gemm_s(64, 2 * 2048, 7168) + gemm_s(64, 7168, 2048)
    block = gemm_s(64, 2 * 18432, 7168) + gemm_s(64, 7168, 18432)
    assert experts - dense == pytest.approx(routed + shared + gemm_s(64, 256, 7168) - block, rel=1e-9)


def test_medusa_pays_per_head_and_not_per_width(shipped_model: Shipped, round_gpu: Hardware) -> None:
    model = shipped_model("llama-3.1-8b")
    expected = 3 * (gemm_s(16, 4096, 4096) + gemm_s(16, 128256, 4096))
    narrow = drafter_s(model, round_gpu, Medusa(), batch=16, widths=[1, 1, 1])
    wide = drafter_s(model, round_gpu, Medusa(), batch=16, widths=[1, 5, 9])
    assert narrow == wide == pytest.approx(expected, rel=1e-12)


def test_a_draft_model_runs_all_its_layers(shipped_model: Shipped, round_gpu: Hardware) -> None:
    expected = 0.0
    for drafted, width in [(1, 1), (3, 2)]:
        tokens = 8 * width
        layer = gemm_s(tokens, (32 + 2 * 8) * 64, 2048) + gemm_s(tokens, 2048, 2048)
        layer += attention_s(8, width, 1000 + drafted, 32, 8, 64)
        layer += gemm_s(tokens, 2 * 8192, 2048) + gemm_s(tokens, 2048, 8192)
        expected += 16 * layer + gemm_s(tokens, 128256, 2048)
    drafter = DraftModel(model=shipped_model("llama-3.2-1b"))
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, drafter, batch=8, widths=[1, 2])
    assert found == pytest.approx(expected, rel=1e-12)


def test_ngram_is_free(shipped_model: Shipped, round_gpu: Hardware) -> None:
    assert drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Ngram(), batch=8, widths=[1, 2]) == 0.0


def test_a_draft_model_that_does_not_share_out_is_refused(shipped_model: Shipped, round_gpu: Hardware) -> None:
    drafter = DraftModel(model=shipped_model("smollm2-135m"))
    with pytest.raises(InputError, match="do not share out over tp=2"):
        RooflineStep(model=shipped_model("llama-3.1-8b"), hardware=round_gpu, drafter=drafter, tp=2)


@pytest.mark.parametrize(
    ("text", "drafter"), [("eagle", Eagle()), ("medusa", Medusa()), ("mtp", Mtp()), ("ngram", Ngram())]
)
def test_parsing_a_kind(text: str, drafter: Drafter, shipped_model: Shipped) -> None:
    assert parse_drafter(text, load_model=shipped_model) == drafter
    assert drafter.kind == text


def test_parsing_a_draft_model(shipped_model: Shipped) -> None:
    found = parse_drafter("model:qwen3-0.6b", load_model=shipped_model)
    assert found == DraftModel(model=shipped_model("qwen3-0.6b"))
    assert found.kind == "model"


def test_an_unknown_kind_lists_the_known(shipped_model: Shipped) -> None:
    with pytest.raises(UnknownNameError, match="unknown drafter 'eagel'") as caught:
        parse_drafter("eagel", load_model=shipped_model)
    assert "did you mean eagle?" in caught.value.hint
    assert "eagle, medusa, model:NAME, mtp, ngram" in caught.value.hint


def test_a_draft_model_needs_a_name(shipped_model: Shipped) -> None:
    with pytest.raises(InputError, match="names no model"):
        parse_drafter("model:", load_model=shipped_model)

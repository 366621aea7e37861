"""Drafters: their prices by hand, and the names they are asked for by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from treeopt.cost import (
    Drafter,
    DraftModel,
    Eagle,
    Eagle3,
    Hardware,
    Medusa,
    ModelShape,
    ModelStep,
    Mtp,
    Ngram,
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


def stream_s(values: int, launches: int = 1) -> float:
    """Kernels that move 16-bit values."""
    return launches * (2 * values / 1e12 + US)


def between_s(tokens: int, hidden: int, layers: int, q: int, kv: int) -> float:
    """Embedding, norms, rotary positions and KV writes; `q` and `kv` values per token and layer."""
    norms = stream_s(4 * tokens * hidden, 2 * layers + 1)
    return stream_s(2 * tokens * hidden) + norms + stream_s(2 * tokens * (q + kv), layers)


def head_s(tokens: int, vocab: int, hidden: int) -> float:
    """Logits, and the best of them found."""
    return gemm_s(tokens, vocab, hidden) + stream_s(tokens * vocab)


def drafter_s(model: ModelShape, hardware: Hardware, drafter: Drafter, *, batch: int, widths: list[int]) -> float:
    step = ModelStep(model=model, times=hardware.kernel_times(), drafter=drafter)
    depth = sum(width > 0 for width in widths)
    return step.terms(batch=batch, nodes=sum(widths) + 2, depth=depth, widths=widths, context=1000).drafter_s


def llama_layer_s(tokens: int, qkv_inputs: int = 4096) -> float:
    """One layer of Llama-3.1-8B without its attention, and what runs before and after it."""
    gemms = gemm_s(tokens, (32 + 2 * 8) * 128, qkv_inputs) + gemm_s(tokens, 4096, 4096)
    gemms += gemm_s(tokens, 2 * 14336, 4096) + gemm_s(tokens, 4096, 14336)
    return gemms + between_s(tokens, 4096, 1, 32 * 128, 2 * 8 * 128) + stream_s(3 * tokens * 14336)


@pytest.mark.parametrize("batch", [1, 4, 256])
def test_eagle_by_hand(batch: int, shipped_model: Shipped, round_gpu: Hardware) -> None:
    # The first pass takes in the 4 tokens that a tree of depth 3 can have accepted, and guesses after the last.
    expected = gemm_s(4 * batch, 4096, 2 * 4096) + llama_layer_s(4 * batch) + attention_s(batch, 4, 1001, 32, 8, 128)
    expected += head_s(batch, 128256, 4096)
    drafted = 1
    for width in [3, 2]:
        tokens = batch * width
        drafted += width
        expected += gemm_s(tokens, 4096, 2 * 4096) + llama_layer_s(tokens)
        expected += attention_s(batch, width, 1000 + drafted, 32, 8, 128)
        expected += head_s(tokens, 128256, 4096)
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Eagle(), batch=batch, widths=[1, 3, 2, 0, 0])
    assert found == pytest.approx(expected, rel=1e-12)


def test_attention_of_wide_passes_lies_on_a_straight_line_between_its_prices(
    shipped_model: Shipped, round_gpu: Hardware
) -> None:
    # 101 and 201 drafted keys are past the first price, at 64; a roofline is straight between them
    widths = [1, 100, 100]
    expected = 0.0
    for width, keys in [(4, 1001), (100, 1101), (100, 1201)]:
        expected += attention_s(4, width, keys, 32, 8, 128)
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Eagle(), batch=4, widths=widths)
    rest = sum(gemm_s(n, 4096, 2 * 4096) + llama_layer_s(n) for n in (16, 400, 400))
    rest += head_s(4, 128256, 4096) + 2 * head_s(400, 128256, 4096)
    assert found - rest == pytest.approx(expected, rel=1e-9)


def test_eagle3_fuses_three_states_once_and_has_a_small_head(shipped_model: Shipped, round_gpu: Hardware) -> None:
    # depth 2: the first pass takes in 3 tokens per request and fuses their states; q, k and v read two states
    expected = gemm_s(3 * 8, 4096, 3 * 4096) + llama_layer_s(3 * 8, 8192) + attention_s(8, 3, 1001, 32, 8, 128)
    expected += head_s(8, 32000, 4096)
    expected += llama_layer_s(16, 8192) + attention_s(8, 2, 1003, 32, 8, 128) + head_s(16, 32000, 4096)
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Eagle3(), batch=8, widths=[1, 2])
    assert found == pytest.approx(expected, rel=1e-12)


def test_eagle3_takes_the_shape_of_a_given_head(shipped_model: Shipped, round_gpu: Hardware) -> None:
    head = replace(shipped_model("llama-3.2-1b"), draft_vocab=16_000)
    assert Eagle3(head=head).note == ""
    assert "32,000" in Eagle3(head=replace(head, draft_vocab=None)).note
    expected = gemm_s(2, 2048, 3 * 4096)
    expected += gemm_s(2, (32 + 2 * 8) * 64, 2 * 2048) + gemm_s(2, 2048, 2048)
    expected += gemm_s(2, 2 * 8192, 2048) + gemm_s(2, 2048, 8192)
    expected += between_s(2, 2048, 1, 32 * 64, 2 * 8 * 64) + stream_s(3 * 2 * 8192)
    expected += attention_s(1, 2, 1001, 32, 8, 64) + head_s(1, 16000, 2048)
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Eagle3(head=head), batch=1, widths=[1])
    assert found == pytest.approx(expected, rel=1e-12)


def test_eagle_for_a_model_of_experts_is_dense(shipped_model: Shipped, round_gpu: Hardware) -> None:
    tokens = 4  # two requests, two tokens that may have been accepted
    expected = gemm_s(tokens, 2048, 2 * 2048) + gemm_s(tokens, (32 + 2 * 4) * 128, 2048) + gemm_s(tokens, 2048, 4096)
    expected += attention_s(2, 2, 1001, 32, 4, 128)
    expected += gemm_s(tokens, 2 * 6144, 2048) + gemm_s(tokens, 2048, 6144) + head_s(2, 151936, 2048)
    expected += between_s(tokens, 2048, 1, 32 * 128, 2 * 4 * 128) + stream_s(3 * tokens * 6144)
    found = drafter_s(shipped_model("qwen3-30b-a3b"), round_gpu, Eagle(), batch=2, widths=[1])
    assert found == pytest.approx(expected, rel=1e-12)


def independent(model: ModelShape) -> ModelShape:
    """The model with balanced routing in which every token chooses on its own."""
    assert model.experts is not None
    return replace(model, experts=replace(model.experts, skew=0.0, correlation=0.0))


def test_mtp_runs_a_layer_with_experts(shipped_model: Shipped, round_gpu: Hardware) -> None:
    tokens = 4
    expected = gemm_s(tokens, 2048, 2 * 2048) + gemm_s(tokens, (32 + 2 * 4) * 128, 2048) + gemm_s(tokens, 2048, 4096)
    expected += attention_s(2, 2, 1001, 32, 4, 128)
    expected += gemm_s(tokens, 128, 2048)  # router
    visited = 128 * (1 - (1 - 8 / 128) ** tokens)
    activations = tokens * 8 * (2048 + 2 * 768 + 768 + 2048)
    expected += (2 * visited * 3 * 2048 * 768 + 2 * activations) / 1e12 + 2 * US
    expected += between_s(tokens, 2048, 1, 32 * 128, 2 * 4 * 128) + stream_s(tokens * (128 + 2 * 8))
    expected += head_s(2, 151936, 2048)
    found = drafter_s(independent(shipped_model("qwen3-30b-a3b")), round_gpu, Mtp(), batch=2, widths=[1])
    assert found == pytest.approx(expected, rel=1e-12)


def test_mtp_of_deepseek_has_experts_though_the_first_layers_are_dense(
    shipped_model: Shipped, round_gpu: Hardware
) -> None:
    model = replace(independent(shipped_model("deepseek-v3")), dtype="bf16")
    dense = drafter_s(model, round_gpu, Eagle(), batch=32, widths=[1])
    experts = drafter_s(model, round_gpu, Mtp(), batch=32, widths=[1])
    # at 64 tokens 256 (1 - (1 - 8/256)^64) = 222.4 experts are streamed, plus the shared one and the router,
    # where EAGLE streams one dense block
    visited = 256 * (1 - (1 - 8 / 256) ** 64)
    values = 64 * 8 * (7168 + 2 * 2048 + 2048 + 7168)
    routed = (2 * visited * 3 * 7168 * 2048 + 2 * values) / 1e12 + 2 * US
    shared = gemm_s(64, 2 * 2048, 7168) + gemm_s(64, 7168, 2048) + stream_s(3 * 64 * 2048)
    choice = gemm_s(64, 256, 7168) + stream_s(64 * (256 + 2 * 8))
    block = gemm_s(64, 2 * 18432, 7168) + gemm_s(64, 7168, 18432) + stream_s(3 * 64 * 18432)
    assert experts - dense == pytest.approx(routed + shared + choice - block, rel=1e-9)


def test_medusa_pays_per_head_and_not_per_width(shipped_model: Shipped, round_gpu: Hardware) -> None:
    model = shipped_model("llama-3.1-8b")
    expected = 3 * (gemm_s(16, 4096, 4096) + head_s(16, 128256, 4096))
    narrow = drafter_s(model, round_gpu, Medusa(), batch=16, widths=[1, 1, 1])
    wide = drafter_s(model, round_gpu, Medusa(), batch=16, widths=[1, 5, 9])
    assert narrow == wide == pytest.approx(expected, rel=1e-12)


def test_a_draft_model_runs_all_its_layers(shipped_model: Shipped, round_gpu: Hardware) -> None:
    expected = 0.0
    for tokens, guessing, width, drafted in [(8 * 3, 8, 3, 1), (8 * 2, 8 * 2, 2, 3)]:
        layer = gemm_s(tokens, (32 + 2 * 8) * 64, 2048) + gemm_s(tokens, 2048, 2048)
        layer += attention_s(8, width, 1000 + drafted, 32, 8, 64)
        layer += gemm_s(tokens, 2 * 8192, 2048) + gemm_s(tokens, 2048, 8192) + stream_s(3 * tokens * 8192)
        expected += 16 * layer + between_s(tokens, 2048, 16, 32 * 64, 2 * 8 * 64) + head_s(guessing, 128256, 2048)
    drafter = DraftModel(model=shipped_model("llama-3.2-1b"))
    found = drafter_s(shipped_model("llama-3.1-8b"), round_gpu, drafter, batch=8, widths=[1, 2])
    assert found == pytest.approx(expected, rel=1e-12)


def test_ngram_is_free(shipped_model: Shipped, round_gpu: Hardware) -> None:
    assert drafter_s(shipped_model("llama-3.1-8b"), round_gpu, Ngram(), batch=8, widths=[1, 2]) == 0.0


def test_a_draft_model_that_does_not_share_out_is_refused(shipped_model: Shipped, round_gpu: Hardware) -> None:
    drafter = DraftModel(model=shipped_model("smollm2-135m"))
    with pytest.raises(InputError, match="do not share out over tp=2"):
        ModelStep(model=shipped_model("llama-3.1-8b"), times=round_gpu.kernel_times(), drafter=drafter, tp=2)


@pytest.mark.parametrize(
    ("text", "drafter"),
    [("eagle", Eagle()), ("eagle3", Eagle3()), ("medusa", Medusa()), ("mtp", Mtp()), ("ngram", Ngram())],
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
    known = "dflash, dflash2, dspark, eagle, eagle3, jetspec, medusa, model:NAME, mtp, ngram, pard:NAME, peagle, suffix"
    assert f"known: FOLDER, KIND:CONFIG_JSON, {known}" in caught.value.hint


def test_parsing_an_eagle3_head(shipped_model: Shipped) -> None:
    found = parse_drafter("eagle3:llama-3.2-1b", load_model=shipped_model)
    assert found == Eagle3(head=shipped_model("llama-3.2-1b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("model:", "names no model"), ("pard", "unknown"), ("eagle3:", "names no"), ("dflash:", "names no")],
)
def test_what_needs_a_name_says_so(text: str, message: str, shipped_model: Shipped) -> None:
    with pytest.raises(InputError, match=message):
        parse_drafter(text, load_model=shipped_model)

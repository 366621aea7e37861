"""The step: by hand, by a plain loop, and the properties that the search relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_steps import step_of

from treeopt.cost import (
    Eagle,
    EngineSteps,
    ExpertVisits,
    Hardware,
    KernelTimes,
    Medusa,
    ModelShape,
    ModelStep,
    Ngram,
    SlidingWindow,
    StepCost,
    StepTerms,
    Term,
)
from treeopt.errors import InputError
from treeopt.tree import DraftTree

PROFILES = Path(__file__).parents[2] / "profiles"
ShippedModel = Callable[[str], ModelShape]
ShippedHardware = Callable[[str], Hardware]
BW, PEAK, LAUNCH = 3.35e12, 989e12, 3.7e-6  # H100 SXM, bf16
LLAMA_GEMMS = [((32 + 2 * 8) * 128, 4096), (4096, 4096), (2 * 14336, 4096), (4096, 14336)]


def gemm_s(tokens: int, outputs: int, inputs: int) -> float:
    traffic_bytes = 2 * outputs * inputs + 2 * tokens * (outputs + inputs)
    return max(traffic_bytes / BW, 2 * tokens * outputs * inputs / PEAK) + LAUNCH


def stream_s(traffic_bytes: float, launches: int = 1) -> float:
    return launches * (traffic_bytes / BW + LAUNCH)


def h100(shipped_hardware: ShippedHardware) -> KernelTimes:
    return shipped_hardware("h100-sxm").kernel_times()


def plain(step: StepCost, batch: int, context: int) -> float:
    return float(step.step_time_s(batch, 1, 0, np.zeros(4, dtype=np.int64), context))


def priced(step: ModelStep, tree: DraftTree, batch: int, context: int) -> StepTerms:
    widths = tree.expanded_widths.tolist()
    return step.terms(batch=batch, nodes=len(tree), depth=tree.depth, widths=widths, context=context)


@pytest.fixture
def llama(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> ModelStep:
    return ModelStep(model=shipped_model("llama-3.1-8b"), times=h100(shipped_hardware), drafter=Eagle())


def test_one_token_of_llama_8b_by_hand(llama: ModelStep) -> None:
    # All memory-bound: 7.504e9 weights besides the input embedding, 2 bytes each.
    weights = 32 * sum(n * k for n, k in LLAMA_GEMMS) + 128256 * 4096
    activations = 32 * sum(n + k for n, k in LLAMA_GEMMS) + 128256 + 4096
    kv = 32 * 2049 * 2 * 8 * 128
    launches = 32 * 5 + 1
    expected = 2 * (weights + activations + kv) / BW + launches * LAUNCH
    assert weights == pytest.approx(7.504e9, rel=1e-3)
    assert expected == pytest.approx(5.16e-3, rel=1e-2)
    # Between the GEMMs, values read and written: embedding, norms with their residual sum, rotary positions and KV
    # writes (32 heads of 128 and the KV, there and back), gate times up; then logits to 32 bit, and read.
    between = stream_s(2 * 2 * 4096) + stream_s(2 * 4 * 4096, 65)
    between += stream_s(2 * 2 * (32 + 16) * 128, 32) + stream_s(2 * 3 * 14336, 32)
    expected += between + stream_s(6 * 128256) + stream_s(4 * 128256)
    assert plain(llama, batch=1, context=2048) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("batch", "nodes"), [(1, 8), (32, 10), (128, 16)])
def test_each_term_of_a_tree_by_hand(batch: int, nodes: int, llama: ModelStep) -> None:
    terms = llama.terms(batch=batch, nodes=nodes, depth=2, widths=[1, 2], context=500)
    tokens = batch * nodes
    assert terms.layers_s == pytest.approx(32 * sum(gemm_s(tokens, n, k) for n, k in LLAMA_GEMMS), rel=1e-12)
    assert terms.lm_head_s == pytest.approx(gemm_s(tokens, 128256, 4096), rel=1e-12)
    memory_s = batch * (500 + nodes) * 2 * 8 * 128 * 2 / BW
    compute_s = 4 * batch * nodes * 32 * 128 * (500 + nodes) / PEAK
    assert terms.attention_s == pytest.approx(32 * (max(memory_s, compute_s) + LAUNCH), rel=1e-12)
    assert (terms.all_reduce_s, terms.experts_s, terms.engine_s) == (0.0, 0.0, 0.0)
    elementwise = stream_s(2 * tokens * 2 * 4096) + stream_s(2 * tokens * 4 * 4096, 65)
    elementwise += stream_s(2 * tokens * 2 * (32 + 16) * 128, 32) + stream_s(2 * tokens * 3 * 14336, 32)
    assert terms.elementwise_s == pytest.approx(elementwise, rel=1e-12)
    assert terms.sampling_s == pytest.approx(10 * tokens * 128256 / BW + 2 * LAUNCH, rel=1e-12)
    # two accepted tokens per request, 131072 bytes of KV each, read and written
    assert terms.compaction_s == pytest.approx(2 * batch * 2 * 131072 / BW + LAUNCH, rel=1e-12)


def test_the_ridge_is_where_weights_and_arithmetic_take_equally_long(llama: ModelStep) -> None:
    assert llama.ridge_tokens == pytest.approx(295.2, abs=0.05)


def test_plain_decoding_pays_neither_drafter_nor_compaction(llama: ModelStep) -> None:
    terms = llama.terms(batch=16, nodes=1, depth=0, widths=[], context=2048)
    assert (terms.drafter_s, terms.compaction_s) == (0.0, 0.0)
    assert terms.total_s == plain(llama, batch=16, context=2048)


def test_a_chain_needs_no_compaction(llama: ModelStep) -> None:
    assert priced(llama, DraftTree.chain(4), batch=8, context=100).compaction_s == 0.0
    assert priced(llama, DraftTree(((0,), (1,), (0, 0), (0, 0, 0))), batch=8, context=100).compaction_s > 0.0


def test_the_prefix_is_read_once_whatever_the_tree(llama: ModelStep) -> None:
    # At B=4, L=20000 attention is memory-bound up to 64 nodes, so only the tree's own KV adds to it.
    batch, context = 4, 20_000
    one = llama.terms(batch=batch, nodes=2, depth=1, widths=[1], context=context).attention_s
    many = llama.terms(batch=batch, nodes=34, depth=1, widths=[1], context=context).attention_s
    assert many - one == pytest.approx(batch * 32 * 131072 / BW, rel=1e-9)
    assert many < 1.01 * one


def test_experts_make_more_tokens_dearer_long_before_the_ridge(
    shipped_model: ShippedModel, shipped_hardware: ShippedHardware
) -> None:
    model = independent(shipped_model("mixtral-8x7b"))
    step = ModelStep(model=model, times=h100(shipped_hardware), drafter=Ngram())
    tokens, hidden, width = 4, 4096, 14336
    every_token = gemm_s(tokens, 6144, 4096) + gemm_s(tokens, 4096, 4096) + gemm_s(tokens, 8, 4096)
    visited = 8 * (1 - 0.75**tokens)
    values = tokens * 2 * (hidden + 2 * width + width + hidden)
    routed = (2 * visited * 3 * hidden * width + 2 * values) / BW + 2 * LAUNCH
    terms = step.terms(batch=1, nodes=tokens, depth=3, widths=[1, 1, 1], context=0)
    assert terms.layers_s == pytest.approx(32 * every_token, rel=1e-12)
    assert terms.experts_s == pytest.approx(32 * routed, rel=1e-12)
    assert step.visits(1, tokens) == ExpertVisits(visited=pytest.approx(visited), experts=8)


def independent(model: ModelShape) -> ModelShape:
    """The model with balanced routing in which every token chooses on its own."""
    assert model.experts is not None
    return replace(model, experts=replace(model.experts, skew=0.0, correlation=0.0))


def test_tokens_of_one_request_choose_alike(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> None:
    alone = independent(shipped_model("qwen3-30b-a3b"))
    assert alone.experts is not None
    alike = replace(alone, experts=replace(alone.experts, correlation=0.5))
    alone_step, alike_step = (ModelStep(model=m, times=h100(shipped_hardware), drafter=Ngram()) for m in (alone, alike))
    # 8 tokens of a request choose as 1 + 7 / 2 do: 32 of 128 experts, where 8 on their own visit 52
    visited = [step.visits(1, 8).visited for step in (alone_step, alike_step)]  # type: ignore[union-attr]
    assert visited == pytest.approx([128 * (1 - (120 / 128) ** 8), 128 * (1 - (120 / 128) ** 4.5)])
    of_requests, of_one = (
        [
            step.terms(batch=b, nodes=8 // b, depth=8 // b - 1, widths=[1] * (8 // b - 1), context=0).experts_s
            for b in (8, 1)
        ]
        for step in (alone_step, alike_step)
    )
    assert of_requests[0] == of_requests[1] == of_one[0] > of_one[1]


def test_a_dense_model_visits_no_experts(llama: ModelStep) -> None:
    assert llama.visits(8, 1) is None


def test_the_dense_layers_of_deepseek_are_priced_as_dense(round_gpu: Hardware, shipped_model: ShippedModel) -> None:
    model = shipped_model("deepseek-v3")
    assert model.experts is not None
    fewer = replace(model, experts=replace(model.experts, dense_layers=2))
    three, two = (
        ModelStep(model=m, times=round_gpu.kernel_times(), drafter=Ngram(), dtype="bf16").terms(
            batch=1, nodes=1, depth=0, widths=[], context=0
        )
        for m in (model, fewer)
    )
    # one token: 8 experts, the shared one and the router against one dense block, all memory-bound at 1e12 B/s
    dense = 2 * (3 * 7168 * 18432 + (2 * 18432 + 7168) + (18432 + 7168)) / 1e12 + 2e-6
    block = 3 * 7168 * 2048 + (2 * 2048 + 7168) + (2048 + 7168)
    experts = 2 * (9 * block + 256 * 7168 + 256 + 7168) / 1e12 + 5e-6
    found = three.layers_s + three.experts_s - two.layers_s - two.experts_s
    assert found == pytest.approx(dense - experts, rel=1e-9)


def test_tensor_parallelism_shares_out_work_and_adds_messages(
    shipped_model: ShippedModel, shipped_hardware: ShippedHardware
) -> None:
    step = ModelStep(model=shipped_model("llama-3.3-70b"), times=h100(shipped_hardware), drafter=Eagle(), tp=8)
    terms = step.terms(batch=16, nodes=4, depth=2, widths=[1, 1], context=1000)
    shard = [((8 + 2 * 1) * 128, 8192), (8192, 8 * 128), (2 * 3584, 8192), (8192, 3584)]
    assert terms.layers_s == pytest.approx(80 * sum(gemm_s(64, n, k) for n, k in shard), rel=1e-12)
    assert terms.lm_head_s == pytest.approx(gemm_s(64, 16032, 8192), rel=1e-12)
    # two messages per layer, 64 tokens of 8192 in 2 bytes, 7/4 of it over 450 GB/s; 7/8 of the logits once
    message_s = 7 / 4 * 64 * 8192 * 2 / 450e9 + LAUNCH
    logits_s = 7 / 8 * 64 * 128256 * 2 / 450e9 + LAUNCH
    assert terms.all_reduce_s == pytest.approx(160 * message_s + logits_s, rel=1e-12)
    assert terms.sampling_s == pytest.approx(10 * 64 * 128256 / BW + 2 * LAUNCH, rel=1e-12)
    assert terms.attention_s == pytest.approx(80 * (16 * 1004 * 2 * 128 * 2 / BW + LAUNCH), rel=1e-12)


def test_the_drafter_sends_messages_too(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> None:
    step = ModelStep(model=shipped_model("llama-3.3-70b"), times=h100(shipped_hardware), drafter=Eagle(), tp=8)
    shard = [((8 + 2 * 1) * 128, 8192), (8192, 8 * 128), (2 * 3584, 8192), (8192, 3584)]
    # the pass takes in two tokens per request and guesses after the last
    expected = sum(gemm_s(32, n, k) for n, k in shard) + gemm_s(32, 8192, 2 * 8192) + gemm_s(16, 16032, 8192)
    expected += 16 * 1001 * 2 * 128 * 2 / BW + LAUNCH
    expected += stream_s(2 * 32 * 2 * 8192) + stream_s(2 * 32 * 4 * 8192, 3)
    expected += stream_s(2 * 32 * 2 * (8 + 2) * 128) + stream_s(2 * 32 * 3 * 3584) + stream_s(2 * 16 * 128256)
    expected += 2 * (7 / 4 * 32 * 8192 * 2 / 450e9 + LAUNCH) + 7 / 8 * 16 * 128256 * 2 / 450e9 + LAUNCH
    terms = step.terms(batch=16, nodes=2, depth=1, widths=[1], context=1000)
    assert terms.drafter_s == pytest.approx(expected, rel=1e-12)


def test_fp8_is_for_the_layers_only(shipped_model: ShippedModel, round_gpu: Hardware) -> None:
    model = shipped_model("llama-3.1-8b")
    bf16, fp8 = (
        ModelStep(model=model, times=round_gpu.kernel_times(), drafter=Ngram(), dtype=dtype).terms(
            batch=1, nodes=1, depth=0, widths=[], context=1000
        )
        for dtype in ("bf16", "fp8")
    )
    saved = 32 * sum(n * k for n, k in LLAMA_GEMMS) / 1e12
    assert bf16.layers_s - fp8.layers_s == pytest.approx(saved, rel=1e-9)
    assert (bf16.attention_s, bf16.lm_head_s) == (fp8.attention_s, fp8.lm_head_s)


def test_int4_streams_a_quarter_of_the_layers(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> None:
    times = h100(shipped_hardware)
    step = ModelStep(model=shipped_model("llama-3.1-8b"), times=times, drafter=Ngram(), dtype="int4")
    layers = step.terms(batch=1, nodes=1, depth=0, widths=[], context=0).layers_s
    weights, activations = (32 * sum(f(n, k) for n, k in LLAMA_GEMMS) for f in (lambda n, k: n * k, lambda n, k: n + k))
    assert layers == pytest.approx(((0.5 + 2 / 128) * weights + 2 * activations) / BW + 128 * LAUNCH, rel=1e-12)
    assert step.memory_bytes == round((0.5 + 2 / 128) * weights + 2 * 2 * 128256 * 4096)


def test_layers_with_a_window_read_no_more_than_it(llama: ModelStep) -> None:
    windowed = replace(llama, model=replace(llama.model, window=SlidingWindow(tokens=512, layers=24)))
    near, far = (windowed.terms(batch=4, nodes=3, depth=1, widths=[1], context=c).attention_s for c in (512, 20_000))
    kv_s = 4 * 2 * 8 * 128 * 2 / BW  # per key and layer
    assert near == llama.terms(batch=4, nodes=3, depth=1, widths=[1], context=512).attention_s
    assert far - near == pytest.approx(8 * (20_000 - 512) * kv_s, rel=1e-9)
    # the cache keeps the window only; EAGLE's layer has none
    assert windowed.kv_bytes(20_000) == (8 * 20_000 + 24 * 512 + 20_000) * 2 * 8 * 128 * 2
    assert windowed.kv_bytes(100) == llama.kv_bytes(100) == 100 * (131072 + 4096)
    tree = DraftTree(((0,), (1,), (0, 0)))
    assert priced(windowed, tree, 4, 20_000).drafter_s == priced(llama, tree, 4, 20_000).drafter_s


def test_a_step_is_padded_to_the_next_captured_size(llama: ModelStep) -> None:
    captured = replace(llama, engine=EngineSteps(capture_tokens=(16, 64), eager_s=0.1, verified_token_s=1e-6))
    padded = captured.terms(batch=5, nodes=4, depth=3, widths=[1, 1, 1], context=100)
    full = llama.terms(batch=16, nodes=4, depth=3, widths=[1, 1, 1], context=100)
    unpadded = llama.terms(batch=5, nodes=4, depth=3, widths=[1, 1, 1], context=100)
    for term in (Term.LAYERS, Term.LM_HEAD, Term.ELEMENTWISE):
        assert padded.of(term) == full.of(term) != unpadded.of(term)
    # attention and sampling are for the requests that are there
    for term in (Term.ATTENTION, Term.SAMPLING, Term.DRAFTER):
        assert padded.of(term) == unpadded.of(term)
    assert padded.engine_s == pytest.approx(20e-6)
    beyond = captured.terms(batch=13, nodes=5, depth=4, widths=[1, 1, 1, 1], context=100)
    assert beyond.engine_s == pytest.approx(0.1 + 65e-6)
    assert beyond.layers_s == llama.terms(batch=13, nodes=5, depth=4, widths=[1, 1, 1, 1], context=100).layers_s


def test_the_engine_adds_its_constants(llama: ModelStep) -> None:
    engine = EngineSteps(
        step_s=1e-3, speculative_step_s=4e-4, speculative_request_s=2e-5, draft_pass_s=6e-5, verified_token_s=7e-6
    )
    step = replace(llama, engine=engine)
    assert step.terms(batch=8, nodes=1, depth=0, widths=[], context=0).engine_s == pytest.approx(1e-3 + 8 * 7e-6)
    tree = step.terms(batch=8, nodes=6, depth=3, widths=[1, 2, 1], context=0)
    assert tree.engine_s == pytest.approx(1e-3 + 4e-4 + 8 * 2e-5 + 3 * 6e-5 + 48 * 7e-6)
    # parallel heads are one pass, and a look-up none
    heads, lookup = (replace(step, drafter=drafter) for drafter in (Medusa(), Ngram()))
    assert heads.terms(batch=8, nodes=6, depth=3, widths=[1, 2, 1], context=0).engine_s == pytest.approx(
        1e-3 + 4e-4 + 8 * 2e-5 + 6e-5 + 48 * 7e-6
    )
    assert lookup.terms(batch=8, nodes=6, depth=3, widths=[1, 2, 1], context=0).engine_s == pytest.approx(
        1e-3 + 4e-4 + 8 * 2e-5 + 48 * 7e-6
    )


@pytest.mark.parametrize("term", Term)
def test_one_term_can_count_more(term: Term) -> None:
    step = replace(step_of("deepseek-v3", "mtp", 8), engine=EngineSteps(step_s=1e-3))
    tree = DraftTree(((0,), (1,), (0, 0), (0, 1)))
    before, after = priced(step, tree, 4, 1000), priced(step.scaled(term, 1.5).scaled(term.value, 2.0), tree, 4, 1000)
    assert before.of(term) > 0.0
    for other in Term:
        assert after.of(other) == pytest.approx(before.of(other) * (3.0 if other is term else 1.0), rel=1e-12)
    whole = step.scaled(term, 3.0).step_time_s(4, len(tree), tree.depth, tree.expanded_widths, 1000)
    assert float(whole) == pytest.approx(after.total_s, rel=1e-12)


def test_a_term_does_not_count_less_than_nothing(llama: ModelStep) -> None:
    with pytest.raises(InputError, match="layers counts 0 times"):
        llama.scaled(Term.LAYERS, 0.0)


def test_a_datasheet_knows_no_errors_and_is_said_once(llama: ModelStep) -> None:
    assert {error.p90 for error in llama.error_p90()} == {None}
    assert [error.term for error in llama.error_p90()] == list(Term)
    notes = llama.notes(batch=64, nodes=16, context=1000)
    assert notes == ["step times are a datasheet roofline, not measured: trust the shape more than the number"]


def test_memory_is_what_the_weights_take_on_each_gpu(llama: ModelStep) -> None:
    assert replace(llama, drafter=Ngram()).memory_bytes == 2 * llama.model.parameters
    assert replace(llama, drafter=Ngram(), tp=2).memory_bytes == llama.model.parameters
    # EAGLE's layer, and its fusion on every GPU; embedding and LM head are the target's
    layer, fusion = 4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336, 2 * 4096 * 4096
    assert llama.memory_bytes == 2 * (llama.model.parameters + layer + fusion)
    assert replace(llama, tp=2).memory_bytes == llama.model.parameters + layer + 2 * fusion


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"tp": 0}, "tp=0", "1 or more"),
        ({"tp": 3}, "32 heads|8 KV heads", "give a tp that divides"),
        ({"dtype": "int3"}, "unknown dtype 'int3'", "known: bf16, fp16, fp32, fp8, "),
    ],
)
def test_what_cannot_be_priced_is_refused(change: dict[str, object], message: str, hint: str, llama: ModelStep) -> None:
    with pytest.raises(InputError, match=message) as caught:
        replace(llama, **change)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def test_fp8_on_a_gpu_without_it_is_refused(llama: ModelStep, shipped_hardware: ShippedHardware) -> None:
    with pytest.raises(InputError, match="a100-sxm has no fp8 arithmetic"):
        replace(llama, times=shipped_hardware("a100-sxm").kernel_times(), dtype="fp8")

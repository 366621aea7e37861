"""The step: by hand, by a plain loop, and the properties that the search relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    StepCost,
    StepTerms,
    load_hardware,
    load_model,
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


def plain(step: StepCost, batch: int, context: int) -> float:
    return float(step.step_time_s(batch, 1, 0, np.zeros(4, dtype=np.int64), context))


def priced(step: RooflineStep, tree: DraftTree, batch: int, context: int) -> StepTerms:
    widths = tree.expanded_widths.tolist()
    return step.terms(batch=batch, nodes=len(tree), depth=tree.depth, widths=widths, context=context)


@pytest.fixture
def llama(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> RooflineStep:
    return RooflineStep(model=shipped_model("llama-3.1-8b"), hardware=shipped_hardware("h100-sxm"), drafter=Eagle())


def test_one_token_of_llama_8b_by_hand(llama: RooflineStep) -> None:
    # All memory-bound: 7.504e9 weights besides the input embedding, 2 bytes each.
    weights = 32 * sum(n * k for n, k in LLAMA_GEMMS) + 128256 * 4096
    activations = 32 * sum(n + k for n, k in LLAMA_GEMMS) + 128256 + 4096
    kv = 32 * 2049 * 2 * 8 * 128
    launches = 32 * 5 + 1
    expected = 2 * (weights + activations + kv) / BW + launches * LAUNCH
    assert weights == pytest.approx(7.504e9, rel=1e-3)
    assert plain(llama, batch=1, context=2048) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(5.16e-3, rel=1e-2)


@pytest.mark.parametrize(("batch", "nodes"), [(1, 8), (32, 10), (128, 16)])
def test_each_term_of_a_tree_by_hand(batch: int, nodes: int, llama: RooflineStep) -> None:
    terms = llama.terms(batch=batch, nodes=nodes, depth=2, widths=[1, 2], context=500)
    tokens = batch * nodes
    assert terms.layers_s == pytest.approx(32 * sum(gemm_s(tokens, n, k) for n, k in LLAMA_GEMMS), rel=1e-12)
    assert terms.lm_head_s == pytest.approx(gemm_s(tokens, 128256, 4096), rel=1e-12)
    memory_s = batch * (500 + nodes) * 2 * 8 * 128 * 2 / BW
    compute_s = 4 * batch * nodes * 32 * 128 * (500 + nodes) / PEAK
    assert terms.attention_s == pytest.approx(32 * (max(memory_s, compute_s) + LAUNCH), rel=1e-12)
    assert terms.all_reduce_s == 0.0
    # two accepted tokens per request, 131072 bytes of KV each, read and written
    assert terms.compaction_s == pytest.approx(2 * batch * 2 * 131072 / BW + LAUNCH, rel=1e-12)


def test_the_ridge_is_where_weights_and_arithmetic_take_equally_long(llama: RooflineStep) -> None:
    assert llama.ridge_tokens == pytest.approx(295.2, abs=0.05)


def test_plain_decoding_pays_neither_drafter_nor_compaction(llama: RooflineStep) -> None:
    terms = llama.terms(batch=16, nodes=1, depth=0, widths=[], context=2048)
    assert (terms.drafter_s, terms.compaction_s) == (0.0, 0.0)
    assert terms.total_s == plain(llama, batch=16, context=2048)


def test_a_chain_needs_no_compaction(llama: RooflineStep) -> None:
    assert priced(llama, DraftTree.chain(4), batch=8, context=100).compaction_s == 0.0
    assert priced(llama, DraftTree(((0,), (1,), (0, 0), (0, 0, 0))), batch=8, context=100).compaction_s > 0.0


def test_the_prefix_is_read_once_whatever_the_tree(llama: RooflineStep) -> None:
    # At B=4, L=20000 attention is memory-bound up to 64 nodes, so only the tree's own KV adds to it.
    batch, context = 4, 20_000
    one = llama.terms(batch=batch, nodes=2, depth=1, widths=[1], context=context).attention_s
    many = llama.terms(batch=batch, nodes=34, depth=1, widths=[1], context=context).attention_s
    assert many - one == pytest.approx(batch * 32 * 131072 / BW, rel=1e-9)
    assert many < 1.01 * one


def test_experts_make_more_tokens_dearer_long_before_the_ridge(
    shipped_model: ShippedModel, shipped_hardware: ShippedHardware
) -> None:
    hardware = shipped_hardware("h100-sxm")
    step = RooflineStep(model=shipped_model("mixtral-8x7b"), hardware=hardware, drafter=Ngram())
    tokens, hidden, width = 4, 4096, 14336
    every_token = gemm_s(tokens, 6144, 4096) + gemm_s(tokens, 4096, 4096) + gemm_s(tokens, 8, 4096)
    visited = 8 * (1 - 0.75**tokens)
    values = tokens * 2 * (hidden + 2 * width + width + hidden)
    routed = (2 * visited * 3 * hidden * width + 2 * values) / BW + 2 * LAUNCH
    terms = step.terms(batch=1, nodes=tokens, depth=3, widths=[1, 1, 1], context=0)
    assert terms.layers_s == pytest.approx(32 * (every_token + routed), rel=1e-12)


def test_the_dense_layers_of_deepseek_are_priced_as_dense(round_gpu: Hardware, shipped_model: ShippedModel) -> None:
    model = shipped_model("deepseek-v3")
    assert model.experts is not None
    fewer = replace(model, experts=replace(model.experts, dense_layers=2))
    three, two = (
        RooflineStep(model=m, hardware=round_gpu, drafter=Ngram()).terms(
            batch=1, nodes=1, depth=0, widths=[], context=0
        )
        for m in (model, fewer)
    )
    # one token: 8 experts, the shared one and the router against one dense block, all memory-bound at 1e12 B/s
    dense = 2 * (3 * 7168 * 18432 + (2 * 18432 + 7168) + (18432 + 7168)) / 1e12 + 2e-6
    block = 3 * 7168 * 2048 + (2 * 2048 + 7168) + (2048 + 7168)
    experts = 2 * (9 * block + 256 * 7168 + 256 + 7168) / 1e12 + 5e-6
    assert three.layers_s - two.layers_s == pytest.approx(dense - experts, rel=1e-9)


def test_tensor_parallelism_shares_out_work_and_adds_messages(
    shipped_model: ShippedModel, shipped_hardware: ShippedHardware
) -> None:
    hardware = shipped_hardware("h100-sxm")
    step = RooflineStep(model=shipped_model("llama-3.3-70b"), hardware=hardware, drafter=Eagle(), tp=8)
    terms = step.terms(batch=16, nodes=4, depth=2, widths=[1, 1], context=1000)
    shard = [((8 + 2 * 1) * 128, 8192), (8192, 8 * 128), (2 * 3584, 8192), (8192, 3584)]
    assert terms.layers_s == pytest.approx(80 * sum(gemm_s(64, n, k) for n, k in shard), rel=1e-12)
    assert terms.lm_head_s == pytest.approx(gemm_s(64, 16032, 8192), rel=1e-12)
    # two messages per layer, 64 tokens of 8192 in 2 bytes, 7/4 of it over 450 GB/s
    message_s = 7 / 4 * 64 * 8192 * 2 / 450e9 + LAUNCH
    assert terms.all_reduce_s == pytest.approx(160 * message_s, rel=1e-12)
    assert terms.attention_s == pytest.approx(80 * (16 * 1004 * 2 * 128 * 2 / BW + LAUNCH), rel=1e-12)


def test_the_drafter_sends_messages_too(shipped_model: ShippedModel, shipped_hardware: ShippedHardware) -> None:
    hardware = shipped_hardware("h100-sxm")
    step = RooflineStep(model=shipped_model("llama-3.3-70b"), hardware=hardware, drafter=Eagle(), tp=8)
    shard = [((8 + 2 * 1) * 128, 8192), (8192, 8 * 128), (2 * 3584, 8192), (8192, 3584), (16032, 8192)]
    expected = sum(gemm_s(16, n, k) for n, k in shard) + gemm_s(16, 8192, 2 * 8192)
    expected += 16 * 1001 * 2 * 128 * 2 / BW + LAUNCH
    expected += 2 * (7 / 4 * 16 * 8192 * 2 / 450e9 + LAUNCH)
    terms = step.terms(batch=16, nodes=2, depth=1, widths=[1], context=1000)
    assert terms.drafter_s == pytest.approx(expected, rel=1e-12)


def test_fp8_is_for_the_layers_only(shipped_model: ShippedModel, round_gpu: Hardware) -> None:
    model = shipped_model("llama-3.1-8b")
    bf16, fp8 = (
        RooflineStep(model=model, hardware=round_gpu, drafter=Ngram(), dtype=dtype).terms(
            batch=1, nodes=1, depth=0, widths=[], context=1000
        )
        for dtype in ("bf16", "fp8")
    )
    saved = 32 * sum(n * k for n, k in LLAMA_GEMMS) / 1e12
    assert bf16.layers_s - fp8.layers_s == pytest.approx(saved, rel=1e-9)
    assert (bf16.attention_s, bf16.lm_head_s) == (fp8.attention_s, fp8.lm_head_s)


def test_memory_is_what_the_weights_take_on_each_gpu(llama: RooflineStep) -> None:
    assert llama.memory_bytes == 2 * llama.model.parameters
    half = replace(llama, tp=2)
    assert half.memory_bytes == llama.model.parameters
    assert half.memory_bytes < llama.hardware.memory_bytes


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"tp": 0}, "tp=0", "1 or more"),
        ({"tp": 3}, "32 heads|8 KV heads", "give a tp that divides"),
        ({"dtype": "int4"}, "h100-sxm has no int4 arithmetic", "it has: bf16, fp16, fp8"),
    ],
)
def test_what_cannot_be_priced_is_refused(
    change: dict[str, object], message: str, hint: str, llama: RooflineStep
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        replace(llama, **change)  # type: ignore[arg-type]
    assert hint in caught.value.hint


def test_fp8_on_a_gpu_without_it_is_refused(llama: RooflineStep, shipped_hardware: ShippedHardware) -> None:
    with pytest.raises(InputError, match="a100-sxm has no fp8 arithmetic"):
        replace(llama, hardware=shipped_hardware("a100-sxm"), dtype="fp8")


@cache
def step_of(model: str, drafter: str, tp: int) -> RooflineStep:
    kinds: dict[str, Drafter] = {
        "eagle": Eagle(),
        "medusa": Medusa(),
        "mtp": Mtp(),
        "ngram": Ngram(),
        "model": DraftModel(model=load_model(PROFILES / "models" / "qwen3-0.6b.yaml")),
    }
    return RooflineStep(
        model=load_model(PROFILES / "models" / f"{model}.yaml"),
        hardware=load_hardware(PROFILES / "hardware" / "h100-sxm.yaml"),
        drafter=kinds[drafter],
        tp=tp,
    )


STEPS = [
    ("llama-3.1-8b", "eagle", 1),
    ("llama-3.3-70b", "model", 8),
    ("llama-3.1-8b", "medusa", 2),
    ("qwen3-30b-a3b", "mtp", 1),
    ("qwen3-30b-a3b", "ngram", 2),
    ("deepseek-v3", "mtp", 8),
]
steps = st.sampled_from(STEPS).map(lambda key: step_of(*key))


def random_widths(shape: tuple[int, ...], depth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    widths = np.random.default_rng(0).integers(1, 9, size=shape)
    return np.where(np.arange(shape[-1]) < depth[..., None], widths, 0)


@pytest.mark.parametrize("key", STEPS)
def test_a_broadcast_call_is_the_loop_over_its_points(key: tuple[str, str, int]) -> None:
    step = step_of(*key)
    batch = np.array([1, 7, 64])[:, None, None]
    nodes = np.array([3, 6, 20, 65])[:, None]
    depth = np.array([0, 1, 2, 5])
    context = np.array([100, 5000])[:, None, None, None]
    widths = random_widths((4, 4, 5), np.broadcast_to(depth, (4, 4)))
    found = step.step_time_s(batch, nodes, depth, widths, context)
    assert found.shape == (2, 3, 4, 4)
    for c, b, n, d in np.ndindex(found.shape):
        alone = step.step_time_s(
            int(batch[b, 0, 0]), int(nodes[n, 0]), int(depth[d]), widths[n, d], int(context[c, 0, 0, 0])
        )
        assert alone.shape == ()
        assert found[c, b, n, d] == pytest.approx(float(alone), rel=1e-12)


@pytest.mark.parametrize("key", STEPS)
def test_a_batch_that_varies_with_the_trees_is_the_loop_too(key: tuple[str, str, int]) -> None:
    step = step_of(*key)
    depth = np.array([1, 3, 2])
    widths = random_widths((3, 3), depth)
    batch, nodes = np.array([8, 1, 8]), np.array([4, 9, 6])
    found = step.step_time_s(batch, nodes, depth, widths, 512)
    for i in range(3):
        alone = step.step_time_s(int(batch[i]), int(nodes[i]), int(depth[i]), widths[i], 512)
        assert found[i] == pytest.approx(float(alone), rel=1e-12)


def test_the_result_has_the_broadcast_shape_even_where_an_input_has_no_price() -> None:
    step = step_of("qwen3-30b-a3b", "ngram", 2)
    found = step.step_time_s(4, 8, 2, np.ones((3, 5, 2), dtype=np.int64), 100)
    assert found.shape == (3, 5)
    assert found.min() == found.max() > 0


@pytest.mark.parametrize("key", STEPS)
def test_the_terms_add_up_to_the_step(key: tuple[str, str, int]) -> None:
    step = step_of(*key)
    tree = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    terms = priced(step, tree, batch=24, context=3000)
    whole = step.step_time_s(24, len(tree), tree.depth, tree.expanded_widths, 3000)
    assert terms.total_s == float(whole)
    assert sum(getattr(terms, field.name) for field in fields(terms)) == pytest.approx(terms.total_s, rel=1e-12)
    assert terms.layers_s > 0
    assert terms.compaction_s > 0


class Point:
    """Strategies of valid points: `nodes` leaves room for the widths and for one level more."""

    batch = st.integers(1, 512)
    context = st.integers(0, 100_000)
    widths = st.lists(st.integers(1, 40), min_size=1, max_size=7)


@settings(deadline=None)
@given(step=steps, batch=Point.batch, context=Point.context, widths=Point.widths, extra=st.integers(1, 40))
def test_a_deeper_tree_is_never_cheaper(
    step: RooflineStep, batch: int, context: int, widths: list[int], extra: int
) -> None:
    depth = len(widths)
    nodes = 1 + sum(widths) + extra + 1  # more than depth + 2: no chain on either side
    shallow = np.array([*widths, 0])
    deep = np.array([*widths, extra])
    before = step.step_time_s(batch, nodes, depth, shallow, context)
    after = step.step_time_s(batch, nodes, depth + 1, deep, context)
    assert after >= before
    if not isinstance(step.drafter, Ngram):
        assert after > before


@settings(deadline=None)
@given(
    step=steps,
    batch=Point.batch,
    context=Point.context,
    widths=Point.widths,
    wider=st.lists(st.integers(0, 40), min_size=7, max_size=7),
)
def test_a_wider_tree_is_never_cheaper(
    step: RooflineStep, batch: int, context: int, widths: list[int], wider: list[int]
) -> None:
    narrow = np.array(widths)
    wide = narrow + np.array(wider[: len(widths)])
    nodes = 1 + int(wide.sum())
    before = step.step_time_s(batch, nodes, len(widths), narrow, context)
    after = step.step_time_s(batch, nodes, len(widths), wide, context)
    assert after >= before * (1 - 1e-12)


@settings(deadline=None)
@given(step=steps, nodes=st.integers(1, 64), batch=Point.batch, context=Point.context)
def test_more_requests_nodes_or_context_never_cost_less(
    step: RooflineStep, nodes: int, batch: int, context: int
) -> None:
    widths = np.zeros(1, dtype=np.int64)
    base = step.step_time_s(batch, nodes, 0, widths, context)
    for more in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        dearer = step.step_time_s(batch + more[0], nodes + more[1], 0, widths, context + more[2])
        assert dearer >= base * (1 - 1e-12)


def test_only_a_chain_can_undercut_a_shallower_tree_of_as_many_nodes() -> None:
    step = step_of("qwen3-30b-a3b", "ngram", 2)
    tree = DraftTree(((0,), (1,), (0, 0), (0, 0, 0)))
    chain = DraftTree.chain(4)
    assert len(tree) == len(chain)
    shallower, deeper = (priced(step, t, batch=8, context=100) for t in (tree, chain))
    assert shallower.total_s - deeper.total_s == pytest.approx(shallower.compaction_s, rel=1e-9)
    assert shallower.compaction_s > 0

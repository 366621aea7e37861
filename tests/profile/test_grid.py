"""The kernels of a model's step, and the points that they are timed at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_device import HEADS, MODEL, questions

from treeopt.cost import ModelShape, load_model, parse_drafter
from treeopt.cost.fit.kinds import UNPRICED
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.kernels.family import SIZES, Family
from treeopt.cost.kernels.gemm import Gemm
from treeopt.errors import InputError
from treeopt.files.shipped import locate
from treeopt.profile.beside import BESIDE
from treeopt.profile.grid import STREAM_BYTES, GridReach, ceiling_points, grid
from treeopt.profile.points import ATTENTION, COMPACTION, GEMM, STREAM
from treeopt.profile.shapes import ExpertLayer, Shapes, shapes_of


def shapes(model: ModelShape = MODEL, drafter: str = "eagle", tp: int = 1, dtype: Dtype = Dtype.FP32) -> Shapes:
    other = replace(MODEL, name="small", hidden=32, attention=replace(HEADS, heads=2, kv_heads=1))
    return shapes_of(model, parse_drafter(drafter, load_model=lambda name: other), tp=tp, dtype=dtype)


def test_the_weights_of_a_target_and_its_head() -> None:
    found = shapes()
    # by hand: q, k, v of 128 + 2 x 64; output; gate and up; down; LM head; the head's 2h -> h fusion
    assert found.weights == (
        Gemm(512, 64),
        Gemm(256, 64),
        Gemm(64, 128),
    )
    assert found.attention == (HEADS,)
    assert found.layers == 2
    per_layer = 256 * 64 + 64 * 128 + 256 * 64 + 64 * 128
    assert found.step_bytes == 4 * (512 * 64 + 2 * per_layer)
    assert found.untimed == ()


def test_a_draft_model_brings_its_own_shapes() -> None:
    found = shapes(drafter="model:small")
    assert len(found.attention) == 2
    assert Gemm(512, 32) in found.weights
    assert Gemm(2 * 128, 32) in found.weights


def test_heads_bring_a_square_block_and_guesses_from_text_bring_nothing() -> None:
    assert Gemm(64, 64) in shapes(drafter="medusa").weights
    assert Gemm(64, 64) not in shapes(drafter="ngram").weights


def test_a_gpus_part() -> None:
    found = shapes(tp=2)
    assert Gemm(256, 64) in found.weights  # half of the vocabulary
    assert found.attention == (replace(HEADS, heads=2, kv_heads=1),)
    assert (found.tp, found.untimed) == (2, ())
    with pytest.raises(InputError, match="do not share out over tp=3"):
        shapes(tp=3)


def test_what_is_not_timed_is_said() -> None:
    found = shapes(load_model(locate("models", "deepseek-v3").path), "mtp", dtype=Dtype.BF16)
    assert found.untimed == ()
    (shape,) = found.latent
    assert (shape.heads, shape.kv_values) == (128, 576)
    assert all(weight.groups == 1 for weight in found.weights)
    (hidden, layer), (_, half) = found.experts
    assert (hidden, layer.count, layer.per_token, layer.intermediate, half.intermediate) == (7168, 256, 8, 2048, 1024)
    other = replace(MODEL, attention=replace(shape, kv_lora_rank=256))
    assert "ranks of 512 and 64 only" in shapes(other, "ngram").untimed[0]


def test_the_grid_stays_within_its_reach() -> None:
    points = grid(shapes(), Dtype.FP32, GridReach(max_tokens=16, max_keys=512, memory_bytes=1e8))
    assert len(points) == len(set(points))
    by_operator = {name: [p for p in points if p.operator == name] for name in (GEMM, ATTENTION, STREAM, COMPACTION)}
    assert {p.size("tokens") for p in by_operator[GEMM]} == {1, 2, 4, 8, 12, 16}
    assert {(p.size("requests"), p.size("queries"), p.size("keys")) for p in by_operator[ATTENTION]} == {
        (b, n, keys) for b in (1, 4, 16) for n in (1, 4, 8, 16) for keys in (128, 512) if b * n <= 16
    }
    assert {p.traffic_bytes for p in by_operator[STREAM]} == {size for size in STREAM_BYTES if size <= 1e8}
    assert all(p.size("requests") * (p.size("moved") + 1) <= 16 for p in by_operator[COMPACTION])
    assert all(p.traffic_bytes <= 1e8 for p in points)


def test_a_beginning_is_enough_for_every_fit() -> None:
    """12 rows of each kind, of three shapes or batch sizes, come within the first half of the smallest grid."""
    wanted = questions()
    points = grid(shapes(), wanted.dtype, GridReach(max_tokens=512, max_keys=8192, memory_bytes=1e9))
    beginning = points[: len(points) // 2]
    attention = [p for p in beginning if p.operator == ATTENTION]
    assert len(attention) >= 12
    assert len({p.size("requests") for p in attention}) >= 3
    assert sum(p.operator == STREAM for p in beginning) >= 12
    assert len({(p.size("outputs"), p.size("inputs")) for p in beginning if p.operator == GEMM}) >= 3


def test_three_batch_sizes_even_in_a_small_reach() -> None:
    points = grid(shapes(), Dtype.FP32, GridReach(max_tokens=8, max_keys=512))
    attention = [p for p in points if p.operator == ATTENTION]
    assert {p.size("requests") for p in attention} == {1, 2, 4}
    assert len(attention) >= 12


def test_ceilings_fit_into_memory() -> None:
    copy, product = ceiling_points(Dtype.BF16, device="cuda", memory_bytes=101e6)
    assert copy.traffic_bytes == 1 << 26
    assert product.size("tokens") == 4096  # three of 8192 x 8192 take 403 MB, of 4096 x 4096 101
    assert ceiling_points(Dtype.BF16, device="cuda", memory_bytes=1e11)[1].size("inputs") == 8192


def test_what_a_step_prices_is_timed() -> None:
    """By the operators of a grid: routed experts, latent attention, messages, FP8, and what is set beside its price."""
    deepseek = shapes(load_model(locate("models", "deepseek-v3").path), "mtp", tp=8, dtype=Dtype.FP8)
    reach = GridReach(max_tokens=64, memory_bytes=1e12, kernels=True, flash=True, ranks=8, experts_dtype=Dtype.BF16)
    points = grid(deepseek, Dtype.FP8, reach)
    found = {point.operator for point in points}
    assert found == {
        *("gemm", "activation_scales", "latent_attention", "experts", "all_reduce", "stream"),
        *("norm", "rope", "activation", "expert_choice", "sampling"),
    }
    assert {p.dtype for p in points if p.operator == GEMM} == {Dtype.FP8, Dtype.BF16}
    assert {p.size("tp") for p in points if p.operator == "all_reduce"} == {8}
    assert {dict(p.sizes)["skewed"] for p in points if p.operator == "experts"} == {0.0, 1.2}
    grouped = {p.operator for p in grid(shapes(), Dtype.FP32, replace(reach, experts_dtype=None))}
    assert grouped >= {"tree_attention", "tree_attention_pages_16", "tree_attention_contiguous", "flash_attention"}
    assert grouped >= {"schedule", "compaction"}


def test_operators_are_families_or_set_beside_something() -> None:
    assert set(UNPRICED) == set(BESIDE)
    reach = GridReach(max_tokens=64, kernels=True, flash=True, ranks=2)
    for point in grid(shapes(tp=2), Dtype.FP32, reach):
        assert point.priced == (point.operator not in BESIDE)
        if point.priced:
            family = Family("attention" if point.operator == ATTENTION else point.operator)
            assert {*dict(point.sizes)} >= {*SIZES[family]} - {"causal", "module"}


def test_the_experts_of_a_layer_have_to_fit_at_once() -> None:
    layer = ExpertLayer(64, Experts(count=8, per_token=2, intermediate=32, shared_intermediate=0, dense_layers=0))
    held = 4 * 3 * 64 * 32 * 8
    for memory_bytes, fits in ((held, True), (held - 1, False)):
        reach = GridReach(max_tokens=1, memory_bytes=memory_bytes, experts_dtype=Dtype.FP32)
        points = grid(Shapes(weights=(), experts=(layer,)), Dtype.FP32, reach)
        assert any(p.operator == "experts" for p in points) == fits

"""The kernels of a step beside GEMMs and attention: what they compute, and that a fit reads their rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from toy_device import CEILINGS, DEVICE, HEADS, MODEL, at, one_dies  # noqa: E402 (needs torch)

from treeopt.cost import parse_drafter  # noqa: E402
from treeopt.cost.formats import Dtype  # noqa: E402
from treeopt.cost.kernels.attention import LatentAttention  # noqa: E402
from treeopt.cost.kernels.experts import Experts, popularity  # noqa: E402
from treeopt.cost.kernels.gemm import Gemm  # noqa: E402
from treeopt.profile import points  # noqa: E402
from treeopt.profile.attention import (  # noqa: E402
    AttentionSizes,
    attention_workload,
    kernel_workload,
    schedule_workload,
)
from treeopt.profile.experts import choices  # noqa: E402
from treeopt.profile.flash import flash_attention  # noqa: E402
from treeopt.profile.measure import KernelBench, Questions  # noqa: E402
from treeopt.profile.messages import Ranks  # noqa: E402
from treeopt.profile.points import KernelPoint  # noqa: E402
from treeopt.profile.pool import TensorPool  # noqa: E402
from treeopt.profile.profile import profile_of  # noqa: E402
from treeopt.profile.rows import RowFile, Timed  # noqa: E402
from treeopt.profile.session import Failed, TimingError  # noqa: E402
from treeopt.profile.workload import CheckedCall, WrongResultError  # noqa: E402
from treeopt.profile.workloads import workload  # noqa: E402

LATENT = LatentAttention(
    heads=4, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32
)
LAYER = Experts(count=16, per_token=2, intermediate=48, shared_intermediate=0, dense_layers=0, skew=0.0)
DTYPES = (Dtype.FP32, Dtype.BF16, Dtype.FP16)


def step_points(dtype: Dtype) -> list[KernelPoint]:
    return [
        points.routed_experts(1, 64, LAYER, dtype),
        points.routed_experts(37, 64, replace(LAYER, skew=1.2), dtype),
        points.latent_attention(2, 7, 90, LATENT, dtype),
        points.norm(5, 64, dtype),
        points.rope(5, HEADS, dtype),
        points.rope(5, LATENT, dtype),
        points.activation(5, 96, dtype),
        points.expert_choice(5, 16, 2, dtype),
        points.sampling(5, 1000, dtype),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_right_and_inputs_rotate(dtype: Dtype) -> None:
    pool = TensorPool(dtype=dtype, device="cpu")
    for point in step_points(dtype):
        work = workload(point, pool, cold=4 * point.traffic_bytes)
        assert len(work.calls) == 5
        work.error(point)


@pytest.mark.parametrize("sizes", [(300, 128, 512), (1, 96, 64)])
def test_narrow_products_are_right(sizes: tuple[int, int, int]) -> None:
    point = points.gemm(sizes[0], Gemm(*sizes[1:]), Dtype.FP8)
    assert workload(point, TensorPool(dtype=Dtype.BF16, device="cpu"), cold=0).error(point) < 0.02


def test_scales_that_lose_a_row_are_noticed() -> None:
    point = points.activation_scales(5, 512, Dtype.FP8)
    work = workload(point, TensorPool(dtype=Dtype.BF16, device="cpu"), cold=0)
    assert work.error(point) == 0.0
    values, scale = work.calls[0]()
    assert (values.dtype, scale.shape) == (torch.float8_e4m3fn, (5, 1))
    result, exact = work.check()
    with pytest.raises(WrongResultError):
        replace(work, check=lambda: CheckedCall(result + 0.01, exact)).error(point)


def test_experts_of_the_wrong_tokens_are_noticed() -> None:
    point = points.routed_experts(37, 64, LAYER, Dtype.FP32)
    work = workload(point, TensorPool(dtype=Dtype.FP32, device="cpu"), cold=0)
    result, exact = work.check()
    with pytest.raises(WrongResultError):
        replace(work, check=lambda: CheckedCall(result.roll(1, 0), exact)).error(point)


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_choices_meet_the_popularity_exactly(skew: float) -> None:
    share = popularity(16, 3, skew) if skew else np.full(16, 3 / 16)
    found = choices(share, 40_000, np.random.default_rng(1))
    assert all(len(set(row)) == 3 for row in found[:200].tolist())
    # Each count is a sum of 40,000 draws of 0 or 1: four standard deviations.
    rates = np.bincount(found.ravel(), minlength=16) / 40_000
    assert (np.abs(np.sort(rates) - np.sort(share)) < 4 * np.sqrt(0.25 / 40_000)).all()


def test_traffic_by_hand() -> None:
    one = points.routed_experts(1, 64, LAYER, Dtype.BF16)  # one token visits two of the experts, all are held
    weights = 3 * 64 * 48
    assert one.traffic_bytes == 2 * (2 * weights + 2 * (2 * 64 + 3 * 48))
    assert one.input_bytes == 2 * 16 * weights
    assert points.latent_attention(2, 7, 90, LATENT, Dtype.BF16).traffic_bytes == 2 * (
        2 * 90 * 576 + 2 * 7 * 4 * (576 + 512)
    )
    assert points.all_reduce(1 << 20, 4, Dtype.BF16).traffic_bytes == 3 << 19  # 1.5 MB from each of four
    assert points.rope(5, HEADS, Dtype.FP32).traffic_bytes == 4 * 5 * (2 * 4 * 32 + 2 * HEADS.kv_values)
    assert points.sampling(3, 100, Dtype.BF16).traffic_bytes == 3 * 100 * (6 + 4)
    assert points.sampling(3, 100, Dtype.FP32).traffic_bytes == 3 * 100 * 4
    assert points.gemm(3, Gemm(100, 50), Dtype.FP8).traffic_bytes == 100 * 50 + 2 * 3 * 150


@pytest.mark.filterwarnings("ignore")  # of Triton's interpreter
def test_latent_attention_and_the_schedule_by_the_kernels() -> None:
    pytest.importorskip("triton")
    from treeopt.kernels.tensors import interpreting

    if not interpreting():
        pytest.skip("Triton's interpreter has to be chosen before its import")
    pool = TensorPool(dtype=Dtype.FP16, device="cpu")
    point = points.latent_attention(2, 3, 23, LATENT, Dtype.FP16)
    assert kernel_workload(AttentionSizes.of(point), pool, 1).error(point) < 0.01
    for impl in ("triton", "torch"):
        point = points.schedule(3, 7, 77, replace(HEADS, head_dim=64), Dtype.FP16)
        assert schedule_workload(point, pool, 1, impl=impl).error(point) == 0.0


def engine(monkeypatch: pytest.MonkeyPatch, *names: str, **functions: Any) -> None:
    """An engine's package with these functions in its last module."""
    for at_name in range(1, len(names) + 1):
        module = ModuleType(".".join(names[:at_name]))
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, function in functions.items():
        setattr(module, name, function)


def test_flash_attention_of_an_engine_is_called_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures of vLLM's `flash_attn_varlen_func` and SGLang's `flash_attn_with_kvcache`, in plain torch."""
    assert flash_attention() is None
    point = points.tree_attention(3, 5, 150, HEADS, Dtype.FP32, operator=points.FLASH)
    pool = TensorPool(dtype=Dtype.FP32, device="cpu")

    def paged(q: Any, k: Any, v: Any, table: Any, length: int) -> Any:
        keys, values = (part[table.long()].flatten(0, 1)[:length].transpose(0, 1) for part in (k, v))
        mask = torch.ones(q.shape[0], length).tril(length - q.shape[0]).bool()
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q.transpose(0, 1), keys, values, attn_mask=mask, enable_gqa=True).transpose(0, 1)

    def with_cache(*, q: Any, k_cache: Any, v_cache: Any, page_table: Any, cache_seqlens: Any, causal: bool) -> Any:
        assert causal
        rows = [paged(q[b], k_cache, v_cache, page_table[b], int(cache_seqlens[b])) for b in range(len(q))]
        return torch.stack(rows)

    def varlen(
        *,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        max_seqlen_q: int,
        seqused_k: Any,
        max_seqlen_k: int,
        causal: bool,
        block_table: Any,
    ) -> Any:
        assert causal
        assert (max_seqlen_q, max_seqlen_k >= 150) == (5, True)
        ends = cu_seqlens_q.tolist()
        rows = [q[first:last] for first, last in pairwise(ends)]
        return torch.cat([paged(row, k, v, block_table[b], int(seqused_k[b])) for b, row in enumerate(rows)])

    engine(monkeypatch, "sgl_kernel", "flash_attn", flash_attn_with_kvcache=with_cache)
    assert flash_attention().library == "sgl_kernel"
    assert attention_workload(point, pool, 2).error(point) < 1e-5
    engine(monkeypatch, "vllm", "vllm_flash_attn", flash_attn_varlen_func=varlen)
    assert flash_attention().library == "vllm"
    assert attention_workload(point, pool, 2).error(point) < 1e-5


def test_messages_among_two_processes() -> None:
    ranks = Ranks(2, "cpu")
    try:
        for size in (4096, 65536):
            found = ranks(points.all_reduce(size, 2, Dtype.FP32))
            assert found.timing.time_s > 0
    finally:
        ranks.close()


def test_a_rank_that_dies_takes_no_other_message_along() -> None:
    ranks = Ranks(2, "cpu", time_rank=one_dies)
    try:
        said = []
        for size in (4096, 8192, 4096, 16384, 4096):
            try:
                said.append(ranks(points.all_reduce(size, 2, Dtype.FP32)).timing.time_s)
            except TimingError as error:
                said.append(str(error))
    finally:
        ranks.close()
    slowest = pytest.approx(2e-6)
    assert (said[0], said[2], said[4]) == (slowest, slowest, slowest)
    assert "process died" in said[1] or "onnection" in said[1]
    assert said[3] == "RuntimeError: out of memory"


def test_every_family_of_a_step_is_fitted_from_rows_of_this_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with latent attention and experts, in FP8, over two ranks: every kernel runs, the times are of paper."""
    from treeopt.profile import grid, timer

    monkeypatch.setattr(timer, "REPEAT_S", 0.0)
    monkeypatch.setitem(grid._MATMUL, "cpu", 256)
    monkeypatch.setitem(grid._COPY_BYTES, "cpu", 1 << 22)
    monkeypatch.setattr(grid, "STREAM_BYTES", tuple(1 << k for k in range(10, 23)))
    monkeypatch.setattr(grid, "MESSAGE_BYTES", tuple(1 << k for k in range(10, 17)))
    monkeypatch.setattr(grid, "KEYS", (128, 256))
    layer = replace(LAYER, intermediate=64, shared_intermediate=64, dense_layers=1)
    model = replace(MODEL, hidden=512, intermediate=1024, attention=LATENT, experts=layer)
    wanted = Questions(
        model=model,
        drafter=parse_drafter("ngram", load_model=lambda name: model),
        dtype=Dtype.FP8,
        tp=2,
        max_tokens=8,
        max_context=512,
    )
    bench = KernelBench(device=DEVICE, rows=RowFile(path=tmp_path / "r.jsonl", device=DEVICE.key), questions=wanted)
    real = bench.time_point

    def checked(point: KernelPoint) -> Timed:
        return replace(real(point), timing=at(point, 2e-6 + point.floor_s(CEILINGS)).timing)

    bench.__dict__["time_point"] = checked  # a cached property
    try:
        failed = [done for done in bench.run(bench.schedule(None).left) if isinstance(done, Failed)]
        profiled = profile_of(bench, name="toy", command="test", noise=None)
    finally:
        bench.close()
    assert failed == []
    assert {(str(f.family), str(f.dtype)) for f in profiled.families} == {
        *(("gemm", "bf16"), ("gemm", "fp8"), ("activation_scales", "fp8"), ("latent_attention", "bf16")),
        *(("experts", "bf16"), ("all_reduce", "bf16"), ("stream", "bf16")),
    }
    assert {row.operator for row in profiled.beside} == {"norm", "rope", "activation", "expert_choice", "sampling"}
    assert [note for note in profiled.notes if "left out" in note or "not timed" in note] == []
    times = profiled.fitted.hardware.kernel_times()
    assert float(times.all_reduce_s(np.array(4096.0), 2)) > 0
    assert float(times.experts_s(np.array(4.0), layer, 512, Dtype.BF16)) > 0

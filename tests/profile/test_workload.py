"""The calls behind points compute what they say, and a wrong result is never timed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from toy_device import HEADS  # noqa: E402 (needs torch)

from treeopt.cost.formats import Dtype  # noqa: E402
from treeopt.cost.kernels.attention import GroupedAttention  # noqa: E402
from treeopt.cost.kernels.gemm import Gemm  # noqa: E402
from treeopt.profile.attention import (  # noqa: E402
    AttentionSizes,
    binary_parents,
    kernel_takes,
    kernel_workload,
    masked_workload,
    step_mask,
)
from treeopt.profile.compaction import _by_kernel, _by_slots  # noqa: E402
from treeopt.profile.points import KernelPoint, compaction, gemm, stream, tree_attention  # noqa: E402
from treeopt.profile.pool import TensorPool  # noqa: E402
from treeopt.profile.session import checked_and_timed  # noqa: E402
from treeopt.profile.timer import Timing  # noqa: E402
from treeopt.profile.workload import CheckedCall, Workload, WrongResultError  # noqa: E402
from treeopt.profile.workloads import workload  # noqa: E402

DTYPES = (Dtype.FP32, Dtype.BF16, Dtype.FP16)


def points(dtype: Dtype) -> list[KernelPoint]:
    return [
        gemm(1, Gemm(300, 200), dtype),
        gemm(300, Gemm(200, 1000), dtype),
        tree_attention(3, 7, 40, HEADS, dtype),
        tree_attention(1, 1, 128, GroupedAttention(heads=9, kv_heads=3, head_dim=64), dtype),
        stream(4096, dtype),
        compaction(3, 4, 2, HEADS, dtype),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_right_and_inputs_rotate(dtype: Dtype) -> None:
    pool = TensorPool(dtype=dtype, device="cpu")
    for point in points(dtype):
        work = workload(point, pool, cold=4 * point.traffic_bytes)
        assert len(work.calls) == (4 if point.operator == "compaction" else 5)
        assert work.error(point) <= 4 * torch.finfo(pool.dtype).eps + 1e-4


def broken(point: KernelPoint, name: str) -> Workload:
    """The point's workload with a result that is wrong in one way."""
    work = workload(point, TensorPool(dtype=point.dtype, device="cpu"), cold=0)
    result, exact = work.check()
    result = result.clone()
    if name == "one value is off by a hundredth of the largest":
        result.view(-1)[0] += 0.01 * exact.abs().max()
    elif name == "one value is no number":
        result.view(-1)[-1] = torch.nan
    else:
        result = result.roll(1, dims=0)
    return replace(work, check=lambda: CheckedCall(result, exact), check_small=None)


@pytest.mark.parametrize(
    "name", ["one value is off by a hundredth of the largest", "one value is no number", "rows are mixed up"]
)
def test_a_wrong_result_is_refused_and_not_timed(name: str) -> None:
    class Never:
        def time(self, calls: object) -> Timing:
            raise AssertionError("timed a kernel that is wrong")

    for point in points(Dtype.FP32)[1:2] + points(Dtype.FP32)[4:]:
        with pytest.raises(WrongResultError, match="would be rounding") as caught:
            checked_and_timed(point, lambda p: broken(p, name), Never())
        assert str(point) in str(caught.value)


def test_a_mask_that_hides_a_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact values come from the structure of the tree, the kernel gets another mask."""
    from treeopt.profile import attention

    point = tree_attention(1, 7, 40, HEADS, Dtype.FP32)
    work = workload(point, TensorPool(dtype=Dtype.FP32, device="cpu"), cold=0)
    causal = torch.ones(7, 40).tril(33).bool()
    monkeypatch.setattr(attention, "step_mask", lambda *sizes: causal)
    other = workload(point, TensorPool(dtype=Dtype.FP32, device="cpu"), cold=0)
    with pytest.raises(WrongResultError):
        replace(work, check=lambda: CheckedCall(other.calls[0]()[:, :, [0, 3, 6]], work.check().exact)).error(point)


def test_the_mask_of_seven_nodes_by_hand() -> None:
    assert binary_parents(7) == [-1, 0, 0, 1, 1, 2, 2]
    tree = step_mask(torch, 7, 2)
    assert tree[:, :2].all()
    assert [[j for j in range(7) if tree[i, 2 + j]] for i in range(7)] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 4],
        [0, 2, 5],
        [0, 2, 6],
    ]


@pytest.mark.filterwarnings("ignore")  # of Triton's interpreter
@pytest.mark.parametrize("nodes", [1, 7])
def test_the_kernel_and_torch_agree(nodes: int) -> None:
    pytest.importorskip("triton")
    from treeopt.kernels.tensors import interpreting

    if not interpreting():
        pytest.skip("Triton's interpreter has to be chosen before its import")
    sizes = AttentionSizes(requests=2, nodes=nodes, prefix=70, heads=4, kv_heads=2, head_dim=64)
    shape = GroupedAttention(heads=4, kv_heads=2, head_dim=64)
    point = tree_attention(2, nodes, 70 + nodes, shape, Dtype.FP32)
    for make in (kernel_workload, masked_workload):
        assert make(sizes, TensorPool(dtype=Dtype.FP32, device="cpu"), 2).error(point) < 1e-4


def test_heads_that_the_kernel_knows() -> None:
    assert kernel_takes(GroupedAttention(heads=8, kv_heads=2, head_dim=128), Dtype.BF16)
    assert not kernel_takes(GroupedAttention(heads=8, kv_heads=2, head_dim=80), Dtype.BF16)


def test_both_ways_to_compact_move_the_same_rows() -> None:
    by_kernel = [torch.arange(2 * 10 * 3 * 4.0).view(2, 10, 3, 4) for _ in range(2)]
    by_slots = [tensor.transpose(1, 2).clone() for tensor in by_kernel]
    expected = by_kernel[0][:, [0, 3, 6, 9]].clone()
    _by_kernel(by_kernel, 3)()
    _by_slots(by_slots, 3)()
    for a, b in zip(by_kernel, by_slots, strict=True):
        assert torch.equal(a[:, :4], expected)
        assert torch.equal(b.transpose(1, 2)[:, :4], expected)


def test_tensors_of_a_pool_do_not_overlap() -> None:
    pool = TensorPool(dtype=Dtype.FP32, device="cpu", seed=3)
    pool.reserve((3, 5), (7,), sets=2)
    taken = [pool.take(3, 5), pool.take(7), pool.take(3, 5), pool.take(7)]
    spans = sorted((t.data_ptr(), t.data_ptr() + 4 * t.numel()) for t in taken)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(float(t.std()) > 0.3 for t in taken)
    with pytest.raises(ValueError, match="reserve more"):
        pool.take(1)


def test_a_missing_node_shows_in_bf16_at_a_long_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 4000 tokens one key is below the roundings; over the last 16 it is not."""
    from treeopt.profile import attention

    dtype = Dtype.BF16
    point = tree_attention(1, 4, 4004, HEADS, dtype)
    work = workload(point, TensorPool(dtype=dtype, device="cpu"), cold=0)
    real = attention.step_mask

    def blind(torch: object, nodes: int, prefix: int) -> torch.Tensor:  # type: ignore[name-defined]
        mask = real(torch, nodes, prefix)
        mask[:, prefix:] = False  # nodes see the prefix only
        return mask

    monkeypatch.setattr(attention, "step_mask", blind)
    wrong = workload(point, TensorPool(dtype=dtype, device="cpu"), cold=0)
    for name in ("check", "check_small"):
        mixed = replace(
            work, **{name: lambda n=name: CheckedCall(getattr(wrong, n)().result, getattr(work, n)().exact)}
        )
        if name == "check":
            mixed.error(point)
        else:
            with pytest.raises(WrongResultError):
                mixed.error(point)


@pytest.mark.filterwarnings("ignore")  # of Triton's interpreter
def test_requests_behind_the_first_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from planted import plant

    sizes = AttentionSizes(requests=3, nodes=7, prefix=70, heads=4, kv_heads=2, head_dim=64)
    point = tree_attention(3, 7, 77, GroupedAttention(heads=4, kv_heads=2, head_dim=64), Dtype.FP32)
    assert kernel_workload(sizes, TensorPool(dtype=Dtype.FP32, device="cpu"), 1).error(point) < 1e-4
    line = "    if tile * BLOCK_M >= num_nodes * GROUP_SIZE:\n"
    plant("_attention_triton", line, line.replace(">=", ">= (request == 0) *"), tmp_path, monkeypatch)
    with pytest.raises(WrongResultError):
        kernel_workload(sizes, TensorPool(dtype=Dtype.FP32, device="cpu"), 1).error(point)

"""Random batches with every option at once, against each node's own path in float64."""

from __future__ import annotations

import os
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attention_cases import Case, assert_within_budget, chain, make, path_by_path, random_tree, star  # noqa: E402
from planted import within_bounds  # noqa: E402

from treeopt.kernels import attention  # noqa: E402
from treeopt.kernels.compaction import TokenStore, compact_kv  # noqa: E402

SEEDS = 2000 if os.environ.get("TREEOPT_TEST_ALL_KERNELS") else 24
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def drawn(seed: int) -> Case:
    draw = random.Random(seed)
    requests = draw.randint(1, 4)
    sizes = [draw.choice([0, 1, 3, 7, 20, 66]) for _ in range(requests)]
    trees = tuple(draw.choice([random_tree, chain, star])(n) if n else [] for n in sizes)
    lengths = tuple(draw.choice([0, 1, 15, 70, 130, 400]) for _ in range(requests))
    in_cache, page = draw.random() < 0.3, draw.choice([0, 1, 16, 64])
    fp8 = draw.choice(["", "", "tensor", "heads"])
    window = draw.choice([None, None, 5, 90])
    shared = ()
    if window is None and page in (16, 64) and draw.random() < 0.4:
        shared = ((requests, min(lengths)),)
    return Case(
        trees=trees,
        lengths=lengths,
        kv_heads=draw.choice([1, 2]),
        group=draw.choice([1, 3, 4]),
        dim=(dim := draw.choice([64, 64, 96])),
        dim_v=dim,
        page=page,
        dtype=draw.choice(DTYPES[1:] if fp8 else DTYPES),
        in_cache=in_cache,
        odd_strides=not shared and not fp8 and draw.random() < 0.3,
        processors=draw.choice([1, 8, 64]),
        seed=seed,
        fp8=fp8,
        window=window,
        softcap=draw.choice([None, None, 8.0]),
        sinks=draw.random() < 0.3,
        shared=shared,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_batch(seed: int, device: str) -> None:
    case = drawn(seed)
    if not any(case.trees):
        pytest.skip("no nodes")
    inputs = make(case, device)
    step = inputs.step(processors=case.processors)
    found = attention.tree_attention(*inputs.arguments[:4], step, **inputs.options, impl="triton", debug=True)
    assert_within_budget(found, inputs, path_by_path(inputs))


@pytest.mark.parametrize("seed", range(SEEDS // 4))
def test_a_random_store_is_compacted_as_its_tokens_say(seed: int, device: str) -> None:
    """Token by token on the host, in a store of tensors that share memory, have odd strides, or are bytes."""
    draw = random.Random(seed)
    page, requests, heads = draw.choice([0, 1, 4, 16]), draw.randint(1, 4), draw.choice([1, 3])
    shape = (requests * -(-80 // page), page) if page else (requests, 80)
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(*shape, heads, 40, generator=generator).to(draw.choice(DTYPES)).to(device)
    outside = torch.randn(shape[0], heads, shape[1], 16, generator=generator).transpose(1, 2).to(device)
    scales = torch.randint(0, 255, (*shape, heads), dtype=torch.uint8, generator=generator).to(device)
    tensors = [wide, wide[..., :24], outside, scales, outside]
    draw.shuffle(tensors)
    table = torch.randperm(shape[0], generator=generator).int().view(requests, -1).to(device) if page else None
    lengths = [draw.randint(0, 40) for _ in range(requests)]
    paths = [sorted(draw.sample(range(38), draw.randint(0, 20))) for _ in range(requests)]

    def place(request: int, position: int) -> tuple[int, int]:
        return (request, position) if table is None else (int(table[request, position // page]), position % page)

    before = [tensor.clone() for tensor in tensors]
    expected = [tensor.clone() for tensor in tensors]
    for request, (length, path) in enumerate(zip(lengths, paths, strict=True)):
        for target, node in enumerate(path):
            for old, new in zip(before, expected, strict=True):
                new[place(request, length + target)] = old[place(request, length + node)]
    rows = torch.tensor([path + [-1] * (20 - len(path)) for path in paths], dtype=torch.int32, device=device)
    tokens = torch.tensor(lengths, dtype=torch.int32, device=device)
    store = TokenStore.of(tensors)
    if device == "cpu":
        with within_bounds([*tensors, store.strips, tokens, rows, *([] if table is None else [table])]):
            compact_kv(store, tokens, rows, table=table, impl="triton", debug=True)
    else:
        compact_kv(store, tokens, rows, table=table, impl="triton", debug=True)
    for tensor, exact in zip(tensors, expected, strict=True):
        assert torch.equal(tensor, exact)

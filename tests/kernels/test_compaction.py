"""Moved rows against a gather and a scatter in numpy, for every layout that a cache has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels.compaction import TokenStore, compact_kv  # noqa: E402
from treeopt.kernels.strips import Strip, distinct_strips  # noqa: E402

LENGTHS = [3, 0, 17, 40]
PATHS = [[0, 2, 5, 6, 9, 30], [0, 1], [1, 2, 3, 4], []]


def padded(paths: list[list[int]], device: str, width: int = 6) -> torch.Tensor:
    rows = [path + [-1] * (width - len(path)) for path in paths]
    return torch.tensor(rows, dtype=torch.int32, device=device).view(len(paths), width)


def tensors(page: int, device: str) -> list[torch.Tensor]:
    """K and V of three layers, one with heads outside tokens, one quantised with scales, one with a scale per token."""
    shape = (4 * -(-64 // page), page) if page else (4, 64)
    draw = torch.Generator().manual_seed(page)
    normal = [torch.randn(*shape, *rest, generator=draw) for rest in ((2, 16), (2,), ())]
    outside = torch.randn(shape[0], 2, shape[1], 16, generator=draw).transpose(1, 2)
    quantised = torch.randint(0, 255, (*shape, 2, 40), dtype=torch.uint8, generator=draw)
    wide = torch.randn(*shape, 4, 96, generator=draw).bfloat16()[:, :, ::2]
    every = [normal[0], normal[0].half() * 2, outside, quantised, normal[1], normal[2].half(), wide]
    return [t.to(device) for t in every]


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("page", [0, 1, 4, 16])
def test_accepted_rows_move_behind_the_prefix(page: int, impl: str, device: str) -> None:
    every = tensors(page, device)
    before = [
        t.cpu().view(torch.int16).numpy().copy() if t.dtype == torch.bfloat16 else t.cpu().numpy().copy() for t in every
    ]
    table = None
    if page:
        table = (
            torch.randperm(every[0].shape[0], generator=torch.Generator().manual_seed(1)).int().view(4, -1).to(device)
        )
    store = TokenStore.of(every)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    assert compact_kv(store, lengths, padded(PATHS, device), table=table, impl=impl, debug=True) == impl

    def place(request: int, position: int) -> tuple[int, int]:
        if table is None:
            return request, position
        return int(table[request, position // page]), position % page

    for tensor, old in zip(every, before, strict=True):
        expected = old.copy()
        for request, (length, path) in enumerate(zip(LENGTHS, PATHS, strict=True)):
            for target, node in enumerate(path):
                expected[place(request, length + target)] = old[place(request, length + node)]
        found = tensor.cpu().view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.cpu().numpy()
        np.testing.assert_array_equal(found, expected)


def test_paths_longer_than_what_moves_at_once(device: str) -> None:
    """Every second node of 80: targets of one batch of rows are sources of an earlier one, never of a later."""
    k = torch.arange(100.0, device=device).view(1, 100, 1).repeat(1, 1, 8).contiguous()
    path = list(range(0, 80, 2))
    accepted = padded([path], device, 41)
    compact_kv(TokenStore.of([k]), torch.tensor([10], dtype=torch.int32, device=device), accepted, impl="triton")
    assert k[0, :, 0].tolist() == [*range(10), *(10 + node for node in path), *range(50, 100)]


def test_a_chain_and_an_empty_path_change_nothing(device: str) -> None:
    k = torch.randn(2, 30, 2, 8, device=device)
    before = k.clone()
    lengths = torch.tensor([4, 9], dtype=torch.int32, device=device)
    compact_kv(TokenStore.of([k]), lengths, padded([[0, 1, 2, 3], []], device), impl="triton")
    compact_kv(TokenStore.of([k]), lengths, padded([[], []], device, 0), impl="triton")
    assert torch.equal(k, before)


def test_strips_are_what_a_token_has_in_one_piece() -> None:
    k = torch.zeros(3, 4, 2, 8)  # 2 heads of 32 bytes
    outside = k.transpose(1, 2).contiguous().transpose(1, 2)
    at = outside.data_ptr()
    assert TokenStore.of([k]).strips.tolist() == [[k.data_ptr(), 256, 64, 64]]
    assert TokenStore.of([outside]).strips.tolist() == [[at, 256, 32, 32], [at + 128, 256, 32, 32]]
    assert TokenStore.of([k[..., 0]]).strips.tolist() == [[k.data_ptr() + 32 * i, 256, 64, 4] for i in range(2)]
    assert TokenStore.of([k[..., 0, 0]]).strips.tolist() == [[k.data_ptr(), 256, 64, 4]]


def moved(tensors: list[torch.Tensor], impl: str) -> list[list[int]]:
    """After the path 0, 2, 4 behind two committed tokens: the nodes in its three places, first and last element."""
    device = tensors[0].device
    lengths = torch.tensor([2], dtype=torch.int32, device=device)
    path = torch.tensor([[0, 2, 4]], dtype=torch.int32, device=device)
    compact_kv(TokenStore.of(tensors), lengths, path, impl=impl)
    return [(tensor[0, 2:5].flatten(1)[:, at] - 2).int().tolist() for tensor in tensors for at in (0, -1)]


@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_memory_that_tensors_share_moves_once(impl: str, device: str) -> None:
    def cache(*rest: int) -> torch.Tensor:
        positions = torch.arange(12.0, device=device).view(1, 12, *[1] * len(rest))
        return positions.repeat(1, 1, *rest).contiguous()

    latent, layer, both = cache(1, 576), cache(2, 8), cache(2, 2, 8)
    k, v = both[:, :, 0], both[:, :, 1]
    for shared in (
        [latent, latent[..., :512]],  # values that are a part of the keys
        [latent[..., :512], latent],
        [latent[..., 64:], latent[..., :512]],  # neither holds the other
        [layer, layer],  # layers that share KV
        [layer[:, :, 1:], layer, layer[..., 4:]],
        [k, v, both],  # K and V interleaved
    ):
        for tensor in shared:
            tensor.copy_(torch.arange(12.0).view(1, 12, *[1] * (tensor.dim() - 2)))
        assert moved(shared, impl) == [[0, 2, 4]] * (2 * len(shared))


def test_bytes_of_two_tokens_are_refused() -> None:
    base = torch.zeros(1, 13, 2, 8)
    for shared in (
        [base[:, :12], base[:, 1:]],
        [base[:, :1].expand(1, 12, 2, 8)],
        [base[:, :12], base.as_strided((1, 12, 8), (208, 8, 1))],
    ):
        with pytest.raises(InputError, match="argument tensors: two of them"):
            TokenStore.of(shared)
    apart = torch.zeros(4, 2, 16, 3, 8)  # K and V of a page one after the other
    assert len(TokenStore.of([apart[:, 0], apart[:, 1]]).strips) == 2


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_strips_cover_every_byte_once_and_refuse_just_what_two_tokens_share(data: st.DataObject) -> None:
    """Against the bytes themselves, each with the tokens that own it."""
    pages, tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    stride = st.integers(0, 24)
    same = data.draw(st.lists(st.tuples(stride, stride), min_size=1, max_size=2))
    strips = [
        Strip(data.draw(st.integers(0, 60)), *data.draw(st.sampled_from(same)), data.draw(st.integers(1, 8)))
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    strips = [s._replace(page=s.page * (pages > 1), token=s.token * (tokens > 1)) for s in strips]
    owners: dict[int, set[tuple[int, int]]] = {}
    kinds: dict[int, set[tuple[int, int]]] = {}
    for strip in strips:
        for page, token, byte in itertools.product(range(pages), range(tokens), range(strip.width)):
            at = strip.address + page * strip.page + token * strip.token + byte
            owners.setdefault(at, set()).add((page, token))
            kinds.setdefault(at, set()).add((strip.page, strip.token))
    # Strips of other strides on the same bytes are refused too, even where the tokens happen to agree.
    wrong = any(len(found) > 1 for found in [*owners.values(), *kinds.values()])
    if wrong:
        with pytest.raises(InputError):
            distinct_strips(strips, (pages, tokens))
        return
    found = distinct_strips(strips, (pages, tokens))
    covered = [
        s.address + page * s.page + token * s.token + byte
        for s in found
        for page, token, byte in itertools.product(range(pages), range(tokens), range(s.width))
    ]
    assert sorted(covered) == sorted(owners)


def test_wrong_arguments_are_named() -> None:
    k = torch.zeros(6, 4, 2, 8)
    table = torch.tensor([[4, 1, 0], [2, 3, 5]], dtype=torch.int32)
    store, lengths = TokenStore.of([k]), torch.tensor([5, 2], dtype=torch.int32)
    fine = padded([[0, 2], [1]], "cpu", 2)
    compact_kv(store, lengths, fine, table=table, debug=True)
    with pytest.raises(InputError, match="argument tensors: there is none"):
        TokenStore.of([])
    with pytest.raises(InputError, match=r"argument tensors\[1\]: its shape is \[6, 8\]"):
        TokenStore.of([k, k[..., 0, 0].reshape(3, 8).repeat(2, 1)])
    with pytest.raises(InputError, match="argument table: its dtype"):
        compact_kv(store, lengths, fine, table=table.long())
    with pytest.raises(InputError, match=r"argument table: its shape is \[2, 3\]"):
        compact_kv(store, lengths[:1], fine[:1], table=table)
    with pytest.raises(InputError, match="argument lengths: there are 2"):
        compact_kv(store, lengths, fine)
    with pytest.raises(InputError, match=r"argument tensors\[0\]: it has no rows"):
        TokenStore.of([k[0, 0, 0]])
    with pytest.raises(InputError, match="argument lengths: its dtype"):
        compact_kv(store, lengths.long(), fine, table=table)
    with pytest.raises(InputError, match="argument accepted: its shape"):
        compact_kv(store, lengths, fine[:1], table=table)
    with pytest.raises(InputError, match="argument impl"):
        compact_kv(store, lengths, fine, table=table, impl="numpy")


@pytest.mark.parametrize("path", [[2, 1], [1, 1], [0, -1, 2], [-2, 0]])
def test_paths_that_do_not_ascend_are_found(path: list[int]) -> None:
    store = TokenStore.of([torch.zeros(1, 30, 8)])
    lengths = torch.tensor([4], dtype=torch.int32)
    with pytest.raises(InputError, match="argument accepted: request 0 has the path"):
        compact_kv(store, lengths, padded([path], "cpu"), debug=True)


def test_rows_that_do_not_exist_are_found() -> None:
    table = torch.tensor([[0, 7]], dtype=torch.int32)
    store, lengths = TokenStore.of([torch.zeros(2, 4, 8)]), torch.tensor([3], dtype=torch.int32)
    compact_kv(store, lengths, padded([[0]], "cpu"), table=table, debug=True)
    with pytest.raises(InputError, match="argument table: request 0 has pages"):
        compact_kv(store, lengths, padded([[0, 1]], "cpu"), table=table, debug=True)
    with pytest.raises(InputError, match="argument lengths: request 0 needs 9"):
        compact_kv(store, lengths, padded([[5]], "cpu"), table=table, debug=True)

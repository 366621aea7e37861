"""KV compaction: after verification the accepted path's keys and values move behind the prefix, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from treeopt.kernels.strips import Strip, distinct_strips
from treeopt.kernels.tensors import Impl, Taken, Tensor, check_tensor, choose, jitted, on_device, torch, wrong

BLOCK_BYTES: Final = 1024
ROWS_AT_ONCE: Final = 16
COMPACTION_WARPS: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStore:
    """Everything that is kept per token: K and V of all layers, and the scales of quantised ones.

    Fields:
        tensors: each `[pages, page_size, ...]`, or `[B, capacity, ...]` where there are no pages.
        strips: `[strips, 4]` int64: address, bytes per page, per token, and of the strip.
        widest: bytes of the widest strip.
    """

    tensors: tuple[Tensor, ...]
    strips: Tensor
    widest: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> TokenStore:
        """The store of these tensors; made once, since it writes their addresses to the device.

        Any dtype, and any strides: pages of `[heads, page_size, D]` come as `tensor.transpose(1, 2)`. Memory that
        several tensors share (values that are a part of the keys, layers that share a cache) moves once.

        Raises:
            InputError: no tensor, tensors of different pages or on different devices, or memory that is one token's in
                one tensor and another's in another.
        """
        tensors = tuple(tensors)
        if not tensors:
            raise wrong("tensors", "there is none", hint="give K and V of every layer")
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
                raise wrong(f"tensors[{i}]", "it has no rows of tokens", hint="give [pages, page_size, ...]")
            if tensor.shape[:2] != tensors[0].shape[:2] or tensor.device != tensors[0].device:
                raise wrong(
                    f"tensors[{i}]",
                    f"its shape is {list(tensor.shape)} on {tensor.device}",
                    hint=f"the first has {list(tensors[0].shape[:2])} tokens on {tensors[0].device}",
                )
        strips = distinct_strips([strip for tensor in tensors for strip in _strips(tensor)], tensors[0].shape[:2])
        return cls(
            tensors=tensors,
            strips=torch.tensor(strips, dtype=torch.int64, device=tensors[0].device).view(-1, 4),
            widest=max(strip.width for strip in strips),
        )


def compact_kv(
    store: TokenStore,
    lengths: Tensor,
    accepted: Tensor,
    *,
    table: Tensor | None = None,
    impl: Impl = "auto",
    debug: bool = False,
) -> Taken:
    """Move the rows of accepted nodes from positions L + node to L, L + 1, ..., in place; returns what ran.

    All tensors and requests go in one launch. Rows that stay where they are cost nothing. Keys keep their rotation: a
    node's depth, which fixed its position, is its place on the path.

    Args:
        store: K, V and scales of all layers.
        lengths: `[B]` int32, committed tokens L before this step.
        accepted: `[B, A]` int32, the nodes of each accepted path in order, root included; -1 from its end on.
        table: `[B, P]` int32, the pages of each request; None where every request has its own stretch.
        impl: "triton", "torch", or "auto".
        debug: also check paths, lengths and pages, which waits for the device.

    Raises:
        InputError: an argument of a wrong shape, dtype, stride or device; with `debug` also a path that does not
            ascend, or a position or page that does not exist.
    """
    like = store.tensors[0]
    check_tensor("lengths", lengths, shape=("B",), dtype=torch.int32, like=like, dense=True)
    requests = lengths.shape[0]
    check_tensor("accepted", accepted, shape=(requests, "A"), dtype=torch.int32, like=like, dense=True)
    if table is not None:
        check_tensor("table", table, shape=(requests, "P"), dtype=torch.int32, like=like)
    elif requests != like.shape[0]:
        raise wrong("lengths", f"there are {requests}", hint=f"without a table the store has {like.shape[0]} requests")
    if debug:
        _check_paths(store, lengths, accepted, table)
    taken = choose(impl, like)
    if taken == "torch":
        compact_kv_reference(store, lengths, accepted, table=table)
    elif requests and accepted.shape[1]:
        with on_device(like):
            _launch(store, lengths, accepted, table)
    return taken


def compact_kv_reference(store: TokenStore, lengths: Tensor, accepted: Tensor, *, table: Tensor | None = None) -> None:
    """`compact_kv` in plain torch: gather the rows, then scatter them."""
    for request, (prefix, path) in enumerate(zip(lengths.tolist(), accepted.tolist(), strict=True)):
        nodes = path[: path.index(-1)] if -1 in path else path
        source = _places(store, table, request, [prefix + node for node in nodes])
        target = _places(store, table, request, list(range(prefix, prefix + len(nodes))))
        rows = [tensor[source] for tensor in store.tensors]  # all are read first: tensors may share memory
        for tensor, moved in zip(store.tensors, rows, strict=True):
            tensor[target] = moved


def _places(store: TokenStore, table: Tensor | None, request: int, positions: list[int]) -> tuple[Tensor, Tensor]:
    at = torch.tensor(positions, dtype=torch.long, device=store.tensors[0].device)
    if table is None:
        return torch.full_like(at, request), at
    page_size = store.tensors[0].shape[1]
    return table[request, at // page_size].long(), at % page_size


def _launch(store: TokenStore, lengths: Tensor, accepted: Tensor, table: Tensor | None) -> None:
    block = min(BLOCK_BYTES, max(16, 1 << (store.widest - 1).bit_length()))
    rows = max(4, min(ROWS_AT_ONCE, 1 << (accepted.shape[1] - 1).bit_length()))
    grid = (-(-store.widest // block), store.strips.shape[0], lengths.shape[0])
    jitted("_compaction_triton").compaction_kernel[grid](
        store.strips,
        accepted,
        lengths,
        *((lengths, 0) if table is None else (table, table.stride(0))),
        accepted.shape[1],
        PAGE_SIZE=0 if table is None else int(store.tensors[0].shape[1]),
        BLOCK_ROWS=rows,
        BLOCK_BYTES=block,
        num_warps=COMPACTION_WARPS,
    )


def _strips(tensor: Tensor) -> list[Strip]:
    """Every stretch of memory that a token has in a tensor."""
    size = tensor.element_size()
    dims = [(n, s * size) for n, s in zip(tensor.shape[2:], tensor.stride()[2:], strict=True) if n != 1]
    width = size
    while dims and dims[-1][1] == width:
        width *= dims.pop()[0]
    offsets = [0]
    for count, stride in dims:
        offsets = [offset + i * stride for offset in offsets for i in range(count)]
    # The stride of a dimension of one is arbitrary: 0 makes it comparable.
    page, token = (s * size if n > 1 else 0 for n, s in zip(tensor.shape, tensor.stride()[:2], strict=False))
    return [Strip(tensor.data_ptr() + offset, page, token, width) for offset in offsets]


def _check_paths(store: TokenStore, lengths: Tensor, accepted: Tensor, table: Tensor | None) -> None:
    pages, page_size = store.tensors[0].shape[:2]
    capacity = page_size if table is None else page_size * table.shape[1]
    for request, (prefix, path) in enumerate(zip(lengths.tolist(), accepted.tolist(), strict=True)):
        nodes = path[: path.index(-1)] if -1 in path else path
        if any(n != -1 for n in path[len(nodes) :]) or any(b <= a for a, b in pairwise([-1, *nodes])):
            raise wrong("accepted", f"request {request} has the path {path}", hint="nodes ascend, then -1 to the end")
        stop = prefix + (nodes[-1] + 1 if nodes else 0)
        if not 0 <= prefix <= stop <= capacity:
            raise wrong("lengths", f"request {request} needs {stop} tokens", hint=f"0 to {capacity} fit")
        if table is not None and stop:
            mine = table[request, : -(-stop // page_size)]
            if not 0 <= int(mine.min()) <= int(mine.max()) < pages:
                raise wrong("table", f"request {request} has pages {mine.tolist()}", hint=f"there are 0 to {pages - 1}")

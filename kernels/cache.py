"""The key-value cache that holds the committed prefixes: in pages, or one stretch per request."""

from __future__ import annotations

from dataclasses import dataclass

from treeopt.kernels.tensors import Tensor, check_tensor, torch, wrong


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedCache:
    """Keys and values in pages that a table assigns to requests.

    Fields:
        k: `[pages, page_size, KV heads, D]`, any strides as long as the last one is 1.
        v: `[pages, page_size, KV heads, Dv]`; `k[..., :Dv]` where values are a part of the keys (latent attention).
        table: `[B, P]` int32, the pages of each request in order.
        lengths: `[B]` int32, committed tokens L of each request.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        _check_pair(self.k, self.v, ("pages", "page_size", "heads"))
        requests = _check_lengths(self.lengths, self.k)
        check_tensor("cache.table", self.table, shape=(requests, "P"), dtype=torch.int32, like=self.k)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return int(self.k.shape[1])

    @property
    def capacity(self) -> int:
        """Tokens that the table has room for, per request."""
        return int(self.table.shape[1]) * self.page_size

    def rows(self, tensor: Tensor, request: int, stop: int) -> Tensor:
        """`[stop, heads, D]` of `k` or `v` at the request's first positions."""
        pages = self.table[request, : -(-stop // self.page_size)].long()
        return tensor[pages].flatten(0, 1)[:stop]

    def check(self, tokens: list[int]) -> None:
        """Check that the first `tokens[b]` positions of every request are in the cache; waits for the device.

        Raises:
            InputError: a request longer than its table, or a page that does not exist.
        """
        _check_room(tokens, self.capacity)
        for request, stop in enumerate(tokens):
            pages = self.table[request, : -(-stop // self.page_size)]
            if pages.numel() and not 0 <= int(pages.min()) <= int(pages.max()) < self.k.shape[0]:
                raise wrong(
                    "cache.table",
                    f"request {request} has pages {int(pages.min())} to {int(pages.max())}",
                    hint=f"the cache has pages 0 to {self.k.shape[0] - 1}",
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class ContiguousCache:
    """Keys and values in one stretch per request.

    Fields:
        k: `[B, capacity, KV heads, D]`, any strides as long as the last one is 1 (Hugging Face: `k.transpose(1, 2)`).
        v: `[B, capacity, KV heads, Dv]`.
        lengths: `[B]` int32, committed tokens L of each request.
    """

    k: Tensor
    v: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        _check_pair(self.k, self.v, ("B", "capacity", "heads"))
        if _check_lengths(self.lengths, self.k) != self.k.shape[0]:
            raise wrong("cache.k", f"it has {self.k.shape[0]} requests", hint=f"lengths has {self.lengths.shape[0]}")

    @property
    def page_size(self) -> int:
        """0: there are no pages."""
        return 0

    @property
    def capacity(self) -> int:
        """Tokens that a request has room for."""
        return int(self.k.shape[1])

    def rows(self, tensor: Tensor, request: int, stop: int) -> Tensor:
        """`[stop, heads, D]` of `k` or `v` at the request's first positions."""
        return tensor[request, :stop]

    def check(self, tokens: list[int]) -> None:
        """Check that the first `tokens[b]` positions of every request are in the cache.

        Raises:
            InputError: a request longer than the cache.
        """
        _check_room(tokens, self.capacity)


Cache = PagedCache | ContiguousCache


def _check_pair(k: Tensor, v: Tensor, dims: tuple[str, str, str]) -> None:
    check_tensor("cache.k", k, shape=(*dims, "D"), dtype=getattr(k, "dtype", None), like=k)
    check_tensor("cache.v", v, shape=(*k.shape[:3], "Dv"), dtype=k.dtype, like=k)
    if k.numel() == 0 or v.numel() == 0:
        raise wrong("cache.k", f"its shape is {list(k.shape)}", hint="a cache has room for one token at least")


def _check_lengths(lengths: Tensor, k: Tensor) -> int:
    check_tensor("cache.lengths", lengths, shape=("B",), dtype=torch.int32, like=k, dense=True)
    return int(lengths.shape[0])


def _check_room(tokens: list[int], capacity: int) -> None:
    for request, stop in enumerate(tokens):
        if not 0 <= stop <= capacity:
            raise wrong(
                "cache.lengths",
                f"request {request} needs {stop} tokens of room, prefix and tree together where it is in the cache",
                hint=f"0 to {capacity} fit",
            )

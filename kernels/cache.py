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
        k_scale: `[1]` or `[KV heads]` float32, what stored keys are multiplied by; given with FP8 caches only.
        v_scale: the same for values.
    """

    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def __post_init__(self) -> None:
        _check_pair(self.k, self.v, ("pages", "page_size", "heads"))
        _check_scales(self.k, self.k_scale, self.v_scale)
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
        """`[stop, heads, D]` of `k` or `v` as stored, at the request's first positions."""
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
        k_scale: `[1]` or `[KV heads]` float32, what stored keys are multiplied by; given with FP8 caches only.
        v_scale: the same for values.
    """

    k: Tensor
    v: Tensor
    lengths: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def __post_init__(self) -> None:
        _check_pair(self.k, self.v, ("B", "capacity", "heads"))
        _check_scales(self.k, self.k_scale, self.v_scale)
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPrefixes:
    """Consecutive requests whose prefixes begin with the same tokens, which are read once for all of them.

    Fields:
        offsets: `[C + 1]` int32, the first request of each group, then B.
        tokens: `[C]` int32, tokens that a group shares, at most the shortest of its prefixes; 0 where it shares none.
            They are read by the first request's pages.
    """

    offsets: Tensor
    tokens: Tensor

    def __post_init__(self) -> None:
        check_tensor("shared.tokens", self.tokens, shape=("C",), dtype=torch.int32, like=self.tokens, dense=True)
        groups = self.tokens.shape[0]
        check_tensor(
            "shared.offsets", self.offsets, shape=(groups + 1,), dtype=torch.int32, like=self.tokens, dense=True
        )

    def check(self, lengths: list[int]) -> None:
        """Check that the groups cover the requests and share no more than each has; waits for the device.

        Raises:
            InputError: offsets or tokens that do not fit the prefixes.
        """
        offsets, requests = self.offsets.tolist(), len(lengths)
        if offsets != sorted(set(offsets)) or offsets[0] != 0 or offsets[-1] != requests:
            raise wrong("shared.offsets", f"they are {offsets}", hint=f"start at 0, rise, end at {requests} requests")
        for group, tokens in enumerate(self.tokens.tolist()):
            least = min(lengths[offsets[group] : offsets[group + 1]])
            if not 0 <= tokens <= least:
                raise wrong(
                    "shared.tokens", f"group {group} shares {tokens} tokens", hint=f"0 to {least} can be shared"
                )


def flat(tensor: Tensor) -> Tensor | None:
    """`[tokens, heads x D]` view, or None where strides or alignment forbid it."""
    blocks, tokens, heads, dim = tensor.shape
    block_stride, token_stride, head_stride, _ = tensor.stride()
    bytes_ = tensor.element_size()
    if block_stride != tokens * token_stride or (heads > 1 and head_stride != dim):
        return None
    if (token_stride * bytes_) % 16 or tensor.data_ptr() % 16 or blocks * tokens >= 1 << 31:
        return None
    return tensor.as_strided((blocks * tokens, heads * dim), (token_stride, 1))


def _check_pair(k: Tensor, v: Tensor, dims: tuple[str, str, str]) -> None:
    check_tensor("cache.k", k, shape=(*dims, "D"), dtype=getattr(k, "dtype", None), like=k)
    check_tensor("cache.v", v, shape=(*k.shape[:3], "Dv"), dtype=k.dtype, like=k)
    if k.numel() == 0 or v.numel() == 0:
        raise wrong("cache.k", f"its shape is {list(k.shape)}", hint="a cache has room for one token at least")


def _check_scales(k: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> None:
    scaled = k.dtype == torch.float8_e4m3fn
    for name, scale in (("cache.k_scale", k_scale), ("cache.v_scale", v_scale)):
        if scaled != (scale is not None):
            raise wrong(name, "it is missing" if scaled else "it is given", hint="float8_e4m3fn caches have scales")
        if scale is not None:
            heads = (int(k.shape[2]),) if scale.numel() != 1 else (1,)
            check_tensor(name, scale, shape=heads, dtype=torch.float32, like=k, dense=True)


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

"""Where tokens lie in memory, and which tensors of a store lie on the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeopt.kernels.tensors import wrong


class Strip(NamedTuple):
    """What every token has in one stretch of memory: token t of page p at `address + p * page + t * token`, in bytes.

    Two heads of 32 bytes that lie outside the tokens are two strips of width 32.
    """

    address: int
    page: int
    token: int
    width: int


def distinct_strips(strips: Sequence[Strip], shape: Sequence[int]) -> list[Strip]:
    """Strips that cover the same bytes, each once; `shape` is (pages, tokens per page).

    Raises:
        InputError: bytes that belong to two tokens: moving one of them would overwrite the other.
    """
    pages, tokens = int(shape[0]), int(shape[1])
    merged: list[Strip] = []
    for strip in sorted(set(strips), key=lambda s: (s.page, s.token, s.address)):
        last = merged[-1] if merged else strip
        if (last.page, last.token) == (strip.page, strip.token) and strip.address < last.address + last.width:
            width = max(last.address + last.width, strip.address + strip.width) - last.address
            merged[max(len(merged) - 1, 0) :] = [last._replace(width=width)]
        else:
            merged.append(strip)
    for a, b in _close(merged, pages, tokens):
        if _shared(a, b, pages, tokens):
            raise wrong(
                "tensors",
                "two of them, or two tokens of one, lie on the same bytes at different tokens",
                hint="give every tensor that shares memory with the same pages and token strides",
            )
    return merged


def _close(strips: Sequence[Strip], pages: int, tokens: int) -> Iterator[tuple[Strip, Strip]]:
    """Pairs whose bytes may meet, since their first to last bytes do; every strip with itself too."""
    ends = [s.address + (pages - 1) * s.page + (tokens - 1) * s.token + s.width for s in strips]
    order = sorted(range(len(strips)), key=lambda i: strips[i].address)
    for at, i in enumerate(order):
        yield strips[i], strips[i]
        for j in order[at + 1 :]:
            if strips[j].address >= ends[i]:
                break
            yield strips[i], strips[j]


def _shared(a: Strip, b: Strip, pages: int, tokens: int) -> bool:
    """Whether a token of `a` has a byte in common with another token of `b`, or with any where strides differ."""
    if (a.page, a.token) == (b.page, b.token):
        return _meets_itself(b.address - a.address, a, b.width, pages, tokens)
    starts = [
        (s.address + np.add.outer(np.arange(pages) * s.page, np.arange(tokens) * s.token)).ravel() for s in (a, b)
    ]
    first = np.sort(starts[0])
    # The last token of `a` that begins before a token of `b` ends reaches into it, or none does.
    before = np.searchsorted(first, starts[1] + b.width) - 1
    return bool(((before >= 0) & (first[np.maximum(before, 0)] + a.width > starts[1])).any())


def _meets_itself(apart: int, a: Strip, width: int, pages: int, tokens: int) -> bool:
    """Whether -a.width < -apart + dp * page + dt * token < width has a solution but dp = dt = 0."""
    (outer, outers), (inner, inners) = sorted([(a.page, pages), (a.token, tokens)], reverse=True)
    reach = (inners - 1) * inner
    for far in _multiples(outer, outers, apart - a.width - reach, apart + width + reach):
        rest = apart - far * outer
        if any(far or near for near in _multiples(inner, inners, rest - a.width, rest + width)):
            return True
    return False


def _multiples(stride: int, count: int, low: int, high: int) -> range:
    """The n from 1 - count to count - 1 with low < n * stride < high."""
    if stride == 0:
        return range(1 - count, count) if low < 0 < high else range(0)
    return range(max(low // stride + 1, 1 - count), min(-(-high // stride), count))

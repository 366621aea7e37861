"""Rows of each family as samples: which rows the form is fitted to and judged on, and which ones a profile keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fits import families
from treeopt.cost.fits.families import VALUE_BYTES
from treeopt.cost.fits.roofline import Tiling, Work
from treeopt.cost.fits.rows import Rows
from treeopt.cost.fits.sample import Mask, Sample
from treeopt.cost.timing import Family

# Weights under 16 MB (in 16 bit) may sit in the L2 cache while a benchmark repeats them; steps beyond 1024 tokens
# are prompts, not drafts.
_COLD_WEIGHTS: Final = 8_000_000
_MOST_TOKENS: Final = 1024
_MOST_MESSAGE_BYTES: Final = 1 << 25
# What a profile keeps: of a table that one model's shapes were timed for everything, of larger ones what steps ask for.
_KEPT_WHOLE: Final = 2000
_LEAST_WEIGHTS: Final = 1_000_000
_KEPT_TOKENS: Final = (1536, 2048, 4096, 8192)
_SKIPPED_TOKENS: Final = (9, 11, 13, 15)
_KEPT_REQUESTS: Final = 512
_KEPT_GROUPS: Final = (1, 2, 4, 5, 6, 7, 8, 12, 16)
_KEPT_HEAD_DIMS: Final = (64, 80, 96, 112, 128, 192, 256)
# Distances over which near shapes' weights fall by e, in natural logs. The outputs of a GEMM set its tiles: only
# nearly equal ones say much; the inputs only set how long each tile runs.
REACHES: Final[dict[Family, tuple[tuple[float, ...], ...]]] = {
    Family.GEMM: tuple((outputs, inputs) for outputs in (0.05, 0.15, 0.3) for inputs in (0.15, 0.3, 0.6)),
    Family.ATTENTION: tuple((0.25 * scale, 0.7 * scale, 0.2, 0.4) for scale in (0.5, 1.0, 2.0)),
    Family.EXPERTS: tuple((0.5 * scale, 0.5 * scale, 0.5 * scale, 0.5 * scale, 0.5) for scale in (0.3, 1.0, 3.0)),
    Family.ALL_REDUCE: ((0.3,),),
    Family.STREAM: ((1.0,),),
}


def kept(rows: Rows) -> Mask:
    """`[R]` the rows that a profile's curves go through; a large table's others cost bytes and are never asked for."""
    small = len(rows) <= _KEPT_WHOLE
    if rows.family is Family.GEMM:
        tokens = rows.column("tokens")
        fine = (tokens <= _MOST_TOKENS + 1) & ~np.isin(tokens, _SKIPPED_TOKENS)
        keep = fine | np.isin(tokens, _KEPT_TOKENS)
        return np.asarray(small | keep & (rows.column("outputs") * rows.column("inputs") >= _LEAST_WEIGHTS))
    if rows.family is Family.ATTENTION:
        group = rows.column("heads") / rows.column("kv_heads")
        served = np.isin(group, _KEPT_GROUPS) & np.isin(rows.column("head_dim"), _KEPT_HEAD_DIMS)
        served &= rows.column("requests") <= _KEPT_REQUESTS
        return np.asarray((small | served) & (rows.column("causal") == 0))
    if rows.family is Family.EXPERTS:
        skewed = rows.column("skewed")  # two kinds of routing: balanced, and the most skewed one
        most = np.isin(skewed, (0.0, skewed.max(initial=0.0)))
        return np.asarray(most & (rows.column("tokens") <= _KEPT_TOKENS[-1]))
    return np.ones(len(rows), dtype=np.bool_)


def sample_of(rows: Rows, skew: float = 0.0) -> Sample:
    """The rows of any family as a sample; `skew` is the popularity exponent of skewed routing."""
    makers = {
        Family.GEMM: _gemm,
        Family.ATTENTION: _attention,
        Family.ALL_REDUCE: _all_reduce,
        Family.STREAM: _stream,
    }
    return _experts(rows, skew) if rows.family is Family.EXPERTS else makers[rows.family](rows)


def _gemm(rows: Rows) -> Sample:
    tokens, outputs, inputs = rows.sizes.T
    judged = (outputs * inputs >= _COLD_WEIGHTS) & (tokens <= _MOST_TOKENS)
    value_bytes = VALUE_BYTES[rows.dtype]

    def work(tiling: Tiling | None) -> Work:
        return families.gemm_work(tokens, outputs, inputs, value_bytes, tiling)

    return Sample(
        work=work,
        points=families.gemm_point(outputs, inputs),
        sweep=np.log(tokens),
        time_s=rows.time_s,
        shape=_ids(outputs, inputs),
        judged=judged if len(np.unique(_ids(outputs, inputs)[judged])) >= 3 else tokens <= _MOST_TOKENS,
    )


def with_arithmetic(sample: Sample, rows: Rows) -> Sample:
    """Attention rows with the operations that `sample_of` leaves out where every row has one query."""
    keys, requests, queries, heads, kv_heads, head_dim, _ = rows.sizes.T
    return replace(sample, work=_fixed(families.attention_work(requests, queries, keys, heads, kv_heads, head_dim)))


def _attention(rows: Rows) -> Sample:
    keys, requests, queries, heads, kv_heads, head_dim, _ = rows.sizes.T
    work = families.attention_work(requests, queries, keys, heads, kv_heads, head_dim)
    if (queries == 1).all():  # memory bounds them all: a peak could take any value
        work = work._replace(flops=np.zeros(len(rows)))
    shape = _ids(heads, kv_heads, head_dim)
    if shape.max() < 2:  # one model's heads: leave out batch sizes instead
        shape = _ids(requests, heads, kv_heads)
    return Sample(
        work=_fixed(work),
        points=families.attention_point(requests, queries, heads, kv_heads, head_dim),
        sweep=np.log(keys),
        time_s=rows.time_s,
        shape=shape,
        judged=np.ones(len(rows), dtype=np.bool_),
    )


def _experts(rows: Rows, skew: float) -> Sample:
    tokens, hidden, intermediate, count, per_token, skewed = rows.sizes.T
    return Sample(
        work=_fixed(_experts_work(rows, skew)),
        points=families.experts_point(hidden, intermediate, count, per_token, skewed),
        sweep=np.log(tokens),
        time_s=rows.time_s,
        shape=_ids(hidden, intermediate, count, per_token),
        judged=tokens <= _MOST_TOKENS,
    )


def _experts_work(rows: Rows, skew: float) -> Work:
    tokens = rows.column("tokens")
    parts = np.empty((3, len(rows)))
    for layer in np.unique(rows.sizes[:, 1:], axis=0):
        at = (rows.sizes[:, 1:] == layer).all(axis=1)
        layer_hidden, width, experts, chosen, is_skewed = layer.tolist()
        work = families.experts_work(
            *(tokens[at], int(layer_hidden), int(width), int(experts), int(chosen)),
            *(skew if is_skewed else 0.0, VALUE_BYTES[rows.dtype]),
        )
        parts[:, at] = work
    return Work(*parts)


def _all_reduce(rows: Rows) -> Sample:
    message_bytes, tp = rows.sizes.T
    return Sample(
        work=_fixed(families.all_reduce_work(message_bytes, tp)),
        points=families.all_reduce_point(tp),
        sweep=np.log(message_bytes),
        time_s=rows.time_s,
        shape=_ids(tp),
        judged=message_bytes <= _MOST_MESSAGE_BYTES,
    )


def _stream(rows: Rows) -> Sample:
    (traffic_bytes,) = rows.sizes.T
    none = np.zeros(len(rows))
    return Sample(
        work=_fixed(Work(traffic_bytes, none, none)),
        points=np.zeros((len(rows), 1)),
        sweep=np.log(traffic_bytes),
        time_s=rows.time_s,
        shape=np.zeros(len(rows), dtype=np.intp),
        judged=np.ones(len(rows), dtype=np.bool_),
    )


def _fixed(work: Work) -> Callable[[Tiling | None], Work]:
    return lambda tiling: work


def _ids(*sizes: FloatArray) -> npt.NDArray[np.intp]:
    _, ids = np.unique(np.stack(sizes, axis=1), axis=0, return_inverse=True)
    return ids.ravel()

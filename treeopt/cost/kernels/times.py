"""Kernel times on one GPU: measured rows where there are any, the fit between and beyond them, else its data sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.all_reduce import all_reduce_point, all_reduce_work
from treeopt.cost.kernels.attention import Attention, GroupedAttention, attention_point, attention_work, latent_work
from treeopt.cost.kernels.experts import Experts, experts_point, experts_work
from treeopt.cost.kernels.family import Family, FitError, Use
from treeopt.cost.kernels.fit import KernelFit
from treeopt.cost.kernels.fits import FitEntry, KernelFits
from treeopt.cost.kernels.gemm import Gemm, gemm_point, gemm_work
from treeopt.cost.kernels.roofline import Roofline, Work
from treeopt.cost.kernels.stream import STREAM_POINT, stream_work
from treeopt.errors import InputError

# The formats whose rows price a served one, the best first.
STAND_INS: Final[Mapping[Dtype, tuple[Dtype, ...]]] = {
    Dtype.BF16: (Dtype.BF16, Dtype.FP16),
    Dtype.FP16: (Dtype.FP16, Dtype.BF16),
    Dtype.FP8: (Dtype.FP8, Dtype.FP8_BLOCK),
}
# What attention, messages and copies are measured in, the best first: whoever decodes in 32 bit measures nothing else.
WIDE_FORMATS: Final = (Dtype.BF16, Dtype.FP16, Dtype.FP32)


@dataclass(frozen=True, kw_only=True)
class KernelTimes:
    """Seconds of single kernels on one GPU, launches included, for every element of the broadcast inputs.

    A weight that was measured takes its own times, on a line in log tokens between them, relative to the fitted form.
    One that was not takes the form and what near shapes say. A fused gate and up that was not measured is priced like
    any weight of its size, as the one GEMM that engines launch; its halves count among the near shapes. Without rows a
    kernel takes as long as its memory traffic or its arithmetic, and its launch (Williams et al. 2009, "Roofline").

    A network given here is one GPU's part already (`ModelShape.shard`). Times may fall as tokens grow, where the
    measured ones do.

    Attributes:
        name: of the hardware profile.
        fits: by family and number format; those of GEMMs at least.
        link_bandwidth_bytes_per_s: prices messages where no all-reduce was measured.
        note: what to tell of fits that no rows stand behind; empty where there are rows.
    """

    name: str
    fits: KernelFits
    link_bandwidth_bytes_per_s: float
    note: str | None = None

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through one weight; grouped weights are priced by the form alone.

        Raises:
            InputError: a dtype that the GPU has no arithmetic for.
        """
        entry, exact = self._gemm(dtype)
        fit, outputs, inputs = entry.fit, _scalar(weight.outputs), _scalar(weight.inputs)
        value_bytes = (entry.dtype if exact else dtype).bytes_per_value
        work = gemm_work(tokens, outputs, inputs, value_bytes, fit.tiling if exact else None)
        if weight.groups > 1:
            return fit.roofline.time_s(Work(*(weight.groups * part for part in work)))
        if not exact:
            return fit.roofline.time_s(work)
        return fit.time_s(work, gemm_point(outputs, inputs)[None], 0, np.log(np.maximum(tokens, 1.0)))

    def experts_s(self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through the routed experts of one layer, without router and shared experts.

        Raises:
            InputError: as `gemm_s`.
        """
        sizes = (hidden, experts.intermediate, experts.count, experts.per_token)
        entry = self.fits.get(Family.EXPERTS, *_stand_ins(dtype))
        if entry is None:
            form = self._gemm(dtype)[0].fit.roofline
            work = experts_work(tokens, *sizes, experts.skew, dtype.bytes_per_value)
            return form.launch_s + form.time_s(work)  # two grouped GEMMs
        fit = entry.fit
        work = experts_work(tokens, *sizes, experts.skew, entry.dtype.bytes_per_value)
        # Rows were measured with balanced routing and with one skew: what they add is in between for any other.
        share = min(1.0, experts.skew / fit.skew) if fit.skew else 0.0
        wide, narrow, count, chosen = map(_scalar, sizes)
        points = experts_point(wide, narrow, count, chosen, np.array([[0.0], [1.0]]))
        log_tokens, shares = np.log(tokens), (1 - share, share)
        # One point at a time: the curves keep what a point alone was asked about.
        added = sum(shares[at] * fit.residual(points[at], 0, log_tokens) for at in (0, 1) if shares[at])
        found: FloatArray = fit.roofline.time_s(work) * np.exp(added)
        return found

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> FloatArray:
        """`[...]` seconds of one layer's attention: each request's queries over its keys, KV in 16 bit.

        Rows with one query give the memory's part, which all queries of a request share; the arithmetic of the others
        runs at the rate of prefill kernels.
        """
        entry = self.fits.get(Family.ATTENTION, *WIDE_FORMATS)
        form = entry.fit.roofline if entry else rates(self.fits)
        if not isinstance(shape, GroupedAttention):
            return form.time_s(latent_work(requests, queries, keys, shape))
        heads = (_scalar(shape.heads), _scalar(shape.kv_heads), _scalar(shape.head_dim))
        work = attention_work(requests, queries, keys, *heads)
        if entry is None:
            return form.time_s(work)
        pairs = np.stack(np.broadcast_arrays(requests, queries), axis=-1)
        distinct, index = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        points = attention_point(distinct[:, 0], distinct[:, 1], *heads)
        return entry.fit.time_s(work, points, index.reshape(pairs.shape[:-1]), np.log(keys))

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        """`[...]` seconds to sum a message over `tp` GPUs; 0 for one."""
        if tp == 1:
            return np.zeros_like(message_bytes)
        gpus = _scalar(tp)
        work = all_reduce_work(message_bytes, gpus)
        entry = self.fits.get(Family.ALL_REDUCE, *WIDE_FORMATS)
        if entry is None:
            return work.traffic_bytes / self.link_bandwidth_bytes_per_s + rates(self.fits).launch_s
        log_bytes = np.log(np.maximum(message_bytes, 1.0))
        return entry.fit.time_s(work, all_reduce_point(gpus)[None], 0, log_bytes)

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        """`[...]` seconds of one kernel that only moves bytes; without rows, with the launch and rate of GEMMs."""
        entry = self.fits.get(Family.STREAM, *WIDE_FORMATS)
        work = stream_work(traffic_bytes)
        if entry is None:
            return rates(self.fits).time_s(work)
        return entry.fit.time_s(work, STREAM_POINT, 0, np.log(np.maximum(traffic_bytes, 1.0)))

    def ridge_tokens(self, dtype: Dtype) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic, two operations per token.

        H100 BF16 by its data sheet: 989e12 * 2 / (2 * 3.35e12) = 295.2.

        Raises:
            InputError: as `gemm_s`.
        """
        form = self._gemm(dtype)[0].fit.roofline
        return form.peak_flops * dtype.bytes_per_value / (2 * form.bandwidth_bytes_per_s)

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        """The held-out error of a family's fit; None where nothing was measured."""
        entry = self._entry(family, dtype)
        return entry.fit.error if entry and entry.fit.rows else None

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        """A sentence where `use` leaves the measured range or no measurement stands behind a family."""
        if self.note is not None:
            return self.note or None
        entry = self._entry(family, dtype)
        if entry is None:
            return self._unmeasured(family, dtype)
        outside = [*_outside(entry.fit, family, use)]
        if family is Family.ATTENTION and use.queries > 1 and (limit := entry.fit.limit("queries")) and limit.high < 2:
            outside.append("attention of several queries per request was not measured: their arithmetic is modelled")
        return f"{self.name}: {'; '.join(outside)}" if outside else None

    def _unmeasured(self, family: Family, dtype: Dtype) -> str:
        stand_in = {
            Family.GEMM: f"no {dtype} GEMM was measured: the bf16 form at {dtype.bytes_per_value:.2g} bytes per weight",
            Family.EXPERTS: f"no {dtype} experts were measured: priced by the form of GEMMs",
            Family.ATTENTION: "no attention was measured: priced by the form of GEMMs",
            Family.ALL_REDUCE: "no all-reduce was measured: priced by the link's datasheet rate",
            Family.STREAM: "norms, activations and copies were not measured: priced with the launch and rate of GEMMs",
        }
        return f"{self.name}: {stand_in[family]}"

    def _entry(self, family: Family, dtype: Dtype) -> FitEntry | None:
        formats = _stand_ins(dtype) if family in (Family.GEMM, Family.EXPERTS) else WIDE_FORMATS
        return self.fits.get(family, *formats)

    def _gemm(self, dtype: Dtype) -> tuple[FitEntry, bool]:
        """The GEMM fit that prices `dtype`, and whether its rows are of that format."""
        entry = self.fits.get(Family.GEMM, *_stand_ins(dtype))
        if entry is not None:
            return entry, True
        # Weight-only formats compute in 16 bit: the form carries over, only the bytes differ.
        stand_in = self.fits.get(Family.GEMM, *_stand_ins(dtype.arithmetic))
        if stand_in is None:
            known = ", ".join(entry.dtype for entry in self.fits.entries if entry.family is Family.GEMM)
            raise InputError(f"{self.name} has no {dtype} arithmetic", hint=f"it has: {known}")
        return stand_in, False


def rates(fits: KernelFits) -> Roofline:
    """The form of the 16 bit GEMMs, or where none was measured of those in 32 bit, whose rates stand for the GPU.

    Raises:
        InputError: no such rows.
    """
    entry = fits.get(Family.GEMM, *WIDE_FORMATS)
    if entry is None or not math.isfinite(entry.fit.roofline.peak_flops):
        raise InputError(
            "no bf16, fp16 or fp32 GEMM rows", hint="a hardware profile needs them: give a file with them too"
        )
    return entry.fit.roofline


def _stand_ins(dtype: Dtype) -> tuple[Dtype, ...]:
    return STAND_INS.get(dtype, (dtype,))


def _scalar(value: float) -> FloatArray:
    return np.array(float(value))


_ASKED: Final = {
    Family.GEMM: ("tokens",),
    Family.EXPERTS: ("tokens",),
    Family.ATTENTION: ("keys", "requests"),
    Family.ALL_REDUCE: ("message_bytes", "tp"),
    Family.STREAM: (),
}


def _outside(fit: KernelFit, family: Family, use: Use) -> list[str]:
    found = []
    for size in _ASKED[family]:
        limit, value = fit.limit(size), getattr(use, size)
        if limit and value and value > limit.high:
            what = size.replace("_", " ")
            found.append(f"{family.replace('_', '-')} was measured up to {limit.high:,.0f} {what}, asked for {value:,}")
    return found

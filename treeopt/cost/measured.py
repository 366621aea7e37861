"""Kernel times from measured rows: the rows themselves where they were measured, the fit between and beyond them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.attention import Attention, GroupedAttention
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.fits import families
from treeopt.cost.fits.collection import Entry, Fits
from treeopt.cost.fits.families import VALUE_BYTES
from treeopt.cost.fits.fit import Fit
from treeopt.cost.fits.roofline import Roofline, Work
from treeopt.cost.gemm import Gemm
from treeopt.cost.timing import Family, FitError, Use
from treeopt.errors import InputError

# The measured formats that price a served one, the best first.
STAND_INS: Final[Mapping[Dtype, tuple[str, ...]]] = {
    Dtype.BF16: ("bf16", "fp16"),
    Dtype.FP16: ("fp16", "bf16"),
    Dtype.FP32: ("fp32",),
    Dtype.FP8: ("fp8", "fp8_block"),
    Dtype.INT4: ("int4",),
}
# What attention, messages and copies are measured in, the best first: whoever decodes in 32 bit measures nothing else.
WIDE_FORMATS: Final = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class MeasuredTimes:
    """`OperatorTimes` of one GPU and engine from its measured rows.

    A weight that was measured takes its own times, on a line in log tokens between them, relative to the fitted form.
    One that was not takes the form and what near shapes say. A fused gate and up that was not measured is priced like
    any weight of its size, as the one GEMM that engines launch; its halves count among the near shapes.

    Attributes:
        name: of the hardware profile.
        link_bandwidth_bytes_per_s: prices messages where no all-reduce was measured.
    """

    name: str
    fits: Fits
    link_bandwidth_bytes_per_s: float

    def gemm_s(self, tokens: FloatArray, weight: Gemm, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through one weight; grouped weights are priced by the form alone.

        Raises:
            InputError: a dtype that was not measured and that no other stands in for.
        """
        entry, exact = self._gemm(dtype)
        fit, outputs, inputs = entry.fit, _scalar(weight.outputs), _scalar(weight.inputs)
        value_bytes = VALUE_BYTES[entry.dtype] if exact else dtype.bytes_per_value
        work = families.gemm_work(tokens, outputs, inputs, value_bytes, fit.tiling if exact else None)
        if weight.groups > 1:
            return fit.roofline.time_s(Work(*(weight.groups * part for part in work)))
        if not exact:
            return fit.roofline.time_s(work)
        return fit.time_s(work, families.gemm_point(outputs, inputs)[None], 0, np.log(tokens))

    def experts_s(self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype) -> FloatArray:
        """`[...]` seconds of tokens through the routed experts of one layer; raises as `gemm_s`."""
        sizes = (hidden, experts.intermediate, experts.count, experts.per_token)
        entry = self.fits.get(Family.EXPERTS, *STAND_INS[dtype])
        if entry is None:
            form, value_bytes = self._gemm(dtype)[0].fit.roofline, dtype.bytes_per_value
            work = families.experts_work(tokens, *sizes, experts.skew, value_bytes)
            return form.launch_s + form.time_s(work)  # two grouped GEMMs
        fit = entry.fit
        work = families.experts_work(tokens, *sizes, experts.skew, VALUE_BYTES[entry.dtype])
        # Rows were measured with balanced routing and with one skew: what they add is in between for any other.
        share = min(1.0, experts.skew / fit.skew) if fit.skew else 0.0
        wide, narrow, count, chosen = map(_scalar, sizes)
        points = families.experts_point(wide, narrow, count, chosen, np.array([[0.0], [1.0]]))
        log_tokens, shares = np.log(tokens), (1 - share, share)
        # One point at a time: the curves keep what a point alone was asked about.
        added = sum(shares[at] * fit.residuals.at(points[at], 0, log_tokens) for at in (0, 1) if shares[at])
        found: FloatArray = fit.roofline.time_s(work) * np.exp(added)
        return found

    def attention_s(self, requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> FloatArray:
        """`[...]` seconds of one layer's attention, KV in 16 bit.

        Rows with one query give the memory's part, which all queries of a request share; the arithmetic of the others
        runs at the rate of prefill kernels.
        """
        entry = self.fits.get(Family.ATTENTION, *WIDE_FORMATS)
        form = entry.fit.roofline if entry else rates(self.fits)
        if not isinstance(shape, GroupedAttention):
            return form.time_s(_latent_work(requests, queries, keys, shape))
        heads = (_scalar(shape.heads), _scalar(shape.kv_heads), _scalar(shape.head_dim))
        work = families.attention_work(requests, queries, keys, *heads)
        if entry is None:
            return form.time_s(work)
        pairs = np.stack(np.broadcast_arrays(requests, queries), axis=-1)
        distinct, index = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        points = families.attention_point(distinct[:, 0], distinct[:, 1], *heads)
        return entry.fit.time_s(work, points, index.reshape(pairs.shape[:-1]), np.log(keys))

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        """`[...]` seconds to sum a message over `tp` GPUs; 0 for one."""
        if tp == 1:
            return np.zeros_like(message_bytes)
        gpus = _scalar(tp)
        work = families.all_reduce_work(message_bytes, gpus)
        entry = self.fits.get(Family.ALL_REDUCE, *WIDE_FORMATS)
        if entry is None:
            return work.traffic_bytes / self.link_bandwidth_bytes_per_s + rates(self.fits).launch_s
        log_bytes = np.log(np.maximum(message_bytes, 1.0))
        return entry.fit.time_s(work, families.all_reduce_point(gpus)[None], 0, log_bytes)

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        """`[...]` seconds of one kernel that only moves bytes; without rows, with the launch and rate of GEMMs."""
        entry = self.fits.get(Family.STREAM, *WIDE_FORMATS)
        nothing = np.zeros(np.shape(traffic_bytes))
        work = Work(np.asarray(traffic_bytes, dtype=np.float64), nothing, nothing)
        if entry is None:
            return rates(self.fits).time_s(work)
        return entry.fit.time_s(work, np.zeros((1, 1)), 0, np.log(np.maximum(traffic_bytes, 1.0)))

    def ridge_tokens(self, dtype: Dtype) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic, by the fitted rates.

        Raises:
            InputError: as `gemm_s`.
        """
        form = self._gemm(dtype)[0].fit.roofline
        return form.peak_flops * dtype.bytes_per_value / (2 * form.bandwidth_bytes_per_s)

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        """The held-out error of a family's fit; None where nothing was measured."""
        entry = self._entry(family, dtype)
        return entry.fit.error if entry else None

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        """A sentence where `use` leaves the measured range or no measurement stands behind a family."""
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

    def _entry(self, family: Family, dtype: Dtype) -> Entry | None:
        formats = STAND_INS[dtype] if family in (Family.GEMM, Family.EXPERTS) else WIDE_FORMATS
        return self.fits.get(family, *formats)

    def _gemm(self, dtype: Dtype) -> tuple[Entry, bool]:
        """The GEMM fit that prices `dtype`, and whether its rows are of that format."""
        entry = self.fits.get(Family.GEMM, *STAND_INS[dtype])
        if entry is not None:
            return entry, True
        # Weight-only formats compute in 16 bit: the form carries over, only the bytes differ.
        stand_in = self.fits.get(Family.GEMM, *STAND_INS[dtype.arithmetic])
        if stand_in is None:
            known = ", ".join(entry.dtype for entry in self.fits.entries if entry.family is Family.GEMM)
            raise InputError(f"{self.name} has no {dtype} GEMM times", hint=f"it has: {known}")
        return stand_in, False


def rates(fits: Fits) -> Roofline:
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


def _scalar(value: float) -> FloatArray:
    return np.array(float(value))


def _latent_work(requests: FloatArray, queries: FloatArray, keys: FloatArray, shape: Attention) -> Work:
    # All heads read the same latent: one piece of work per request.
    read = families.WIDE_BYTES * requests * keys * shape.kv_values
    return Work(read * np.ones(np.shape(queries)), 1.0 * requests * queries * keys * shape.flops_per_pair, requests)


def _outside(fit: Fit, family: Family, use: Use) -> list[str]:
    asked = {
        Family.GEMM: [("tokens", use.tokens)],
        Family.EXPERTS: [("tokens", use.tokens)],
        Family.ATTENTION: [("keys", use.keys), ("requests", use.requests)],
        Family.ALL_REDUCE: [("message_bytes", use.message_bytes), ("tp", use.tp)],
        Family.STREAM: [],
    }
    found = []
    for size, value in asked[family]:
        limit = fit.limit(size)
        if limit and value and value > limit.high:
            what = size.replace("_", " ")
            found.append(f"{family.replace('_', '-')} was measured up to {limit.high:,.0f} {what}, asked for {value:,}")
    return found

"""Kernel times on one GPU: measured rows where there are any, the fit between and beyond them, else its data sheet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.all_reduce import all_reduce_point, all_reduce_work
from treeopt.cost.kernels.attention import Attention, GroupedAttention, attention_kernel
from treeopt.cost.kernels.experts import Experts, experts_point, experts_work
from treeopt.cost.kernels.family import Family, FitError, Use
from treeopt.cost.kernels.fit import TimeCurve
from treeopt.cost.kernels.fits import FitEntry, KernelFits, rates
from treeopt.cost.kernels.gemm import Gemm, gemm_point, gemm_work, scales_point, scales_work
from treeopt.cost.kernels.reach import outside, slow_kernel, unmeasured
from treeopt.cost.kernels.roofline import Roofline, Work
from treeopt.cost.kernels.stand_ins import STAND_IN_ERROR, WIDE_FORMATS, kv_stand_ins, stand_ins
from treeopt.cost.kernels.stream import STREAM_POINT, stream_work
from treeopt.errors import InputError

_CACHED: Final = (Family.ATTENTION, Family.LATENT)
_LEAST_LEFT: Final = 0.2  # of a GEMM without the scales of its activations


@dataclass(frozen=True, kw_only=True)
class KernelTimes:
    """Seconds of single kernels on one GPU, launches included, for every element of the broadcast inputs.

    A weight that was measured takes its own times, on a line in log tokens between them, relative to the fitted form.
    One that was not takes the form and what near shapes say. A fused gate and up that was not measured is priced like
    any weight of its size, as the one GEMM that engines launch; its halves count among the near shapes. Without rows a
    kernel takes as long as its memory traffic or its arithmetic, and its launch (Williams et al. 2009, "Roofline").

    A network given here is one GPU's part already (`ModelShape.shard`). Times never fall as tokens, keys or bytes grow,
    where the measured ones do (`rising`).

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
        return self._gemm_curve(weight, dtype).time_s(tokens)

    @cached_property
    def _gemm_curve(self) -> Callable[[Gemm, Dtype], TimeCurve]:
        # A step asks about the same few weights again and again.
        return lru_cache(maxsize=512)(self._curve_of_gemm)

    def _curve_of_gemm(self, weight: Gemm, dtype: Dtype) -> TimeCurve:
        entry, exact = self._gemm(dtype)
        fit, outputs, inputs = entry.fit, _scalar(weight.outputs), _scalar(weight.inputs)
        value_bytes = (entry.dtype if exact else dtype).bytes_per_value

        def work_of(tokens: FloatArray) -> Work:
            work = gemm_work(tokens, outputs, inputs, value_bytes, fit.tiling if exact else None)
            return Work(*(weight.groups * part for part in work))

        if weight.groups > 1 or not exact or fit.residuals is None:
            return fit.curve(work_of)
        residual = fit.residuals.at_knots(gemm_point(outputs, inputs)[None])
        scales = self.fits.get(Family.SCALES, Dtype.FP8) if dtype is Dtype.FP8_STATIC is not entry.dtype else None
        if scales is None or scales.fit.residuals is None:
            return fit.curve(work_of, residual)
        # Rows of 8-bit GEMMs scale their activations first; with fixed scales that part is not there.
        tokens = np.exp(fit.residuals.knots)
        curve = scales.fit.curve(
            lambda at: scales_work(at, inputs), scales.fit.residuals.at_knots(scales_point(inputs)[None])
        )
        with_scales_s = fit.roofline.time_s(work_of(tokens)) * np.exp(residual)
        left = np.maximum(1.0 - curve.time_s(tokens) / with_scales_s, _LEAST_LEFT)
        return fit.curve(work_of, residual + np.log(left))

    def experts_s(
        self, tokens: FloatArray, experts: Experts, hidden: int, dtype: Dtype, independent: FloatArray | None = None
    ) -> FloatArray:
        """`[...]` seconds of tokens through the routed experts of one layer, without router and shared experts.

        Args:
            tokens: `[...]`.
            experts: one GPU's part of the layer.
            hidden: channels.
            dtype: of the weights.
            independent: `[...]` how many of the tokens choose on their own (`Experts.independent`); None is all.

        Raises:
            InputError: as `gemm_s`.
        """
        curve = self._experts_curve(experts, hidden, dtype)
        if independent is None:
            return curve.time_s(tokens)
        # What they visit is measured at as many independent tokens; the form knows what the others compute besides.
        sizes = (hidden, experts.intermediate, experts.count, experts.per_token, experts.skew)
        value_bytes = self._experts_entry_bytes(dtype)
        every = experts_work(tokens, *sizes, value_bytes, independent)
        few = experts_work(independent, *sizes, value_bytes)
        return np.asarray(curve.time_s(independent) * curve.form.time_s(every) / curve.form.time_s(few))

    @cached_property
    def _experts_curve(self) -> Callable[[Experts, int, Dtype], TimeCurve]:
        return lru_cache(maxsize=64)(self._curve_of_experts)

    def _experts_entry_bytes(self, dtype: Dtype) -> float:
        entry = self.fits.get(Family.EXPERTS, *stand_ins(dtype))
        return (entry.dtype if entry else dtype).bytes_per_value

    def _curve_of_experts(self, experts: Experts, hidden: int, dtype: Dtype) -> TimeCurve:
        sizes = (hidden, experts.intermediate, experts.count, experts.per_token)
        entry = self.fits.get(Family.EXPERTS, *stand_ins(dtype))
        value_bytes = self._experts_entry_bytes(dtype)

        def work_of(tokens: FloatArray) -> Work:
            return experts_work(tokens, *sizes, experts.skew, value_bytes)

        if entry is None:
            # The form of the wide experts at this format's bytes; without any, two grouped GEMMs.
            wide = self.fits.get(Family.EXPERTS, *WIDE_FORMATS)
            form = self._gemm(dtype)[0].fit.roofline
            form = wide.fit.roofline if wide else replace(form, launch_s=2 * form.launch_s)
            return TimeCurve(form, work_of, np.zeros(0), np.zeros((1, 0)))
        fit = entry.fit
        assert fit.residuals is not None
        # Rows were measured with balanced routing and with one skew: what they add is in between for any other.
        share = min(1.0, experts.skew / fit.skew) if fit.skew else 0.0
        wide_, narrow, count, chosen = map(_scalar, sizes)
        points = experts_point(wide_, narrow, count, chosen, np.array([[0.0], [1.0]]))
        shares = ((0, 1 - share), (1, share))
        residual = sum(part * fit.residuals.at_knots(points[at]) for at, part in shares if part)
        return fit.curve(work_of, np.asarray(residual))

    def attention_s(
        self,
        requests: FloatArray,
        queries: FloatArray,
        keys: FloatArray,
        shape: Attention,
        kv_dtype: Dtype | None = None,
    ) -> FloatArray:
        """`[...]` seconds of one layer's attention: each request's queries over its keys, cached as `kv_dtype`.

        None is what was measured of the wide formats.

        Rows with one query give the memory's part, which all queries of a request share; the arithmetic of the others
        runs at the rate of prefill kernels.
        """
        family = Family.ATTENTION if isinstance(shape, GroupedAttention) else Family.LATENT
        entry = self.fits.get(family, *kv_stand_ins(kv_dtype))
        if kv_dtype is None or kv_dtype in WIDE_FORMATS:
            kv_dtype = (entry or self._wide_gemm).dtype
        fit = (entry or self.fits.get(Family.ATTENTION, *WIDE_FORMATS) or self._wide_gemm).fit
        of_shape = attention_kernel(shape, kv_dtype.bytes_per_value)
        if entry is None or fit.residuals is None:
            return fit.roofline.time_s(of_shape.work(requests, queries, keys))
        pairs = np.stack(np.broadcast_arrays(requests, queries), axis=-1)
        distinct, index = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        B, N = distinct[:, :1], distinct[:, 1:]
        measured = attention_kernel(shape, entry.dtype.bytes_per_value)
        curve = fit.curve(lambda at: measured.work(B, N, at), fit.residuals.at_knots(measured.point(B[:, 0], N[:, 0])))
        every_key = np.broadcast_to(keys, np.broadcast_shapes(np.shape(keys), pairs.shape[:-1]))
        found = curve.time_s(
            every_key, index.reshape(pairs.shape[:-1]), lambda at: measured.work(requests, queries, at)
        )
        if entry.dtype.bytes_per_value == kv_dtype.bytes_per_value:
            return found
        # Rows of a wider cache: the form knows what narrower values save.
        ratio = fit.roofline.time_s(of_shape.work(requests, queries, keys))
        return np.asarray(found * ratio / fit.roofline.time_s(measured.work(requests, queries, keys)))

    def all_reduce_s(self, message_bytes: FloatArray, tp: int) -> FloatArray:
        """`[...]` seconds to sum a message over `tp` GPUs; 0 for one."""
        if tp == 1:
            return np.zeros_like(message_bytes)
        return self._all_reduce_curve(tp).time_s(message_bytes)

    @cached_property
    def _all_reduce_curve(self) -> Callable[[int], TimeCurve]:
        return lru_cache(maxsize=16)(self._curve_of_all_reduce)

    def _curve_of_all_reduce(self, tp: int) -> TimeCurve:
        gpus = _scalar(tp)
        entry = self.fits.get(Family.ALL_REDUCE, *WIDE_FORMATS)

        def work_of(message_bytes: FloatArray) -> Work:
            return all_reduce_work(message_bytes, gpus)

        if entry is None or entry.fit.residuals is None:
            link = Roofline(bandwidth_bytes_per_s=self.link_bandwidth_bytes_per_s, launch_s=rates(self.fits).launch_s)
            return TimeCurve(link, work_of, np.zeros(0), np.zeros((1, 0)))
        return entry.fit.curve(work_of, entry.fit.residuals.at_knots(all_reduce_point(gpus)[None]))

    def stream_s(self, traffic_bytes: FloatArray) -> FloatArray:
        """`[...]` seconds of one kernel that only moves bytes; without rows, with the launch and rate of GEMMs."""
        return self._stream_curve.time_s(np.asarray(traffic_bytes, dtype=np.float64))

    @cached_property
    def _stream_curve(self) -> TimeCurve:
        entry = self.fits.get(Family.STREAM, *WIDE_FORMATS)
        if entry is None or entry.fit.residuals is None:
            return TimeCurve(rates(self.fits), stream_work, np.zeros(0), np.zeros((1, 0)))
        return entry.fit.curve(stream_work, entry.fit.residuals.at_knots(STREAM_POINT))

    def ridge_tokens(self, dtype: Dtype) -> float:
        """Tokens per step at which streaming a weight takes as long as its arithmetic, two operations per token.

        H100 BF16 by its data sheet: 989e12 * 2 / (2 * 3.35e12) = 295.2.

        Raises:
            InputError: as `gemm_s`.
        """
        form = self.gemm_form(dtype)
        return form.peak_flops * dtype.bytes_per_value / (2 * form.bandwidth_bytes_per_s)

    def gemm_form(self, dtype: Dtype) -> Roofline:
        """The form of a format's GEMMs, or of those that stand in for it.

        Raises:
            InputError: as `gemm_s`.
        """
        return self._gemm(dtype)[0].fit.roofline

    def error(self, family: Family, dtype: Dtype) -> FitError | None:
        """The held-out error of a family's fit, or that of what stands in for it; None where nothing was measured."""
        entry = self._entry(family, dtype)
        if entry is None and self.note is None:
            return STAND_IN_ERROR.get((family, dtype))
        return entry.fit.error if entry and entry.fit.rows else None

    def off_by(self, family: Family, dtype: Dtype) -> float:
        """The larger median error of a family's fit on shapes and on points that it was not fitted to; 0 unmeasured."""
        entry = self._entry(family, dtype)
        return max(entry.fit.error.median, entry.fit.between.median) if entry and entry.fit.rows else 0.0

    def beyond(self, family: Family, dtype: Dtype, use: Use) -> str | None:
        """A sentence where `use` leaves the measured range or no measurement stands behind a family."""
        if self.note is not None:
            return self.note or None
        entry = self._entry(family, dtype)
        if entry is None:
            wide_experts = self.fits.get(Family.EXPERTS, *WIDE_FORMATS) is not None
            return f"{self.name}: {unmeasured(family, dtype, wide_experts)}"
        found = outside(entry.fit, family, use)
        if family in _CACHED and use.queries > 1 and (limit := entry.fit.limit("queries")) and limit.high < 2:
            found.append("attention of several queries per request was not measured: their arithmetic is modelled")
        if family in _CACHED and dtype not in WIDE_FORMATS and entry.dtype is not dtype:
            found.append(f"no attention over a {dtype} cache was measured: {entry.dtype} rows at its bytes")
        return f"{self.name}: {'; '.join(found)}" if found else None

    def implausible(self, family: Family, dtype: Dtype) -> str | None:
        """A sentence where the fit of a family cannot be what a served step runs: its own rows speak against it."""
        entry, wide = self._entry(family, dtype), self.fits.get(Family.GEMM, *WIDE_FORMATS)
        if self.note is not None or entry is None or wide is None or family not in (Family.GEMM, Family.EXPERTS):
            return None
        return slow_kernel(self.name, family, dtype, entry.fit.roofline, wide.fit.roofline)

    def _entry(self, family: Family, dtype: Dtype) -> FitEntry | None:
        if family in (Family.GEMM, Family.EXPERTS):
            return self.fits.get(family, *stand_ins(dtype))
        return self.fits.get(family, *(kv_stand_ins(dtype) if family in _CACHED else WIDE_FORMATS))

    @cached_property
    def _wide_gemm(self) -> FitEntry:
        """The GEMM fit that stands in for kernels of 16-bit values: of a processor's profile it is that of fp32."""
        return self.fits.get(Family.GEMM, *WIDE_FORMATS) or self._gemm(Dtype.BF16)[0]

    def _gemm(self, dtype: Dtype) -> tuple[FitEntry, bool]:
        """The GEMM fit that prices `dtype`, and whether its rows are of that format."""
        entry = self.fits.get(Family.GEMM, *stand_ins(dtype))
        if entry is not None:
            return entry, True
        # The form carries over, only the bytes differ: weights alone are narrow, or where the GPU lacks the arithmetic
        # of 4-bit activations its kernels widen them too.
        narrow = WIDE_FORMATS if dtype.bytes_per_value < 1 else ()
        stand_in = self.fits.get(Family.GEMM, *stand_ins(dtype.arithmetic), *narrow)
        if stand_in is None:
            known = ", ".join(entry.dtype for entry in self.fits.entries if entry.family is Family.GEMM)
            raise InputError(f"{self.name} has no {dtype} arithmetic", hint=f"it has: {known}")
        return stand_in, False


def _scalar(value: float) -> FloatArray:
    return np.array(float(value))

"""From files of timing rows to a measured hardware profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np

from treeopt.cost.fit.choose import Datasheet, FittedFamily, fit_family
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.latent_attention import without_projections
from treeopt.cost.fit.rows import Rows, joined
from treeopt.cost.fit.tables import Selection, Table, check_selections, read_table
from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import Hardware, Measurement, load_hardware
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fits import FitEntry, KernelFits, rates
from treeopt.cost.kernels.stand_ins import STAND_INS, WIDE_FORMATS
from treeopt.cost.kernels.times import KernelTimes
from treeopt.errors import InputError, TooFewRowsError
from treeopt.files.shipped import locate

# Columns that name the GPU and the engine; rows of several must not be fitted as one.
_IDENTITY: Final = ("gpu", "device", "engine", "version")
# Bytes per second between which fitted bandwidths lie, and as shares of the data sheet's: caches help a little.
_BANDWIDTHS: Final = (1e8, 5e13)
_OF_SHEET: Final = (0.05, 1.2)
# GEMMs first: their peak stands in where attention has none of its own.
_ORDER: Final = (
    *(Family.GEMM, Family.STREAM, Family.SCALES, Family.ATTENTION, Family.LATENT),
    *(Family.EXPERTS, Family.ALL_REDUCE),
)
# Kernels that read the KV cache, and the formats that it has a price in.
_CACHED: Final = (Family.ATTENTION, Family.LATENT)
_CACHE_FORMATS: Final = (*WIDE_FORMATS, Dtype.FP8)


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """What `profile fit` is asked for.

    Attributes:
        device: what the GPU is called.
        memory_bytes: memory of one GPU.
        link_bandwidth_bytes_per_s: to the other GPUs, per direction.
        sheet: the GPU's datasheet profile, for a comparison; None without.
        processors: its multiprocessors; None leaves the form with tiles out.
    """

    name: str
    device: str
    memory_bytes: float
    link_bandwidth_bytes_per_s: float
    sources: Mapping[str, str]
    sheet: Hardware | None
    processors: int | None
    numbers: str
    licence: str
    date: str
    command: str
    engine: str | None = None

    @classmethod
    def of_gpu(
        cls,
        device: str | None,
        datasheet: str | None,
        memory_gb: float | None,
        link_gb_s: float | None,
        **given: Any,
    ) -> FitRequest:
        """A request about a GPU that is told by a data sheet, a shipped name or a file, or by numbers in its place.

        Raises:
            InputError: neither is given, or a number is not above 0.
        """
        sheet = None if datasheet is None else load_hardware(locate("hardware", datasheet).path)
        if sheet is None and (device is None or memory_gb is None or link_gb_s is None):
            raise InputError(
                "the rows do not say how much memory and which links the GPU has",
                hint="give --datasheet NAME, or --device, --memory-gb and --link-gb-s",
            )
        for option, value in (("--memory-gb", memory_gb), ("--link-gb-s", link_gb_s)):
            if value is not None and not 0.0 < value < math.inf:  # NaN too
                raise InputError(f"{option} {value:g}", hint="give a number above 0")
        rates = {"memory_bytes": memory_gb, "link_bandwidth_bytes_per_s": link_gb_s}
        known = {} if sheet is None else {name: sheet.sources[name] for name in rates if name in sheet.sources}
        memory_bytes, link = (getattr(sheet, name) if gb is None else gb * 1e9 for name, gb in rates.items())
        return cls(
            device=device or (sheet.device if sheet else ""),
            memory_bytes=memory_bytes,
            link_bandwidth_bytes_per_s=link,
            sources={**known, **{name: "given" for name, gb in rates.items() if gb is not None}},
            sheet=sheet,
            **given,
        )


@dataclass(frozen=True, kw_only=True)
class FittedProfile:
    """The profile, with what was tried for each family and what the rows have."""

    FORMAT: ClassVar = "treeopt.fit/2"
    WRITTEN: ClassVar = ("name", "engine", "families", "warnings")

    hardware: Hardware
    families: tuple[FittedFamily, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The profile's."""
        return self.hardware.name

    @property
    def engine(self) -> str | None:
        """Whose kernels the rows timed."""
        return self.hardware.measurement.engine if self.hardware.measurement else None


def fit_profile(paths: Sequence[Path], selections: list[Selection], request: FitRequest) -> FittedProfile:
    """Read the rows, fit every family in them, and put the profile together.

    Raises:
        InputError: a file that cannot be read, rows of several GPUs or engines, no 16 bit GEMM rows, too few rows,
            rates that the GPU cannot have.
        FileFormatError: a row that is wrong, with file and line.
    """
    tables = [read_table(path) for path in paths]
    check_selections(tables, selections)
    kept = [table for table in (table.select(selections) for table in tables) if len(table.lines)]
    engine = request.engine or _one_engine(kept)
    rows, warnings = _rows(kept)
    families: list[FittedFamily] = []
    for part in sorted(rows, key=lambda part: _ORDER.index(part.family)):
        if part.family is Family.LATENT:
            part = without_projections(part, _times(request, families))
        try:
            fitted = fit_family(
                part,
                processors=request.processors,
                datasheet=_sheet_rates(request.sheet, part),
                peak_flops=_gemm_peak(families),
            )
        except TooFewRowsError as error:
            if part.family is Family.GEMM:
                raise
            warnings.append(f"{error}: left out")
        else:
            families.append(fitted)
    fits = _asked_for(families)
    measurement = Measurement(
        engine=engine,
        date=request.date,
        numbers=request.numbers,
        licence=request.licence,
        command=request.command,
    )
    return FittedProfile(
        hardware=_hardware(request, fits, measurement),
        families=tuple(families),
        warnings=(*warnings, *(warning for found in families for warning in found.warnings)),
    )


def _rows(tables: list[Table]) -> tuple[list[Rows], list[str]]:
    parts, warnings = [], []
    for table in tables:
        found = [part for part in rows_of(table) if part.family not in _CACHED or part.dtype in _CACHE_FORMATS]
        unused = len(table.lines) - sum(map(len, found))
        if unused:
            warnings.append(
                f"{table.name}: {unused} of {len(table.lines)} rows are of kernels or formats without a price"
            )
        parts += found
    rows = [part for part in joined(parts) if len(part)]
    if not rows:
        raise InputError("the files hold no rows that could be fitted", hint="give files with GEMM rows at least")
    return rows, warnings


def _asked_for(families: list[FittedFamily]) -> KernelFits:
    """The fits that some number format is priced by: a second best one would only make the file larger."""
    every = KernelFits(entries=tuple(FitEntry(found.family, found.dtype, found.fit) for found in families))
    formats = [STAND_INS.get(dtype, (dtype,)) for dtype in Dtype]
    firsts = {id(every.get(family, *names)) for family in Family for names in formats}
    return KernelFits(entries=tuple(entry for entry in every.entries if id(entry) in firsts))


def _times(request: FitRequest, families: list[FittedFamily]) -> KernelTimes:
    """What the families fitted so far say."""
    return KernelTimes(
        name=request.name,
        fits=_asked_for(families),
        link_bandwidth_bytes_per_s=request.link_bandwidth_bytes_per_s,
    )


def _one_engine(tables: list[Table]) -> str:
    """The engine that all rows are of.

    Raises:
        InputError: several GPUs, engines or versions among the rows: constants do not carry over between them.
    """
    for column in _IDENTITY:
        values = sorted({str(v) for t in tables if column in t.columns for v in np.unique(t.texts(column))})
        if len(values) > 1:
            raise InputError(
                f"rows of several values of {column}: {', '.join(values)}",
                hint=f"fit one at a time: --select {column}={values[0]}",
            )
    for table in tables:
        if "engine" in table.columns:
            return str(table.texts("engine")[0])
        if {"framework", "version"} <= table.columns.keys():
            return f"{table.texts('framework')[0].lower()}-{table.texts('version')[0]}"
    return "unknown"


def _hardware(request: FitRequest, fits: KernelFits, measurement: Measurement) -> Hardware:
    form = rates(fits)
    _refuse_another_gpu(form.bandwidth_bytes_per_s, request.sheet)
    fitted = f"fitted: {measurement.engine} GEMM rows of {request.numbers}"
    return Hardware(
        name=request.name,
        device=request.device,
        source="measured",
        bandwidth_bytes_per_s=_rounded(form.bandwidth_bytes_per_s),
        peak_flops=MappingProxyType(_peaks(fits)),
        memory_bytes=request.memory_bytes,
        link_bandwidth_bytes_per_s=request.link_bandwidth_bytes_per_s,
        launch_s=_rounded(form.launch_s),
        sources={
            **dict.fromkeys(("bandwidth_bytes_per_s", "peak_flops"), fitted),
            **request.sources,
            "launch_s": fitted,
        },
        measurement=measurement,
        fits=fits,
    )


def _peaks(fits: KernelFits) -> dict[Dtype, float]:
    found = {d: fits.get(Family.GEMM, *STAND_INS.get(d, (d,))) for d in Dtype if d.arithmetic is d}
    return {dtype: _rounded(entry.fit.roofline.peak_flops) for dtype, entry in found.items() if entry}


def _refuse_another_gpu(bandwidth_bytes_per_s: float, sheet: Hardware | None) -> None:
    """Rates that no GPU has, or that its data sheet rules out, come from rows in another unit or of another GPU.

    Raises:
        InputError: the fitted bandwidth is out of reach.
    """
    low, high, whose = *_BANDWIDTHS, "no GPU has"
    if sheet is not None:
        low, high = (share * sheet.bandwidth_bytes_per_s for share in _OF_SHEET)
        whose = f"beside {sheet.bandwidth_bytes_per_s / 1e12:.3g} TB/s of {sheet.name}"
    if not low <= bandwidth_bytes_per_s <= high:
        raise InputError(
            f"the GEMM rows amount to {bandwidth_bytes_per_s / 1e12:.3g} TB/s, {whose}",
            hint="times in another unit (latency_us is us, latency ms, time_s s), or rows of another GPU",
        )


def _sheet_rates(sheet: Hardware | None, rows: Rows) -> Datasheet | None:
    if sheet is None or rows.family in (Family.STREAM, Family.SCALES):
        return None
    kind = Dtype.FP8 if rows.dtype.arithmetic is Dtype.FP8 else Dtype.BF16
    peak = sheet.peak_flops.get(kind, sheet.peak_flops.get(Dtype.BF16, math.inf))
    links = rows.family is Family.ALL_REDUCE
    rate = sheet.link_bandwidth_bytes_per_s if links else sheet.bandwidth_bytes_per_s
    return Datasheet(bandwidth_bytes_per_s=rate, peak_flops=peak)


def _gemm_peak(families: list[FittedFamily]) -> float:
    peaks = [f.fit.roofline.peak_flops for f in families if f.family is Family.GEMM and f.dtype in WIDE_FORMATS]
    return peaks[0] if peaks else math.inf


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

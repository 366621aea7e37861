"""One fitted family: the form, the residuals beside it, and how far it can be trusted and reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.curves import Residuals, along, rising
from treeopt.cost.kernels.family import FitError
from treeopt.cost.kernels.roofline import Roofline, Tiling, Work
from treeopt.files.documents import Field
from treeopt.files.typed import NotNegative, read, write

# What stands in a fit that no rows judged.
NOT_JUDGED: Final = FitError(median=0.0, p90=0.0)
Arrays = dict[str, npt.NDArray[Any]]

# Log ratios are kept in steps of 0.1 %, well below what two runs of a kernel differ by.
_STEP = 1e-3
_MISSING = np.iinfo(np.int16).min


class Form(StrEnum):
    """The parametric forms that are tried."""

    DATASHEET = "datasheet"
    HARD = "t0+max"
    SMOOTH = "t0+smooth-max"
    TILED = "t0+tiles"


class Share(StrEnum):
    """What measured rows add to a form for a shape that has none of its own."""

    NOTHING = "form only"
    COMMON = "shared residual"
    NEAR = "near shapes"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The range of one size in the measured rows."""

    size: str
    low: float
    high: float


class TimeCurve(NamedTuple):
    """Seconds of `P` shapes by one size: straight lines in logs between `knots` `[K]`, beyond them as the form goes on.

    `log_s` is `[P, K]`; without knots the form stands alone.
    """

    form: Roofline
    work_of: Callable[[FloatArray], Work]
    knots: FloatArray
    log_s: FloatArray

    def time_s(
        self,
        size: FloatArray,
        index: npt.NDArray[np.intp] | int = 0,
        work_of: Callable[[FloatArray], Work] | None = None,
    ) -> FloatArray:
        """`[...]` seconds at sizes `[...]` of the shapes `index` `[...]`, never falling as the size grows.

        `work_of` says what those shapes' sizes are where there are several.
        """
        work_of = work_of or self.work_of
        if not len(self.knots):
            return self.form.time_s(work_of(size))
        inside = np.clip(np.log(np.maximum(size, 1e-9)), self.knots[0], self.knots[-1])
        found = np.exp(along(self.knots, self.log_s, index, inside))
        beyond = (inside == self.knots[0]) | (inside == self.knots[-1])
        if beyond.any():
            nearest = np.exp(inside)
            growth = self.form.time_s(work_of(size)) / self.form.time_s(work_of(nearest))
            found = found * np.where(beyond, growth, 1.0)
        return np.asarray(found)


@dataclass(frozen=True, kw_only=True)
class KernelFit:
    """A family's times for one number format.

    Attributes:
        residuals: what measured rows add to the form; None for a data sheet, with no rows.
        error: held out: shapes that the fit had no row of.
        between: held out: sweep points of measured shapes, from the points beside them.
        limits: what was measured.
        skew: for experts, the popularity exponent of the skewed rows.
    """

    form: Form
    share: Share
    roofline: Roofline
    residuals: Residuals | None = None
    error: FitError = NOT_JUDGED
    between: FitError = NOT_JUDGED
    limits: tuple[Limit, ...] = ()
    rows: int = 0
    shapes: int = 0
    tiling: Tiling | None = None
    skew: float = 0.0

    def curve(self, work_of: Callable[[FloatArray], Work], residual: FloatArray | None = None) -> TimeCurve:
        """The times of `P` shapes over the sweep, which never fall: what the engine runs may, a price must not.

        Args:
            work_of: what a size of the swept kind, `[...]`, moves and computes; `[P, ...]` for several shapes.
            residual: `[P, K]` log of measured over form at the residuals' knots; None where the form stands alone.
        """
        if residual is None or self.residuals is None:
            return TimeCurve(self.roofline, work_of, np.zeros(0), np.zeros((1, 0)))
        knots = self.residuals.knots
        form_s = np.atleast_2d(self.roofline.time_s(work_of(np.exp(knots))))
        return TimeCurve(self.roofline, work_of, knots, rising(np.log(form_s) + residual))

    def limit(self, size: str) -> Limit | None:
        """The measured range of a size, or None."""
        return next((limit for limit in self.limits if limit.size == size), None)

    def document(self) -> dict[str, Any]:
        """What a profile's YAML keeps of measured rows; the curves are in `arrays`."""
        assert self.residuals is not None
        return {
            "form": str(self.form),
            "share": str(self.share),
            "parameters": self.roofline.document(),
            **({"tiling": write(self.tiling)} if self.tiling else {}),
            **({"skew": self.skew} if self.skew else {}),
            "reach": [float(f"{reach:g}") for reach in self.residuals.reach],
            "held_out_shapes": write(self.error, digits=4),
            "held_out_points": write(self.between, digits=4),
            "range": {limit.size: [_plain(limit.low), _plain(limit.high)] for limit in self.limits},
            "rows": self.rows,
            "shapes": self.shapes,
        }

    def arrays(self, prefix: str) -> Arrays:
        """The residual curves, for the file beside the YAML."""
        assert self.residuals is not None
        steps = np.where(np.isnan(self.residuals.values), _MISSING, np.round(self.residuals.values / _STEP))
        return {
            f"{prefix}.points": np.exp(self.residuals.points).astype(np.float32),
            f"{prefix}.sweep": np.exp(self.residuals.sweep).astype(np.float32),
            f"{prefix}.values": np.clip(steps, _MISSING, -_MISSING - 1).astype(np.int16),
        }

    @classmethod
    def from_field(cls, field: Field, arrays: Arrays, prefix: str) -> KernelFit:
        """The fit that `document` and `arrays` describe.

        Raises:
            FileFormatError: unknown keys, numbers out of range, or curves that are missing, with the line.
        """
        field.only(
            *("form", "share", "parameters", "tiling", "skew", "reach"),
            *("held_out_shapes", "held_out_points", "range", "rows", "shapes"),
        )
        limits, share = field.get("range"), read(Share, field.get("share"))
        return cls(
            form=read(Form, field.get("form")),
            share=share,
            roofline=read(Roofline, field.get("parameters")),
            residuals=replace(_read_residuals(field, arrays, prefix), lends=share is not Share.NOTHING),
            error=read(FitError, field.get("held_out_shapes")),
            between=read(FitError, field.get("held_out_points")),
            limits=tuple(_read_limit(limits.get(size), size) for size in limits.mapping()),
            rows=field.get("rows").integer(low=1),
            shapes=field.get("shapes").integer(low=1),
            tiling=read(Tiling, field.get("tiling")) if "tiling" in field.mapping() else None,
            skew=field.get("skew", 0.0).number(low=0, high=10),
        )


def _read_residuals(field: Field, arrays: Arrays, prefix: str) -> Residuals:
    missing = [key for key in ("points", "sweep", "values") if f"{prefix}.{key}" not in arrays]
    if missing:
        raise field.error(f"the rows file has no {prefix}.{missing[0]}", hint="fit the profile again")
    points, sweep, steps = (arrays[f"{prefix}.{key}"] for key in ("points", "sweep", "values"))
    reach = tuple(item.number(low=1e-6) for item in field.get("reach").items())
    if steps.shape != (len(points), len(sweep)) or points.shape[1] != len(reach):
        raise field.error("the rows file does not fit this profile", hint="fit the profile again")
    there = steps != _MISSING
    sizes_are = all(len(sizes) and np.isfinite(sizes).all() and (sizes > 0).all() for sizes in (points, sweep))
    if not sizes_are or not (np.diff(sweep) > 0).all() or not there.any(axis=1).all():
        raise field.error(f"the curves {prefix} of the rows file are no measurement", hint="fit the profile again")
    return Residuals(
        points=np.log(points.astype(np.float64)),
        sweep=np.log(sweep.astype(np.float64)),
        values=np.where(there, steps * _STEP, np.nan),
        reach=reach,
    )


def _read_limit(field: Field, size: str) -> Limit:
    low, high = read(tuple[NotNegative, NotNegative], field)
    if low > high:
        raise field.error("not a range", hint="write [smallest, largest]")
    return Limit(size=size, low=low, high=high)


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else float(f"{value:.6g}")

"""All fits of one GPU and engine, and the file beside a profile that holds their curves."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fit import Arrays, KernelFit
from treeopt.cost.kernels.roofline import Roofline
from treeopt.cost.kernels.stand_ins import WIDE_FORMATS
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import Field, os_error
from treeopt.files.npz import npz_bytes
from treeopt.files.opening import OpenedFile


class FitEntry(NamedTuple):
    """One fit and what it is of."""

    family: Family
    dtype: Dtype
    fit: KernelFit


@dataclass(frozen=True, kw_only=True)
class KernelFits:
    """The fits of one GPU and engine."""

    entries: tuple[FitEntry, ...]

    def get(self, family: Family, *dtypes: Dtype) -> FitEntry | None:
        """The fit of the first of `dtypes` that was measured."""
        for dtype in dtypes:
            for entry in self.entries:
                if (entry.family, entry.dtype) == (family, dtype):
                    return entry
        return None

    def document(self) -> dict[str, Any]:
        """The `fits` of a profile."""
        found: dict[str, Any] = {}
        for family, dtype, fit in self.entries:
            found.setdefault(str(family), {})[str(dtype)] = fit.document()
        return found

    def archive(self) -> bytes:
        """The curves as the bytes of an NPZ file; the same fits give the same bytes."""
        arrays: Arrays = {}
        for family, dtype, fit in self.entries:
            arrays |= fit.arrays(f"{family}.{dtype}")
        return npz_bytes(arrays)

    @classmethod
    def from_fields(cls, fits: Field, rows: Field) -> KernelFits:
        """The fits of a profile and of the rows file beside it.

        Raises:
            InputError: the rows file cannot be read.
            FileFormatError: unknown keys, values out of range, or a rows file that is another than the profile's.
        """
        arrays = _read_archive(rows)
        fits.only(*Family)
        return cls(entries=tuple(_entries(fits, arrays)))


def _entries(fits: Field, arrays: Arrays) -> Iterator[FitEntry]:
    for family in fits.mapping():
        by_dtype = fits.get(family)
        by_dtype.only(*Dtype)
        for dtype in by_dtype.mapping():
            fit = KernelFit.from_field(by_dtype.get(dtype), arrays, f"{family}.{dtype}")
            yield FitEntry(Family(family), Dtype(dtype), fit)


def _read_archive(rows: Field) -> Arrays:
    rows.only("file", "sha256")
    path = Path(rows.document.name).parent / rows.get("file").text()
    try:
        data = OpenedFile(path).stream().read()
    except OSError as error:
        raise os_error(error, path, what="rows file of the hardware profile", verb="read") from error
    if hashlib.sha256(data).hexdigest() != rows.get("sha256").text():
        raise rows.get("sha256").error(f"{path.name} is another file than this profile's", hint="fit the profile again")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{path}: not an NPZ file: {error}", hint="fit the profile again") from None


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

"""Which files of timing rows there are, and what their columns mean.

aiconfigurator-core's Parquet tables are in milliseconds; CSV extracts with the same column names carry `latency_us`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fit.families import FAMILIES
from treeopt.cost.fit.layout import RowLayout
from treeopt.cost.fit.rows import Rows
from treeopt.cost.fit.tables import Table
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.family import SIZES, Family
from treeopt.errors import FileFormatError, UnknownNameError

# What files call the number formats that have a price, where it is not our name.
_ALIASES: Final[Mapping[str, Dtype]] = {
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "int4_wo": Dtype.INT4,
    "sq": Dtype.INT8,  # SmoothQuant
    "w4a16_mxfp4": Dtype.MXFP4,
    "w4a8_mxfp4_mxfp8": Dtype.MXFP4_MXFP8,
}
_UNITS: Final[Mapping[str, float]] = {"latency_us": 1e-6, "latency": 1e-3, "time_s": 1.0}
# Engines start steps from captured graphs: rows of the same kernel started one by one are another question. So are
# experts without a gate, and a mode of TensorRT-LLM that nobody serves large batches in.
_OTHER_KERNELS: Final = ("eager", "nongated", "min_latency")


def rows_of(table: Table) -> list[Rows]:
    """The rows of a file, apart by family and number format.

    Raises:
        FileFormatError: columns of no known kind, cells that are no numbers, or a routing that is not known.
    """
    if "operator" in table.columns:
        return _own_rows(table)
    layouts = (layout for family in FAMILIES.values() for layout in family.layouts)
    layout = next((layout for layout in layouts if set(layout.needs) <= set(table.columns)), None)
    if layout is None or not set(_UNITS) & set(table.columns):
        raise FileFormatError(
            f"{table.name}: no known kind of timing rows has the columns {', '.join(table.columns)}",
            hint="docs/cost-fits.md lists the kinds; treeopt's own begins with `operator`",
        )
    return _layout_rows(table, layout)


def _layout_rows(table: Table, layout: RowLayout) -> list[Rows]:
    keep = np.ones(len(table.lines), dtype=np.bool_)
    for column, values in layout.only.items():
        if column in table.columns:
            keep &= np.isin(table.texts(column), values)
    if "kernel_source" in table.columns:
        keep &= np.array([not str(name).endswith(_OTHER_KERNELS) for name in table.columns["kernel_source"]])
    kept = table.rows(keep)
    sizes = np.stack([_size(kept, layout, size) for size in SIZES[layout.family]], axis=1)
    if "step" in layout.plus.values() and "causal" in SIZES[layout.family]:
        sizes[:, SIZES[layout.family].index("causal")] = _is_prefill(kept)
    formats = kept.texts(layout.dtype) if layout.dtype in kept.columns else np.full(len(kept.lines), layout.dtype)
    return _by_format(kept, layout.family, sizes, formats)


def _size(table: Table, layout: RowLayout, size: str) -> FloatArray:
    source = layout.sizes[size]
    if not isinstance(source, str):
        return np.full(len(table.lines), float(source))
    if size == "skewed":
        return np.array([_exponent(table, source, row) for row in range(len(table.lines))])
    value = table.numbers(source) * layout.scale.get(size, 1.0)
    if size in layout.plus:
        value = value + table.numbers(layout.plus[size])
    return value / table.numbers(layout.over[size]) if size in layout.over else value


def _is_prefill(table: Table) -> npt.NDArray[np.bool_]:
    if "op_name" in table.columns:
        return np.asarray(table.texts("op_name") == "context_attention")
    return np.asarray(table.numbers("isl") > 1)


def _exponent(table: Table, column: str, row: int) -> float:
    """0 for balanced routing, 1.2 for `power_law_1.2`."""
    text = str(table.columns[column][row])
    prefix, law, number = text.rpartition("power_law_")
    if law and not prefix and number.replace(".", "", 1).isdigit():
        return float(number)
    if text != "balanced":
        raise FileFormatError(
            f"{table.place(row)}: unknown routing '{text}' in column {column}",
            hint=f"known: balanced, power_law_1.2 (any exponent); `--select {column}=balanced` keeps such rows",
        )
    return 0.0


def _own_rows(table: Table) -> list[Rows]:
    found = []
    operators = table.texts("operator")
    known = {str(family): family for family in Family} | {"tree_attention": Family.ATTENTION}
    for name in dict.fromkeys(operators.tolist()):
        if name in UNPRICED:
            continue
        if name not in known:
            raise UnknownNameError("operator", name, known)
        part, family = table.rows(operators == name), known[name]
        missing = [size for size in (*SIZES[family], "time_s") if size not in table.columns and size not in _OPTIONAL]
        if missing:
            raise FileFormatError(
                f"{table.name}: {name} rows lack the column {missing[0]}",
                hint=f"they need: {', '.join((*SIZES[family], 'time_s'))}",
            )
        columns = [
            part.numbers(size) if size in table.columns else np.full(len(part.lines), _OPTIONAL[size])
            for size in SIZES[family]
        ]
        formats = part.texts("dtype") if "dtype" in part.columns else np.full(len(part.lines), "bf16")
        sizes = np.stack(columns, axis=1)
        if family is Family.ATTENTION:
            causal = SIZES[family].index("causal")
            sizes[:, causal] = np.nan_to_num(sizes[:, causal])
        found += _by_format(part, family, sizes, formats)
    return found


# Timed for what they say beside other kernels: streams of bytes, other layouts of the cache, what a step shares.
UNPRICED: Final = (
    *("compaction", "norm", "rope", "activation", "expert_choice", "sampling", "schedule"),
    *("tree_attention_pages_16", "tree_attention_contiguous", "flash_attention"),
)
_OPTIONAL: Final[Mapping[str, float]] = {"causal": 0.0, "skewed": 0.0, "queries": 1.0, "module": 0.0}


def _by_format(table: Table, family: Family, sizes: FloatArray, formats: npt.NDArray[np.str_]) -> list[Rows]:
    unit = next(name for name in _UNITS if name in table.columns)
    time_s = table.numbers(unit) * _UNITS[unit]
    found = []
    for name in dict.fromkeys(formats.tolist()):
        dtype = _dtype(name)
        if dtype is not None:
            at = formats == name
            found.append(
                Rows(
                    family=family,
                    dtype=dtype,
                    sizes=sizes[at],
                    time_s=time_s[at],
                    origin=np.zeros(int(at.sum()), dtype=np.int64),
                    lines=table.lines[at],
                    files=(table.name,),
                )
            )
    return found


def _dtype(name: str) -> Dtype | None:
    """The format that files call `name`; None for one without a price."""
    return _ALIASES.get(name) or next((dtype for dtype in Dtype if dtype == name), None)

"""Which files of timing rows there are, and what their columns mean.

aiconfigurator-core's Parquet tables are in milliseconds; CSV extracts with the same column names carry `latency_us`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.fits.families import SIZES
from treeopt.cost.fits.rows import Rows
from treeopt.cost.fits.tables import Table
from treeopt.cost.timing import Family
from treeopt.errors import FileFormatError, UnknownNameError

# What files call the number formats that have a price.
DTYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16"), "fp16"),
    "fp32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    **dict.fromkeys(("int4_wo", "int4"), "int4"),
}
_UNITS: Final[Mapping[str, float]] = {"latency_us": 1e-6, "latency": 1e-3, "time_s": 1.0}
# Two bytes per element: messages are summed in 16 bit.
_ELEMENT_BYTES: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One layout of columns.

    Attributes:
        needs: columns that tell it from the others.
        sizes: by size of the family, its column, or a number for all rows.
        scale: factors on sizes.
        plus: columns to add to a size.
        over: columns to divide a size by.
        dtype: the column with the number format, or a format for all rows.
        only: values that a column must have where it is there; other rows are another kernel and are left out.
    """

    name: str
    family: Family
    needs: tuple[str, ...]
    sizes: Mapping[str, str | float]
    dtype: str
    scale: Mapping[str, float] = field(default_factory=dict)
    plus: Mapping[str, str] = field(default_factory=dict)
    over: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_HEADS: Final = {"heads": "num_heads", "kv_heads": "num_key_value_heads"}
_EXPERTS: Final = {"tokens": "num_tokens", "hidden": "hidden_size", "intermediate": "inter_size"}
# The first kind whose columns are all there is taken: richer ones stand first.
KINDS: Final = (
    Kind(
        name="decode attention",
        family=Family.ATTENTION,
        needs=("num_key_value_heads", "kv_len"),
        sizes={**_HEADS, "keys": "kv_len", "requests": "batch_size", "queries": 1, "head_dim": 128, "causal": 0},
        dtype="kv_cache_dtype",
    ),
    Kind(
        name="attention table",
        family=Family.ATTENTION,
        needs=("num_key_value_heads", "isl", "step", "head_dim"),
        # `step` tokens are in the cache before this one; context tables have none.
        sizes={
            **_HEADS,
            "keys": "isl",
            "requests": "batch_size",
            "queries": "isl",
            "head_dim": "head_dim",
            "causal": 1,
        },
        plus={"keys": "step"},
        dtype="kv_cache_dtype",
        only={"window_size": ("0",), "attn_dtype": ("bfloat16",)},
    ),
    Kind(
        name="context attention",
        family=Family.ATTENTION,
        needs=("num_key_value_heads", "isl", "latency_us"),
        sizes={**_HEADS, "keys": "isl", "requests": "batch_size", "queries": "isl", "head_dim": 128, "causal": 1},
        dtype="kv_cache_dtype",
    ),
    Kind(
        name="experts",
        family=Family.EXPERTS,
        needs=("num_experts", "topk", "moe_tp_size"),
        sizes={**_EXPERTS, "experts": "num_experts", "per_token": "topk", "skewed": "distribution"},
        over={"intermediate": "moe_tp_size"},
        dtype="moe_dtype",
        only={"moe_ep_size": ("1",)},
    ),
    Kind(
        name="all-reduce",
        family=Family.ALL_REDUCE,
        needs=("num_gpus", "elements_bf16"),
        sizes={"tp": "num_gpus", "message_bytes": "elements_bf16"},
        scale={"message_bytes": _ELEMENT_BYTES},
        dtype="bf16",
    ),
    Kind(
        name="all-reduce table",
        family=Family.ALL_REDUCE,
        needs=("num_gpus", "message_size", "allreduce_dtype"),
        sizes={"tp": "num_gpus", "message_bytes": "message_size"},
        scale={"message_bytes": _ELEMENT_BYTES},
        dtype="allreduce_dtype",
    ),
    Kind(
        name="vidur GEMM",
        family=Family.GEMM,
        needs=("m", "n", "k", "op", "tp"),
        sizes={"tokens": "m", "outputs": "n", "inputs": "k"},
        dtype="fp16",
    ),
    Kind(
        name="GEMM with formats",
        family=Family.GEMM,
        needs=("m", "n", "k", "gemm_dtype"),
        sizes={"tokens": "m", "outputs": "n", "inputs": "k"},
        dtype="gemm_dtype",
    ),
    Kind(
        name="GEMM",
        family=Family.GEMM,
        needs=("m", "n", "k", "latency_us"),
        sizes={"tokens": "m", "outputs": "n", "inputs": "k"},
        dtype="bf16",
    ),
)
# Engines start steps from captured graphs: rows of the same kernel started one by one are another question.
_EAGER: Final = ("eager",)


def rows_of(table: Table) -> list[Rows]:
    """The rows of a file, apart by family and number format.

    Raises:
        FileFormatError: columns of no known kind, cells that are no numbers, or a routing that is not known.
    """
    if "operator" in table.columns:
        return _own_rows(table)
    kind = next((kind for kind in KINDS if set(kind.needs) <= set(table.columns)), None)
    if kind is None or not set(_UNITS) & set(table.columns):
        raise FileFormatError(
            f"{table.name}: no known kind of timing rows has the columns {', '.join(table.columns)}",
            hint="docs/cost-fits.md lists the kinds; treeopt's own begins with `operator`",
        )
    return _kind_rows(table, kind)


def _kind_rows(table: Table, kind: Kind) -> list[Rows]:
    keep = np.ones(len(table.lines), dtype=np.bool_)
    for column, values in kind.only.items():
        if column in table.columns:
            keep &= np.isin(table.texts(column), values)
    if "kernel_source" in table.columns:
        keep &= np.array([not str(name).endswith(_EAGER) for name in table.columns["kernel_source"]])
    kept = table.rows(keep)
    sizes = np.stack([_size(kept, kind, size) for size in SIZES[kind.family]], axis=1)
    if "step" in kind.plus.values():
        sizes[:, SIZES[kind.family].index("causal")] = _is_prefill(kept)
    formats = kept.texts(kind.dtype) if kind.dtype in kept.columns else np.full(len(kept.lines), kind.dtype)
    return _by_format(kept, kind.family, sizes, formats)


def _size(table: Table, kind: Kind, size: str) -> FloatArray:
    source = kind.sizes[size]
    if not isinstance(source, str):
        return np.full(len(table.lines), float(source))
    if size == "skewed":
        return np.array([_exponent(table, source, row) for row in range(len(table.lines))])
    value = table.numbers(source) * kind.scale.get(size, 1.0)
    if size in kind.plus:
        value = value + table.numbers(kind.plus[size])
    return value / table.numbers(kind.over[size]) if size in kind.over else value


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
        if name in _UNPRICED:
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


# Timed for what it says of a kernel, priced as the stream of bytes that it is.
_UNPRICED: Final = ("compaction",)
_OPTIONAL: Final[Mapping[str, float]] = {"causal": 0.0, "skewed": 0.0, "queries": 1.0}


def _by_format(table: Table, family: Family, sizes: FloatArray, formats: npt.NDArray[np.str_]) -> list[Rows]:
    unit = next(name for name in _UNITS if name in table.columns)
    time_s = table.numbers(unit) * _UNITS[unit]
    found = []
    for name in dict.fromkeys(formats.tolist()):
        if name in DTYPES:
            at = formats == name
            found.append(
                Rows(
                    family=family,
                    dtype=DTYPES[name],
                    sizes=sizes[at],
                    time_s=time_s[at],
                    origin=np.zeros(int(at.sum()), dtype=np.int64),
                    lines=table.lines[at],
                    files=(table.name,),
                )
            )
    return found

"""Other constants of the schedule and other tiles: which take least time, and the tables with them put in."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from on_gpu.cases import ROOT, SWEPT, SWEPT_ON, TILED_ON, TILES, Case
from on_gpu.methods import own, timed

HEADS = "HeadShape(128, 128), 2"  # whose tiles are swept


Edits = dict[tuple[int, int, int], str]  # by line, first and last column


class Setting(NamedTuple):
    """A constant with a value, what puts it in, and the cases that it is timed on."""

    constant: str
    value: Any
    apply: Callable[[], None]
    cases: tuple[Case, ...]


def tile_name(rows: int) -> str:
    return f"tile of {rows} rows"


def settings(kind: str, key: Any) -> Iterator[Setting]:
    """Every constant with every value, and tiles of 128 x 128 heads in place of the table's of as many rows."""
    from treeopt.kernels import config, slicing

    for name, values in list(SWEPT.items())[: None if kind == "cuda" else 1]:
        for value in values:
            yield Setting(name, value, partial(setattr, slicing, name, value), SWEPT_ON[kind])
    if kind != "cuda" or key != (config.HeadShape(128, 128), 2):
        return
    lines = config.TABLE[key]
    for rows, cases in TILED_ON.items():
        for line in (next(line for line in lines if line.block_m == rows), *map(made, tiles_of(rows))):
            table = tuple(line if each.block_m == rows else each for each in lines)
            value = f"{line.block_m}, {line.block_n}, {line.num_warps}, {line.buffers}, {line.programs}, {line.tail_n}"
            yield Setting(tile_name(rows), value, partial(config.TABLE.__setitem__, key, table), cases)


def tiles_of(rows: int) -> list[tuple[int, ...]]:
    return [tile for tile in TILES if tile[0] == rows]


def made(tile: tuple[int, ...]) -> Any:
    from treeopt.kernels import config

    return config._config(*tile[:5], tail=tile[5])


def sweep(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The kernel under every setting; on a processor plain torch, which has neither pieces nor tiles, under one."""
    from treeopt.kernels import config, slicing

    (_, run), shape = own(bench.device.kind), bench.shapes.grouped[0]
    key = (config.HeadShape(shape.head_dim, shape.head_dim), int(bench.questions.dtype.bytes_per_value))
    usual, lines = {name: getattr(slicing, name) for name in SWEPT}, config.TABLE.get(key)
    for constant, value, apply, cases in settings(bench.device.kind, key):
        for case in cases:
            apply()
            try:
                row = timed(bench, case, f"{constant} = {value}", run, deadline_s)
            finally:
                for name, was in usual.items():
                    setattr(slicing, name, was)
                if lines is not None:
                    config.TABLE[key] = lines
            yield row | {"constant": constant, "value": value}


def best_constants(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each constant the value with the least time over the cases that were timed with all of its values."""
    found = {}
    for name in dict.fromkeys(row["constant"] for row in rows):
        mine = [row for row in rows if row["constant"] == name and "time_s" in row]
        values = list(dict.fromkeys(row["value"] for row in rows if row["constant"] == name))
        whole = [
            case
            for case in dict.fromkeys(row["case"] for row in mine)
            if {row["value"] for row in mine if row["case"] == case} == set(values)
        ]
        if whole and len(values) > 1:
            first = {case: next(row["time_s"] for row in mine if row["case"] == case) for case in whole}
            cost = {
                value: sum(
                    row["time_s"] / first[row["case"]] for row in mine if row["value"] == value and row["case"] in whole
                )
                for value in values
            }
            found[name] = min(values, key=cost.__getitem__)
    return found


def patch(best: dict[str, Any], chip: str, bytes_per_clock: int | None, *, root: Path = ROOT) -> str:
    """What measured best as a patch of the tables, for `git apply`: empty where they have it already.

    `bytes_per_clock` is what a copy moved per clock, for the chip of this name.
    """
    constants = {f"{name}: Final": repr(value) for name, value in best.items() if name in SWEPT}
    edits: dict[str, Edits] = {f"kernels/{name}.py": {} for name in ("slicing", "config", "chip")}
    for node in ast.walk(ast.parse((root / "kernels/slicing.py").read_text())):
        if isinstance(node, ast.AnnAssign) and f"{ast.unparse(node.target)}: Final" in constants and node.value:
            edits["kernels/slicing.py"][_span(node.value)] = constants[f"{ast.unparse(node.target)}: Final"]
    for node in ast.walk(ast.parse((root / "kernels/config.py").read_text())):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TABLE" and isinstance(node.value, ast.Dict):
            edits["kernels/config.py"] |= dict(_tile_edits(node.value, best))
    for node in ast.walk(ast.parse((root / "kernels/chip.py").read_text())):
        if bytes_per_clock and isinstance(node, ast.Dict):
            edits["kernels/chip.py"] |= dict(_chip_edits(node, chip, bytes_per_clock))
    return "".join(_diff(root, name, changes) for name, changes in edits.items())


def _tile_edits(table: ast.Dict, best: dict[str, Any]) -> Iterator[tuple[tuple[int, int, int], str]]:
    for key, lines in zip(table.keys, table.values, strict=True):
        if key is not None and ast.unparse(key).strip("()") == HEADS.strip("()") and isinstance(lines, ast.Tuple):
            for line in lines.elts:
                if isinstance(line, ast.Call) and (tile := best.get(tile_name(ast.literal_eval(line.args[0])))):
                    *sizes, tail = tile.split(", ")
                    yield _span(line), f"_config({', '.join(sizes)}{'' if tail == '32' else f', tail={tail}'})"


def _chip_edits(chips: ast.Dict, chip: str, bytes_per_clock: int) -> Iterator[tuple[tuple[int, int, int], str]]:
    for key, value in zip(chips.keys, chips.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == chip and isinstance(value, ast.Call):
            for keyword in value.keywords:
                if keyword.arg == "dram_bytes_per_clock":
                    yield _span(keyword.value), str(bytes_per_clock)


def _span(node: ast.expr) -> tuple[int, int, int]:
    assert node.end_col_offset is not None
    assert node.lineno == node.end_lineno  # the tables have a line for each
    return node.lineno - 1, node.col_offset, node.end_col_offset


def _diff(root: Path, name: str, changes: dict[tuple[int, int, int], str]) -> str:
    before = (root / name).read_text().splitlines(keepends=True)
    after = list(before)
    for (line, start, end), text in changes.items():
        after[line] = after[line][:start] + text + after[line][end:]
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))

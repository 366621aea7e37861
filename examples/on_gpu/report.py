"""What docs/kernels.md promises, line by line beside what was measured, and everything as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from on_gpu.cases import SWEPT, modelled
from on_gpu.sweep import best_constants

# A time counts as what a model says of it within this share: the constants of the model are rounded.
_MODELLED = 0.05


def verdicts(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """What the kernel has to reach on a GPU, for what was timed."""
    cases: dict[str, dict[str, dict[str, Any]]] = {row["case"]: {} for row in rows}
    for row in rows:
        if "time_s" in row:
            cases[row["case"]][row["method"]] = row
    for case, found in cases.items():
        own = found.get("tree attention")
        if own is None:
            continue
        if own["requests"] <= 4 and own["prefix"] >= 8192 and own["nodes"] <= 16:
            yield f"{case}: {own['of_copy']:.0%} of the copy's bandwidth, at least 60 %", own["of_copy"] >= 0.6
        if own["prefix"] >= 8192 and own["requests"] >= 16 and own["nodes"] <= 16:
            yield f"{case}: {own['of_copy']:.0%} of the copy's bandwidth, at least 80 %", own["of_copy"] >= 0.8
        if own["nodes"] == 64 and own["of_product"] > own["of_copy"]:
            yield f"{case}: {own['of_product']:.0%} of the product's rate, at least 60 %", own["of_product"] >= 0.6
        for name, other in found.items():
            if name.startswith(("sdpa, mask", "flex")):
                ratio = other["time_s"] / own["time_s"]
                yield f"{case}: {name} takes {ratio:.2f} times as long, at least as long", ratio >= 1.0


def page_verdicts(result: dict[str, Any]) -> Iterator[tuple[str, bool | None]]:
    """Every line of docs/kernels.md that a GPU can judge; None where nothing was timed for it."""
    yield from _checked(result["checks"])
    import kernel_model

    mine = [row for row in result["attention"] if row["method"] == "tree attention" and "time_s" in row]
    times = {row["case"]: row["time_s"] for row in mine}
    for case, model in zip(modelled(), kernel_model.CASES, strict=True):
        said, found = kernel_model.now(model).time_s, times.get(str(case))
        text = f"launch table, {case}: {said * 1e6:.1f} us by the model"
        if found is None:
            yield f"{text}, not timed", None
        else:
            yield f"{text}, {found * 1e6:.1f} us measured", found <= said * (1 + _MODELLED)
    best = best_constants(result["sweep"])
    for name, usual in result["constants"].items():
        where = "slicing.py" if name in SWEPT else "config.py"
        if name in best:
            yield f"{where}, {name} = {usual}: {best[name]} took least time", best[name] == usual
        else:
            yield f"{where}, {name} = {usual}: not swept", None


def _checked(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool | None]]:
    """Right against float64 by the way K and V are read, and in compaction."""
    for what in ("pages of 64", "pages of 16", "no pages", "compaction"):
        mine = [row for row in rows if what in row["kernel"]]
        passed = sum(row["passed"] for row in mine)
        text = f"right against float64, {what}: {passed} of {len(mine)}"
        yield text, passed == len(mine) if mine else None


def markdown(result: dict[str, Any]) -> str:
    lines = [f"# {result['device']}", "", result["label"], ""]
    lines += [f"Copy {result['copy_bytes_per_s'] / 1e9:,.0f} GB/s, matrix product"]
    lines[-1] += f" {result['product_flops_per_s'] / 1e12:,.3f} TFLOP/s, {result['seconds']:.0f} s in all."
    lines += ["", "| checked against float64 | dtype | error | budget |", "|---|---|---|---|"]
    for row in result["checks"]:
        cells = [f"{row['error']:.2g}", f"{row['budget']:.2g}"] if row["passed"] else [row["failed"], ""]
        lines.append(f"| {row['kernel']} | {row['dtype']} | {' | '.join(cells)} |")
    lines += ["", "| attention, one layer | method | us | spread | of copy | of product |", "|---|---|---|---|---|---|"]
    for row in result["attention"]:
        cells = [row["case"], row["method"]]
        if "time_s" in row:
            cells += [f"{row['time_s'] * 1e6:.1f}", f"{row['spread']:.1%}"]
            cells += [f"{row['of_copy']:.0%}", f"{row['of_product']:.0%}"]
        else:
            cells += [row["failed"], "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    if result["sweep"]:
        lines += ["", "| constant | value | case | us |", "|---|---|---|---|"]
        for row in result["sweep"]:
            time_us = f"{row['time_s'] * 1e6:.1f}" if "time_s" in row else row["failed"]
            lines.append(f"| {row['constant']} | {row['value']} | {row['case']} | {time_us} |")
        best = ", ".join(f"{name} = {value}" for name, value in best_constants(result["sweep"]).items())
        lines += ["", f"Least time over the cases: {best or 'nothing was timed with all values'}."]
    for when, state in result["states"].items():
        lines += ["", f"GPU at the {when}: {', '.join(f'{name} {value}' for name, value in state.items())}."]
    for heading, found in (("required", result["verdicts"]), ("docs/kernels.md", result["page"])):
        if found:
            lines += ["", f"| {heading} | holds |", "|---|---|"]
            lines += [f"| {text} | {_HOLDS[holds]} |" for text, holds in found]
    lines += ["", f"Profile: {result['profile']}", f"Patch of the tables: {result['patch']}", ""]
    return "\n".join(lines)


_HOLDS = {True: "yes", False: "NO", None: "not timed"}

"""This GPU in one run of under eight minutes: are the kernels right, how fast are they, what do steps cost?

    python examples/profile_gpu.py --out results        # the GPU, or --device cpu to try the program without one

First every path of the kernels is compiled and checked against float64, in processes side by side that may die. Then
the kernel is timed beside torch's attention with a mask and attention that can verify chains only, on pages of 64 and
16 and without pages; then with other constants of its schedule and other tiles; then the operators of a step, to which
a profile for `treeopt search --hardware results/profile.yaml` is fitted; FlexAttention, slow to compile, is last.
Every row goes to results.json as it comes; results.md ends with what each promise of docs/kernels.md came to, and with
the constants that measured best.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click

from treeopt.cli.command import CliOption, run_function

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec("treeopt") is None:  # a checkout that is not installed
    sys.path.insert(0, str(ROOT))

LIMIT_S = 460.0
CHECKS_UNTIL, COMPARISONS_UNTIL, SWEEP_UNTIL, GRID_UNTIL = 0.2, 0.4, 0.6, 0.92  # of the limit
MODEL = {"cuda": "llama-3.1-8b", "cpu": "smollm2-135m"}
DTYPES = {"cuda": ("bf16", "fp16", "fp32"), "cpu": ("fp32",)}
GRID = {"cuda": (512, 8192), "cpu": (8, 512)}  # B x N, context


class Case(NamedTuple):
    requests: int
    nodes: int
    prefix: int

    def __str__(self) -> str:
        return f"B={self.requests} N={self.nodes} L={self.prefix}"


CHECKED = {
    "cuda": (Case(1, 1, 1), Case(3, 16, 1000), Case(2, 63, 4096), Case(2, 64, 77), Case(2, 65, 300), Case(1, 200, 999)),
    "cpu": (Case(1, 1, 9), Case(2, 7, 70), Case(1, 65, 30)),
}
# The long prefixes that memory bounds come first, then what arithmetic bounds, then small steps.
COMPARED = {
    "cuda": (
        *(Case(16, 16, 8192), Case(16, 64, 8192), Case(32, 8, 2048), Case(1, 16, 2048), Case(16, 1, 8192)),
        *(Case(64, 64, 2048), Case(4, 64, 512), Case(1, 64, 8192), Case(64, 8, 1024), Case(16, 4, 16384)),
        *(Case(1, 64, 2048), Case(4, 64, 2048)),
    ),
    "cpu": (Case(2, 7, 121), Case(1, 16, 48)),
}
FLEX_CASES, FLEX_S = 2, 20.0  # each one compiles
PAGES = {"pages of 16": 16, "no pages": 0}  # beside those of 64
# What is swept, and the cases that it is swept on: few requests, where pieces decide, and a full GPU, where tiles do.
SWEPT = {
    "MIN_PIECE": (128, 256, 512),
    "SM_BYTES_PER_CLOCK": (20, 34, 64),
    "EFFICIENCY": (0.3, 0.46, 0.7),
    "START_CLOCKS": (256, 512, 2048),
    "MERGE_CLOCKS": (300, 900, 3000),
}
SWEPT_ON = {
    "cuda": (Case(1, 16, 8192), Case(1, 64, 2048), Case(4, 64, 2048), Case(4, 16, 8192), Case(16, 64, 8192)),
    "cpu": (Case(1, 7, 121),),
}
# Tiles of 128 x 128 heads beside the table's: block_m, block_n, warps, buffers, programs, keys per masked step.
TILES = (
    (128, 64, 8, 2, 1, 16),
    (64, 64, 4, 2, 2, 32),
    (64, 32, 4, 2, 2, 32),
    (64, 64, 4, 3, 1, 32),
    (16, 64, 4, 3, 2, 32),
)


def sizes(case: Case, shape: Any) -> Any:
    from treeopt.profile.attention import AttentionSizes

    return AttentionSizes(
        requests=case.requests,
        nodes=case.nodes,
        prefix=case.prefix,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )


def masked(case: Case, shape: Any, pool: Any, sets: int, *, repeat: bool) -> Any:
    """torch's attention with a Boolean mask: heads shared by torch, or KV heads stored once for every query head."""
    from treeopt.profile.attention import masked_workload

    s = sizes(case, shape)
    if repeat:
        from dataclasses import replace

        s = replace(s, kv_heads=s.heads)
    return masked_workload(s, pool, sets)


def flex(case: Case, shape: Any, pool: Any, sets: int) -> Any:
    """FlexAttention with the tree as its mask; compiled on a GPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from treeopt.profile.attention import contiguous_workload, step_mask

    s = sizes(case, shape)
    mask = step_mask(pool.torch, s.nodes, s.prefix).to(pool.device)
    block = create_block_mask(
        lambda b, h, q, k: mask[q, k], None, None, s.nodes, s.prefix + s.nodes, device=pool.device
    )
    run = pool.torch.compile(flex_attention, dynamic=False) if pool.device == "cuda" else flex_attention
    return contiguous_workload(s, pool, sets, partial(run, block_mask=block, enable_gqa=s.heads != s.kv_heads), mask)


def chain(case: Case, shape: Any, pool: Any, sets: int) -> Any:
    """torch's causal attention, FlashAttention where torch has it: verifies a chain of N tokens, no tree."""
    from treeopt.profile.attention import contiguous_workload

    s, torch = sizes(case, shape), pool.torch
    keys = s.prefix + s.nodes
    mask = torch.ones(s.nodes, keys, dtype=torch.bool, device=pool.device).tril(s.prefix)
    bias = mask
    if pool.device == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        bias = causal_lower_right(s.nodes, keys)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=bias, enable_gqa=s.heads != s.kv_heads)
    return contiguous_workload(s, pool, sets, attend, mask)


def kernel(case: Case, shape: Any, pool: Any, sets: int, *, impl: str, page_size: int = 64) -> Any:
    from treeopt.profile.attention import kernel_workload

    return kernel_workload(sizes(case, shape), pool, sets, impl=impl, page_size=page_size)  # type: ignore[arg-type]


Method = Callable[[Case, Any, Any, int], Any]


def methods(device: str) -> dict[str, Method]:
    impl = "triton" if device == "cuda" else "torch"
    return {
        ("tree attention" if device == "cuda" else "torch reference"): partial(kernel, impl=impl),
        **{f"the same, {name}": partial(kernel, impl=impl, page_size=size) for name, size in PAGES.items()},
        "sdpa, mask": partial(masked, repeat=False),
        "sdpa, mask, KV repeated": partial(masked, repeat=True),
        "sdpa, chain only": chain,
    }


class Check(NamedTuple):
    """One path of the kernels; picklable, so that it can run in a process of its own."""

    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    case: Case | None  # None: compaction
    page_size: int

    @property
    def name(self) -> str:
        where = f"pages of {self.page_size}" if self.page_size else "no pages"
        kind = f"tree attention {self.case}, {where}" if self.case else "compaction B=3, 4 rows, 2 layers"
        return f"{kind}, {self.heads}/{self.kv_heads} x {self.head_dim}"


def checks(device: str) -> list[Check]:
    """Every kernel case in every dtype, on every way to read a cache."""
    shapes = [(32, 8, 128), (9, 3, 64)] if device == "cuda" else [(9, 3, 64)]
    return [
        Check(dtype, *shape, case, page)
        for dtype in DTYPES[device]
        for shape in shapes
        for case in (*CHECKED[device], None)
        for page in ((64, 16, 0) if device == "cuda" and case is not None else (64,))
    ]


def checked(check: Check, device: str) -> dict[str, Any]:
    """The worst error against float64, beside what roundings explain; compiles what later processes find compiled."""
    from treeopt.cost.formats import Dtype
    from treeopt.cost.kernels.attention import GroupedAttention
    from treeopt.profile.points import compaction, tree_attention
    from treeopt.profile.pool import TensorPool
    from treeopt.profile.workloads import workload

    found: dict[str, Any] = {"kernel": check.name, "dtype": check.dtype}
    shape = GroupedAttention(heads=check.heads, kv_heads=check.kv_heads, head_dim=check.head_dim)
    try:
        pool = TensorPool(dtype=Dtype(check.dtype), device=device)
        if check.case is None:
            point = compaction(3, 4, 2, shape, Dtype(check.dtype))
            work = workload(point, pool, cold=0.0)
        else:
            case = check.case
            point = tree_attention(*case[:2], case.prefix + case.nodes, shape, Dtype(check.dtype))
            work = kernel(case, shape, pool, 1, impl="triton", page_size=check.page_size)
        return found | {"error": work.error(point), "budget": work.budget(pool.dtype), "passed": True}
    except Exception as error:  # the report says what failed, the run goes on
        return found | {"passed": False, "failed": said(error)}


def all_checks(device: str, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Side by side, where there is a GPU: what takes time is compiling. A process that dies takes its checks along."""
    todo = checks(device)
    if device == "cpu":
        yield from (checked(check, device) for check in todo)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    pool = ProcessPoolExecutor(min(12, os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn"))
    running = {pool.submit(checked, check, device): check for check in todo}
    try:
        for done in as_completed(running, timeout=max(1.0, deadline_s - time.monotonic())):
            check = running.pop(done)
            error = done.exception()
            found = (
                {"kernel": check.name, "dtype": check.dtype, "passed": False, "failed": said(error)} if error else None
            )
            yield found or done.result()
    except TimeoutError:
        for check in running.values():
            yield {"kernel": check.name, "dtype": check.dtype, "passed": False, "failed": "left out: no time"}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def timed(bench: Any, case: Case, name: str, make: Method, deadline_s: float) -> dict[str, Any]:
    """One method on one case: its result is checked first, then it is timed."""
    from treeopt.profile.points import tree_attention
    from treeopt.profile.timer import input_sets

    (shape, *_), dtype, device = bench.shapes.attention, bench.questions.dtype, bench.device
    point = tree_attention(*case[:2], case.prefix + case.nodes, shape, dtype)
    row: dict[str, Any] = {"case": str(case), **case._asdict(), "method": name}
    if time.monotonic() > deadline_s:
        return row | {"failed": "left out: no time"}
    try:
        work = make(case, shape, bench.pool, input_sets(point.traffic_bytes, bench.cold))
        error = work.error(point)
        timing = device.timer.time(work.calls)
    except Exception as problem:  # a baseline that this torch lacks must not end the run
        return row | {"failed": said(problem)}
    return row | {
        "time_s": timing.time_s,
        "spread": timing.spread,
        "error": error,
        "of_copy": point.traffic_bytes / timing.time_s / bench.ceilings.bandwidth_bytes_per_s,
        "of_product": point.flops / timing.time_s / bench.ceilings.flops_per_s,
    }


def compare(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Every method on every case."""
    for case in COMPARED[bench.device.kind]:
        for name, make in methods(bench.device.kind).items():
            yield timed(bench, case, name, make, deadline_s)


def compare_flex(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """FlexAttention, last: each case compiles for long."""
    for case in COMPARED[bench.device.kind][:FLEX_CASES]:
        yield timed(bench, case, "flex", flex, deadline_s)


def sweep(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The kernel with one constant of its schedule changed, and with other tiles; CPU: torch, which has neither."""
    from treeopt.kernels import config, schedule

    impl = "triton" if bench.device.kind == "cuda" else "torch"
    (shape, *_) = bench.shapes.attention
    key = (config.HeadShape(shape.head_dim, shape.head_dim), int(bench.questions.dtype.bytes_per_value))
    settings: list[tuple[str, Any, Callable[[], None]]] = []
    for name, values in list(SWEPT.items())[: None if impl == "triton" else 1]:
        settings += [(name, value, partial(setattr, schedule, name, value)) for value in values]
    if shape.head_dim == 128:
        for tile in TILES:
            line = config._config(*tile[:5], tail=tile[5])
            settings.append(("tile", " x ".join(map(str, tile[:5])), partial(config.TABLE.__setitem__, key, (line,))))
    usual = {name: getattr(schedule, name) for name in SWEPT}, config.TABLE.get(key)
    for name, value, apply in settings:
        for case in SWEPT_ON[bench.device.kind]:
            apply()
            try:
                row = timed(bench, case, f"{name} = {value}", partial(kernel, impl=impl), deadline_s)
            finally:
                for constant, was in usual[0].items():
                    setattr(schedule, constant, was)
                if usual[1] is not None:
                    config.TABLE[key] = usual[1]
            yield row | {"constant": name, "value": value}


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


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


def verdicts(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """What the kernel has to reach on a GPU, for what was timed."""
    cases = {row["case"]: {} for row in rows}
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
    if result["verdicts"]:
        lines += ["", "| required | holds |", "|---|---|"]
        lines += [f"| {text} | {'yes' if holds else 'NO'} |" for text, holds in result["verdicts"]]
    if result["sweep"]:
        lines += ["", "| constant | value | case | us |", "|---|---|---|---|"]
        for row in result["sweep"]:
            time_us = f"{row['time_s'] * 1e6:.1f}" if "time_s" in row else row["failed"]
            lines.append(f"| {row['constant']} | {row['value']} | {row['case']} | {time_us} |")
        best = ", ".join(f"{name} = {value}" for name, value in best_constants(result["sweep"]).items())
        lines += ["", f"Least time over the cases: {best or 'nothing was timed with all values'}."]
    for when, state in result["states"].items():
        lines += ["", f"GPU at the {when}: {', '.join(f'{name} {value}' for name, value in state.items())}."]
    lines += ["", f"Profile: {result['profile']}", ""]
    return "\n".join(lines)


def make_bench(device: Any, out: Path) -> Any:
    from treeopt.cost import load_model, parse_drafter
    from treeopt.cost.formats import Dtype
    from treeopt.files.shipped import locate
    from treeopt.profile.measure import KernelBench, Questions
    from treeopt.profile.rows import RowFile

    tokens, context = GRID[device.kind]
    questions = Questions(
        model=load_model(locate("models", MODEL[device.kind]).path),
        drafter=parse_drafter("eagle", load_model=lambda name: load_model(locate("models", name).path)),
        dtype=Dtype(DTYPES[device.kind][0]),
        tp=1,
        max_tokens=tokens,
        max_context=context,
    )
    return KernelBench(
        device=device, rows=RowFile(path=out / "profile.rows.jsonl", device=device.key), questions=questions
    )


def make_profile(bench: Any, out: Path, limit_s: float) -> str:
    """Fill the rest of the time with the operators of a step, and fit; says what came of it."""
    from treeopt.cost.hardware import save_hardware
    from treeopt.errors import TreeoptError
    from treeopt.profile.profile import profile_of

    with closing(bench):
        try:
            for _ in bench.run(bench.schedule(limit_s).left, budget_s=limit_s):
                pass
            profiled = profile_of(bench, name="profile", command="examples/profile_gpu.py", noise=bench.noise())
        except TreeoptError as error:
            return f"none: {error}; {error.hint}"
    save_hardware(out / "profile.yaml", profiled.fitted.hardware)
    from treeopt.cli import console
    from treeopt.render.profile import report

    console.report(profiled, False, report)
    return f"profile.yaml, from {len(profiled.times)} of {len(bench.points)} points"


def main(
    out: Annotated[Path, CliOption(help="A folder for the results.")] = Path("results"),
    device: Annotated[str | None, CliOption(help="cpu or cuda.")] = None,
    limit_s: Annotated[float, CliOption(help="Seconds that the run may take.")] = LIMIT_S,
) -> None:
    """Check, time, and fit."""
    start_s = time.monotonic()
    from treeopt.profile.device import find_device

    found = find_device(device)
    if found.kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # has to be chosen before Triton is imported
    out.mkdir(parents=True, exist_ok=True)
    on_gpu = found.kind == "cuda"
    result: dict[str, Any] = {
        "format": "treeopt.profile-gpu/2",
        "device": found.key,
        "label": "Timed on this GPU." if on_gpu else "CPU ONLY: nothing here says how fast any kernel is on a GPU.",
        "copy_bytes_per_s": 0.0,
        "product_flops_per_s": 0.0,
        "states": {},
        "checks": [],
        "attention": [],
        "sweep": [],
        "verdicts": [],
        "profile": "none yet",
    }

    def fill(part: str, rows: Iterator[dict[str, Any]]) -> None:
        for row in rows:
            result[part].append(row)
            save(result, out, start_s)  # what there is, should the rest fail

    fill("checks", all_checks(found.kind, start_s + CHECKS_UNTIL * limit_s))
    bench = make_bench(found, out)
    note_state(result, found, "start")
    result["copy_bytes_per_s"] = bench.ceilings.bandwidth_bytes_per_s
    result["product_flops_per_s"] = bench.ceilings.flops_per_s
    fill("attention", compare(bench, start_s + COMPARISONS_UNTIL * limit_s))
    fill("sweep", sweep(bench, start_s + SWEEP_UNTIL * limit_s))
    result["profile"] = make_profile(bench, out, GRID_UNTIL * limit_s - (bench.start_s - start_s))
    fill("attention", compare_flex(bench, start_s + limit_s - FLEX_S))
    result["verdicts"] = list(verdicts(result["attention"])) if on_gpu else []
    note_state(result, found, "end")
    save(result, out, start_s)
    click.echo((out / "results.md").read_text())


def note_state(result: dict[str, Any], device: Any, when: str) -> None:
    state = device.gpu_state()
    if state is not None:
        result["states"][when] = dict(state.state) | {"notes": "; ".join(state.notes()) or "none"}


def save(result: dict[str, Any], out: Path, start_s: float) -> None:
    result["seconds"] = time.monotonic() - start_s
    (out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "results.md").write_text(markdown(result))


if __name__ == "__main__":
    run_function(main)

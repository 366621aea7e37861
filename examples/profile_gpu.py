"""This GPU in one run of under six minutes: are the kernels right, how fast are they, what do steps cost?

    python examples/profile_gpu.py --out results        # the GPU, or --device cpu to try the program without one

The kernels are checked against float64, then timed beside torch's attention with a mask, FlexAttention, and attention
that can verify chains only. The rest of the time goes to the operators of a step, to which a profile for
`treeopt search --hardware results/profile.yaml` is fitted. Tables go to results.json and results.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec("treeopt") is None:  # a checkout that is not installed
    sys.path.insert(0, str(ROOT))

LIMIT_S = 330.0
CHECKS_UNTIL, COMPARISONS_UNTIL = 0.25, 0.65  # of the limit
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
    ),
    "cpu": (Case(2, 7, 121), Case(1, 16, 48)),
}
FLEX_CASES = 4  # each one compiles


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


def kernel(case: Case, shape: Any, pool: Any, sets: int, *, impl: str) -> Any:
    from treeopt.profile.attention import kernel_workload

    return kernel_workload(sizes(case, shape), pool, sets, impl=impl)  # type: ignore[arg-type]


Method = Callable[[Case, Any, Any, int], Any]


def methods(device: str, case_number: int) -> dict[str, Method]:
    found: dict[str, Method] = {
        ("tree attention" if device == "cuda" else "torch reference"): partial(
            kernel, impl="triton" if device == "cuda" else "torch"
        ),
        "sdpa, mask": partial(masked, repeat=False),
        "sdpa, mask, KV repeated": partial(masked, repeat=True),
        "sdpa, chain only": chain,
    }
    return found | ({"flex": flex} if case_number < FLEX_CASES else {})


def check(device: str, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Every kernel case in every dtype: the worst error against float64, beside what roundings explain."""
    from treeopt.cost.formats import Dtype
    from treeopt.cost.kernels.attention import GroupedAttention
    from treeopt.profile.points import compaction, tree_attention
    from treeopt.profile.pool import Pool
    from treeopt.profile.workload import workload

    shapes = [GroupedAttention(heads=32, kv_heads=8, head_dim=128), GroupedAttention(heads=9, kv_heads=3, head_dim=64)]
    for dtype in DTYPES[device]:
        pool = Pool(dtype=Dtype(dtype), device=device)
        for shape in shapes if device == "cuda" else shapes[1:]:
            for case in CHECKED[device]:
                if time.monotonic() > deadline_s:
                    yield {"kernel": "all others", "dtype": dtype, "passed": False, "failed": "left out: no time"}
                    return
                point = tree_attention(*case[:2], case.prefix + case.nodes, shape, Dtype(dtype))
                name = f"tree attention {case}, {shape.heads}/{shape.kv_heads} x {shape.head_dim}"
                yield judged(name, partial(kernel, case, shape, pool, 1, impl="triton"), point, pool)
        point = compaction(3, 4, 2, shapes[1], Dtype(dtype))
        yield judged("compaction B=3, 4 rows, 2 layers", partial(workload, point, pool, cold=0.0), point, pool)


def judged(name: str, make: Callable[[], Any], point: Any, pool: Any) -> dict[str, Any]:
    found = {"kernel": name, "dtype": str(point.dtype)}
    try:
        work = make()
        return found | {"error": work.error(point), "budget": work.budget(pool.dtype), "passed": True}
    except Exception as error:  # the report says what failed, the run goes on
        return found | {"passed": False, "failed": said(error)}


def compare(bench: Any, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Time every method on every case: each result is checked first."""
    from treeopt.profile.points import tree_attention
    from treeopt.profile.timer import input_sets

    (shape, *_), dtype, device = bench.shapes.attention, bench.questions.dtype, bench.device
    for number, case in enumerate(COMPARED[device.kind]):
        point = tree_attention(*case[:2], case.prefix + case.nodes, shape, dtype)
        sets = input_sets(point.traffic_bytes, bench.cold)
        for name, make in methods(device.kind, number).items():
            row: dict[str, Any] = {"case": str(case), **case._asdict(), "method": name}
            if time.monotonic() > deadline_s:
                yield row | {"failed": "left out: no time"}
                continue
            try:
                work = make(case, shape, bench.pool, sets)
                error = work.error(point)
                timing = device.timer.time(work.calls)
            except Exception as problem:  # a baseline that this torch lacks must not end the run
                yield row | {"failed": said(problem)}
                continue
            yield row | {
                "time_s": timing.time_s,
                "spread": timing.spread,
                "error": error,
                "of_copy": point.traffic_bytes / timing.time_s / bench.ceilings.bandwidth_bytes_per_s,
                "of_product": point.flops / timing.time_s / bench.ceilings.flops_per_s,
            }


def said(error: Exception) -> str:
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
    lines += ["", f"Profile: {result['profile']}", ""]
    return "\n".join(lines)


def make_bench(device: Any, out: Path) -> Any:
    from treeopt.cost import load_model, parse_drafter
    from treeopt.cost.formats import Dtype
    from treeopt.files.shipped import locate
    from treeopt.profile.measure import Bench, Questions
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
    return Bench(device=device, rows=RowFile(path=out / "profile.rows.jsonl", device=device.key), questions=questions)


def make_profile(bench: Any, out: Path, limit_s: float) -> str:
    """Fill the rest of the time with the operators of a step, and fit; says what came of it."""
    from treeopt.cost.hardware import save_hardware
    from treeopt.errors import TreeoptError
    from treeopt.profile.profile import profile_of

    try:
        for _ in bench.run(bench.schedule(limit_s).left, budget_s=limit_s):
            pass
        profiled = profile_of(bench, name="profile", command="examples/profile_gpu.py", noise=bench.noise())
    except TreeoptError as error:
        return f"none: {error}; {error.hint}"
    save_hardware(out / "profile.yaml", profiled.fitted.hardware)
    from treeopt.render.profiling import profile_report

    from treeopt.cli import console

    console.result(profile_report(profiled))
    return f"profile.yaml, from {len(profiled.times)} of {len(bench.points)} points"


def main(
    out: Annotated[Path, typer.Option(help="A folder for the results.")] = Path("results"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default=False)] = None,
    limit_s: Annotated[float, typer.Option(help="Seconds that the run may take.")] = LIMIT_S,
) -> None:
    """Check, time, and fit."""
    start_s = time.monotonic()
    from treeopt.profile.device import find_device

    found = find_device(device)
    if found.kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # has to be chosen before Triton is imported
    out.mkdir(parents=True, exist_ok=True)
    on_gpu = found.kind == "cuda"
    bench = make_bench(found, out)
    ceilings = bench.ceilings
    result: dict[str, Any] = {
        "format": "treeopt.profile-gpu/1",
        "device": found.key,
        "label": "Timed on this GPU." if on_gpu else "CPU ONLY: nothing here says how fast any kernel is on a GPU.",
        "copy_bytes_per_s": ceilings.bandwidth_bytes_per_s,
        "product_flops_per_s": ceilings.flops_per_s,
        "checks": list(check(found.kind, start_s + CHECKS_UNTIL * limit_s)),
        "attention": list(compare(bench, start_s + COMPARISONS_UNTIL * limit_s)),
    }
    result["verdicts"] = list(verdicts(result["attention"])) if on_gpu else []
    result["profile"] = "none yet"
    save(result, out, start_s)  # what there is, should the rest fail
    result["profile"] = make_profile(bench, out, limit_s)
    save(result, out, start_s)
    typer.echo((out / "results.md").read_text())


def save(result: dict[str, Any], out: Path, start_s: float) -> None:
    result["seconds"] = time.monotonic() - start_s
    (out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "results.md").write_text(markdown(result))


if __name__ == "__main__":
    typer.run(main)

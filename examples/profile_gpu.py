"""This GPU in one run of under eight minutes: are the kernels right, how fast are they, what do steps cost?

    python examples/profile_gpu.py --out results        # the GPU, or --device cpu to try the program without one

First every path of the kernels is compiled and checked against float64, in processes side by side that may die. Then
the kernel is timed on the rows of docs/kernels.md's launch table, and beside torch's attention with a mask and
attention that can verify chains only, on pages of 64 and 16 and without pages; then with other constants of its
schedule and other tiles; then the operators of a step, to which a profile for `treeopt search --hardware
results/profile.yaml` is fitted; FlexAttention, slow to compile, is last. Every row goes to results.json as it comes.
results.md ends with a verdict on every line of docs/kernels.md that a GPU can judge; what measured best is
constants.patch, for `git apply`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import click

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the parts
if importlib.util.find_spec("treeopt") is None:  # a checkout that is not installed
    sys.path.insert(0, str(HERE.parent))

from on_gpu.cases import DTYPES, FLEX_S, GRID, MODEL, SWEPT  # noqa: E402
from on_gpu.checks import all_checks  # noqa: E402
from on_gpu.methods import compare, compare_flex  # noqa: E402
from on_gpu.report import markdown, page_verdicts, verdicts  # noqa: E402
from on_gpu.sweep import best_constants, patch, sweep, tile_name  # noqa: E402

from treeopt.cli.command import CliOption, run_function  # noqa: E402

LIMIT_S = 460.0
CHECKS_UNTIL, COMPARISONS_UNTIL, SWEEP_UNTIL, GRID_UNTIL = 0.2, 0.42, 0.62, 0.92  # of the limit


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
        "format": "treeopt.profile-gpu/3",
        "device": found.key,
        "label": "Timed on this GPU." if on_gpu else "CPU ONLY: nothing here says how fast any kernel is on a GPU.",
        "copy_bytes_per_s": 0.0,
        "product_flops_per_s": 0.0,
        "states": {},
        "checks": [],
        "attention": [],
        "sweep": [],
        "constants": {},
        "verdicts": [],
        "page": [],
        "profile": "none yet",
        "patch": "none yet",
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
    result["constants"] = constants()
    fill("sweep", sweep(bench, start_s + SWEEP_UNTIL * limit_s))
    result["profile"] = make_profile(bench, out, GRID_UNTIL * limit_s - (bench.start_s - start_s))
    fill("attention", compare_flex(bench, start_s + limit_s - FLEX_S))
    note_state(result, found, "end")
    save(result, out, start_s)
    conclude(result, out, on_gpu=on_gpu)
    save(result, out, start_s)
    click.echo((out / "results.md").read_text())


def constants() -> dict[str, Any]:
    """What the tables have of what is swept."""
    from treeopt.kernels import config, slicing

    found: dict[str, Any] = {name: getattr(slicing, name) for name in SWEPT}
    for line in config.TABLE[config.HeadShape(128, 128), 2]:
        sizes = (line.block_m, line.block_n, line.num_warps, line.buffers, line.programs, line.tail_n)
        found[tile_name(line.block_m)] = ", ".join(map(str, sizes))
    return found


def conclude(result: dict[str, Any], out: Path, *, on_gpu: bool) -> None:
    """Verdicts, and the patch; of a processor neither says anything about a GPU."""
    if not on_gpu:
        result["patch"] = "none: no GPU was timed"
        return
    from treeopt.kernels.chip import CHIPS, chip_of

    result["verdicts"] = list(verdicts(result["attention"]))
    result["page"] = list(page_verdicts(result))
    mhz = result["states"].get("end", {}).get("clocks.max.sm", "0")
    per_clock = round(result["copy_bytes_per_s"] / (1e6 * float(mhz))) if float(mhz) else None
    here = chip_of("cuda").products
    name = next((name for name, chip in CHIPS.items() if chip.products == here), "")
    found = patch(best_constants(result["sweep"]), name, per_clock)
    (out / "constants.patch").write_text(found)
    result["patch"] = "constants.patch" if found else "none: the tables have what measured best"


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

"""Held-out error of every form, by hand: `python benchmarks/fits.py [FOLDER]` (docs/cost-fits.md).

First on the measured kernels in FOLDER (`measured_data.py` says which), then on the rows that the shipped profiles
keep.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from measured_data import GEMM, data_folder
from regret import ENGINES, profile_rows

from treeopt.cost import Dtype, load_hardware
from treeopt.cost.fit.choose import Datasheet, FittedFamily, fit_family
from treeopt.cost.fit.families import sample_of
from treeopt.cost.fit.kinds import rows_of
from treeopt.cost.fit.rows import Rows, joined
from treeopt.cost.fit.solve import Trial, judge
from treeopt.cost.fit.tables import parse_selections, read_table
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.fit import Form, Share
from treeopt.files.shipped import locate, shipped_names

PROCESSORS: Final = {"h100_sxm": 132, "a100_sxm": 108, "h200_sxm": 132}
SHEETS: Final = {"h100_sxm": "h100-sxm", "a100_sxm": "a100-sxm", "h200_sxm": "h200-sxm"}
H100: Final = ("vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20")
FILES: Final = (
    (
        "gemm/aic_gemm_bf16.csv",
        (*(("h100_sxm", e) for e in H100), ("a100_sxm", "sglang-0.5.10"), ("a100_sxm", "vllm-0.14.0")),
    ),
    ("gemm/aic_gemm_fp8.csv", (("h100_sxm", "vllm-0.24.0"), ("h100_sxm", "trtllm-1.3.0rc20"))),
    ("gemm/aic_decode_attention.csv", (*(("h100_sxm", e) for e in H100), ("a100_sxm", "vllm-0.14.0"))),
    ("gemm/aic_moe.csv", tuple(("h100_sxm", e) for e in H100)),
    (
        "gemm/aic_allreduce.csv",
        (*(("h100_sxm", e) for e in H100), ("h200_sxm", "vllm-0.24.0"), ("a100_sxm", "vllm-0.14.0")),
    ),
)


class Judged(NamedTuple):
    """The rows of one engine, fitted."""

    gpu: str
    engine: str
    fitted: FittedFamily


def judged(folder: Path) -> Iterator[Judged]:
    """Every family and format in the folder's tables."""
    for file, machines in FILES:
        table = read_table(folder / file)
        for gpu, engine in machines:
            for rows in joined(rows_of(table.select(parse_selections(f"gpu={gpu},engine={engine}")))):
                if rows.family is Family.ATTENTION and rows.dtype != "bf16":
                    continue
                yield Judged(gpu, engine, fit_family(rows, processors=PROCESSORS[gpu], datasheet=sheet(gpu, rows)))


def sheet(gpu: str, rows: Rows) -> Datasheet:
    """What the GPU's data sheet says for these rows."""
    hardware = load_hardware(locate("hardware", SHEETS[gpu]).path)
    kind = Dtype.FP8 if rows.dtype.arithmetic is Dtype.FP8 else Dtype.BF16
    links = rows.family is Family.ALL_REDUCE
    rate = hardware.link_bandwidth_bytes_per_s if links else hardware.bandwidth_bytes_per_s
    return Datasheet(bandwidth_bytes_per_s=rate, peak_flops=hardware.peak_flops[kind])


def cell(fitted: FittedFamily, form: Form, share: Share) -> str:
    """The mean of the best trial of one form, in per cent."""
    found = [trial.mean for trial in fitted.trials if (trial.form, trial.share) == (form, share)]
    return f"{100 * min(found):.1f}" if found else "-"


def table(all_judged: list[Judged]) -> None:
    """One line for each family, format and engine."""
    print(
        "| rows | engine | datasheet | t0+max | t0+smooth | t0+tiles | shared residual | near shapes | taken |", end=""
    )
    print(" mean | median | p90 | between: median | p90 |")
    print("|" + "---|" * 14)
    for gpu, engine, fitted in all_judged:
        fit, best = fitted.fit, taken(fitted)
        alone = [cell(fitted, form, Share.NOTHING) for form in Form]
        shares = [min((cell(fitted, f, s) for f in Form), key=number) for s in (Share.COMMON, Share.NEAR)]
        name = f"{fitted.family} {fitted.dtype}"
        ends = f"{100 * fit.between.median:.1f} | {100 * fit.between.p90:.1f}"
        print(
            f"| {name} | {gpu} {engine} | {' | '.join(alone)} | {' | '.join(shares)} | {fit.form}, {fit.share} | "
            f"{100 * best.mean:.1f} | {100 * best.error.median:.1f} | {100 * best.error.p90:.1f} | {ends} |"
        )


def number(text: str) -> float:
    """A cell as a number, absent ones last."""
    return float(text) if text != "-" else 1e9


def taken(fitted: FittedFamily) -> Trial:
    """The trial behind the fit that was taken."""
    fit = fitted.fit
    able = [t for t in fitted.trials if (t.form, t.share) == (fit.form, fit.share)]
    return min(able, key=lambda trial: trial.mean)


def parameters(all_judged: list[Judged]) -> None:
    """The fitted rates of the smooth form through 16 bit GEMMs."""
    print("| engine | TB/s | TFLOP/s | launch us | exponent |\n|---|---|---|---|---|")
    for gpu, engine, fitted in all_judged:
        if fitted.family is Family.GEMM and fitted.dtype == "bf16":
            form = fitted.fit.roofline
            print(
                f"| {gpu} {engine} | {form.bandwidth_bytes_per_s / 1e12:.2f} | {form.peak_flops / 1e12:.0f} | "
                f"{form.launch_s * 1e6:.2f} | {form.sharpness:.1f} |"
            )


def harder_questions() -> None:
    """For shapes further from all measured ones: every weight with as many outputs, or inputs, left out with it."""
    print("| shipped profile | shape left out | all of its outputs left out | all of its inputs left out |")
    print("|---|---|---|---|")
    for profile in ENGINES.values():
        fit = load_hardware(locate("hardware", profile).path).fits.get(Family.GEMM, Dtype.BF16).fit  # type: ignore[union-attr]
        rows = profile_rows(fit)
        sample = sample_of(rows)
        cells = []
        for size in (None, "outputs", "inputs"):
            ids = sample.shape if size is None else np.unique(rows.column(size), return_inverse=True)[1]
            trial = judge(replace(sample, shape=ids), fit.form, (fit.residuals.reach,), fit.tiling)[-1]
            cells.append(f"{100 * trial.mean:.1f} (median {100 * trial.error.median:.1f})")
        print(f"| {profile} | {' | '.join(cells)} |")


def shipped() -> None:
    """What the shipped profiles say of themselves: held-out median / p90 in per cent, by family and format."""
    heads = ("profile", "TB/s", "TFLOP/s", "launch us", "gemm bf16", "gemm fp8", "attention", "experts bf16")
    print(f"| {' | '.join((*heads, 'experts fp8', 'int4'))} |")
    print("|" + "---|" * 10)
    columns = ((Family.GEMM, Dtype.BF16), (Family.GEMM, "fp8"), (Family.ATTENTION, "bf16"), (Family.EXPERTS, "bf16"))
    columns = (*columns, (Family.EXPERTS, Dtype.FP8), (Family.GEMM, Dtype.INT4))
    for name in shipped_names("hardware"):
        hardware = load_hardware(locate("hardware", name).path)
        if hardware.fits is None:
            continue
        entries = [hardware.fits.get(*column) for column in columns]
        entries[-1] = entries[-1] or hardware.fits.get(Family.EXPERTS, Dtype.INT4)
        errors = [entry and entry.fit.error for entry in entries]
        cells = [f"{100 * e.median:.1f} / {100 * e.p90:.1f}" if e else "-" for e in errors]
        rates = f"{hardware.bandwidth_bytes_per_s / 1e12:.2f} | {hardware.peak_flops[Dtype.BF16] / 1e12:.0f}"
        print(f"| {name} | {rates} | {hardware.launch_s * 1e6:.2f} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables in Markdown."""
    found = list(judged(data_folder(GEMM, *(file for file, _ in FILES))))
    table(found)
    print()
    parameters(found)
    print()
    shipped()
    print()
    harder_questions()


if __name__ == "__main__":
    sys.exit(main())

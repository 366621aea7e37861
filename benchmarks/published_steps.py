"""Kernel models against published step times, by hand: `python benchmarks/published_steps.py [FOLDER]`.

23 step times of Llama-3.1-8B with EAGLE chains in vLLM, in the FOLDER that `measured_data.py` describes (the GPU is not
named, its plain step is that of an H100). For every H100 profile that is shipped, and for smooth rooflines written
by hand (`tests/smooth_h100.py`): the error of the kernels alone, and with engine constants at batch sizes left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import shared
from measured_data import STEPS, data_folder
from smooth_h100 import CONTEXT, SmoothH100, vllm_rows

from treeopt.cost import Eagle, ModelStep, load_hardware, load_model
from treeopt.cost.fit.engine_steps import EngineFit, fit_engine_steps
from treeopt.cost.step_cost import StepCost
from treeopt.files.shipped import locate, shipped_names

HEADER = """\
| kernels | L | kernels alone | constants taken | held out: mean | median | p90 | max | set chosen anew | in sample |
|---|---|---|---|---|---|---|---|---|---|"""
CONTEXTS = (128, 300, 1000)


class Kernels(NamedTuple):
    """A kernel model under the name of its profile."""

    name: str
    cost: StepCost


def kernel_models() -> Iterator[Kernels]:
    """All that price an H100."""
    model = load_model(locate("models", "llama-3.1-8b").path)
    for name in shipped_names("hardware"):
        if name.startswith("h100"):
            hardware = load_hardware(locate("hardware", name).path)
            yield Kernels(name, ModelStep(model=model, times=hardware.kernel_times(), drafter=Eagle()))
    yield Kernels("smooth rooflines by hand", SmoothH100())


def row(name: str, fit: EngineFit, context: int) -> str:
    """One line of the table."""
    held = fit.held_out
    shares = [f"{share:.1%}" for share in (held.mean, held.median, held.p90, held.max)]
    shares += [f"{fit.reselected.mean:.1%}", f"{fit.in_sample:.1%}"]
    units = {"step_s": (1e3, "ms"), "verified_token_s": (1e6, "us"), "speculative_step_s": (1e3, "ms")}
    taken = []
    for constant in fit.chosen.constants:
        scale, unit = units.get(constant, (1e3, "ms"))
        taken.append(f"{constant.removesuffix('_s').replace('_', ' ')} {getattr(fit, constant) * scale:.2f} {unit}")
    return f"| {name} | {context} | {fit.kernels_only.mean:.1%} | {', '.join(taken) or 'none'} | {' | '.join(shares)} |"


def table() -> str:
    """The whole table, as Markdown."""
    rows = vllm_rows()
    lines = [HEADER]
    for kernels in kernel_models():
        for context in CONTEXTS:
            lines.append(row(kernels.name, fit_engine_steps(rows, kernels.cost, context=context), context))
    return "\n".join(lines)


def eager() -> str:
    """The step that fell out of graph capture, as the fit says it."""
    fit = fit_engine_steps(vllm_rows(), SmoothH100(), context=CONTEXT)
    assert fit.eager is not None
    return (
        f"{fit.eager.eager_tokens} tokens: {fit.eager.rows[0].step_time_s * 1e3:.1f} ms, "
        f"{fit.eager_s * 1e3:.1f} ms more than fitted; {fit.eager.captured_tokens} tokens were still captured"
    )


def main() -> None:
    """Print both."""
    shared.DATA = data_folder(STEPS, "measured/vllm_step_ms_by_batch_k.csv")
    print(table())
    print(eager())


if __name__ == "__main__":
    main()

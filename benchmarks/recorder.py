"""What recording costs a server. By hand: `VLLM_ENV/bin/python benchmarks/recorder.py TARGET DRAFT PROMPTS.jsonl`.

vLLM on the CPU (V1 runner, float32, greedy) serves 16 requests again and again in one process, by turns with the
recorder and without it: 10 pairs, the order within a pair changes each time. Off is off: the runner's own calls are put
back. Told are the texts that differ, the median of the pairs' loss of throughput, and the CPU time inside the recorder
(its calls in the worker and its writing thread) as a share of the worker's.

    PYTHONPATH=. VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \\
        VLLM_ENV/bin/python benchmarks/recorder.py smollm2 smollm2-26 smollm2-run.jsonl
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

PAIRS: Final = 10
REQUESTS: Final = 16
TOKENS: Final = 12
DRAFTED: Final = 4
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Inside:
    """CPU seconds that the recorder's calls took in the worker's main thread."""

    seconds: float = 0.0


def timed(act: Callable[..., Any], inside: Inside) -> Callable[..., Any]:
    def acting(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return act(*args, **options)
        finally:
            inside.seconds += time.thread_time() - began

    return acting


class Switch:
    """Puts the recorder into a worker and takes it out again; lives in the worker's process."""

    def __init__(self, folder: str) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        from treeopt.record import vllm as plugin
        from treeopt.record.steps import StepRecorder

        self.plugin, self.runner, self.folder = plugin, GPUModelRunner, Path(folder)
        self.own = GPUModelRunner._sample, GPUModelRunner.propose_draft_token_ids
        self.inside = Inside()
        StepRecorder.guarded = timed(StepRecorder.guarded, self.inside)  # type: ignore[method-assign]
        plugin._recorder = timed(plugin._recorder, self.inside)

    def on(self) -> None:
        setattr(self.runner, self.plugin.MARK, None)
        self.plugin.attach(self.runner, self.folder)

    def off(self, drafter: Any) -> None:
        recorder = getattr(self.runner, self.plugin.MARK)
        if recorder is not None:
            assert not recorder.broken, "the recorder stopped: see the log"
            recorder._writer.close()
        delattr(self.runner, self.plugin.MARK)
        self.runner._sample, self.runner.propose_draft_token_ids = self.own
        vars(drafter.model).pop("compute_logits", None)


def cpu_seconds() -> float:
    """Of this process, all its threads."""
    return time.process_time()


def writer_seconds() -> float:
    """Of the writing threads that are alive."""
    import threading

    threads = [thread for thread in threading.enumerate() if thread.name == "treeopt-recorder" and thread.is_alive()]
    fields = [Path(f"/proc/self/task/{t.native_id}/stat").read_text().rpartition(")")[2].split() for t in threads]
    return sum(int(own[11]) + int(own[12]) for own in fields) / TICKS


def switch(worker: Any, folder: str, on: bool) -> tuple[float, float, int]:
    """Called in the worker: turns the recorder on or off; its CPU seconds so far, the worker's, and rows dropped."""
    model_runner = worker.model_runner
    if not hasattr(worker, "_switch"):
        worker._switch = Switch(folder)
    found: Switch = worker._switch
    recorder = getattr(found.runner, found.plugin.MARK, None)
    dropped = 0 if recorder is None else recorder._writer.dropped
    spent = found.inside.seconds + writer_seconds()
    if on:
        found.on()
    elif hasattr(found.runner, found.plugin.MARK):
        found.off(model_runner.drafter)
    return spent, cpu_seconds(), dropped


@dataclass(frozen=True, kw_only=True)
class Run:
    """16 requests served once."""

    texts: list[list[int]]
    tokens_per_s: float
    recorder_s: float
    worker_s: float
    dropped: int


def serve(engine: Any, prompts: list[Any], sampling: Any, folder: str, *, on: bool) -> Run:
    def turn(*, to: bool) -> tuple[float, float, int]:
        found: tuple[float, float, int] = engine.collective_rpc(switch, args=(folder, to))[0]
        return found

    before = turn(to=True) if on else turn(to=False)
    began = time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    took = time.perf_counter() - began
    after = turn(to=False)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    return Run(
        texts=texts,
        tokens_per_s=sum(map(len, texts)) / took,
        recorder_s=after[0] - before[0],
        worker_s=after[1] - before[1],
        dropped=after[2],
    )


def main() -> None:
    os.environ |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    from vllm import LLM, SamplingParams

    target, draft, prompts_file = sys.argv[1:4]
    rows = [json.loads(line) for line in Path(prompts_file).read_text().splitlines()]
    prompts = [{"prompt_token_ids": row["token_ids"]} for row in rows[:REQUESTS]]
    engine = LLM(
        model=target,
        speculative_config={"method": "draft_model", "model": draft, "num_speculative_tokens": DRAFTED},
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=REQUESTS,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.1,
        skip_tokenizer_init=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    with tempfile.TemporaryDirectory() as folder:
        serve(engine, prompts, sampling, folder, on=True)  # warm
        pairs = []
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)
            runs = {on: serve(engine, prompts, sampling, folder, on=on) for on in order}
            pairs.append((runs[True], runs[False]))
            on, off = pairs[-1]
            rates = f"{off.tokens_per_s:.2f} tokens/s without, {on.tokens_per_s:.2f} with"
            print(f"pair {number + 1}: {rates}; {on.recorder_s:.2f} of {on.worker_s:.2f} s of CPU", flush=True)
        lines = [line for path in Path(folder).glob("*.jsonl") for line in path.read_text().splitlines()]
    recorded = sum("ranks_to_miss" in line for line in lines)
    losses = [1 - on.tokens_per_s / off.tokens_per_s for on, off in pairs]
    share = sum(on.recorder_s for on, _ in pairs) / sum(on.worker_s for on, _ in pairs)
    extra = [on.worker_s / off.worker_s - 1 for on, off in pairs]
    differ = sum(a != b for on, off in pairs for a, b in zip(on.texts, off.texts, strict=True))
    print(f"texts that differ: {differ} of {PAIRS * REQUESTS}")
    print(f"drafts recorded: {recorded}, rows dropped: {sum(on.dropped for on, _ in pairs)}")
    print(f"throughput lost: median {median(losses):+.2%}, {min(losses):+.2%} to {max(losses):+.2%}")
    print(f"CPU time inside the recorder: {share:.2%} of the worker's")
    print(f"the worker's CPU time with over without: median {median(extra):+.2%}")


if __name__ == "__main__":
    main()

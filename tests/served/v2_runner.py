"""The recorder on vLLM's own V2 classes, without a server: run by vLLM's Python, writes shards, prints what is right.

vLLM's build for a CPU does not run this runner, whose kernels need Triton. Its own code here: the runner's `sample`, a
draft model's `propose`, `sample_draft`, `compute_draft_logits`. Stood in for: the models (a table of logits by the last
token), attention (none), the kernel that accepts drafts (greedy, in torch) and the requests' state.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from treeopt.record import vllm as plugin

VOCABULARY, REQUESTS, SLOTS, DRAFTED, STEPS, PROMPT = 50, 3, 4, 3, 40, 5
SLOT_OF_ROW = np.array([2, 0, 3])  # rows of a batch are not slots of the state
generator = torch.Generator().manual_seed(0)
TARGET = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
DRAFTER = TARGET + 0.7 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)


class Model:
    """Logits by the last token, which is what hidden states are here."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden]


class Speculator(StandaloneARSpeculator):
    """vLLM's, without attention: the way of its own dry runs."""

    def _prefill(self, *args: Any) -> None:
        super()._prefill(*args[:4], True, None)

    def _multi_step_decode(self, *args: Any) -> None:
        super()._multi_step_decode(*args[:3], True, None)

    def _run_model(self, input_ids: torch.Tensor, *args: Any) -> torch.Tensor:
        return input_ids.long()


def speculator() -> Any:
    made: Any = object.__new__(Speculator)
    made.model, made.num_speculative_steps, made.max_model_len = Model(DRAFTER), DRAFTED, 4096
    made.draft_logits = made.acceptance_estimator = made.draft_watermarker = None
    made.use_local_argmax_reduction, made.arange_gpu = False, torch.arange(SLOTS + 1)
    made.temperature, made.seeds = torch.zeros(SLOTS), torch.zeros(SLOTS, dtype=torch.int64)
    made.idx_mapping = torch.zeros(SLOTS, dtype=torch.int64)
    made.last_token_indices = torch.zeros(SLOTS, dtype=torch.int64)
    made.current_draft_step = torch.tensor(0)
    made.draft_tokens = torch.zeros(SLOTS, DRAFTED, dtype=torch.int64)
    made.input_buffers = SimpleNamespace(
        positions=torch.zeros(64, dtype=torch.int64),
        seq_lens=torch.zeros(SLOTS, dtype=torch.int64),
        query_start_loc=torch.zeros(SLOTS + 1, dtype=torch.int64),
        input_ids=torch.zeros(64, dtype=torch.int64),
    )
    return made


def accepted(logits: torch.Tensor, batch: Any, *_: Any) -> SamplerOutput:
    """Greedy: drafts up to the first that is not the target's choice, then that choice."""
    choice = logits.argmax(-1).reshape(REQUESTS, -1)
    drafts = batch.input_ids.reshape(REQUESTS, -1)[:, 1:]
    right = (choice[:, :-1] == drafts).int().cumprod(1).sum(1)
    return SamplerOutput(choice, None, None, right + 1, drafts.shape[1] - right)


def batch_of(ids: torch.Tensor, drafted: int) -> Any:
    """What `sample` and `propose` read of a batch, by the names of vLLM's own record."""
    width = ids.shape[1]
    starts = torch.arange(REQUESTS + 1) * width
    known = {
        "req_ids": [f"cmpl-{i}" for i in range(REQUESTS)],
        "num_reqs": REQUESTS,
        "idx_mapping": torch.from_numpy(SLOT_OF_ROW),
        "idx_mapping_np": SLOT_OF_ROW,
        "num_tokens": REQUESTS * width,
        "num_draft_tokens": REQUESTS * drafted,
        "num_draft_tokens_per_req": np.full(REQUESTS, drafted, dtype=np.int32) if drafted else None,
        "query_start_loc": starts,
        "seq_lens": torch.full((REQUESTS,), 100),
        "input_ids": ids.flatten(),
        "positions": torch.zeros(REQUESTS * width, dtype=torch.int64),
        "logits_indices": torch.arange(REQUESTS * width),
        "has_structured_output_reqs": False,
    }
    assert set(known) <= {own.name for own in fields(InputBatch)}
    return SimpleNamespace(**known)


def expected(last: int, drafts: list[int]) -> list[int]:
    """Ranks of the target's choices in the drafter's order, by sorting."""
    ranks = []
    for draft in drafts:
        token = int(TARGET[last].argmax())
        ranks.append(DRAFTER[last].argsort(descending=True).tolist().index(token))
        if token != draft:
            break
        last = token
    return ranks


def main() -> None:
    folder = Path(sys.argv[1])
    plugin.vllm_v2.attach(GPUModelRunner, folder)
    runner: Any = object.__new__(GPUModelRunner)
    runner.batch_sharder = runner.adaptive_verification = None
    runner.model, runner.rejection_sampler, runner.speculator = Model(TARGET), accepted, speculator()
    sampling = SimpleNamespace(temperature=SimpleNamespace(np=np.zeros(SLOTS, dtype=np.float32)))
    states = SimpleNamespace(
        draft_tokens=torch.zeros(SLOTS, DRAFTED, dtype=torch.int64),
        prompt_len=SimpleNamespace(np=np.full(SLOTS, PROMPT, dtype=np.int32)),
        req_id_to_index={f"cmpl-{i}": int(slot) for i, slot in enumerate(SLOT_OF_ROW)},
    )
    runner.sampler, runner.req_states = SimpleNamespace(sampling_states=sampling), states
    last, right = torch.arange(REQUESTS), []
    for step in range(STEPS):
        drafted = DRAFTED if step else 0
        verified = states.draft_tokens[torch.from_numpy(SLOT_OF_ROW)][:, :drafted]
        batch = batch_of(torch.cat([last[:, None], verified], 1), drafted)
        if drafted:
            right += [expected(int(a), row) for a, row in zip(last, verified.tolist(), strict=True)]
        else:
            runner.rejection_sampler = None
            runner.sampler = SampledFirst(sampling)
        output, valid, rejected = runner.sample(torch.cat([last[:, None], verified], 1).flatten(), batch, None)
        runner.rejection_sampler = accepted
        last = output.sampled_token_ids.gather(1, valid[:, None] - 1)[:, 0]
        batch.input_ids = replaced(batch.input_ids.reshape(REQUESTS, -1), last, valid).flatten()
        zeros = torch.zeros(SLOTS)
        drafts = runner.speculator.propose(
            batch, {}, {}, None, None, valid, rejected, last, None, zeros, torch.zeros(SLOTS, dtype=torch.int64)
        )
        states.draft_tokens[torch.from_numpy(SLOT_OF_ROW)] = drafts
    recorder = GPUModelRunner._treeopt_recorder
    recorder._writer.close()
    print(json.dumps({"broken": recorder.broken, "ranks": right}))


class SampledFirst(SimpleNamespace):
    """The sampler of a step without drafts, with the state that the recorder reads."""

    def __init__(self, sampling: Any) -> None:
        super().__init__(sampling_states=sampling)

    def __call__(self, logits: torch.Tensor, batch: Any) -> SamplerOutput:
        ones = torch.ones(REQUESTS, dtype=torch.int64)
        return SamplerOutput(logits.argmax(-1).reshape(REQUESTS, 1), None, None, ones, ones * 0)


def replaced(ids: torch.Tensor, last: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """The dry run goes on from the last accepted position, not from the token behind it: that token is put there."""
    return ids.scatter(1, valid[:, None] - 1, last[:, None])


if __name__ == "__main__":
    main()

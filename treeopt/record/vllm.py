"""The recorder inside vLLM (entry point `vllm.general_plugins`): nothing happens unless TREEOPT_RECORD names a folder.

Of the V1 runner it wraps three calls: the drafter's `compute_logits` (one top-k on logits that are there anyway), what
`propose_draft_token_ids` returns, and what `_sample` gives for the drafts of the step before; of the V2 runner the same
(`vllm_v2`). A release without these says so once and serves on.

    TREEOPT_RECORD=FOLDER        turns it on
    TREEOPT_RECORD_RATE=0.1      records about so many of the steps (default: all)
    TREEOPT_RECORD_TOP=32        keeps so many of the drafter's guesses
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from treeopt.record import vllm_v2
from treeopt.record.steps import LOG, StepRecorder

MARK: Final = "_treeopt_recorder"


class Runner(NamedTuple):
    """A runner of vLLM: where its class is, the calls that are wrapped, and what wraps them."""

    module: str
    needed: tuple[str, ...]
    attach: Callable[[Any, Path], None]


def register() -> None:
    """Called by vLLM in every one of its processes, more than once."""
    folder = os.environ.get("TREEOPT_RECORD")
    if not folder:
        return
    reasons = [why for name, runner in RUNNERS.items() if (why := _attached(name, runner, Path(folder)))]
    if len(reasons) == len(RUNNERS):
        LOG.warning("treeopt records nothing: %s", "; ".join(reasons))


def _attached(name: str, runner: Runner, folder: Path) -> str:
    """Wraps a runner's class once; why that cannot be done, or nothing."""
    try:
        found = importlib.import_module(runner.module).GPUModelRunner
    except (ImportError, AttributeError) as error:
        return f"this vLLM has no {name} runner ({error})"
    missing = [call for call in runner.needed if not hasattr(found, call)]
    if missing:
        return f"this vLLM's {name} runner has no {' and no '.join(missing)}"
    if not hasattr(found, MARK):
        setattr(found, MARK, None)
        runner.attach(found, folder)
    return ""


def attach(runner: Any, folder: Path) -> None:
    """Wrap the V1 runner's class; the recorder itself is made by the first step of a server that drafts."""
    sample, propose = runner._sample, runner.propose_draft_token_ids

    def proposing(self: Any, *args: Any, **options: Any) -> Any:
        recorder = _recorder(runner, self, folder)
        recorder.guarded(recorder.begin)
        drafts = propose(self, *args, **options)
        if not isinstance(drafts, list):  # lists come from drafters without a distribution
            recorder.guarded(lambda: _drafted(recorder, self, drafts))
        return drafts

    def sampling(self: Any, logits: Any, metadata: Any) -> Any:
        found = sample(self, logits, metadata)
        if getattr(self, "drafter", None) is not None:  # the first token of a text comes before its first draft
            recorder = _recorder(runner, self, folder)
            recorder.guarded(lambda: _verified(recorder, self, found, metadata))
        return found

    runner.propose_draft_token_ids, runner._sample = proposing, sampling


def _drafted(recorder: StepRecorder, runner: Any, drafts: Any) -> None:
    recorder.drafted(runner.input_batch.req_ids, drafts)


def _verified(recorder: StepRecorder, runner: Any, found: Any, metadata: Any) -> None:
    """What `_sample` returned for the step."""
    requests = list(runner.input_batch.req_ids)
    counts = list(metadata.num_draft_tokens) if metadata else [0] * len(requests)
    thrown = set(runner.discard_request_mask.np[: len(requests)].nonzero()[0].tolist())
    states = [runner.requests[name] for name in requests]
    about = [(state.num_prompt_tokens, float(state.sampling_params.temperature)) for state in states]
    drafts = metadata.draft_token_ids if metadata else None
    recorder.verified(requests, counts, thrown, about, found.sampled_token_ids, drafts)
    recorder.forget(runner.requests)


def _recorder(runner: Any, worker: Any, folder: Path) -> StepRecorder:
    found: StepRecorder | None = getattr(runner, MARK, None)
    if found is None:
        found = StepRecorder.of_environment(folder, engine="vllm")
        setattr(runner, MARK, found)
        _listen(worker.drafter, found)
    return found


def _listen(drafter: Any, recorder: StepRecorder) -> None:
    """Let the drafter's logits be seen; drafters without a model (n-gram, suffix) have none."""
    model = getattr(drafter, "model", None)
    if model is None or not hasattr(model, "compute_logits"):
        LOG.warning("treeopt records nothing: this drafter has no distribution")
        return
    drafter.use_local_argmax_reduction = False  # it would never make whole logits
    compute = model.compute_logits

    def computing(*args: Any, **options: Any) -> Any:
        logits = compute(*args, **options)
        if logits is not None and not isinstance(logits, list):
            recorder.guarded(lambda: recorder.logits(logits))
        return logits

    model.compute_logits = computing


RUNNERS: Final = {
    "V1": Runner("vllm.v1.worker.gpu_model_runner", ("_sample", "propose_draft_token_ids"), attach),
    "V2": Runner("vllm.v1.worker.gpu.model_runner", ("sample",), vllm_v2.attach),
}

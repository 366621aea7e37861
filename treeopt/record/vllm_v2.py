"""The recorder in vLLM's V2 runner: hooks on the runner's `sample` and on its speculator.

Written against release 0.32 and checked with its own classes, without a server: the build of vLLM for a CPU does not
run this runner. A speculator inside a whole CUDA graph calls no Python when it drafts; then that is said, once, and
nothing is recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from treeopt.extras import require
from treeopt.record.steps import LOG, StepRecorder

MARK: Final = "_treeopt_recorder"
_UNSEEN: Final = (
    "treeopt records nothing: this drafter's logits are not seen, since it drafts inside a CUDA graph or makes none; "
    """for the former start vLLM with --compilation-config '{"cudagraph_mode": "PIECEWISE"}'"""
)


def attach(runner: Any, folder: Path) -> None:
    """Wrap the V2 runner's class; its speculator is wrapped by the first step of a server that drafts."""
    sample = runner.sample

    def sampling(self: Any, hidden_states: Any, input_batch: Any, *args: Any, **options: Any) -> Any:
        found = sample(self, hidden_states, input_batch, *args, **options)
        if getattr(self, "speculator", None) is not None:
            recorder = _recorder(runner, self, folder)
            recorder.guarded(lambda: _verified(recorder, self, input_batch, found))
        return found

    runner.sample = sampling


def _recorder(runner: Any, worker: Any, folder: Path) -> StepRecorder:
    found: StepRecorder | None = getattr(runner, MARK, None)
    if found is None:
        found = StepRecorder.of_environment(folder, engine="vllm")
        setattr(runner, MARK, found)
        found.guarded(lambda: _listen(worker, found))
    return found


def _listen(worker: Any, recorder: StepRecorder) -> None:
    """Let a speculator's logits and drafts be seen."""
    speculator = worker.speculator
    if not hasattr(speculator, "compute_draft_logits"):
        LOG.warning("treeopt records nothing: this drafter has no distribution")
        recorder.broken = True
        return
    if getattr(worker, "adaptive_verification", None) is not None:
        LOG.warning("treeopt records nothing: adaptive verification does not tell which drafts it verified")
        recorder.broken = True
        return
    speculator.use_local_argmax_reduction = False  # it would never make whole logits
    compute, propose = speculator.compute_draft_logits, speculator.propose

    def computing(*args: Any, **options: Any) -> Any:
        logits = compute(*args, **options)
        recorder.guarded(lambda: recorder.logits(logits))
        return logits

    def proposing(input_batch: Any, *args: Any, **options: Any) -> Any:
        if options.get("dummy_run"):
            return propose(input_batch, *args, **options)
        recorder.guarded(recorder.begin)
        drafts = propose(input_batch, *args, **options)
        recorder.guarded(lambda: _drafted(recorder, input_batch, drafts))
        return drafts

    speculator.compute_draft_logits, speculator.propose = computing, proposing


def _drafted(recorder: StepRecorder, input_batch: Any, drafts: Any) -> None:
    if not recorder.drafted(input_batch.req_ids, drafts):
        LOG.warning(_UNSEEN)
        recorder.broken = True


def _verified(recorder: StepRecorder, runner: Any, input_batch: Any, found: Any) -> None:
    """What `sample` returned: the sampler's output, how many tokens of each row are valid, how many were rejected."""
    if input_batch.has_structured_output_reqs:  # a grammar rejects drafts that the drafter had right
        return
    torch = require("torch", extra="gpu")

    output, valid = found[0], found[1]
    tokens = output.sampled_token_ids
    behind = torch.arange(tokens.shape[1], device=tokens.device) >= valid[:, None]
    per_request = input_batch.num_draft_tokens_per_req
    slots, states = input_batch.idx_mapping_np, runner.req_states
    temperatures = runner.sampler.sampling_states.temperature.np[slots].tolist()
    recorder.verified(
        input_batch.req_ids,
        [0] * len(slots) if per_request is None else per_request.tolist(),
        set(),
        list(zip(states.prompt_len.np[slots].tolist(), temperatures, strict=True)),
        tokens.masked_fill(behind, -1),
        states.draft_tokens[input_batch.idx_mapping],
    )
    recorder.forget(states.req_id_to_index)

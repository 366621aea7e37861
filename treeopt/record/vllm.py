"""The recorder inside vLLM (entry point `vllm.general_plugins`): nothing happens unless TREEOPT_RECORD names a folder.

It wraps three calls of the V1 runner: the drafter's `compute_logits` (one top-k on logits that are there anyway), what
`propose_draft_token_ids` returns, and what `_sample` gives for the drafts of the step before. What it copies from a GPU
is read a step late, so that nothing waits. A release without these says so once and serves on.

    TREEOPT_RECORD=FOLDER        turns it on
    TREEOPT_RECORD_RATE=0.1      records about so many of the steps (default: all)
    TREEOPT_RECORD_TOP=32        keeps so many of the drafter's guesses
"""

from __future__ import annotations

import importlib
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from treeopt.extras import require
from treeopt.record.drafts import Drafted, DraftLog, Verified
from treeopt.record.shards import ShardWriter

_MARK: Final = "_treeopt_recorder"
_NEEDED: Final = ("_sample", "propose_draft_token_ids")
_LATE: Final = 2  # copies from a GPU that may be under way
_log = logging.getLogger("treeopt.record")


def register() -> None:
    """Called by vLLM in every one of its processes, more than once."""
    folder = os.environ.get("TREEOPT_RECORD")
    if not folder:
        return
    try:
        GPUModelRunner = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    except (ImportError, AttributeError) as error:
        _log.warning("treeopt records nothing: this vLLM has no V1 runner (%s)", error)
        return
    missing = [name for name in _NEEDED if not hasattr(GPUModelRunner, name)]
    if missing:
        _log.warning("treeopt records nothing: this vLLM's V1 runner has no %s", " and no ".join(missing))
    elif not hasattr(GPUModelRunner, _MARK):
        attach(GPUModelRunner, Path(folder))


def attach(runner: Any, folder: Path) -> None:
    """Wrap a runner's class; the recorder itself is made by the first step of a server that drafts, in its worker."""
    sample, propose = runner._sample, runner.propose_draft_token_ids
    setattr(runner, _MARK, None)

    def proposing(self: Any, *args: Any, **options: Any) -> Any:
        recorder = _recorder(runner, self, folder)
        _guarded(recorder, recorder.begin)
        drafts = propose(self, *args, **options)
        _guarded(recorder, lambda: recorder.drafted(self, drafts))
        return drafts

    def sampling(self: Any, logits: Any, metadata: Any) -> Any:
        found = sample(self, logits, metadata)
        if getattr(self, "drafter", None) is not None:  # the first token of a text comes before its first draft
            recorder = _recorder(runner, self, folder)
            _guarded(recorder, lambda: recorder.verified(self, found, metadata))
        return found

    runner.propose_draft_token_ids, runner._sample = proposing, sampling


class VllmRecorder:
    """One worker's: what is drafted and verified, from torch to rows."""

    def __init__(self, folder: Path, *, top: int, every: int, version: str) -> None:
        self._top, self._every, self._step = top, every, 0
        self._log, self._pending = DraftLog(), deque[tuple[Callable[..., None], tuple[Any, ...], list[Any], Any]]()
        header = {"engine": "vllm", "version": version, "top": top, "every": every}
        self._writer = ShardWriter(folder, header)
        self._tops: list[tuple[Any, Any]] | None = None
        self.broken = False

    def begin(self) -> None:
        """A step starts to draft; every n-th is recorded."""
        self._step += 1
        self._tops = [] if self._step % self._every == 0 else None

    def logits(self, logits: Any) -> None:
        """The drafter's logits `[requests, V]` at one more position, while it drafts."""
        if self._tops is None:
            return
        torch = require("torch", extra="gpu")

        scores = logits.float()
        top, ids = torch.topk(scores, min(self._top, scores.shape[-1]), dim=-1)
        self._tops.append((ids, torch.exp(top - torch.logsumexp(scores, -1, keepdim=True))))

    def drafted(self, runner: Any, drafts: Any) -> None:
        """What `propose_draft_token_ids` returned: `[requests, K]`; lists come from drafters without a distribution."""
        tops, self._tops = self._tops, None
        if not tops or isinstance(drafts, list):
            return
        torch = require("torch", extra="gpu")

        # One call per position gives [requests, V]; a drafter of all positions at once [requests x K, V].
        rows = len(drafts)
        ids, chances = (torch.stack([top[i].reshape(rows, -1, top[i].shape[-1]) for top in tops], 1) for i in (0, 1))
        self._push(
            self._keep_drafts, (list(runner.input_batch.req_ids),), drafts, ids.flatten(1, 2), chances.flatten(1, 2)
        )

    def verified(self, runner: Any, found: Any, metadata: Any) -> None:
        """What `_sample` returned for the step."""
        requests = list(runner.input_batch.req_ids)
        counts = list(metadata.num_draft_tokens) if metadata else [0] * len(requests)
        thrown = set(runner.discard_request_mask.np[: len(requests)].nonzero()[0].tolist())
        states = [runner.requests[name] for name in requests]
        about = [(state.num_prompt_tokens, float(state.sampling_params.temperature)) for state in states]
        flat = [metadata.draft_token_ids] if metadata else []
        self._push(self._keep_verdict, (requests, counts, thrown, about), found.sampled_token_ids, *flat)
        if self._step % 256 == 0:
            self._log.forget(runner.requests)

    def _push(self, then: Callable[..., None], given: tuple[Any, ...], *tensors: Any) -> None:
        torch = require("torch", extra="gpu")

        gpu = tensors[0].is_cuda
        held = [tensor.to("cpu", non_blocking=True) if gpu else tensor.clone() for tensor in tensors]
        make_event: Any = torch.cuda.Event
        done = make_event() if gpu else None
        if done is not None:
            done.record()
        self._pending.append((then, given, held, done))
        while len(self._pending) > (_LATE if gpu else 0):
            then, given, held, done = self._pending.popleft()
            if done is not None:
                done.synchronize()
            then(*given, *held)

    def _keep_drafts(self, requests: list[str], drafts: Any, ids: Any, chances: Any) -> None:
        parts = zip(drafts.tolist(), ids.tolist(), chances.tolist(), strict=True)
        self._log.drafted(requests, [Drafted(*part) for part in parts])

    def _keep_verdict(
        self, requests: list[str], counts: list[int], thrown: set[int], about: list[Any], sampled: Any, flat: Any = None
    ) -> None:
        tokens, left, step = sampled.tolist(), [] if flat is None else flat.tolist(), []
        for row, (request, count, (prompt, temperature)) in enumerate(zip(requests, counts, about, strict=True)):
            emitted = [] if row in thrown else [token for token in tokens[row] if token >= 0]
            step.append(Verified(request, left[:count], emitted, prompt, temperature))
            left = left[count:]
        rows = self._log.verified(step)
        if rows:
            self._writer.put(rows)


def _recorder(runner: Any, worker: Any, folder: Path) -> VllmRecorder:
    found: VllmRecorder | None = getattr(runner, _MARK)
    if found is None:
        rate = float(os.environ.get("TREEOPT_RECORD_RATE", "1"))
        found = VllmRecorder(
            folder,
            top=int(os.environ.get("TREEOPT_RECORD_TOP", "32")),
            every=max(round(1 / rate), 1) if rate > 0 else 1 << 62,
            version=str(importlib.import_module("vllm").__version__),
        )
        setattr(runner, _MARK, found)
        _listen(worker.drafter, found)
    return found


def _listen(drafter: Any, recorder: VllmRecorder) -> None:
    """Let the drafter's logits be seen; drafters without a model (n-gram, suffix) have none."""
    model = getattr(drafter, "model", None)
    if model is None or not hasattr(model, "compute_logits"):
        _log.warning("treeopt records nothing: this drafter has no distribution")
        return
    drafter.use_local_argmax_reduction = False  # it would never make whole logits
    compute = model.compute_logits

    def computing(*args: Any, **options: Any) -> Any:
        logits = compute(*args, **options)
        if logits is not None and not isinstance(logits, list):
            _guarded(recorder, lambda: recorder.logits(logits))
        return logits

    model.compute_logits = computing


def _guarded(recorder: VllmRecorder, act: Callable[[], None]) -> None:
    """Recording that fails stops for good, and serving goes on."""
    if recorder.broken:
        return
    try:
        act()
    except Exception:
        recorder.broken = True
        _log.exception("treeopt stopped recording")

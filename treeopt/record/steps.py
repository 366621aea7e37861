"""From an engine's tensors to rows: what is drafted and verified in each step, read late so that nothing waits."""

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

LOG: Final = logging.getLogger("treeopt.record")
_LATE: Final = 2  # copies from a GPU that may be under way


class StepRecorder:
    """One worker's: what is drafted and verified, from torch to rows."""

    def __init__(self, folder: Path, *, top: int, every: int, engine: str, version: str) -> None:
        self._top, self._every, self._step = top, every, 0
        self._log, self._pending = DraftLog(), deque[tuple[Callable[..., None], tuple[Any, ...], list[Any], Any]]()
        self._writer = ShardWriter(folder, {"engine": engine, "version": version, "top": top, "every": every})
        self._tops: list[tuple[Any, Any]] | None = None
        self.broken = False

    @classmethod
    def of_environment(cls, folder: Path, *, engine: str) -> StepRecorder:
        """As TREEOPT_RECORD_RATE and TREEOPT_RECORD_TOP say."""
        rate = float(os.environ.get("TREEOPT_RECORD_RATE", "1"))
        return cls(
            folder,
            top=int(os.environ.get("TREEOPT_RECORD_TOP", "32")),
            every=max(round(1 / rate), 1) if rate > 0 else 1 << 62,
            engine=engine,
            version=str(importlib.import_module(engine).__version__),
        )

    def guarded(self, act: Callable[[], None]) -> None:
        """Recording that fails stops for good, and serving goes on."""
        if self.broken:
            return
        try:
            act()
        except Exception:
            self.broken = True
            LOG.exception("treeopt stopped recording")

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

    def drafted(self, requests: list[str], drafts: Any) -> bool:
        """What was proposed, `[requests, K]`; False where it should be recorded and no logits were seen.

        A step that drafts less than K tokens has as many positions as it made logits for.
        """
        tops, self._tops = self._tops, None
        if not tops:
            return tops is None
        torch = require("torch", extra="gpu")

        # One call per position gives [requests, V]; a drafter of all positions at once [requests x K, V].
        rows = len(drafts)
        ids, chances = (torch.stack([top[i].reshape(rows, -1, top[i].shape[-1]) for top in tops], 1) for i in (0, 1))
        ids, chances = ids.flatten(1, 2), chances.flatten(1, 2)
        self._push(self._keep_drafts, (list(requests),), drafts[:, : ids.shape[1]], ids, chances)
        return True

    def verified(
        self, requests: list[str], counts: list[int], thrown: set[int], about: list[Any], sampled: Any, drafts: Any
    ) -> None:
        """What was verified and what came out of it.

        Args:
            requests: in the order of the rows.
            counts: draft tokens of each.
            thrown: rows whose tokens the engine throws away.
            about: prompt tokens and temperature of each.
            sampled: `[requests, K + 1]` tokens, -1 behind the last one.
            drafts: the draft tokens that were verified: all in one row, or `[requests, K]`; None without any.
        """
        given = (list(requests), counts, thrown, about)
        self._push(self._keep_verdict, given, sampled, *([] if drafts is None else [drafts]))

    def forget(self, alive: Any) -> None:
        """Drop what is known of requests that are over, now and then."""
        if self._step % 256 == 0:
            self._log.forget(alive)

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
        self,
        requests: list[str],
        counts: list[int],
        thrown: set[int],
        about: list[Any],
        sampled: Any,
        drafts: Any = None,
    ) -> None:
        tokens, step, at = sampled.tolist(), [], 0
        given = [] if drafts is None else drafts.tolist()
        for row, (request, count, (prompt, temperature)) in enumerate(zip(requests, counts, about, strict=True)):
            emitted = [] if row in thrown else [token for token in tokens[row] if token >= 0]
            own = given[row][:count] if drafts is not None and drafts.dim() == 2 else given[at : at + count]
            step.append(Verified(request, own, emitted, prompt, temperature))
            at += count
        rows = self._log.verified(step)
        if rows:
            self._writer.put(rows)

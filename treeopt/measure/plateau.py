"""One plateau: as many streams at once as asked for, and what the server counted while they ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.measure.counters import Counters
from treeopt.measure.server import Prompt, Server, ServerError
from treeopt.measure.window import Chunk, StreamWindow, steady_window

AGREE: Final = 0.01  # chunks and tokens of the client against the server's own, as a share
_BEFORE_THE_END: Final = 0.85  # of the first stream's tokens: after it, drafts are cut short by the limit on tokens
_OTHERS, _LATE = 0.05, 16  # tokens that are not ours, as a share, beyond some of the warm-up that are counted late
_POLL_S: Final = 0.005
_SETTLE_S: Final = 2.0  # how long a server's counters may lag behind what it sent


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """What one plateau of `batch` requests gave.

    `steady` was counted while all requests ran, `whole` from before the first to after the last; `window` holds the
    steps that all took part in, told from the streams: only where a chunk is a step (`chunks_are_steps`).
    """

    batch: int
    prompt_tokens: float
    tokens: int
    steady: Counters
    whole: Counters
    window: StreamWindow | None
    chunks_are_steps: bool


async def run_plateau(server: Server, prompts: Sequence[Prompt], *, tokens: int) -> Plateau:
    """Complete all prompts at once, each by `tokens` tokens.

    Raises:
        ServerError: the server fails, is busy with other requests, does not count, or runs fewer requests at once.
    """
    batch = len(prompts)
    idle = await _counted(server)
    if idle.running or idle.waiting:
        raise ServerError(
            f"the server works on {(idle.running or 0) + (idle.waiting or 0):g} other requests",
            hint="measure a server that nobody else uses: step times are those of a batch size",
        )
    streams: list[list[Chunk]] = [[] for _ in prompts]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(server.stream(p, tokens, into)) for p, into in zip(prompts, streams, strict=True)]
        await _until(running, lambda: all(len(s) > 1 for s in streams))
        begin = await _counted(server)
        _check_batch(begin, batch, streams)
        await _until(running, lambda: max(s[-1].tokens for s in streams) >= _BEFORE_THE_END * tokens)
        end = await _counted(server)
    got = sum(s[-1].tokens for s in streams)
    after = await _settled(server, idle, got)
    whole, chunks = after.since(idle), sum(len(s) - 1 for s in streams)
    steady = end.since(begin)
    if whole.fell or steady.fell:
        raise ServerError("the server's counters fell", hint="was it restarted meanwhile? measure again")
    _check_alone(end, whole, batch, got)
    return Plateau(
        batch=batch,
        prompt_tokens=sum(task.result() for task in running) / batch,
        tokens=tokens,
        steady=steady,
        whole=whole,
        window=steady_window(streams),
        chunks_are_steps=_agree(chunks, whole.steps) and _agree(got, whole.generated),
    )


async def _counted(server: Server) -> Counters:
    found = await server.counters()
    if found is None or found.generated is None:
        raise ServerError(
            f"{server.url}/metrics does not count generated tokens",
            hint="without the server's own counters a chunk cannot be told from a step: start it with metrics on",
        )
    return found


async def _until(running: Sequence[asyncio.Task[int]], reached: Callable[[], bool]) -> None:
    """Waits until it is so, or all streams have ended, or one has failed."""
    while not reached() and not all(t.done() for t in running):
        if any(t.done() and t.exception() for t in running):
            await asyncio.sleep(60)  # the group ends this wait with the failure
        await asyncio.sleep(_POLL_S)


def _check_batch(now: Counters, batch: int, streams: Sequence[Sequence[Chunk]]) -> None:
    ended = any(len(s) < 2 for s in streams)
    if ended or now.waiting or (now.running is not None and now.running != batch):
        at_once = "fewer" if now.running is None else f"{now.running:g}"
        raise ServerError(
            f"the server ran {at_once} of {batch} requests at once",
            hint="raise its limit (vLLM: --max-num-seqs), ask for more --tokens, or leave that concurrency out",
        )


def _check_alone(end: Counters, whole: Counters, batch: int, tokens: int) -> None:
    """That nobody else was served meanwhile."""
    generated = whole.generated or 0.0
    if (end.running or 0.0) > batch or end.waiting or generated > (1 + _OTHERS) * tokens + _LATE:
        raise ServerError(
            f"the server generated {generated:g} tokens where {batch} requests of ours got {tokens}",
            hint="measure a server that nobody else uses: step times are those of a batch size",
        )


async def _settled(server: Server, idle: Counters, tokens: int) -> Counters:
    """The counters once they hold all that was sent, or after a while as they are."""
    for _ in range(round(_SETTLE_S / 0.1)):
        now = await _counted(server)
        if (now.since(idle).generated or 0) >= tokens and not now.running:
            return now
        await asyncio.sleep(0.1)
    return await _counted(server)


def _agree(ours: float, theirs: float | None) -> bool:
    return theirs is not None and abs(ours - theirs) <= max(AGREE * theirs, 0.5)

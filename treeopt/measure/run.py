"""All concurrencies in turn, within a time budget; each row is handed over as soon as it is whole."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.measure.plateau import Plateau, run_plateau
from treeopt.measure.rows import StepRow, row_of
from treeopt.measure.server import Prompt, Server, connected

WANTED_STEPS: Final = 400  # of single requests: their mean is then good to a few percent on a quiet server
_WARM_UP_TOKENS: Final = 16
MAX_PLATEAUS: Final = 8

BUILT_IN_PROMPTS: Final = (
    "Explain to a new colleague how a hash table works, and when a sorted array is the better choice.",
    "Write a short story about a lighthouse keeper who finds a letter in the sand after a storm.",
    "Write a Python function that merges two sorted lists, and explain each line of it.",
    "What are the arguments for and against a four-day working week? Give three of each.",
    "Summarise the causes of the French Revolution in five paragraphs for a school book.",
    "Translate this sentence into French, Spanish and German: the train leaves at half past nine from platform two.",
    "A train travels 180 km in two hours and a quarter. How fast is it? Show each step of the calculation.",
    "List the steps to change a bicycle tyre, with the tools that are needed.",
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure: `tokens` of each request, within `budget_s` seconds in all."""

    url: str
    concurrencies: tuple[int, ...]
    prompts: tuple[Prompt, ...] = BUILT_IN_PROMPTS
    tokens: int = 128
    budget_s: float = 120.0
    timeout_s: float = 60.0
    model: str | None = None
    api_key: str | None = None


async def measure(
    task: Task,
    *,
    done: Callable[[int, int], bool],
    keep: Callable[[StepRow, Sequence[Plateau], str], None],
    progress: Callable[[str], None],
) -> None:
    """Measure each concurrency and hand its row to `keep`; `done(batch, k_max)` says which there are already.

    Raises:
        ServerError: the server fails; rows that were kept stay.
    """
    begun = time.monotonic()
    async with connected(task.url, timeout_s=task.timeout_s, api_key=task.api_key, model=task.model) as server:
        counters = await server.counters()
        k_max = len(counters.by_position) if counters is not None else 0
        left = [b for b in task.concurrencies if not done(b, k_max)]
        for i, batch in enumerate(left):
            share_s = max(task.budget_s - (time.monotonic() - begun), 0.0) / (len(left) - i)
            progress(f"{batch} requests at once, {share_s:.0f} s")
            plateaus = await _plateaus(server, task, batch, share_s)
            keep(row_of(plateaus), plateaus, server.model)


async def _plateaus(server: Server, task: Task, batch: int, share_s: float) -> list[Plateau]:
    """Plateaus of one batch size until there are enough steps or its time is over; at least one."""
    begun = time.monotonic()
    prompts = itertools.cycle(task.prompts)
    for prompt in itertools.islice(prompts, 1):
        await server.stream(prompt, _WARM_UP_TOKENS, [])
    found: list[Plateau] = []
    while len(found) < MAX_PLATEAUS:
        before = time.monotonic()
        found.append(await run_plateau(server, list(itertools.islice(prompts, batch)), tokens=task.tokens))
        steps = sum(len(p.window.gaps_s) for p in found if p.window is not None)
        next_ends = 2 * time.monotonic() - before - begun
        if steps >= WANTED_STEPS or next_ends > share_s:
            break
    return found

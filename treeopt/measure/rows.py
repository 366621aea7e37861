"""Measured rows: what `--cost` and `profile fit --steps` read, and what was accepted, as a rank profile."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from treeopt.acceptance.position import PositionSurvival
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import read_text
from treeopt.measure.plateau import Plateau
from treeopt.measure.window import half_width, joined

COLUMNS: Final = ("batch", "k", "k_max", "context", "step_ms", "accept_len", "n", "low", "high")
_COUNTS: Final = ("batch", "k", "k_max", "context", "n")
_WHOLE: Final = 0.05  # how far a mean draft length may be from a whole one


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """The step of one batch size as it was served.

    `k` drafts of each request were verified of the `k_max` that the server was started for (0 without a drafter);
    `accept_len` is E over all steps, the bonus token counted; `n` steps of single requests stand behind it, `low` and
    `high` are a 95 % interval of the mean step, in ms, None where one mean is all there is; `context` is the mean
    number of tokens before a step.
    """

    batch: int
    k: int
    k_max: int
    context: int
    step_ms: float
    accept_len: float
    n: int
    low: float | None = None
    high: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole batch: 8 requests, 2 tokens a step, 20 ms make 800."""
        return 1e3 * self.batch * self.accept_len / self.step_ms


def row_of(plateaus: Sequence[Plateau]) -> StepRow:
    """One row from the plateaus of a batch size.

    Steps are told from the chunks where those agree with the server's counters, else from means of the counters alone.

    Raises:
        InputError: neither can tell a step.
    """
    first = plateaus[0]
    windows = [p.window for p in plateaus if p.chunks_are_steps and p.window is not None]
    if windows:
        window = joined(windows)
        step_s, length, n = window.step_s, window.tokens_per_step, len(window.gaps_s)
        half_s: float | None = half_width(window.gaps_s)
    else:
        step_s, length, n, half_s = _from_counters(plateaus)
    k = _draft_length(plateaus)
    if k == 0 and length > 1 + _WHOLE:
        raise InputError(
            f"batch {first.batch}: {length:.2f} tokens per step, and the server counts no drafts",
            hint="its draft length is not known, so neither is what these steps are of",
        )
    return StepRow(
        batch=first.batch,
        k=k,
        k_max=max(len(p.whole.by_position) for p in plateaus),
        context=round(first.prompt_tokens + first.tokens / 2),
        step_ms=1e3 * step_s,
        accept_len=max(length, 1.0),
        n=n,
        low=None if half_s is None else 1e3 * (step_s - half_s),
        high=None if half_s is None else 1e3 * (step_s + half_s),
    )


def _from_counters(plateaus: Sequence[Plateau]) -> tuple[float, float, int, float | None]:
    """Step, E, number of steps and half the interval from what the server counted while all requests ran."""
    steady = [p.steady for p in plateaus if p.steady.steps and p.steady.steps_s and p.steady.generated]
    if not steady:
        raise InputError(
            f"batch {plateaus[0].batch}: chunks are not steps, and the server counts none",
            hint="start it without --stream-interval, with metrics on",
        )
    n = sum(c.steps or 0.0 for c in steady)
    step_s, length = sum(c.steps_s or 0.0 for c in steady) / n, sum(c.generated or 0.0 for c in steady) / n
    means = np.array([(c.steps_s or 0.0) / (c.steps or 1.0) for c in steady])
    return step_s, length, round(n), half_width(means) if len(means) > 1 else None


def _draft_length(plateaus: Sequence[Plateau]) -> int:
    """K while all requests ran: of drafters that may draft less, as n-grams do, the longest that the mean allows."""
    drafts = sum(p.steady.drafts or 0.0 for p in plateaus)
    drafted = sum(p.steady.drafted or 0.0 for p in plateaus)
    if not drafts:
        return 0
    mean = drafted / drafts
    return round(mean) if abs(mean - round(mean)) <= _WHOLE else math.ceil(mean)


@dataclass(frozen=True, kw_only=True)
class ServerSteps:
    """The steps of a server, and what it accepted; None where it drafted nothing."""

    FORMAT: ClassVar[str] = "treeopt.measure/1"

    rows: tuple[StepRow, ...]
    ranks: RankProfile | None = None


def accepted_profile(plateaus: Iterable[Plateau], *, name: str, target: str) -> RankProfile | None:
    """What was accepted at the most frequent draft length; None without drafts."""
    by_length: dict[int, list[Plateau]] = {}
    for plateau in plateaus:
        by_length.setdefault(_draft_length([plateau]), []).append(plateau)
    by_length.pop(0, None)
    if not by_length:
        return None
    K, found = max(by_length.items(), key=lambda item: sum(p.steady.drafts or 0.0 for p in item[1]))
    drafts = round(sum(p.steady.drafts or 0.0 for p in found))
    counted = [round(sum(p.steady.by_position[i] for p in found)) for i in range(K)]
    accepted = np.minimum.accumulate([float(drafts), *counted])[1:]  # a scrape may fall between two of its counters
    return RankProfile(
        name=name,
        evidence=PositionSurvival.from_counts(drafts=drafts, accepted=accepted),
        conditions=Conditions(target=target, temperature=0, rule="greedy", sampling="draft-starts"),
        sha256="",
    )


def read_rows(path: Path) -> list[StepRow]:
    """The rows that an earlier run left.

    Raises:
        FileFormatError: the file is of something else.
    """
    found = []
    lines = csv.DictReader(read_text(path, what="file of step times").splitlines())
    if tuple(lines.fieldnames or ()) != COLUMNS:
        raise FileFormatError(f"{path}:1: not written by `treeopt measure`", hint="give --out another name")
    for values in lines:
        try:
            read: dict[str, Any] = {
                name: (int if name in _COUNTS else float)(values[name])
                for name in COLUMNS
                if values[name] or name not in ("low", "high")
            }
            found.append(StepRow(**read))
        except (TypeError, ValueError):
            raise FileFormatError(f"{path}:{lines.line_num}: no row of step times", hint="delete the line") from None
    return found


def rows_csv(rows: Iterable[StepRow]) -> str:
    """The rows as CSV, by batch size and draft length."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda r: (r.k_max, r.batch, r.k)):
        writer.writerow([f"{v:.5g}" if isinstance(v, float) else v for v in (getattr(row, c) for c in COLUMNS)])
    return text.getvalue()

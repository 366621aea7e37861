"""A running server's own counters, read again and again until a question is decided."""

from __future__ import annotations

import math
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final

from treeopt.acceptance.intervals import NORMAL_QUANTILE
from treeopt.answer import Estimate
from treeopt.check.change import DESIGN_EFFECT, length_error
from treeopt.check.check import check_plan
from treeopt.check.measured import Measured, Metrics, read_metrics
from treeopt.check.report import CheckReport
from treeopt.errors import FileFormatError, InputError
from treeopt.files.typed import Between
from treeopt.plan.plan import Plan

# TensorRT-LLM answers counters under the second one.
_PAGES: Final = ("/metrics", "/prometheus/metrics")
_MOST_BYTES: Final = 64 << 20
TIMEOUT_S: Final = 20.0

Decide = Callable[[Metrics], "Decision"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether what was asked is `decided`, in words; `cannot`: why these counters will never tell; neither: not yet."""

    decided: str = ""
    cannot: str = ""

    @property
    def is_final(self) -> bool:
        """Whether more counting changes nothing."""
        return bool(self.decided or self.cannot)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One source of a server's counters since the watch began.

    Args:
        source: what tells it from others.
        steps: request-steps; null where the server does not count them.
        draft_tokens_per_draft: null where they were not counted.
        acceptance_length: tokens per step over all steps.
        positions: the share of the steps in which drafts were accepted up to each position; empty where only a mean
            is counted. Intervals take requests as alike within themselves, as `check` does.
    """

    source: str
    steps: float | None
    draft_tokens_per_draft: Annotated[float | None, Between(0.0)]
    acceptance_length: Estimate | None
    positions: tuple[Estimate, ...]


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a server counted since the watch began, and what became of the question.

    Args:
        url: the server.
        seconds: how long it was watched.
        decided: what was decided, empty where nothing was.
        cannot: what these counters cannot decide and what could.
    """

    FORMAT: ClassVar[str] = "treeopt.watch/1"
    url: str
    seconds: Annotated[float, Between(0.0)]
    sources: tuple[Watched, ...]
    decided: str = ""
    cannot: str = ""
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Scrapes:
    """The first and the last scrape of a server, as files that importers read."""

    url: str
    folder: Path
    page: str = ""
    restarts: int = 0
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def of(cls, url: str) -> Iterator[Scrapes]:
        """Reads `/metrics` of a server for the first time.

        Raises:
            InputError: it does not answer, or with something else.
        """
        if not url.startswith(("http://", "https://")):
            raise InputError(f"'{url}' is no address", hint="write it as http://127.0.0.1:8000")
        base = url.rstrip("/").removesuffix("/v1")
        with tempfile.TemporaryDirectory(prefix="treeopt-") as folder:
            scrapes = cls(url=base, folder=Path(folder))
            scrapes.page = next((page for page in _PAGES if _answers(base + page)), _PAGES[0])
            scrapes._before.write_bytes(_fetch(base + scrapes.page))
            yield scrapes

    def read(self) -> Metrics:
        """What was counted since the first scrape, or since the server started again.

        Raises:
            InputError: the server is gone, or counts no drafts at all.
        """
        self._after.write_bytes(_fetch(self.url + self.page))
        if self._before.exists():
            try:
                return read_metrics([self._before, self._after])
            except FileFormatError as error:
                if " fell from " not in str(error):
                    raise
            self._before.unlink()  # the server started again: all that it counts came after
            self.restarts += 1
        return read_metrics([self._after])

    @property
    def seconds(self) -> float:
        """Since the first scrape."""
        return time.monotonic() - self.begun

    @property
    def _before(self) -> Path:
        return self.folder / "before.prom"

    @property
    def _after(self) -> Path:
        return self.folder / "after.prom"


def watch(
    scrapes: Scrapes, decide: Decide, *, interval_s: float, seconds: float | None, tell: Callable[[Watch], None]
) -> Watch:
    """Poll until it is decided or known never to be, or the time is over; each poll is told.

    Raises:
        InputError: the server is gone, or counts no drafts at all.
    """
    while True:
        metrics = scrapes.read()
        found = decide(metrics)
        now = _watched(scrapes, metrics, found)
        tell(now)
        if found.is_final or (seconds is not None and now.seconds + interval_s > seconds):
            return now
        time.sleep(interval_s)


def endless(metrics: Metrics) -> Decision:
    """Nothing was asked."""
    return Decision(cannot=metrics.off)


def for_chain(K: int, *, gate: float) -> Decide:
    """Is E of chains of K tokens known within the gate, with 95 % probability?"""

    def decide(metrics: Metrics) -> Decision:
        known = [source for source in metrics.sources if source.steps]
        if not known:
            return Decision(cannot=metrics.off)
        longest = max(len(source.survival) if source.survival is not None else 0 for source in known)
        if not longest:
            why = "only a mean is counted, which says nothing of single positions"
            return Decision(cannot=f"{why}: serve with vLLM or TensorRT-LLM, which count by position")
        if longest < K:
            why = f"drafts have up to {longest} tokens, and what one more is worth shows nowhere"
            return Decision(cannot=f"{why}: start the server with {K} or more")
        best = max((s for s in known if s.survival is not None and len(s.survival) >= K), key=lambda s: s.steps or 0.0)
        assert best.survival is not None
        assert best.steps is not None
        length = 1.0 + float(best.survival[:K].sum())
        error = NORMAL_QUANTILE * length_error(best.survival[:K], best.steps)
        if error > gate * length:
            return Decision()
        return Decision(decided=f"chains of {K} give {length:.2f} tokens per step, within {error:.2f}")

    return decide


def for_plan(plan: Plan, *, gate: float, batch: int | None, into: list[CheckReport]) -> Decide:
    """Does a plan hold, as `check` judges it? The last report is put into `into`."""

    def decide(metrics: Metrics) -> Decision:
        report = check_plan(plan, metrics, gate=gate, batch=batch)
        into[:] = [report]
        if report.findings and (metrics.off or not metrics.drafted_nothing):
            told = "; ".join(f"{f.kind.value} ({f.where}): {f.seen}" for f in report.findings)
            return Decision(decided=f"the plan does not hold: {told}")
        if not report.comparisons:
            return Decision(cannot=metrics.off)
        if any(c.change.measured_error is None for c in report.comparisons):
            return Decision(cannot=f"chance cannot be told from change: {'; '.join(report.notes)}")
        if any(c.verdict == "cannot tell" for c in report.comparisons):
            hidden = [c for c in report.comparisons if c.change.missing(c.measured.steps or 0.0) is None]
            why = "the plan's own interval hides a change of that size: search with more documents"
            return Decision(cannot=why) if hidden else Decision()
        return Decision(decided=f"the plan holds: no change of more than {gate:.0%}")

    return decide


def _watched(scrapes: Scrapes, metrics: Metrics, found: Decision) -> Watch:
    started = f"the server started again {scrapes.restarts} times: counted since the last time"
    return Watch(
        url=scrapes.url,
        seconds=scrapes.seconds,
        sources=tuple(_source(source) for source in metrics.sources),
        decided=found.decided,
        cannot=found.cannot,
        notes=(*([started] if scrapes.restarts else []), *metrics.warnings),
    )


def _source(source: Measured) -> Watched:
    survival = [] if source.survival is None else source.survival.tolist()
    steps, length = source.steps, source.length
    reach = None if source.error is None else NORMAL_QUANTILE * source.error
    return Watched(
        source=source.name,
        steps=steps,
        draft_tokens_per_draft=source.drafted,
        acceptance_length=None
        if length is None
        else Estimate(
            value=length,
            low=None if reach is None else max(1.0, length - reach),
            high=None if reach is None else length + reach,
        ),
        positions=tuple(share_interval(share, steps) for share in survival),
    )


def share_interval(share: float, steps: float | None) -> Estimate:
    """A counted share with its 95 % interval (Wilson 1927), for as many steps as they are worth (`DESIGN_EFFECT`).

    Worked: 0.5 of 900 steps, worth 100 independent ones, is 0.404 to 0.596.
    """
    if not steps:
        return Estimate(value=share)
    n, z = steps / DESIGN_EFFECT, NORMAL_QUANTILE
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Estimate(value=share, low=max(0.0, min(share, middle - reach)), high=min(1.0, max(share, middle + reach)))


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(_asked(address), timeout=TIMEOUT_S) as answer:
            return b"spec" in answer.read(_MOST_BYTES)
    except urllib.error.HTTPError:
        return False
    except (OSError, ValueError) as error:
        raise _gone(address, error) from None


def _fetch(address: str) -> bytes:
    try:
        with urllib.request.urlopen(_asked(address), timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(_MOST_BYTES)
            return content
    except urllib.error.HTTPError as error:
        raise InputError(
            f"{address} answered {error.code}", hint="start the server with its metrics on (SGLang: --enable-metrics)"
        ) from None
    except (OSError, ValueError) as error:
        raise _gone(address, error) from None


def _asked(address: str) -> urllib.request.Request:
    return urllib.request.Request(address, headers={"Accept": "text/plain"})


def _gone(address: str, error: Exception) -> InputError:
    why = getattr(error, "reason", error)
    return InputError(f"nothing answers at {address}: {why}", hint="start the server, or correct the address")

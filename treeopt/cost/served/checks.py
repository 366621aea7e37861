"""What is wrong with a table of step times: named by file and line, refused where it would spoil a fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.served.step import ServedStep, medians

# A unit is off by 1000; steps of one table that are not differ by less than 100 (eager fall-out: 7 times).
_UNIT_OFF: Final = 100.0
_NOISE: Final = 0.005  # a time that falls by less is a run's noise
_CONTRADICTION: Final = 0.1  # two measurements of one point that differ by more were not of one thing
_MIN_REPEATED: Final = 2  # equal cells of two batch sizes before one counts as a copy of the other


@dataclass(frozen=True, kw_only=True)
class CheckedSteps:
    """The rows that remain, and what was found, one sentence each with its file and line."""

    rows: tuple[ServedStep, ...]
    findings: tuple[str, ...]


def checked(rows: Sequence[ServedStep]) -> CheckedSteps:
    """Drop copies, name what is odd.

    Raises:
        FileFormatError: a row in another unit than the rest, or two rows of one point that contradict each other.
    """
    _refuse_mixed_units(rows)
    rows, pauses = _without_pauses(rows)
    kept, copies = _without_copies(rows)
    kept, repeated = _without_repeated_batches(kept)
    return CheckedSteps(rows=tuple(kept), findings=(*pauses, *copies, *repeated, *_falls(kept)))


def refuse_other_unit(rows: Sequence[ServedStep], expected_s: FloatArray) -> None:
    """Refuse a table that is as a whole a thousand times off what its kernels take.

    Raises:
        FileFormatError: the unit of the file is not the one its column says.
    """
    off = float(np.median([row.step_time_s for row in rows] / expected_s))
    if not 1 / _UNIT_OFF < off < _UNIT_OFF:
        raise rows[0].place.error(
            f"{rows[0].step_time_s * 1e3:.4g} ms where the kernels take {expected_s[0] * 1e3:.4g} ms, and all rows "
            f"alike: {off:.3g} times, as if given {_unit(off)}",
            hint="correct the unit in the header: step_us, step_ms or step_s; or check --model and --hardware",
        )


def _refuse_mixed_units(rows: Sequence[ServedStep]) -> None:
    typical = float(np.median([row.step_time_s for row in rows])) if rows else 1.0
    for row in rows:
        off = row.step_time_s / typical
        if not 1 / _UNIT_OFF < off < _UNIT_OFF:
            raise row.place.error(
                f"{row.step_time_s * 1e3:.4g} ms beside a median of {typical * 1e3:.4g} ms: {off:.3g} times, "
                f"as if given {_unit(off)}",
                hint="give all rows in one unit, or leave this one out",
            )


def _unit(off: float) -> str:
    return "in a unit 1000 times smaller (us for ms, ms for s)" if off > 1 else "in a larger unit (s for ms, ms for us)"


def _without_pauses(rows: Sequence[ServedStep]) -> tuple[list[ServedStep], list[str]]:
    """The rows without pauses of a schedule, which are neither plain nor drafted steps."""
    pauses = [row for row in rows if row.off]
    found = [f"{len(pauses)} rows of K = 0 inside a schedule are no plain decoding: left out"] if pauses else []
    return [row for row in rows if not row.off], found


def _without_copies(rows: Sequence[ServedStep]) -> tuple[list[ServedStep], list[str]]:
    """The rows without those that repeat one to the last digit; the order of the rows changes no more than words."""
    seen: dict[object, list[ServedStep]] = {}
    kept, findings = [], []
    for row in rows:
        before = seen.setdefault((row.batch, row.shape), [])
        if row.step_time_s in [other.step_time_s for other in before]:
            findings.append(row.say(f"{row.named()} is listed twice: counted once"))
            continue
        _refuse_contradiction(row, before)
        if before:
            findings.append(row.say(f"{row.named()} was measured again: a fit takes all its times, a table the median"))
        before.append(row)
        kept.append(row)
    return kept, findings


def _refuse_contradiction(row: ServedStep, before: Sequence[ServedStep]) -> None:
    for other in before:
        low, high = sorted((row.step_time_s, other.step_time_s))
        if high / low - 1.0 > _CONTRADICTION:
            raise row.place.error(
                f"{row.named()} took {row.step_time_s * 1e3:.4g} ms, and {other.step_time_s * 1e3:.4g} ms before",
                hint="they cannot both be right: leave one out",
            )


def _without_repeated_batches(rows: Sequence[ServedStep]) -> tuple[list[ServedStep], list[str]]:
    """A batch size whose every time is another's, to the last digit, was copied and not measured."""
    times: dict[int, set[object]] = {}
    for row in rows:
        times.setdefault(row.batch, set()).add((row.shape, row.step_time_s))
    copied = dict(_copied_batches(times))
    findings = []
    for batch, source in copied.items():
        row = next(row for row in rows if row.batch == batch)
        findings.append(
            row.say(f"all {len(times[batch])} times of batch {batch} repeat those of batch {source}: left out")
        )
    return [row for row in rows if row.batch not in copied], findings


def _copied_batches(times: dict[int, set[object]]) -> Iterator[tuple[int, int]]:
    batches = sorted(times)
    for i, batch in enumerate(batches):
        if len(times[batch]) >= _MIN_REPEATED:
            source = next((other for other in batches[:i] if times[batch] <= times[other]), None)
            if source is not None:
                yield batch, source


def _falls(rows: Sequence[ServedStep]) -> Iterator[str]:
    """Times that fall where there is more to do: real (other kernels, other graphs) or a slip, so they stay."""
    chains = medians(row for row in rows if row.is_chain)
    by_batch = sorted(chains, key=lambda row: (row.batch, row.nodes))
    by_nodes = sorted(chains, key=lambda row: (row.nodes, row.batch))
    for before, row in itertools.pairwise(by_batch):
        if before.batch == row.batch and _is_less(row, before):
            yield row.say(f"{_falling(row, before)} with {row.depth - before.depth} more drafts: kept")
    for before, row in itertools.pairwise(by_nodes):
        if before.nodes == row.nodes and _is_less(row, before):
            yield row.say(f"{_falling(row, before)} with {row.batch - before.batch} more requests: kept")


def _is_less(row: ServedStep, before: ServedStep) -> bool:
    return row.step_time_s < before.step_time_s * (1.0 - _NOISE)


def _falling(row: ServedStep, before: ServedStep) -> str:
    return f"{row.named()} takes {row.step_time_s * 1e3:.4g} ms, less than {before.step_time_s * 1e3:.4g} ms"

"""How far promised speedups are from published ones, by hand: `python benchmarks/published_speedups.py FOLDER`.

Writes docs/price-error.md. Each published run gives the step of a speculating engine in plain steps: its acceptance
length over its speedup. The kernels' ratio plus four constants of the engine is judged on runs that the constants were
not fitted to; what comes out stands in `treeopt/cost/served/published.py`. FOLDER is that of `measured_data.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from measured_data import data_folder
from published_left_out import ELSEWHERE, left_out
from published_runs import FILES, SOURCES, Run, complaint, kernels_ms, passes, runs
from scipy.optimize import least_squares

from treeopt.arrays import FloatArray
from treeopt.cost.served.published import ERRORS, ConstantsFrom

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "price-error.md"
# ms: mean and deviation of step, speculative step, pass, token
PRIOR: Final = ((0.5, 0.2), (1.0, 1.0), (0.2, 0.2), (0.01, 0.01))
MOST: Final = (2.0, 6.0, 2.0, 0.3)
SCATTER: Final = 0.08  # of one source's runs about the best constants, as a logarithm
FEWEST: Final = 3  # runs that constants are fitted to
CLEAR: Final = (0.85, 1.2)  # a measured speedup outside is one that a verdict should be given of
BASES: Final = (ConstantsFrom.ENGINE, ConstantsFrom.TYPICAL)


class Judged(NamedTuple):
    """One source's runs of one drafter, with constants that were fitted without them.

    `priced` is the speculative step in plain steps, `off` the logarithm of the measured one over it.
    """

    source: str
    key: tuple[str, str, str]
    basis: ConstantsFrom
    constants: str
    runs: tuple[Run, ...]
    priced: FloatArray

    @property
    def engine(self) -> str:
        """Whose runs they are."""
        return self.key[0]

    @property
    def off(self) -> FloatArray:
        """`[R]` logarithms of measured over priced ratio."""
        return np.log([run.ratio for run in self.runs]) - np.log(self.priced)

    def inside(self, interval: tuple[float, float]) -> FloatArray:
        """`[R]` whether a run lies in an interval of `off`."""
        return np.asarray((self.off >= interval[0]) & (self.off <= interval[1]), dtype=np.float64)


class Kernels(NamedTuple):
    """Of each run, `[R]`: plain and speculative step by their kernels in ms, passes, batch size, B x N, ratio."""

    plain: FloatArray
    served: FloatArray
    passes: FloatArray
    batch: FloatArray
    tokens: FloatArray
    measured: FloatArray

    @classmethod
    def of(cls, found: Sequence[Run]) -> Kernels:
        """Those of some runs."""
        rows = [(*kernels_ms(r), passes(r), r.batch, r.batch * r.nodes, r.ratio) for r in found]
        return cls(*np.array(rows, dtype=np.float64).T)

    def ratios(self, constants: FloatArray) -> FloatArray:
        """`[R]` speculative steps in plain steps, with ms per step, speculative step, draft pass and token."""
        step, speculative, each_pass, token = constants
        served = self.served + step + speculative + each_pass * self.passes + token * self.tokens
        return np.asarray(served / (self.plain + step + token * self.batch))


def ratios(constants: FloatArray, found: Sequence[Run]) -> FloatArray:
    """`[R]` the priced speculative steps of runs, in plain steps."""
    return Kernels.of(found).ratios(constants)


def fitted(found: Sequence[Run]) -> FloatArray:
    """The four constants, every source and in it every target with the same weight, held near what a server can be."""
    rows = Counter((run.source, run.model) for run in found)
    targets = Counter(source for source, _ in rows)
    weights = np.array([1 / SCATTER / math.sqrt(rows[r.source, r.model] * targets[r.source]) for r in found])
    kernels = Kernels.of(found)
    means, deviations = np.array(PRIOR).T

    def errors(constants: FloatArray) -> FloatArray:
        of_runs = weights * np.log(kernels.ratios(constants) / kernels.measured)
        return np.concatenate([of_runs, (constants - means) / deviations])

    return np.asarray(least_squares(errors, means, bounds=(0.0, MOST), loss="soft_l1").x)


def judged(found: Sequence[Run]) -> Iterator[Judged]:
    """Each source and drafter with the constants that a run of it unseen would be priced with.

    `engine`: those of the other sources of the key, or, where there are none, of the source's other targets; left
    out where neither leaves `FEWEST` runs. `typical`: those of all other sources and keys.
    """
    for source, key in sorted({(run.source, run.key) for run in found}):
        own = [run for run in found if (run.source, run.key) == (source, key)]
        of_key = [run for run in found if run.key == key]
        others = [run for run in of_key if run.source != source]
        if key[1] and len(others) >= FEWEST:
            constants = fitted(others)
            yield _judged(ConstantsFrom.ENGINE, own, ratios(constants, own), _ms(constants))
        elif key[1] and not others and len({run.model for run in own}) > 1:
            parts = [[run for run in own if run.model == target] for target in dict.fromkeys(run.model for run in own)]
            priced = [ratios(fitted([run for run in own if run not in part]), part) for part in parts]
            ordered = [run for part in parts for run in part]
            yield _judged(ConstantsFrom.ENGINE, ordered, np.concatenate(priced), "of its other targets")
        constants = fitted([run for run in found if run.source != source and run.key != key])
        yield _judged(ConstantsFrom.TYPICAL, own, ratios(constants, own), _ms(constants))


def _judged(basis: ConstantsFrom, own: Sequence[Run], priced: FloatArray, constants: str) -> Judged:
    return Judged(own[0].source, own[0].key, basis, constants, tuple(own), priced)


def as_answered(every: Sequence[Judged]) -> list[Judged]:
    """Each source and drafter once, as a search would price it: by its engine's constants where there are some."""
    has = {(row.source, row.key) for row in every if row.basis is ConstantsFrom.ENGINE}
    return [row for row in every if row.basis is ConstantsFrom.ENGINE or (row.source, row.key) not in has]


def interval(every: Sequence[Judged], basis: ConstantsFrom) -> tuple[float, float]:
    """The shortest that leaves at most a tenth of each engine's runs on either side.

    Every source of an engine has the same weight, and in it every drafter.
    """
    rows = [row for row in every if row.basis is basis and row.engine]
    ends = []
    for engine in sorted({row.engine for row in rows}):
        own = [row for row in rows if row.engine == engine]
        drafters = Counter(row.source for row in own)
        off = np.concatenate([row.off for row in own])
        weights = np.concatenate([np.full(len(r.off), 1 / len(r.off) / drafters[r.source]) for r in own])
        ends.append(np.quantile(off, [0.1, 0.9], weights=weights, method="inverted_cdf"))
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


def coverage(rows: Sequence[Judged], intervals: dict[ConstantsFrom, tuple[float, float]]) -> float:
    """Share of runs inside, every source with the same weight, and in it every drafter."""
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(float(row.inside(intervals[row.basis]).mean()))
    return float(np.mean([np.mean(shares) for shares in by_source.values()]))


def unseen(every: Sequence[Judged]) -> float:
    """Coverage where the interval, too, is taken without the judged source."""
    shares = []
    for source in dict.fromkeys(row.source for row in every):
        others = [row for row in every if row.source != source]
        intervals = {basis: interval(others, basis) for basis in BASES}
        shares.append(coverage([row for row in as_answered(every) if row.source == source], intervals))
    return float(np.mean(shares))


class Verdicts(NamedTuple):
    """Of `clear` runs, how many have a verdict and how many of these are right."""

    clear: int
    given: int
    right: int


def verdicts(rows: Sequence[Judged]) -> Verdicts:
    """A verdict is given where the whole interval of the speedup is above or below 1."""
    clear = given = right = 0
    for row in rows:
        low, high = ERRORS[row.basis].ratio
        for run, priced in zip(row.runs, row.priced, strict=True):
            gain = run.length / float(priced)
            if CLEAR[0] <= run.speedup <= CLEAR[1]:
                continue
            pays, loses = gain * math.exp(-high) > 1, gain * math.exp(-low) < 1
            clear, given = clear + 1, given + (pays or loses)
            right += (pays and run.speedup > 1) or (loses and run.speedup < 1)
    return Verdicts(clear, given, right)


def main() -> None:
    """Write the document."""
    folder = data_folder(SOURCES, *FILES)
    found = runs(folder)
    every = list(judged(found))
    shipped = {basis: ERRORS[basis].ratio for basis in BASES}
    told = [
        *map(_interval_line, BASES, (interval(every, basis) for basis in BASES)),
        *(f"- {line}" for line in _coverage_lines(every, shipped)),
    ]
    document = HEAD + "\n".join(_row(row, shipped[row.basis]) for row in every) + "\n\n" + "\n".join(told)
    document += VERDICTS + "\n".join(_verdict_lines(as_answered(every)))
    document += CONSTANTS.format(typical=_ms(fitted(found))) + "\n".join(_constants(found, as_answered(every)))
    document += ELSEWHERE.format(complaint=_complaint(folder, found)) + "\n".join(left_out(folder)) + "\n"
    DOCUMENT.write_text(document)
    print(f"wrote {DOCUMENT}")


def _row(row: Judged, ends: tuple[float, float]) -> str:
    q10, q90 = np.quantile(row.off, [0.1, 0.9])
    return (
        f"| {row.source}, {row.key[2]} | {len(row.runs)} | {row.basis} | {row.constants} | "
        f"{row.off.mean():+.2f} | {q10:+.2f} to {q90:+.2f} | {row.inside(ends).mean():.0%} |"
    )


def _interval_line(basis: ConstantsFrom, ends: tuple[float, float]) -> str:
    low, high = ERRORS[basis].ratio
    width = math.exp(-low) - math.exp(-high)
    return (
        f"- {basis}: the interval is [{low:+.3f}, {high:+.3f}], {width:.0%} of the speedup wide (these rows give "
        f"[{ends[0]:+.3f}, {ends[1]:+.3f}])"
    )


def _coverage_lines(every: Sequence[Judged], shipped: dict[ConstantsFrom, tuple[float, float]]) -> Iterator[str]:
    rows = as_answered(every)
    parts = {"all": rows, "SGLang": [r for r in rows if r.engine == "sglang"]}
    parts["vLLM"] = [r for r in rows if r.engine == "vllm"]
    shares = ", ".join(f"{name} {coverage(own, shipped):.0%}" for name, own in parts.items())
    yield f"inside, every source with the same weight: {shares}"
    yield f"the same with intervals that were taken without the judged source, too: {unseen(every):.0%}"


def _verdict_lines(rows: Sequence[Judged]) -> Iterator[str]:
    for source in (*dict.fromkeys(row.source for row in rows), "all"):
        found = verdicts([row for row in rows if source in (row.source, "all")])
        if found.clear:
            right = f"{found.right} ({found.right / found.given:.0%})" if found.given else "-"
            yield f"| {source} | {found.clear} | {found.given} ({found.given / found.clear:.0%}) | {right} |"


def _constants(found: Sequence[Run], rows: Sequence[Judged]) -> Iterator[str]:
    for key in sorted({run.key for run in found if run.key[1]}):
        own = [run for run in found if run.key == key]
        sources = ", ".join(dict.fromkeys(run.source for run in own))
        off = np.abs(np.expm1(np.concatenate([row.off for row in rows if row.key == key])))
        errors = f"{np.median(off):.1%} | {np.quantile(off, 0.9):.1%}"
        yield f"| {' '.join(key)} | {sources} | {len(own)} | {_ms(fitted(own))} | {errors} |"


def _complaint(folder: Path, found: Sequence[Run]) -> str:
    slow = list(complaint(folder))
    off = np.log([run.ratio for run in slow]) - np.log(ratios(fitted([r for r in found if r.key == slow[0].key]), slow))
    low, high = ERRORS[ConstantsFrom.ENGINE].ratio
    inside = int(np.sum((off >= low) & (off <= high)))
    return (
        f"{off.min():+.2f} to {off.max():+.2f} of what they are priced at, {inside} of {len(slow)} inside the interval"
    )


def _ms(constants: FloatArray) -> str:
    return ", ".join(f"{c:.3f}" for c in constants)


HEAD: Final = """# How far a promised speedup may be off

Kernels are priced within 4 to 6 % ([cost-fits.md](cost-fits.md)); a served speculative step takes longer than its
kernels, by an amount that depends on the engine, its generation and the drafter. `python
benchmarks/published_speedups.py FOLDER` judges that on runs that others published: four constants (ms per step, per
speculative step, per draft pass, per verified token) are fitted to the other sources of the same engine, generation
and drafter, or, where there are none, to the source's other targets (`engine`); and to all other sources and drafters
(`typical`), what is taken where an engine and drafter have fewer than three published runs or none of another source
or target. The logarithm of measured over priced ratio (speculative step in plain steps) is told for what was left out.

| source left out | runs | constants from | ms | mean | 10 to 90 % | inside the interval |
| --- | ---: | --- | --- | ---: | --- | ---: |
"""
VERDICTS: Final = f"""

Each interval is the shortest that leaves at most a tenth of each engine's runs (left out as above, every source with
the same weight) on either side. It is what `search` prints around a speedup, beside the error of the acceptance.

## Is a verdict given, and is it right?

"Pays" and "does not pay" are said where the whole interval lies on one side of 1. Runs whose measured speedup is below
{CLEAR[0]} or above {CLEAR[1]}, each with the constants and interval of an unseen run:

| source | clear runs | verdict given | right |
| --- | ---: | ---: | ---: |
"""
CONSTANTS: Final = """

## The constants

All sources together give {typical} ms, what is taken where nothing of the engine and drafter is
published. Of each engine, generation and drafter, with the error of its runs when left out as above:

| engine | sources | runs | ms | median error | p90 |
| --- | --- | ---: | --- | ---: | ---: |
"""


if __name__ == "__main__":
    main()

"""Counters in the Prometheus text format, of one scrape or of the time between two.

Format: prometheus/docs, content/docs/instrumenting/exposition_formats.md, text format 0.0.4, and OpenMetrics 1.0, whose
samples differ in exemplars behind a `#` only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, ImportJob
from treeopt.acceptance.importers.records import QUANTITIES, Report, totals
from treeopt.files.evidence_lines import MAX_COUNT, Line, Printed, SourceFile, require

Labels = tuple[tuple[str, str], ...]

_LABEL: Final = r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*'
_LABELS: Final = re.compile(_LABEL)
_SAMPLE: Final = re.compile(
    rf"([a-zA-Z_:][\w:]*)\s*(?:\{{((?:{_LABEL}(?:,|(?=\}})))*)\s*\}})?\s+(\S{{1,40}})(?:\s+-?[\d.]+)?\s*(?:#.*)?$",
    re.ASCII,
)
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, kw_only=True)
class MetricSample:
    """One value of one series, and the line it stands on."""

    name: str
    labels: Labels
    value: float
    line: Line

    def label(self, name: str) -> str:
        """The value of a label; empty if the series has none of that name."""
        return dict(self.labels).get(name, "")


class Positioned(NamedTuple):
    """A sum over the series of one draft position, and where they begin."""

    position: int
    value: float
    place: Line


@dataclass(frozen=True)
class Scrape:
    """Samples that belong together, and sums over them."""

    samples: tuple[MetricSample, ...]

    def total(self, *names: str) -> float | None:
        """The sum over all series of the first of these names that is there; None if none is."""
        for name in names:
            found = [s.value for s in self.samples if s.name == name]
            if found:
                return sum(found)
        return None

    def by_position(self, name: str, label: str) -> list[Positioned]:
        """Sums of one name over each draft position, from 0.

        Raises:
            FileFormatError: a position that is no whole number, or a gap in them.
        """
        own = Scrape(tuple(s for s in self.samples if s.name == name))
        groups = [own.of(label, value) for value in own.values_of(label)]
        found = [Positioned(_position(g.samples[0], label), sum(s.value for s in g.samples), g.place) for g in groups]
        found.sort(key=lambda item: item.position)
        for i, item in enumerate(found):
            if item.position != i:
                raise item.place.error(f"{name} has position {item.position}, but not {i}", hint="give all positions")
        return found

    def values_of(self, label: str) -> list[str]:
        """The values that a label has, in order."""
        return sorted({s.label(label) for s in self.samples})

    def of(self, label: str, value: str) -> Scrape:
        """The samples whose label has the value."""
        return Scrape(tuple(s for s in self.samples if s.label(label) == value))

    @property
    def place(self) -> Line:
        """Where these samples begin."""
        return self.samples[0].line


def read_scrape(file: SourceFile, names: Iterable[str], *, earlier: SourceFile | None = None) -> Scrape:
    """The series whose names start with one of `names`; counters less those of an earlier scrape if one is given.

    Raises:
        InputError: there are none.
        FileFormatError: a series that is malformed, appears twice, or fell between the scrapes.
    """
    prefixes = tuple(names)
    series = _series(file.lines(), prefixes)
    require(bool(series), file, f"{prefixes[0]}... counter")
    if earlier is not None:
        series = _difference(_series(earlier.lines(), prefixes), series)
    return Scrape(tuple(series.values()))


def parse_sample(line: Line) -> MetricSample:
    """The sample that a line of the text format holds.

    Raises:
        FileFormatError: it holds none, or a value that no counter has.
    """
    found = _SAMPLE.match(line.text.strip())
    if found is None:
        raise line.error("not a Prometheus sample", hint="give the text that /metrics answers, as it came")
    labels = [(name, _unescaped(value)) for name, value in _LABELS.findall(found[2] or "")]
    try:
        value = float(found[5])
    except ValueError:
        raise line.error(
            f"not a Prometheus sample: '{found[5]}' is no number", hint="give the text as it came"
        ) from None
    if not 0 <= value <= MAX_COUNT:  # which no NaN is
        raise line.error(f"{found[1]} is {value:g}", hint="a counter is finite and not negative")
    return MetricSample(name=found[1], labels=tuple(sorted(labels)), value=value, line=line)


def _unescaped(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], value)


def _series(lines: Iterable[Line], prefixes: tuple[str, ...]) -> dict[tuple[str, Labels], MetricSample]:
    found: dict[tuple[str, Labels], MetricSample] = {}
    # Only the lines that matter are parsed, one by one: the rest may be of any size, and each value keeps its line.
    for line in lines:
        if not line.text.startswith(prefixes) or "_created" in line.text.split("{")[0]:
            continue
        sample = parse_sample(line)
        key = (sample.name, sample.labels)
        if key in found:
            raise line.error(
                f"{sample.name} was already given in line {found[key].line.number}",
                hint="one scrape per file; give two files to subtract the first from the second",
            )
        found[key] = sample
    return found


def _difference(
    first: dict[tuple[str, Labels], MetricSample], second: dict[tuple[str, Labels], MetricSample]
) -> dict[tuple[str, Labels], MetricSample]:
    result = {}
    for key, sample in second.items():
        if not sample.name.endswith(("_total", "_count", "_sum")):  # a gauge
            result[key] = sample
            continue
        before = first[key].value if key in first else 0.0
        if sample.value < before:
            raise sample.line.error(
                f"{sample.name} fell from {before:.10g} to {sample.value:.10g}",
                hint="the server restarted in between, or the scrapes are in the wrong order: earlier file first",
            )
        result[key] = replace(sample, value=sample.value - before)
    return result


def _position(sample: MetricSample, label: str) -> int:
    text = sample.label(label)
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise sample.line.error(f"{label} is '{text}'", hint="expected the draft position, from 0")
    return int(text)


def whole(value: float) -> int:
    """A counter's value, which sums of floats may have moved off its whole number."""
    return math.floor(value + 0.5)


@dataclass(frozen=True, kw_only=True)
class PrometheusFormat:
    """Reports in the text of /metrics, one per served model: names of counters, summed over their series.

    Args:
        prefix: what the names of an engine's speculation counters begin with.
        fields: our words and theirs; `counts` (accepted) and `tried` (drafted) are counters per position.
        position: the label that holds the draft position, from 0.
        gauge: a mean that stands for the last step only, where no drafts are counted.
    """

    prefix: str
    fields: Mapping[str, str]
    position: str
    gauge: str = ""

    def reports(self, job: ImportJob) -> Iterator[Report]:
        """The reports of a scrape, or of the time between two.

        Raises:
            InputError: it has no counter of speculation.
            FileFormatError: one is missing, malformed, given twice, or fell.
        """
        names = [self.prefix, *(n for name in ("steps", "emitted", "prefills") for n in self._names(name))]
        scrape = read_scrape(job.file, names, earlier=job.earlier)
        require(any(s.name.startswith(self.prefix) for s in scrape.samples), job.file, f"{self.prefix}... counter")
        models = [m for m in scrape.values_of("model_name") if self._speculates(scrape.of("model_name", m))]
        for name in models:
            yield self._report(job, scrape.of("model_name", name), name, name if len(models) > 1 else "")

    def _names(self, quantity: str) -> list[str]:
        return [name for name in self.fields.get(quantity, "").split("|") if name]

    def _speculates(self, scrape: Scrape) -> bool:
        return any(s.name.startswith(self.prefix) for s in scrape.samples)

    def _report(self, job: ImportJob, scrape: Scrape, model: str, label: str) -> Report:
        place = next(s.line for s in scrape.samples if s.name.startswith(self.prefix))
        sums = {q: scrape.total(*self._names(q)) for q in QUANTITIES if q in self.fields}
        needed = [q for q in ("drafts", "drafted", "accepted") if q in self.fields and sums[q] is None]
        if needed:
            raise place.error(
                f"{', '.join(self.fields[q] for q in needed)}: not all there, and the others say nothing alone",
                hint="give the whole scrape; vLLM V0 did not count drafts: give its log",
            )
        numbers = {q: None if total is None else whole(total) for q, total in sums.items()}
        if numbers.get("prefills") is None:
            numbers["emitted"] = None  # tokens alone do not tell how many steps gave them
        counted = scrape.by_position(self.fields["counts"], self.position)
        tried = scrape.by_position(self.fields["tried"], self.position) if "tried" in self.fields else []
        warnings: tuple[str, ...] = ()
        if "tried" in self.fields:
            numbers["drafts"] = whole(tried[0].value) if tried else None
            counted = counted[: sum(item.value > 0 for item in tried)]
            # Positions beyond those in the scrape may have been drafted too: only a complete set is a survival curve.
            if whole(sum(item.value for item in tried)) != numbers["drafted"]:
                counted = []
                warnings = (
                    (f"{job.name(label)}: positions are missing from the scrape, so only the mean is used",)
                    if tried
                    else ()
                )
        gauge = scrape.total(self.gauge) if self.gauge and not tried else None
        numbers = numbers if gauge is None else {}
        counts = DraftCounts(
            place=place,
            **totals(numbers),
            length=None if gauge is None else Printed(gauge, 0.0),
            counts=tuple(item.value for item in counted),
            places=tuple(item.place for item in counted),
            label=label,
            conditions=replace(SERVED, target=model or None),
        )
        return Report(counts=(counts,), warnings=warnings)

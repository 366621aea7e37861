"""Counters in the Prometheus text format, of one scrape or of the time between two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from treeopt.acceptance.importers.reading import Job
from treeopt.errors import InputError
from treeopt.files.evidence_lines import MAX_COUNT, Line, require

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One value of one series, and the line it stands on."""

    name: str
    labels: Labels
    value: float
    line: Line

    def label(self, name: str) -> str:
        """The value of a label; empty if the series has none of that name."""
        return dict(self.labels).get(name, "")


class Model(NamedTuple):
    """The samples of one served model; the label tells it from the others, if there are any."""

    name: str
    label: str
    samples: Samples


class Positioned(NamedTuple):
    """A sum over the series of one draft position, and where they begin."""

    position: int
    value: float
    place: Line


@dataclass(frozen=True)
class Samples:
    """Samples that belong together, and sums over them."""

    samples: tuple[Sample, ...]

    def total(self, name: str) -> float | None:
        """The sum over all series of one name; None if there are none."""
        found = [s.value for s in self.samples if s.name == name]
        return sum(found) if found else None

    def by_position(self, name: str, label: str) -> list[Positioned]:
        """Sums of one name over each draft position, from 0.

        Raises:
            FileFormatError: a position that is no whole number, or a gap in them.
        """
        own = Samples(tuple(s for s in self.samples if s.name == name))
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

    def of(self, label: str, value: str) -> Samples:
        """The samples whose label has the value."""
        return Samples(tuple(s for s in self.samples if s.label(label) == value))

    @property
    def place(self) -> Line:
        """Where these samples begin."""
        return self.samples[0].line


def read_models(job: Job, prefix: str) -> Iterator[Model]:
    """The counters whose names start with the prefix, by served model; less those of an earlier scrape if one is given.

    Raises:
        InputError: there are none, or the extra with the parser is not installed.
        FileFormatError: a series that is malformed, appears twice, or fell between the scrapes.
    """
    series = _series(job.file.lines(), prefix)
    require(bool(series), job.file, f"{prefix}... counter")
    if job.earlier is not None:
        series = _difference(_series(job.earlier.lines(), prefix), series)
    samples = Samples(tuple(series.values()))
    names = samples.values_of("model_name")
    for name in names:
        yield Model(name, name if len(names) > 1 else "", samples.of("model_name", name))


def _series(lines: Iterable[Line], prefix: str) -> dict[tuple[str, Labels], Sample]:
    parse = _parser()
    found: dict[tuple[str, Labels], Sample] = {}
    # Only the lines that matter are parsed, one by one: the rest may be of any size, and each value keeps its line.
    for line in lines:
        if not line.text.startswith(prefix) or "_created" in line.text.split("{")[0]:
            continue
        for sample in _parse_line(parse, line):
            key = (sample.name, sample.labels)
            if key in found:
                raise line.error(
                    f"{sample.name} was already given in line {found[key].line.number}",
                    hint="one scrape per file; give two files to subtract the first from the second",
                )
            found[key] = sample
    return found


def _parse_line(parse: Callable[[str], Iterable[Any]], line: Line) -> Iterator[Sample]:
    try:
        parsed = [sample for family in parse(line.text + "\n") for sample in family.samples]
    except (ValueError, LookupError, ArithmeticError) as error:
        raise line.error(f"not a Prometheus sample: {error}", hint="give the text that /metrics answers") from None
    for sample in parsed:
        if not 0 <= sample.value <= MAX_COUNT:  # which no NaN is
            raise line.error(f"{sample.name} is {str(sample.value)[:30]}", hint="a counter is finite and not negative")
        labels = tuple(sorted(sample.labels.items()))
        yield Sample(name=sample.name, labels=labels, value=float(sample.value), line=line)


def _difference(
    first: dict[tuple[str, Labels], Sample], second: dict[tuple[str, Labels], Sample]
) -> dict[tuple[str, Labels], Sample]:
    result = {}
    for key, sample in second.items():
        if not sample.name.endswith("_total"):  # a gauge
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


def _position(sample: Sample, label: str) -> int:
    text = sample.label(label)
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise sample.line.error(f"{label} is '{text}'", hint="expected the draft position, from 0")
    return int(text)


def _parser() -> Callable[[str], Iterable[Any]]:
    try:
        from prometheus_client.parser import text_string_to_metric_families  # an extra: nothing else needs it
    except ImportError:
        raise InputError(
            "reading Prometheus text needs prometheus_client", hint="pip install 'treeopt[import]'"
        ) from None
    return text_string_to_metric_families

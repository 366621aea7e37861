"""Reports of drafts in logs and printed tables, by the words before their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from treeopt.acceptance.conversions import fraction_from_percent
from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import ImportJob
from treeopt.acceptance.importers.records import CUT, QUANTITIES, Report, totals
from treeopt.files.evidence_lines import NUMBER, Line, Printed

_LIST: Final = r"\(?(?P<number>(?:\d{1,15}(?:\.\d{1,18})?(?:,\s*)?)+)"
_POSITIONS: Final = ("rates", "percents")


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Reports in text: regular expressions for what stands before each number.

    A report ends where one of its quantities stands again.

    Args:
        fields: our words and theirs. `rates` or `percents` with `{}` for the position are one to a line, else a list.
        flags: how their words are matched.
        pads: the list of rates may end before K.
        by_mean: K is what the drafts of a report had on average, rounded up: positions are listed up to the longest
            that is configured, whatever a schedule drafted.
        loose: people's text: rates above 1 are percent, and numbers with a fraction are no counts.
    """

    fields: Mapping[str, str]
    flags: int = 0
    pads: bool = False
    by_mean: bool = False
    loose: bool = False
    _patterns: dict[str, re.Pattern[str]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for name, words in self.fields.items():
            number = _LIST if name in _POSITIONS and "{}" not in words else NUMBER
            words = words.replace("{}", r"(?P<at>\d{1,4})")
            whole = words if "(?P<number>" in words else rf"(?:{words})\s*{number}"
            self._patterns[name] = re.compile(whole, self.flags | re.ASCII)

    def reports(self, job: ImportJob) -> Iterator[Report]:
        """The reports of a file; a last line that is cut off is left out, and told."""
        report = _TextReport(self)
        for line in job.file.lines():
            for found in self._parts(line):
                if report.has(found):
                    yield Report(counts=report.counts())
                    report = _TextReport(self)
                for item in found:
                    report.add(item)
        if report.last is not None:
            cut = not report.last.complete
            counts = tuple(replace(c, cut=cut) for c in report.counts())
            yield Report(counts=counts, warnings=(CUT,) if cut and not counts else ())

    def _in_line(self, line: Line) -> Iterator[list[_Quantity]]:
        """The quantities of a line as they stand in it, numbers of one list together."""
        matches = [(m.start(), name, m) for name, p in self._patterns.items() for m in p.finditer(line.text)]
        for _, name, found in sorted(matches, key=lambda item: item[0]):
            at = found.groupdict().get("at")
            numbers = re.findall(r"\d+(?:\.\d+)?", found["number"])
            positions = range(len(numbers)) if at is None else [int(at)]
            places = positions if name in _POSITIONS else [None]
            yield [_Quantity(name, i, Printed.of(n), line) for i, n in zip(places, numbers, strict=False)]

    def _parts(self, line: Line) -> Iterator[list[_Quantity]]:
        """What of a line belongs to one report: all of it, or of glued lines up to what stands there again."""
        part = _TextReport(self)
        for found in self._in_line(line):
            if part.has(found):
                yield part.quantities
                part = _TextReport(self)
            for item in found:
                part.add(item)
        yield part.quantities


class _Quantity(NamedTuple):
    """A number in a line, what it counts, and of which draft position."""

    name: str
    position: int | None
    printed: Printed
    line: Line


class _TextReport:
    """The quantities of one report, as they are found."""

    def __init__(self, format: TextFormat) -> None:
        self._format = format
        self._found: dict[tuple[str, int | None], _Quantity] = {}
        self.last: Line | None = None

    @property
    def quantities(self) -> list[_Quantity]:
        """The numbers, in the order in which they were found."""
        return list(self._found.values())

    def has(self, quantities: Iterable[_Quantity]) -> bool:
        """Whether one of these was found already."""
        return any((q.name, q.position) in self._found for q in quantities)

    def add(self, quantity: _Quantity) -> None:
        """One more number."""
        self._found.setdefault((quantity.name, quantity.position), quantity)
        self.last = quantity.line

    def counts(self) -> tuple[DraftCounts, ...]:
        """What was found as counts; nothing where it is of no drafts at all."""
        positions = self._positions()
        numbers = {name: self._whole(name) for name in QUANTITIES}
        length, rate = self._get("length"), self._rate()
        if not positions and length is None and numbers["accepted"] is None and numbers["drafted"] is None:
            return ()
        first = next(iter(self._found.values())).line
        listed = DraftCounts(
            place=first,
            **totals(numbers),
            length=None if length is None else length.printed,
            rate=None if rate is None else rate.printed,
            rates=tuple(q.printed for q in positions),
            places=tuple(q.line for q in positions),
            pads=self._format.pads,
            by_mean=self._format.by_mean,
            at={name: q.line for name, q in (("length", length), ("rate", rate)) if q is not None},
        )
        return (listed,)

    def _get(self, name: str) -> _Quantity | None:
        return self._found.get((name, None))

    def _whole(self, name: str) -> int | None:
        found = self._get(name)
        if found is None:
            return None
        if found.printed.rounding and self._format.loose:
            return None
        if found.printed.rounding:
            raise found.line.error(f"{found.printed.value:g} is no count", hint="counts are whole numbers")
        return int(found.printed.value)

    def _rate(self) -> _Quantity | None:
        percent = self._get("percent")
        return self._get("rate") if percent is None else percent._replace(printed=_fraction(percent.printed))

    def _positions(self) -> list[_Quantity]:
        """The rates per position, which engines count from 0 or from 1."""
        found = sorted((q for q in self._found.values() if q.position is not None), key=lambda q: q.position or 0)
        first = min((q.position or 0 for q in found), default=0)
        for i, item in enumerate(found):
            if item.position != first + i or first > 1:
                raise item.line.error(
                    f"position {item.position} is given, but not {first + i}", hint="give all positions"
                )
        percent = self._format.loose and any(q.printed.value > 1.0 for q in found)
        return [q._replace(printed=_fraction(q.printed)) if percent or q.name == "percents" else q for q in found]


def _fraction(percent: Printed) -> Printed:
    return Printed(fraction_from_percent(percent.value), fraction_from_percent(percent.rounding))

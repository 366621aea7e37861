"""Reports of drafts in JSON, by the names of their counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from treeopt.acceptance.conversions import fraction_from_percent, survival_from_conditional
from treeopt.acceptance.importers.counters import CONTRADICTION, DraftCounts
from treeopt.acceptance.importers.reading import CHAIN_ASSUMED, SERVED, ImportJob
from treeopt.acceptance.importers.reconciling import chains_of
from treeopt.acceptance.importers.records import QUANTITIES, Report, totals
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import Printed, bars, count, find_mappings, has

_CONDITIONS: Final = ("target", "drafter", "dataset", "temperature")
_LENGTH: Final = 0.005  # means in JSON are rounded to two digits, or not at all
_RATE: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """Reports in JSON: mappings that hold a key of `at`; a name is looked up there and in the mappings around it.

    Args:
        fields: our words and theirs; `a.b` is b inside a, `#0` the first key on the way to the mapping.
        labels: what tells reports of a file apart: a prefix, and whose value stands behind it.
        assumes_chains: the engine drafts trees too, and the report does not say which unless `topk` is in it.
    """

    at: str
    fields: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    assumes_chains: bool = False

    def reports(self, job: ImportJob) -> Iterator[Report]:
        """The reports of a file, those of no draft left out."""
        for document in job.file.records():
            for mapping in find_mappings(document, *self.at.split("|")):
                found = _Found(mapping, self)
                if has(mapping, *self.at.split("|")) and found.count("num_steps") != 0:
                    yield found.report()


@dataclass(frozen=True)
class _Found:
    """A mapping with a report, and the names in it."""

    mapping: Field
    format: JsonFormat

    def report(self) -> Report:
        self._check_measured()
        numbers = {name: self.count(name) for name in QUANTITIES}
        topk = self.count("topk")
        if numbers["draft_tokens"] is None and (topk == 1 or (topk is None and self.format.assumes_chains)):
            numbers["draft_tokens"] = self.count("num_steps")
        places: dict[str, Any] = {}
        rates = self._rates()
        counts = DraftCounts(
            place=self.mapping,
            **totals(numbers),
            length=self._printed("length", _LENGTH, places),
            rate=self._printed("rate", _RATE, places) or self._percent(places),
            rates=rates,
            histogram=self._histogram(),
            topk=topk,
            assumed_chain=self.format.assumes_chains and topk is None,
            at=places,
            label=self._label(),
            conditions=self._conditions(),
        )
        report = self._apart(counts)
        assumed = (CHAIN_ASSUMED,) if self.format.assumes_chains and topk is None else ()
        return replace(report, warnings=(*report.warnings, *assumed))

    def _label(self) -> str:
        found = [(prefix, self._get_path(path)) for prefix, path in self.format.labels.items()]
        return " ".join(f"{prefix}{value.value}" for prefix, value in found if value is not None)

    def count(self, name: str) -> int | None:
        """A whole number by our word for it; None where the report does not say it."""
        found = self._get(name)
        return None if found is None else count(found)

    def _get(self, name: str) -> Field | None:
        """The value under the first of the names for a quantity, here or in a mapping around it."""
        paths = filter(None, self.format.fields.get(name, "").split("|"))
        return next((found for path in paths if (found := self._get_path(path)) is not None), None)

    def _get_path(self, path: str) -> Field | None:
        if path == "#0":
            return replace(self.mapping, value=self.mapping.keys[0]) if self.mapping.keys else None
        for depth in range(len(self.mapping.keys), -1, -1):
            found = _at(_inside(self.mapping, depth), path.split("."))
            if found is not None:
                return found
        return None

    def _printed(self, name: str, rounding: float, places: dict[str, Any]) -> Printed | None:
        found = self._get(name)
        if found is None:
            return None
        places[name] = found
        return Printed(found.number(low=0), rounding)

    def _percent(self, places: dict[str, Any]) -> Printed | None:
        percent = self._printed("percent", 0.0, places)
        return None if percent is None else Printed(fraction_from_percent(percent.value), _RATE / 10)

    def _rates(self) -> tuple[Printed, ...]:
        field = self._get("rates")
        rates = () if field is None else tuple(Printed(rate.number(low=0), _RATE) for rate in field.items())
        stated = self._get("conditional")
        if stated is not None:
            conditional = np.array([rate.number(low=0) for rate in stated.items()])
            for i, (rate, product) in enumerate(
                zip(rates, survival_from_conditional(conditional).tolist(), strict=False)
            ):
                if abs(rate.value - product) > _RATE * 1.02:
                    raise stated.error(
                        f"they multiply up to {product:.6g} at position {i}, the marginal rate is {rate.value:.6g}",
                        hint="marginal rates are the running product of conditional ones",
                    )
        return rates

    def _histogram(self) -> tuple[int, ...] | None:
        field = self._get("histogram")
        if field is not None:
            return tuple(bars(field))
        field = self._get("lengths")
        if field is None:
            return None
        by_length = bars(field)
        if by_length[:1] not in ([], [0]):
            raise field.error(
                f"{by_length[0]} steps of length 0", hint="lengths count the bonus token: they start at 1"
            )
        if not sum(by_length):
            raise field.error("the histogram is empty", hint="run the benchmark on some prompts")
        return tuple(by_length[1:])

    def _apart(self, counts: DraftCounts) -> Report:
        """The same steps by how long their drafts were, where the engine says so; under 0 those without a draft."""
        field = self._get("by_length")
        if field is None:
            return Report(counts=(counts,))
        parts, idle = [], 0
        for key in field.mapping():
            histogram = bars(field.get(key))
            K = int(key) if key.isascii() and key.isdigit() and len(key) < 5 else 0
            if K or any(histogram[1:]):
                place, own = field.get(key), tuple(histogram)
                part = DraftCounts(place=place, draft_tokens=K, histogram=own, conditions=counts.conditions)
                parts.append(part)
            else:
                idle += sum(histogram)
        accepted = sum(j * n for part in parts for j, n in enumerate(part.histogram or ()))
        drafted = sum((part.draft_tokens or 0) * sum(part.histogram or ()) for part in parts)
        if accepted != counts.accepted:
            raise field.error(
                f"the histograms by draft length count {accepted} accepted tokens, the total says {counts.accepted}",
                hint=CONTRADICTION,
            )
        if idle and len(parts) == 1:
            parts = [replace(parts[0], steps=idle + sum(parts[0].histogram or ()))]
        said = (
            f"{idle} steps without a draft are left out: drafts of several lengths share them" if len(parts) > 1 else ""
        )
        chains_of(counts)  # which checks the totals
        told = [said] if idle and len(parts) > 1 else []
        if counts.drafted not in (None, drafted):
            told.append(f"the histograms by draft length count {drafted} draft tokens, the total says {counts.drafted}")
        return Report(counts=tuple(parts), warnings=tuple(told))

    def _conditions(self) -> Conditions:
        found: dict[str, Any] = {}
        for name in _CONDITIONS:
            value = self._get(name)
            if value is not None:
                found[name] = value.number(low=0) if name == "temperature" else value.text()
        return replace(SERVED, **found)

    def _check_measured(self) -> None:
        measured = self._get("measured")
        if measured is not None and not measured.boolean():
            raise measured.error("nothing was measured", hint="run the benchmark on the checkpoint first")


def _inside(mapping: Field, depth: int) -> Field:
    """The mapping or list around a field, `depth` keys deep."""
    found = mapping.document.root
    for key in mapping.keys[:depth]:
        found = Field(document=found.document, keys=(*found.keys, key), value=found.value[key])
    return found


def _at(field: Field, path: list[str]) -> Field | None:
    for key in path:
        if not isinstance(field.value, dict) or field.value.get(key) is None:
            return None
        field = field.get(key)
    return field

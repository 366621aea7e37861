"""What `treeopt check` found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.check.change import Change, DriftVerdict
from treeopt.check.report import CheckReport, Compared, Regret
from treeopt.draft_words import DraftWords
from treeopt.render.text import percent, plain_table

WIDE = 120  # from this many columns on every number is shown
_WORDS = ("verdict", "keeping it loses")
_STYLES = {DriftVerdict.STABLE: "green", DriftVerdict.DRIFT: "red", DriftVerdict.UNCLEAR: "yellow"}


def report(found: CheckReport, width: int) -> RenderableType:
    """The verdict, what was compared, and what is wrong with its next step."""
    parts: list[RenderableType] = [_verdict(found)]
    if found.comparisons:
        parts += [Text(), *(_wide if width >= WIDE else _narrow)(found.comparisons, found.words)]
    for finding in found.findings:
        text = Text("\n").append(f"{finding.kind.value}", style="bold red").append(f" ({finding.where})\n")
        parts.append(text.append(f"  {finding.seen}\n").append(f"  next: {finding.next_step}"))
    return Group(*parts)


def _verdict(report: CheckReport) -> Text:
    if report.drifted:
        count = len(report.findings)
        return Text(f"{count} finding{'s' if count > 1 else ''}", style="bold red")
    if report.comparisons and all(c.verdict is DriftVerdict.STABLE for c in report.comparisons):
        return Text(f"the plan holds: no change of more than {report.gate:.0%}", style="bold green")
    told = "these metrics do not tell whether the plan holds" if report.comparisons else "nothing could be compared"
    return Text(told, style="bold yellow")


def _wide(compared: Sequence[Compared], how: DraftWords) -> list[RenderableType]:
    """One table with every number."""
    source = ["source"] if len({c.measured.name for c in compared}) > 1 else []
    table = plain_table("batch", *source, "steps", "planned E", "measured E", "change", "99.8 % interval", "would show")
    for name in _WORDS:
        table.add_column(name, no_wrap=True)
    for c in compared:
        steps = "" if c.measured.steps is None else f"{c.measured.steps:,.0f}"
        batch, planned, measured, change, shown, *words = _cells(c, how)
        table.add_row(
            batch,
            *([c.measured.name] if source else []),
            *(steps, planned, measured, change, _interval(c.change), shown),
            *words,
        )
    return [table]


def _narrow(compared: Sequence[Compared], how: DraftWords) -> list[RenderableType]:
    """A table per source, its name above it: names do not fit beside the numbers."""
    names = list(dict.fromkeys(c.measured.name for c in compared))
    parts: list[RenderableType] = []
    for name in names:
        table = plain_table("batch", "plan E", "seen E", "change", "would show")
        for title in _WORDS:
            table.add_column(title, no_wrap=True)
        for c in compared:
            if c.measured.name == name:
                table.add_row(*_cells(c, how)[:-1], _regret(c.regret, how, brief=True))
        parts += [Text(f"{name}:"), table] if len(names) > 1 else [table]
    return parts


def _cells(c: Compared, how: DraftWords) -> list[str | Text]:
    """What every table has: batch sizes, E planned and measured, its change, the smallest that would show, words."""
    change = c.change
    return [
        c.bucket.batches,
        f"{change.planned:.2f}",
        f"{change.measured:.2f}",
        percent(change.share),
        "" if change.detectable is None else f"{change.detectable:.1%}",
        Text(c.verdict.value, style=_STYLES[c.verdict]),
        _regret(c.regret, how),
    ]


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return ""
    return f"{percent(change.low)} to {percent(change.high)}"


def _regret(regret: Regret | None, how: DraftWords, *, brief: bool = False) -> str:
    if regret is None:
        return "unknown"
    if regret.loss < 0.0005:
        return "nothing"
    best = "plain" if regret.nodes == 1 else how.size(regret.nodes)
    if brief:
        return f"{regret.loss:.1%} ({best})"
    return f"{regret.loss:.1%} to {best}" + (f", depth {regret.depth}" if regret.nodes > 1 else "")

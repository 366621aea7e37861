"""A plan's page: one file that shows the answer, what stands behind it, and how it was made (extra `report`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.answer import Level
from treeopt.extras import require
from treeopt.plan.plan import Plan
from treeopt.planner.curves import CurveOf
from treeopt.planner.report import PlanReport
from treeopt.planner.wording import words_in
from treeopt.render import page_tables as tables
from treeopt.render.page_tables import PageTable
from treeopt.render.pictures.evidence import acceptance_picture, frontier_picture, sizes_picture
from treeopt.render.pictures.gains import gains_picture
from treeopt.render.pictures.speed import pareto_picture, rates_picture, speedups_picture
from treeopt.render.pictures.steps import roofline_picture, terms_picture
from treeopt.render.pictures.style import INKS, Picture, svg_of
from treeopt.render.pictures.trees import tree_picture
from treeopt.tree import DraftTree
from treeopt.version import VERSION

_TEMPLATE: Final = "page.html.jinja"
# Above the answer stands what may make it wrong, not everything that there is to know.
_WARNINGS: Final = 3
_LEVELS: Final = list(Level)


class Figure(NamedTuple):
    """A picture as the page shows it: drawn, with how to read it, and its numbers."""

    title: str
    caption: str
    svg: str
    table: PageTable | None


class Paste(NamedTuple):
    """A text to copy."""

    id: str
    name: str
    text: str


def report(found: PlanReport, width: int) -> RenderableType:
    """What the page says at its top, for the terminal."""
    left = [Text(f"not on the page: {part}: {why}", style="dim") for part, why in found.left_out]
    return Group(Text(found.headline, style="bold"), *left)


def page(found: PlanReport, *, command: str) -> str:
    """The whole page.

    Raises:
        InputError: Jinja2 or matplotlib is not installed.
    """
    jinja2 = require("jinja2", extra="report")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["coded"] = _coded
    notes = sorted(found.notes, key=lambda note: _LEVELS.index(note.level))
    plan, rivals = found.plan, [c.name for c in found.curves if c.of is CurveOf.RIVAL]
    html: str = environment.get_template(_TEMPLATE).render(
        version=VERSION,
        inks=INKS,
        title=_title(plan),
        headline=found.headline,
        facts=list(_facts(plan)),
        warnings=[n for n in notes if n.level is not Level.NOTE][:_WARNINGS],
        settings=found.settings,
        pastes=list(_pastes(found)),
        levels=_levels(plan),
        buckets=tables.buckets_table(plan),
        rivals=", ".join(rivals),
        speed=list(_speed(found)),
        comparisons=tables.comparisons_table(found.comparisons, words_in(found.plan)) if found.comparisons else None,
        trees=list(_trees(plan)),
        why=list(_why(found)),
        reasons=tables.reasons_table(plan),
        counted=any(r.rate.has_interval for own in found.acceptance for r in own.rates),
        acceptance=[
            _figure(acceptance_picture(own, i), f"{own.name} ({own.kind})", tables.acceptance_table(own))
            for i, own in enumerate(found.acceptance)
        ],
        changes=tables.changes_table(plan),
        notes=notes,
        left_out=found.left_out,
        made=_made(plan),
        commands=[("The plan", plan.created_with.command), ("This page", command)],
    )
    return html


def _coded(text: str) -> Any:
    """Text whose `commands` are set as such."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _figure(picture: Picture, caption: str, table: PageTable | None = None) -> Figure:
    from markupsafe import Markup

    return Figure(picture.title, caption, Markup(svg_of(picture)), table)  # drawn here, its words escaped


def _title(plan: Plan) -> str:
    of = plan.sources
    table = f", step times {of.cost.name}" if of.cost is not None else f" on {of.hardware.name}"
    return f"Speculative decoding of {of.model.name}{table}"


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    of = plan.sources
    yield "Target", f"{of.model.name}, {of.model.dtype}" + (f", tp {of.model.tp}" if of.model.tp > 1 else "")
    yield "Drafter", of.drafter.reference
    if of.cost is not None:
        yield "Step times", of.cost.name
    else:
        yield "Hardware", f"{of.hardware.name} ({of.hardware.source})"
    if of.engine is not None:
        yield "Engine", f"{of.engine.name} {of.engine.version}".strip()
    evidence = [of.ranks.evidence]
    evidence += [f"{of.ranks.positions:,} positions"] if of.ranks.positions else []
    evidence += [f"{of.ranks.documents} documents"] if of.ranks.documents else []
    yield "Acceptance", f"{of.ranks.name} ({', '.join(evidence)})"
    yield "Context", plan.contexts[0].words
    rule = "exact" if plan.verification.exact else "changes what the model says"
    yield "Verification", f"{plan.verification.rule} ({rule})"


def _levels(plan: Plan) -> str:
    """What the brackets hold."""
    said = []
    if any(b.acceptance_length.has_interval for b in plan.buckets):
        said.append("Brackets at E hold 95 %.")
    if any(b.tokens_per_s.has_interval for b in plan.buckets):
        said.append("Brackets at speedups hold 80 %, the error of the price included.")
    return " ".join(said)


def _pastes(found: PlanReport) -> Iterator[Paste]:
    settings = found.settings
    if settings is None:
        return
    yield Paste(
        "settings-file", "What the engine loads" if settings.engine else "Drafts by batch size", settings.content
    )
    if settings.launch:
        yield Paste("settings-launch", "How it starts", settings.launch)


def _speed(found: PlanReport) -> Iterator[Figure]:
    curves, tp = found.curves, found.plan.sources.model.tp
    sizes = {at.batch for curve in curves for at in curve.points}
    bands = "Bands hold 80 %. " if any(at.option.tokens_per_s.has_interval for c in curves for at in c.points) else ""
    if curves:
        yield _figure(rates_picture(curves), f"Of the whole batch. {bands}", tables.rates_table(curves))
    if any(at.speedup is not None for c in curves for at in c.points):
        known = [c for c in curves if c.of is not CurveOf.PLAIN]
        yield _figure(speedups_picture(curves), f"Above 1x it pays. {bands}", tables.speedups_table(known))
    if len(sizes) > 1:
        caption = "One user's speed beside one GPU's, at the batch sizes written there: up and to the right is better."
        yield _figure(pareto_picture(curves, tp), caption, tables.pareto_table(curves, tp))
    if len(sizes) > 1 and found.comparisons:
        caption = "In tokens per second, with 95 % intervals of the acceptance; below 0 the plan is slower."
        yield _figure(gains_picture(found.comparisons), caption, None)


def _trees(plan: Plan) -> Iterator[Figure]:
    """Each draft once, with the batch sizes that it serves."""
    how = words_in(plan)
    served: dict[DraftTree, list[str]] = {}
    for bucket in plan.buckets:
        if bucket.speculate:
            served.setdefault(bucket.tree, []).append(bucket.batches)
    f_of = {b.tree: b.path_probabilities for b in reversed(plan.buckets)}
    for i, (tree, batches) in enumerate(served.items()):
        title = f"Batch {', '.join(batches)}"
        shape = "a chain" if tree.is_chain else "a tree"
        picture = tree_picture(tree, f_of[tree], name=f"tree-{i}", title=title)
        yield _figure(picture, f"{how.shape(len(tree), tree.depth)}, {shape}")


def _why(found: PlanReport) -> Iterator[Figure]:
    plan, how = found.plan, words_in(found.plan)
    if found.frontier is not None:
        evidence = found.frontier
        ends = "" if evidence.ends_at is None else " In the shaded part deeper evidence might allow more."
        took = f"The best draft of every size, at batch {evidence.batch}, and what the plan took"
        caption = f"{took}: a deeper one may cost more than it gives.{ends}"
        yield _figure(frontier_picture(evidence, how), caption, tables.frontier_table(evidence, how))
        if (sizes := sizes_picture(evidence, how)) is not None:
            caption = "The same drafts in tokens per second: where the curve is flat, a smaller draft does as well."
            yield _figure(sizes, caption, tables.sizes_table(evidence, how))
    if (terms := terms_picture(plan.buckets)) is not None:
        caption = "Milliseconds, pale for a plain step and full for the plan's."
        yield _figure(terms, caption, tables.terms_table(plan.buckets))
    if found.roofline is not None:
        straight = (
            "Left of the ridge weights are waited for, right of it arithmetic. " if found.roofline.memory_s else ""
        )
        caption = f"{straight}Tokens per second through the target's weights, over the tokens of a step."
        yield _figure(roofline_picture(found.roofline, how), caption, tables.roofline_table(found.roofline, how))


def _made(plan: Plan) -> PageTable:
    of = plan.sources
    named: Sequence[tuple[str, Any]] = (
        ("ranks", of.ranks), ("hardware", of.hardware), ("model", of.model), ("step times", of.cost),
    )  # fmt: skip
    rows = [[kind, source.reference, source.sha256[:16]] for kind, source in named if source is not None]
    rows.append(["drafter", of.drafter.reference, ""])
    rows.append(["plan by treeopt", plan.created_with.treeopt, ""])
    rows.append(["page by treeopt", VERSION, ""])
    return PageTable(["made from", "name or file", "sha256 begins"], rows, frozenset({1}))

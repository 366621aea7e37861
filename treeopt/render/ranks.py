"""Rank profiles, and what importers made of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.acceptance.profile import RankProfile
from treeopt.acceptance.published import PublishedProfiles, supports
from treeopt.render.text import plain_table

if TYPE_CHECKING:
    from treeopt.acceptance.importers import Imported  # thirty files that only one command needs


def rank_report(profile: RankProfile, width: int) -> RenderableType:
    """A rank profile: evidence, conditions, rates by depth and rank."""
    head = Text(profile.name, style="bold").append(f": {profile.kind}", style="not bold")
    if profile.evidence.trials is not None:
        head.append(f", {profile.evidence.trials:,.0f} drafts", style="not bold")
    if profile.documents:
        head.append(f", {profile.documents} documents", style="not bold")
    lines = [Text(f"  {key}: {value}", style="dim") for key, value in profile.conditions.known().items()]
    if profile.note:
        lines.append(Text(f"  note: {profile.note}", style="dim"))
    if profile.source:
        lines.append(Text(f"  source: {profile.source}", style="dim"))
    model = profile.model()
    shown = min(model.ranks, 8)
    table = plain_table("depth", *(f"rank {r}" for r in range(shown)), *(["others"] if model.ranks > shown else []))
    for depth in range(model.depth):
        # Along the path of top guesses: what depends on the path has no other single row per depth.
        row = model.conditional(np.zeros((1, depth), dtype=np.int64))[0]
        cells = [f"{p:.3f}" for p in row[:shown]]
        table.add_row(str(depth + 1), *cells, *([f"{row[shown:].sum():.3f}"] if model.ranks > shown else []))
    along = "" if model.product_form else ", after top guesses only"
    return Group(head, *lines, Text(), Text(f"probability of each rank{along}", style="dim"), table)


def published_report(listed: PublishedProfiles, width: int) -> RenderableType:
    """The published profiles: name, pair, what can be planned from it."""
    table = plain_table("--ranks", "target", "drafter", "data set", "T", "supports")
    for p in listed.found:
        known = p.conditions
        temperature = "?" if known.temperature is None else f"{known.temperature:g}"
        table.add_row(
            p.name, known.target or "not stated", known.drafter or "", known.dataset or "", temperature, supports(p)
        )
    return table


def imported_report(imported: Imported, width: int) -> RenderableType:
    """What a file held, source by source, and what can be planned from it."""
    parts: list[RenderableType] = [Text(f"kind: {imported.kind}", style="bold")]
    for source in imported.sources:
        tally = source.tally
        counts = {
            "K": tally.draft_tokens,
            "drafts": tally.drafts,
            "drafted tokens": tally.drafted_tokens,
            "accepted tokens": tally.accepted_tokens,
        }
        told = [f"{name} {value:,}" for name, value in counts.items() if value is not None]
        if tally.mean_accepted_length is not None:
            told.append(f"mean accepted length {tally.mean_accepted_length:.4g}")
        parts += [Text(), rank_report(source.profile, width)]
        parts += [Text(f"counts: {', '.join(told)}")] if told else []
        parts += [Text(f"known only as a sum: {known}") for known in source.known_sums]
        parts.append(Text(f"supports: {source.supports}", style="green"))
    parts += [Text(f"not planned from: {u}", style="yellow") for u in imported.unplanned]
    return Group(*parts)

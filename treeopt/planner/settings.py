"""What to paste: an engine's own settings for a plan, or its drafts where no engine is named."""

from __future__ import annotations

import json
from dataclasses import dataclass

from treeopt.answer import Note
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """A file's content, and how the engine starts with it; `engine` is null for the drafts by batch size alone."""

    engine: str | None
    content: str
    launch: str
    notes: tuple[Note, ...] = ()


def settings_of(plan: Plan, engine: str | None) -> EngineSettings:
    """The settings for an engine, else for the plan's own; else the paths of every batch size.

    Raises:
        InputError: no such engine, or it can load none of the drafts.
    """
    own = plan.sources.engine
    if engine is None and own is None:
        return _drafts(plan)
    target = find_engine(engine or (own.wanted if own is not None else ""))
    setup = Setup(drafter=plan.sources.drafter.reference)
    made = export(plan, target, setup, allow_off=own is not None and own.allow_off)
    losses = [Note.warning(f"not exactly the plan: {loss.exported} in place of {loss.planned}") for loss in made.losses]
    bugs = [Note.warning(f"known bug: {bug.text} ({bug.reference})") for bug in made.bugs]
    content = (
        made.content if made.content is not None else f"(binary: treeopt export PLAN --engine {target.engine.name})"
    )
    return EngineSettings(
        engine=target.words,
        content=content.strip("\n"),
        launch=made.launch,
        notes=(*bugs, *losses, *map(Note.note, made.notes)),
    )


def _drafts(plan: Plan) -> EngineSettings:
    lines = [f'  "{b.batches}": {json.dumps([list(path) for path in b.tree.paths])}' for b in plan.buckets]
    return EngineSettings(engine=None, content="{\n" + ",\n".join(lines) + "\n}", launch="")

"""In whose words a plan's drafts are told: those of the engine that it was made for; and what it says of its prices."""

from __future__ import annotations

from dataclasses import replace

from treeopt.answer import Note
from treeopt.cost.kernels.rough import ROUGH_PRICES
from treeopt.draft_words import NODES, DraftWords, K, words_for
from treeopt.errors import TreeoptError
from treeopt.plan.plan import Plan


def words_in(plan: Plan) -> DraftWords:
    """How a plan's drafts are counted and what the engine calls that; nodes where any engine may load them.

    A plan for vLLM is told in K (num_speculative_tokens), one for SGLang in steps, topk and draft tokens.
    """
    source = plan.sources.engine
    if source is None:
        return NODES
    from treeopt.engines.registry import find_engine  # imports all engines

    try:
        found = find_engine(source.wanted)
    except TreeoptError:  # an engine or release of another treeopt: the plan is still to be read
        return NODES
    family = next((form.limits for form in found.formats if form.name == source.format), None)
    if family is None:
        return NODES
    words = words_for(family, [bucket.draft for bucket in plan.buckets if bucket.speculate])
    setting = {NODES.head: "", K.head: found.engine.length_setting}.get(words.head, found.engine.tree_settings)
    return replace(words, setting=f"{setting} in {found.engine.title}" if setting else "")


def price_warnings(plan: Plan) -> tuple[Note, ...]:
    """What the plan says of its own prices that holds for every number made from them: a profile that is far off."""
    return tuple(note for note in plan.notes if note.text.startswith(ROUGH_PRICES))

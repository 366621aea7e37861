"""Transformers 5: one chain per call, drafted by an assistant model, by the model's own MTP layers or from the prompt.

Keys: `GenerationConfig` of transformers 5.19. The assistant's keys act where the ASSISTANT's own configuration has
them. Prompt lookup is a key of the call: runs of at most `max_matching_ngram_size` tokens are looked up, longest first.
"""

from __future__ import annotations

import json
from typing import Final

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import Chains
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.files.documents import Field
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(
    engine="Transformers",
    words={
        "model": DrafterWord(text=""),
        "mtp": DrafterWord(text="", has_model=False),
        "ngram": DrafterWord(text="prompt-lookup", has_model=False),
    },
)
_LENGTH, _SCHEDULE, _LOOKUP = "num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens"
_RUN: Final = "max_matching_ngram_size"


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    if word == _DRAFTERS.words["ngram"]:
        config: dict[str, object] = {_LOOKUP: schedule.longest, _RUN: setup.lookup.longest}
        launch = "model.generate(..., **config)"
        notes: tuple[str, ...] = ("these keys belong into the call, or the model's own generation_config.json",)
    else:
        config = {_LENGTH: schedule.longest, _SCHEDULE: "constant", "assistant_confidence_threshold": 0.0}
        launch = "assistant.generation_config.update(**config); model.generate(..., assistant_model=assistant)"
        notes = (
            "these keys belong into the ASSISTANT model's generation_config.json",
            "a threshold above 0 ends drafts early",
        )
    return Written(
        content=json.dumps(config, indent=2),
        file_name="generation_config.json",
        launch=launch,
        proof="no metric is known: count the target's forward passes",
        notes=notes,
    )


def _read(source: EngineFile) -> Found | None:
    section = source.section()
    if section is None or "tree_depth" in section.value:
        return None
    if section.value.get(_LOOKUP) is not None:
        longest = section.get(_RUN, 2).integer(low=1)
        return _found(section.get(_LOOKUP), (), PromptLookup(rule="transformers", shortest=1, longest=longest).name)
    if _LENGTH not in section.value:
        return None
    kind = section.get(_SCHEDULE, "constant").text()
    notes = () if kind == "constant" else (f"with the schedule '{kind}' Transformers changes the length as it goes",)
    return _found(section.get(_LENGTH), notes, None)


def _found(length: Field, notes: tuple[str, ...], drafter: str | None) -> Found:
    return Found(DraftSchedule.constant(DraftTree.chain(length.integer(low=1))), notes, drafter)


TRANSFORMERS: Final = Engine(
    name="transformers",
    title="Transformers",
    length_setting="num_assistant_tokens",
    checked="5.19.0",
    checked_by="own code",
    lookup_rule="transformers",
    formats=(Format(name="generation", limits=Chains(), write=_write, read=_read, drafters=_DRAFTERS),),
)

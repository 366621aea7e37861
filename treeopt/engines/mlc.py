"""MLC-LLM: the full tree of `spec_tree_width` children per node and `spec_draft_length` levels; width 1 is a chain.

Rules: mlc-llm at 79d603f, `cpp/serve/config.cc` and `cpp/serve/engine_actions/auto_spec_decode.cc`: a length of 0
picks one by batch size (below 10: 4, below 20: 3, below 30: 2, else none).
"""

from __future__ import annotations

import json
from typing import Final

from treeopt.draft_family import OFF, UniformTrees
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(
    engine="MLC-LLM",
    words={
        "eagle": DrafterWord(text="eagle"),
        "medusa": DrafterWord(text="medusa"),
        "model": DrafterWord(text="small_draft"),
    },
    default="eagle",
)
_MAX_NODES: Final = 4096
_AUTOMATIC: Final = ((1, 4), (10, 3), (20, 2))
_AUTOMATIC_OFF: Final = 30


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    tree = schedule.only_tree
    width = len(tree.children[0])
    config = {"speculative_mode": word.text, "spec_draft_length": tree.depth, "spec_tree_width": width}
    return Written(
        content=json.dumps(config, indent=2),
        file_name="mlc_engine_config.json",
        launch=f"EngineConfig(model='{setup.model}', additional_models=['{setup.draft_model}'], **config)",
        proof="no metric is known: compare the time per token with a run without the draft model",
        notes=("its own printout of the configuration leaves spec_tree_width out",) if width > 1 else (),
    )


def _read(source: EngineFile) -> Found | None:
    section = source.section("engine_config")
    if section is None or "spec_draft_length" not in section.value:
        return None
    drafter = _DRAFTERS.kind_of(section.get("speculative_mode", "").text())
    length = section.get("spec_draft_length").integer(low=0)
    width = section.get("spec_tree_width", 1).integer(low=1)
    if length == 0:
        steps = (*(ScheduleStep(b, DraftTree.chain(k)) for b, k in _AUTOMATIC), ScheduleStep(_AUTOMATIC_OFF, OFF))
        return Found(DraftSchedule(steps=steps), ("a length of 0 lets MLC-LLM choose by batch size",), drafter)
    if sum(width**d for d in range(1, min(length, 64) + 1)) > _MAX_NODES:
        raise section.get("spec_draft_length").error(
            f"{length} levels of width {width} are more than {_MAX_NODES} tokens", hint="give a smaller tree"
        )
    return Found(DraftSchedule.constant(DraftTree.from_widths([width] * length)), (), drafter)


MLC: Final = Engine(
    name="mlc",
    title="MLC-LLM",
    length_setting="spec_draft_length",
    checked="commit 79d603f",
    checked_by="documentation only",
    formats=(
        Format(
            name="width",
            limits=UniformTrees(equal_widths=True, min_depth=1),
            write=_write,
            read=_read,
            drafters=_DRAFTERS,
        ),
    ),
)

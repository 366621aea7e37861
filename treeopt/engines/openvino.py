"""OpenVINO GenAI: a chain length, or a dynamic tree of depth, branching and nodes, per request.

Rules: openvino-genai 2026.4, `GenerationConfig.validate`, and the capacity b + b^2 (depth - 1) that its documentation
demands and nothing checks. `num_assistant_tokens` does not count the root; a `tree_depth` of 0 is a chain.
"""

from __future__ import annotations

import json
from typing import Final

from treeopt.draft_family import OPENVINO as RULE
from treeopt.draft_family import DynamicTree, DynamicTrees, chain_length
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_FILE: Final = "generation_config.json"
_FOREIGN: Final = "num_assistant_tokens_schedule"  # Transformers has it beside the same key


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    draft = schedule.only
    length = None if draft is None else chain_length(draft)
    if length:
        config: dict[str, int | bool] = {"num_assistant_tokens": length}
    elif isinstance(draft, DynamicTree):
        config = {
            "tree_depth": draft.num_steps,
            "branching_factor": draft.topk,
            "num_assistant_tokens": draft.num_draft_tokens - 1,
            "do_sample": False,
        }
    else:
        raise InputError("OpenVINO GenAI loads a chain or a dynamic tree", hint="give one of them")
    return Written(
        content=json.dumps(config, indent=2),
        file_name=_FILE,
        launch=(
            f"LLMPipeline({setup.model!r}, 'CPU', draft_model=draft_model({setup.draft_model!r}, 'CPU')), then "
            f"generate(prompt, GenerationConfig({setup.written_to(_FILE)!r}, max_new_tokens=...))"
        ),
        proof="no metric is known: compare the time per token with a run without the draft model",
        notes=(
            "these keys belong into the target's generation_config.json; they may also be set for each request",
            "a tree works with greedy decoding only",
        )[: 1 if length else 2],
    )


def _read(source: EngineFile) -> Found | None:
    section = source.section()
    if section is None or "num_assistant_tokens" not in section.value:
        return None
    if _FOREIGN in section.value:
        return None
    depth = section.get("tree_depth", 0).integer(low=0)
    drafted = section.get("num_assistant_tokens")
    if depth == 0:
        return Found(DraftSchedule.constant(DraftTree.chain(drafted.integer(low=1))))
    topk = section.get("branching_factor", 1).integer(low=1)
    if section.value.get("do_sample"):
        raise section.get("do_sample").error("a tree needs greedy decoding", hint="set do_sample to false")
    triple = DynamicTree(depth, topk, drafted.integer(low=1) + 1)
    try:
        RULE.check(triple)
    except InputError as error:
        raise drafted.error(str(error), hint=error.hint) from None
    return Found(DraftSchedule.constant(DraftTree.chain(depth) if topk == 1 else triple))


OPENVINO: Final = Engine(
    name="openvino",
    title="OpenVINO GenAI",
    length_setting="num_assistant_tokens",
    tree_settings="tree_depth, branching_factor, num_assistant_tokens",
    checked="2026.4.1",
    checked_by="own code",
    formats=(
        Format(
            name="generation",
            limits=DynamicTrees(rule=RULE),
            write=_write,
            read=_read,
            drafters=Drafters(engine="OpenVINO GenAI", words={k: DrafterWord(text="") for k in ("eagle3", "model")}),
        ),
    ),
)

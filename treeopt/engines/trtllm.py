"""TensorRT-LLM: a draft length per batch size, a dynamic tree, and up to 1.3 a static one.

Rules: `tensorrt_llm/llmapi/llm_args.py` (1.3.0rc and main). Keys of `draft_len_schedule` are upper bounds, above the
last one nothing is drafted, the smallest one must have `max_draft_len` and none more. A dynamic tree has
max_draft_len <= max_total_draft_tokens <= dynamic_tree_max_topK x max_draft_len, the root not counted. Static choices
are de-duplicated and sorted, ranks may have gaps; removed on main by NVIDIA/TensorRT-LLM#18210. MTP's length may also
stand under `num_nextn_predict_layers`. N-gram runs are at most `max_matching_ngram_size` long.
"""

from __future__ import annotations

from typing import Any, Final

from treeopt.draft_family import (
    OFF,
    Chains,
    Draft,
    DynamicTrees,
    StaticTrees,
    as_dynamic_tree,
    chain_length,
)
from treeopt.draft_family import TENSORRT_LLM as RULE
from treeopt.engines.format import Bug, DrafterWord, Engine, Format, Setup, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.trtllm_config import (
    CHOICES,
    DRAFTERS,
    DYNAMIC,
    LENGTHS,
    STATIC,
    THRESHOLD,
    read_choices,
    read_length,
    read_schedule,
    read_triple,
)
from treeopt.errors import InputError
from treeopt.files.documents import dump_yaml
from treeopt.tree import DraftTree

_FILE: Final = "trtllm_config.yaml"
_KEEP_OUT: Final = f"leave {THRESHOLD} out: once acceptance falls below it TensorRT-LLM stops drafting for good"
_PROOF: Final = (
    "specDecodingStats of the iteration statistics on /metrics (numDraftTokens, numAcceptedTokens, acceptanceLength)"
)


def _write_length(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    notes: tuple[str, ...] = ()
    if word.text == "DFlash":
        notes = ("where the drafter's config.json has no mask_token_id or target_layer_ids, add them to the section",)
    return _written(setup, word, {"max_draft_len": schedule.longest}, f"K = {schedule.longest}", *notes)


def _write_schedule(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    end = setup.end_of(schedule)
    ranges = [(r.batch_max or end, chain_length(r.draft) or 0) for r in schedule.ranges()]
    table = dict(ranges if ranges[-1][1] else ranges[:-1])  # above the last key nothing is drafted
    return _written(
        setup,
        word,
        {"max_draft_len": schedule.longest, "draft_len_schedule": table},
        ", ".join(f"{k} up to batch {high}" for high, k in table.items()),
        f"above batch {max(table)} TensorRT-LLM drafts nothing",
        "max_concurrency must not be set beside a schedule",
        "keep these sizes among those of cuda_graph_config.batch_sizes, so that no batch is padded over a border",
        capture_sizes=tuple(table),
    )


def _write_triple(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    triple = None if schedule.only is None else as_dynamic_tree(schedule.only)
    if triple is None:
        raise InputError("TensorRT-LLM loads one dynamic tree", hint="give one chain or one dynamic tree")
    settings = {
        "max_draft_len": triple.num_steps,
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": triple.topk,
        "max_total_draft_tokens": triple.num_draft_tokens - 1,
    }
    note = "not for targets with sliding-window or MLA attention"
    return _written(setup, word, settings, f"{triple.num_draft_tokens - 1} drafted per step", note)


def _write_choices(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    tree = schedule.only_tree
    settings = {"max_draft_len": tree.depth, CHOICES[word.text]: [list(p) for p in tree.paths]}
    note = "deprecated: it acts on the two-model path only, and is gone in 1.4"
    return _written(setup, word, settings, f"{len(tree) - 1} drafted per step", note)


def _written(
    setup: Setup,
    word: DrafterWord,
    settings: dict[str, Any],
    proof: str,
    *notes: str,
    capture_sizes: tuple[int, ...] = (),
) -> Written:
    section: dict[str, Any] = {"decoding_type": word.text}
    if word.has_model:
        section["speculative_model"] = setup.draft_model
    if word.text == "NGram":
        section["max_matching_ngram_size"] = setup.lookup.longest
    return Written(
        content=dump_yaml({"speculative_config": section | settings}),
        file_name=_FILE,
        launch=f"trtllm-serve {setup.model} --config {setup.written_to(_FILE)}",
        proof=f"{_PROOF}: {proof}",
        capture_sizes=capture_sizes,
        notes=(*notes, _KEEP_OUT),
    )


def _is_static_tree(draft: Draft) -> bool:
    return isinstance(draft, DraftTree) and chain_length(draft) is None


TENSORRT_LLM: Final = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    length_setting="max_draft_len",
    tree_settings="max_draft_len, dynamic_tree_max_topK, max_total_draft_tokens",
    checked="1.4.0rc4",
    checked_by="documentation only",
    lookup_rule="trtllm",
    formats=(
        Format(
            name="choices",
            limits=StaticTrees(rank_gaps=True, min_depth=2),  # one of depth 1 fails: NVIDIA/TensorRT-LLM#10323
            write=_write_choices,
            read=read_choices,
            drafters=STATIC,
            since=Release(1, 0, 0),
            before=Release(1, 4, 0),
        ),
        Format(
            name="length",
            limits=Chains(),
            write=_write_length,
            read=read_length,
            drafters=LENGTHS,
            since=Release(1, 0, 0),
        ),
        Format(
            name="schedule",
            limits=Chains(per_batch=True, may_be_off=True, longest_first=True),
            write=_write_schedule,
            read=read_schedule,
            drafters=DRAFTERS,
            since=Release(1, 3, 0),
        ),
        Format(
            name="triple",
            limits=DynamicTrees(rule=RULE),
            write=_write_triple,
            read=read_triple,
            drafters=DYNAMIC,
            since=Release(1, 3, 0),
        ),
    ),
    bugs=(
        Bug(
            reference="NVIDIA/TensorRT-LLM#16888",
            text="acceptance collapses after a phase with draft length 0: the drafter's state is not refreshed",
            hits=lambda schedule: any(step.draft == OFF for step in schedule.steps),
            since=Release(1, 3, 0),
        ),
        Bug(
            reference="NVIDIA/TensorRT-LLM#10343",
            text="a static tree accepts fewer tokens than a smaller one inside it: its key-value cache is rewound by "
            "one number",
            hits=lambda schedule: any(_is_static_tree(step.draft) for step in schedule.steps),
            before=Release(1, 4, 0),
        ),
    ),
)

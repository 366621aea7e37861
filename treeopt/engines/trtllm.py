"""TensorRT-LLM: a draft length per batch size, a dynamic tree, and up to 1.3 a static one.

Rules: `tensorrt_llm/llmapi/llm_args.py` (1.3.0rc and main). Keys of `draft_len_schedule` are upper bounds, above the
last one nothing is drafted, the smallest one must have `max_draft_len` and none more. A dynamic tree has
max_draft_len <= max_total_draft_tokens <= dynamic_tree_max_topK x max_draft_len, the root not counted. Static choices
are de-duplicated and sorted, ranks may have gaps; removed on main by NVIDIA/TensorRT-LLM#18210. MTP's length may also
stand under `num_nextn_predict_layers`. N-gram runs are at most `max_matching_ngram_size` long.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import (
    OFF,
    Chains,
    Draft,
    DynamicTree,
    DynamicTrees,
    StaticTrees,
    as_dynamic_tree,
    chain_length,
)
from treeopt.draft_family import TENSORRT_LLM as RULE
from treeopt.engines.format import Bug, Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile, pairs
from treeopt.errors import InputError
from treeopt.files.documents import Field, dump_yaml
from treeopt.files.typed import tree_at
from treeopt.tree import DraftTree

_EAGLES: Final = {"eagle": DrafterWord(text="Eagle"), "eagle3": DrafterWord(text="Eagle3")}
_DRAFTERS: Final = Drafters(
    engine="TensorRT-LLM",
    words=_EAGLES
    | {
        "mtp": DrafterWord(text="MTP", has_model=False),
        "ngram": DrafterWord(text="NGram", has_model=False),
        "model": DrafterWord(text="Draft_Target"),
    },
    default="eagle3",
)
_MAIN: Final = Release(1, 4, 0)  # what is documented of the main branch
# Named on main only; a draft length per batch size is not documented for them.
_BLOCKS: Final = {
    "dflash": DrafterWord(text="DFlash", since=_MAIN),
    "dspark": DrafterWord(text="DSpark", since=_MAIN),
    "pard": DrafterWord(text="PARD", since=_MAIN),
}
_LENGTHS: Final = Drafters(engine="TensorRT-LLM", words=dict(_DRAFTERS.words) | _BLOCKS, default="eagle3")
_DYNAMIC: Final = Drafters(
    engine="TensorRT-LLM's dynamic tree",
    words=_EAGLES | {"mtp": DrafterWord(text="MTP", has_model=False, since=_MAIN)},
    default="eagle3",
    closed=True,
)
_STATIC: Final = Drafters(
    engine="TensorRT-LLM's static tree",
    words=_EAGLES | {"medusa": DrafterWord(text="Medusa")},
    default="eagle3",
    closed=True,
)
_CHOICES: Final = {"Eagle": "eagle_choices", "Eagle3": "eagle_choices", "Medusa": "medusa_choices"}
_MTP_LENGTH: Final = "num_nextn_predict_layers"
_FILE: Final = "trtllm_config.yaml"
_THRESHOLD: Final = "acceptance_rate_threshold"
_KEEP_OUT: Final = f"leave {_THRESHOLD} out: once acceptance falls below it TensorRT-LLM stops drafting for good"
_SUFFIXES: Final = ("use_sa_spec", "sa_config")
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
    settings = {"max_draft_len": tree.depth, _CHOICES[word.text]: [list(p) for p in tree.paths]}
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


def _read_schedule(source: EngineFile) -> Found | None:
    section = _section(source)
    if section is None or section.value.get("draft_len_schedule") is None:
        return None
    field = section.get("draft_len_schedule")
    table = dict(sorted(_entry(field, key, value) for key, value in pairs(field).items()))
    if not table:
        raise field.error("there is no batch size", hint="write {largest batch size: draft tokens}")
    longest = section.get("max_draft_len").integer(low=1)
    if table[min(table)] != longest:
        raise field.error(
            f"{table[min(table)]} tokens up to batch {min(table)}, but max_draft_len is {longest}",
            hint="TensorRT-LLM wants max_draft_len in the smallest range",
        )
    if max(table.values()) > longest:
        raise field.error(f"{max(table.values())} exceeds max_draft_len {longest}", hint="no range may draft more")
    starts = [1, *(high + 1 for high in table)]
    lengths = [*table.values(), 0]
    steps = tuple(ScheduleStep(b, DraftTree.chain(k)) for b, k in zip(starts, lengths, strict=True))
    return Found(DraftSchedule(steps=steps), _warnings(section), _drafter_of(section))


def _entry(field: Field, key: object, value: object) -> tuple[int, int]:
    where = Field(document=field.document, keys=(*field.keys, str(key)), value=key)
    amount = Field(document=field.document, keys=(*field.keys, str(key)), value=value)
    return where.integer(low=1), amount.integer(low=0)


def _read_triple(source: EngineFile) -> Found | None:
    section = _section(source)
    if section is None or not section.value.get("use_dynamic_tree"):
        return None
    depth, topk = (section.get(name).integer(low=1) for name in ("max_draft_len", "dynamic_tree_max_topK"))
    total = section.get("max_total_draft_tokens", depth * topk)
    triple = DynamicTree(depth, topk, total.integer(low=1) + 1)
    try:
        RULE.check(triple)
    except InputError as error:
        raise total.error(str(error), hint=error.hint) from None
    return Found(
        DraftSchedule.constant(DraftTree.chain(depth) if topk == 1 else triple),
        _warnings(section),
        _drafter_of(section),
    )


def _read_choices(source: EngineFile) -> Found | None:
    section = _section(source)
    name = next((c for c in _CHOICES.values() if section is not None and section.value.get(c) is not None), None)
    if section is None or name is None:
        return None
    field = section.get(name)
    if isinstance(field.value, str):
        try:
            field = Field(document=field.document, keys=field.keys, value=ast.literal_eval(field.value))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise field.error("not a list of paths", hint="write [[0], [1], [0, 0]]") from None
    return Found(DraftSchedule.constant(tree_at(field)), _warnings(section), _drafter_of(section))


def _read_length(source: EngineFile) -> Found | None:
    section = _section(source)
    key = next((k for k in ("max_draft_len", _MTP_LENGTH) if section is not None and k in section.value), None)
    others = ("draft_len_schedule", "use_dynamic_tree", *_CHOICES.values())
    if section is None or key is None or any(section.value.get(k) not in (None, False) for k in others):
        return None
    chain, drafter = DraftTree.chain(section.get(key).integer(low=1)), _drafter_of(section)
    if section.value.get("max_concurrency") is None:
        return Found(DraftSchedule.constant(chain), _warnings(section), drafter)
    off_from = section.get("max_concurrency").integer(low=1) + 1
    return Found(
        DraftSchedule(steps=(ScheduleStep(1, chain), ScheduleStep(off_from, OFF))), _warnings(section), drafter
    )


def _drafter_of(section: Field) -> str | None:
    """The kind of drafter, for n-grams with the runs that are looked up."""
    word = section.get("decoding_type", "").text()
    kind = _LENGTHS.kind_of(word) or _STATIC.kind_of(word)
    if kind != "ngram":
        return kind
    longest = section.get("max_matching_ngram_size", 2).integer(low=1)
    return PromptLookup(rule="trtllm", shortest=1, longest=longest).name


def _warnings(section: Field) -> tuple[str, ...]:
    """What of the section changes what is drafted without saying so."""
    found = []
    if section.value.get(_THRESHOLD) is not None:
        found.append(
            f"{_THRESHOLD}: once acceptance falls below it TensorRT-LLM stops drafting for good, until a restart"
        )
    if any(section.value.get(key) for key in _SUFFIXES):
        found.append("a suffix match that is long enough takes the place of the drafter's own guesses")
    return tuple(found)


def _section(source: EngineFile) -> Field | None:
    section = source.section("speculative_config")
    names = ("decoding_type", "max_draft_len", _MTP_LENGTH, *_CHOICES.values())
    return section if section is not None and any(name in section.value for name in names) else None


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
            read=_read_choices,
            drafters=_STATIC,
            since=Release(1, 0, 0),
            before=Release(1, 4, 0),
        ),
        Format(
            name="length",
            limits=Chains(),
            write=_write_length,
            read=_read_length,
            drafters=_LENGTHS,
            since=Release(1, 0, 0),
        ),
        Format(
            name="schedule",
            limits=Chains(per_batch=True, may_be_off=True, longest_first=True),
            write=_write_schedule,
            read=_read_schedule,
            drafters=_DRAFTERS,
            since=Release(1, 3, 0),
        ),
        Format(
            name="triple",
            limits=DynamicTrees(rule=RULE),
            write=_write_triple,
            read=_read_triple,
            drafters=_DYNAMIC,
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

"""TensorRT-LLM's words for drafters, and what its `speculative_config` says, read back."""

from __future__ import annotations

import ast
from typing import Final

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import OFF, DynamicTree
from treeopt.draft_family import TENSORRT_LLM as RULE
from treeopt.engines.format import Drafters, DrafterWord, Found
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile, pairs
from treeopt.errors import InputError
from treeopt.files.documents import Field
from treeopt.files.typed import tree_at
from treeopt.tree import DraftTree

_EAGLES: Final = {"eagle": DrafterWord(text="Eagle"), "eagle3": DrafterWord(text="Eagle3")}
DRAFTERS: Final = Drafters(
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
LENGTHS: Final = Drafters(engine="TensorRT-LLM", words=dict(DRAFTERS.words) | _BLOCKS, default="eagle3")
DYNAMIC: Final = Drafters(
    engine="TensorRT-LLM's dynamic tree",
    words=_EAGLES | {"mtp": DrafterWord(text="MTP", has_model=False, since=_MAIN)},
    default="eagle3",
    closed=True,
)
STATIC: Final = Drafters(
    engine="TensorRT-LLM's static tree",
    words=_EAGLES | {"medusa": DrafterWord(text="Medusa")},
    default="eagle3",
    closed=True,
)
CHOICES: Final = {"Eagle": "eagle_choices", "Eagle3": "eagle_choices", "Medusa": "medusa_choices"}
_MTP_LENGTH: Final = "num_nextn_predict_layers"
THRESHOLD: Final = "acceptance_rate_threshold"
_SUFFIXES: Final = ("use_sa_spec", "sa_config")


def read_schedule(source: EngineFile) -> Found | None:
    """`draft_len_schedule`: a chain length per batch size, off above the last one."""
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


def read_triple(source: EngineFile) -> Found | None:
    """A dynamic tree."""
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


def read_choices(source: EngineFile) -> Found | None:
    """A static tree."""
    section = _section(source)
    name = next((c for c in CHOICES.values() if section is not None and section.value.get(c) is not None), None)
    if section is None or name is None:
        return None
    field = section.get(name)
    if isinstance(field.value, str):
        try:
            field = Field(document=field.document, keys=field.keys, value=ast.literal_eval(field.value))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise field.error("not a list of paths", hint="write [[0], [1], [0, 0]]") from None
    return Found(DraftSchedule.constant(tree_at(field)), _warnings(section), _drafter_of(section))


def read_length(source: EngineFile) -> Found | None:
    """One chain for all batch sizes, or up to `max_concurrency`."""
    section = _section(source)
    key = next((k for k in ("max_draft_len", _MTP_LENGTH) if section is not None and k in section.value), None)
    others = ("draft_len_schedule", "use_dynamic_tree", *CHOICES.values())
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
    kind = LENGTHS.kind_of(word) or STATIC.kind_of(word)
    if kind != "ngram":
        return kind
    longest = section.get("max_matching_ngram_size", 2).integer(low=1)
    return PromptLookup(rule="trtllm", shortest=1, longest=longest).name


def _warnings(section: Field) -> tuple[str, ...]:
    """What of the section changes what is drafted without saying so."""
    found = []
    if section.value.get(THRESHOLD) is not None:
        found.append(
            f"{THRESHOLD}: once acceptance falls below it TensorRT-LLM stops drafting for good, until a restart"
        )
    if any(section.value.get(key) for key in _SUFFIXES):
        found.append("a suffix match that is long enough takes the place of the drafter's own guesses")
    return tuple(found)


def _section(source: EngineFile) -> Field | None:
    section = source.section("speculative_config")
    names = ("decoding_type", "max_draft_len", _MTP_LENGTH, *CHOICES.values())
    return section if section is not None and any(name in section.value for name in names) else None

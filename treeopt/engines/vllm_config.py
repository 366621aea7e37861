"""vLLM's words for drafters, and what its `--speculative-config` says, read back."""

from __future__ import annotations

import ast
from typing import Any, Final

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import UniformTrees
from treeopt.engines.format import Drafters, DrafterWord, Found, Unasked
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile
from treeopt.files.documents import Field
from treeopt.files.typed import tree_at
from treeopt.tree import DraftTree

WORDS: Final = {
    "eagle": DrafterWord(text="eagle"),
    "eagle3": DrafterWord(text="eagle3"),
    "mtp": DrafterWord(text="mtp", has_model=False, since=Release(0, 11, 0)),
    "ngram": DrafterWord(text="ngram", has_model=False),
    "model": DrafterWord(text="draft_model", since=Release(0, 15, 0)),
    "medusa": DrafterWord(text="medusa", before=Release(0, 33, 0)),
    "suffix": DrafterWord(text="suffix", has_model=False, since=Release(0, 11, 1)),
    "dflash": DrafterWord(text="dflash", since=Release(0, 20, 0)),
    "dflash2": DrafterWord(text="dflash", since=Release(0, 33, 0)),
    "dspark": DrafterWord(text="dspark", since=Release(0, 25, 0)),
    "peagle": DrafterWord(text="eagle3", parallel=True, since=Release(0, 16, 0)),
    "pard": DrafterWord(text="draft_model", parallel=True, since=Release(0, 16, 0)),
}
DRAFTERS: Final = Drafters(engine="vLLM", words=WORDS, default="eagle3")
# What `tests/conformance/vllm_releases.csv` says "documentation only" of, or does not ask.
_BLOCKS: Final = ("dflash", "dspark", "peagle", "pard")
UNASKED: Final = (
    Unasked(since=Release(0, 17, 0), before=Release(0, 18, 0)),
    Unasked(("eagle3",), before=Release(0, 10, 2)),
    Unasked(("eagle3", "medusa"), since=Release(0, 16, 0), before=Release(0, 17, 0)),
    Unasked(("medusa",), since=Release(0, 13, 0), before=Release(0, 14, 0)),
    Unasked(("mtp", "suffix"), since=Release(0, 12, 0), before=Release(0, 17, 0)),
    Unasked(("mtp", "suffix"), since=Release(0, 22, 1), before=Release(0, 23, 0)),
    Unasked(("mtp", "suffix"), since=Release(0, 25, 1), before=Release(0, 26, 0)),
    Unasked(_BLOCKS, before=Release(0, 32, 0)),
    Unasked(_BLOCKS, since=Release(0, 32, 1)),
    Unasked(("dflash2",)),
)
_SUFFIX_DEPTH: Final = 24  # vLLM's default where num_speculative_tokens is not given
_SECTIONS: Final = ("speculative_config", "speculative-config")
PER_BATCH: Final = "num_speculative_tokens_per_batch_size"
TREE: Final = "speculative_token_tree"
TREES: Final = UniformTrees(min_depth=1)


def read_schedule(source: EngineFile) -> Found | None:
    """A schedule, or the bare list of its ranges."""
    listed = source.list()
    if listed is not None:
        return _found(listed, None) if _looks_like_ranges(listed.value) else None
    section = source.section(*_SECTIONS)
    if section is None or PER_BATCH not in section.value:
        return None
    cap = section.get("num_speculative_tokens").integer(low=1)
    return _with_drafter(_found(section.get(PER_BATCH), cap), section)


def read_chain(source: EngineFile) -> Found | None:
    """One chain for all batch sizes."""
    section = source.section(*_SECTIONS)
    others = (PER_BATCH, TREE)
    if section is not None and section.value.get("method") == "suffix" and PER_BATCH not in section.value:
        return _read_suffix(section)
    if section is None or "num_speculative_tokens" not in section.value or any(k in section.value for k in others):
        return None
    length = section.get("num_speculative_tokens").integer(low=1)
    return _with_drafter(Found(DraftSchedule.constant(DraftTree.chain(length))), section)


def _read_suffix(section: Field) -> Found:
    depth = section.get("suffix_decoding_max_tree_depth", _SUFFIX_DEPTH).integer(low=1)
    longest = section.get("num_speculative_tokens", depth).integer(low=1)
    note = f"suffix decoding drafts as many tokens as match, {longest} at most: no chain of {longest} in every step"
    return Found(DraftSchedule.constant(DraftTree.chain(longest)), (note,), "suffix")


def read_tree(source: EngineFile) -> Found | None:
    """A static tree of the releases that load one."""
    section = source.section(*_SECTIONS)
    if section is None or section.value.get(TREE) is None:
        return None
    field = section.get(TREE)
    try:
        value = ast.literal_eval(field.text())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise field.error("not a Python list of paths", hint="write a string like '[(0,), (1,), (0, 0)]'") from None
    tree = tree_at(Field(document=field.document, keys=field.keys, value=_as_lists(value)))
    if (reason := TREES.refusal(tree)) is not None:
        raise field.error(f"vLLM drafts other tokens than this tree says: {reason}", hint=f"it drafts {TREES.words}")
    drafted = section.get("num_speculative_tokens").integer(low=1)
    if drafted != len(tree) - 1:
        raise section.get("num_speculative_tokens").error(
            f"{drafted}, but the tree has {len(tree) - 1} draft tokens", hint="vLLM does not check it; make them equal"
        )
    return _with_drafter(Found(DraftSchedule.constant(tree)), section)


def _with_drafter(found: Found, section: Field) -> Found:
    """With the kind of drafter that the method names, and for n-grams the runs that vLLM looks up."""
    kind = DRAFTERS.kind_of(section.get("method", "").text())
    if section.get("parallel_drafting", False).boolean():
        kind = {"eagle3": "peagle", "model": "pard"}.get(kind or "", kind)
    if section.get("enable_adaptive_verification", False).boolean():
        note = "vLLM verifies fewer drafts in a step where that pays: what is read is the most"
        found = found._replace(notes=(*found.notes, note))
    if kind != "ngram":
        return found._replace(drafter=kind)
    given = [section.get(f"prompt_lookup_{end}", 0).integer(low=0) for end in ("min", "max")]
    # SpeculativeConfig: where neither is given both are 5, where one is given the other is the same.
    shortest, longest = given[0] or given[1] or 5, given[1] or given[0] or 5
    if shortest > longest:
        raise section.get("prompt_lookup_min").error(
            f"{shortest} exceeds prompt_lookup_max {longest}", hint="swap them"
        )
    return found._replace(drafter=PromptLookup(rule="vllm", shortest=shortest, longest=longest).name)


def _found(ranges: Field, cap: int | None) -> Found:
    """The schedule of a list of [first batch, last batch, length], as vLLM's lookup expands it."""
    entries = sorted((_entry(field) for field in ranges.items()), key=lambda e: e[0])
    if not entries:
        raise ranges.error("there is no range", hint="write [[first batch, last batch, draft tokens], ...]")
    if entries[0][0] != 1:
        raise ranges.error(f"the first range starts at {entries[0][0]}", hint="vLLM wants a range from batch 1 on")
    notes, end = [], 0
    for low, high, length in entries:
        if low <= end:
            raise ranges.error(f"the range {low}-{high} overlaps the one before", hint="list each batch size once")
        if low > end + 1:
            notes.append(f"batch {end + 1}-{low - 1} is in no range: vLLM carries the length before it forward")
        if cap is not None and length > cap:
            notes.append(f"vLLM drafts {cap} at batch {low}-{high}, not {length}: num_speculative_tokens caps it")
        end = high
    capped = [(low, length if cap is None else min(length, cap)) for low, _, length in entries]
    steps = tuple(ScheduleStep(low, DraftTree.chain(length)) for low, length in capped)
    return Found(DraftSchedule(steps=steps, covers=end), tuple(notes))


def _entry(field: Field) -> tuple[int, int, int]:
    numbers = list(field.items())
    if len(numbers) != 3 or any(isinstance(n.value, str) for n in numbers):
        raise field.error("expected three whole numbers", hint="write [first batch, last batch, draft tokens]")
    low = numbers[0].integer(low=1)
    return low, numbers[1].integer(low=low), numbers[2].integer(low=0)


def _looks_like_ranges(value: list[Any]) -> bool:
    """Three numbers each: a path list always has a path of one rank."""
    return bool(value) and all(isinstance(v, list) and len(v) == 3 for v in value)


def _as_lists(value: object) -> object:
    return [_as_lists(v) for v in value] if isinstance(value, list | tuple) else value

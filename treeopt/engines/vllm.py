"""vLLM: a chain length per range of batch sizes from 0.24 on, one static tree of uniform branching up to 0.20.2.

Rules of the schedule: vllm 0.32.0, `v1/spec_decode/dynamic/utils.py`. Ranges are inclusive, the first one starts at
1, gaps and the tail carry the length before them forward, lengths are clamped to `num_speculative_tokens`. vLLM
converts what it reads to whole numbers without a word (2.7 to 2), and checks only when the engine starts.
Rules of the tree: vllm 0.20.2, `config/speculative.py` and `v1/spec_decode/llm_base_proposer.py`: a string, the
root left out; the drafter divides level sizes, so only uniform branching drafts what the tree says.
"""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any, Final

from treeopt.draft_family import OFF, Chains, UniformTrees, chain_length
from treeopt.engines.format import DRAFTER, Bug, Engine, Format, Found, Methods, Setup, Support, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.files.documents import Field
from treeopt.plan.reading_buckets import paths_at
from treeopt.tree import DraftTree

_METHODS: Final = Methods(
    engine="vLLM",
    words={
        "eagle": "eagle",
        "eagle3": "eagle3",
        "mtp": "mtp",
        "ngram": "ngram",
        "model": "draft_model",
        "medusa": "medusa",
    },
    default="eagle3",
    gone={"medusa": Release(0, 33, 0)},
)
_NOTES: Final = {
    "mtp": "num_speculative_tokens above the MTP model's n_predict must be a multiple of it",
    # SpeculativeConfig: where neither is given both are 5, where one is given the other is the same.
    "ngram": "vLLM looks up runs of exactly 5 tokens unless both prompt_lookup_min and prompt_lookup_max are set: set "
    "them to the lengths that the ranks were recorded with (ngram:3 of treeopt ranks collect is 1 and 3)",
}
_WITHOUT_MODEL: Final = ("mtp", "ngram")  # the drafter is part of the target, or the prompt
_SECTIONS: Final = ("speculative_config", "speculative-config")
_PER_BATCH: Final = "num_speculative_tokens_per_batch_size"
_TREE: Final = "speculative_token_tree"
_PROOF: Final = (
    "vllm:spec_decode_num_draft_tokens_total / vllm:spec_decode_num_drafts_total on /metrics is the number of draft "
    "tokens per step"
)
_LOG: Final = "; the log has 'SpecDecoding metrics: Mean acceptance length'"


def _write_chain(schedule: DraftSchedule, setup: Setup) -> Written:
    length = _longest(schedule)
    return Written(
        content=(text := _dumped(_config(setup, num_speculative_tokens=length))),
        file_name="vllm_speculative_config.json",
        launch=_serve(setup, text),
        proof=f"{_PROOF}: {length}{_LOG}",
        notes=_method_notes(setup),
    )


def _write_schedule(schedule: DraftSchedule, setup: Setup) -> Written:
    end = setup.end_of(schedule)
    ranges = [[r.batch_min, r.batch_max or end, chain_length(r.draft) or 0] for r in schedule.ranges()]
    ranges[-1][1] = end
    text = _dumped(_config(setup, num_speculative_tokens=_longest(schedule), **{_PER_BATCH: ranges}))
    lengths = ", ".join(f"{k} at batch {low}-{high}" for low, high, k in ranges)
    sizes = _graph_sizes(ranges)
    return Written(
        content=text,
        file_name="vllm_speculative_config.json",
        launch=f"VLLM_USE_V2_MODEL_RUNNER=1 {_serve(setup, text)}",
        proof=f"{_PROOF}: {lengths}{_LOG}",
        capture_sizes=sizes,
        capture_unit="tokens",
        notes=(
            "with data_parallel_size > 1 vLLM drops the schedule with no more than a warning in its log, and drafts "
            f"{_longest(schedule)} tokens at every batch size",
            "model runner V1 replaces full CUDA graphs by piecewise ones when there is a schedule; V2 keeps them",
            f"above batch {end} the last length is carried on",
            "vLLM 0.32 captures these sizes by itself; for a release that does not, add --compilation-config "
            "'{\"cudagraph_capture_sizes\": [...]}' (vllm-project/vllm#30330)",
            *_method_notes(setup),
        ),
    )


def _write_tree(schedule: DraftSchedule, setup: Setup) -> Written:
    tree = schedule.only
    if not isinstance(tree, DraftTree):
        raise InputError("vLLM loads one static tree", hint="give one tree")
    text = _dumped(_config(setup, num_speculative_tokens=len(tree) - 1, **{_TREE: str(list(tree.paths))}))
    return Written(
        content=text,
        file_name="vllm_speculative_config.json",
        launch=_serve(setup, text, "--attention-backend", "TREE_ATTN"),
        proof=f"{_PROOF}: {len(tree) - 1}{_LOG}",
        notes=(
            "legacy: these releases draft the tree but verify it as if it were a chain, and vLLM removed it in 0.21; "
            "measure it against a chain of the same depth before you use it",
            "releases without --attention-backend take the environment variable VLLM_ATTENTION_BACKEND",
        ),
    )


def _read_schedule(source: EngineFile) -> Found | None:
    listed = source.list()
    if listed is not None:
        return _found(listed, None) if _looks_like_ranges(listed.value) else None
    section = source.section(*_SECTIONS)
    if section is None or _PER_BATCH not in section.value:
        return None
    return _found(section.get(_PER_BATCH), section.get("num_speculative_tokens").integer(low=1))


def _read_chain(source: EngineFile) -> Found | None:
    section = source.section(*_SECTIONS)
    others = (_PER_BATCH, _TREE)
    if section is None or "num_speculative_tokens" not in section.value or any(k in section.value for k in others):
        return None
    return Found(DraftSchedule.constant(DraftTree.chain(section.get("num_speculative_tokens").integer(low=1))))


def _read_tree(source: EngineFile) -> Found | None:
    section = source.section(*_SECTIONS)
    if section is None or section.value.get(_TREE) is None:
        return None
    field = section.get(_TREE)
    try:
        value = ast.literal_eval(field.text())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise field.error("not a Python list of paths", hint="write a string like '[(0,), (1,), (0, 0)]'") from None
    tree = paths_at(Field(document=field.document, keys=field.keys, value=_as_lists(value)))
    if (reason := _TREES.refusal(tree)) is not None:
        raise field.error(f"vLLM drafts other tokens than this tree says: {reason}", hint=f"it drafts {_TREES.words}")
    drafted = section.get("num_speculative_tokens").integer(low=1)
    if drafted != len(tree) - 1:
        raise section.get("num_speculative_tokens").error(
            f"{drafted}, but the tree has {len(tree) - 1} draft tokens", hint="vLLM does not check it; make them equal"
        )
    return Found(DraftSchedule.constant(tree))


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
    steps = tuple(
        ScheduleStep(low, DraftTree.chain(length if cap is None else min(length, cap))) for low, _, length in entries
    )
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


def _longest(schedule: DraftSchedule) -> int:
    return max(chain_length(step.draft) or 0 for step in schedule.steps)


def _config(setup: Setup, **settings: object) -> dict[str, object]:
    method = _METHODS.word(setup)
    model = {} if method in _WITHOUT_MODEL and setup.draft_model == DRAFTER else {"model": setup.draft_model}
    return {"method": method, **model, **settings}


def _method_notes(setup: Setup) -> tuple[str, ...]:
    return tuple(note for method, note in _NOTES.items() if _METHODS.word(setup) == _METHODS.words[method])


def _serve(setup: Setup, config: str, *more: str) -> str:
    return shlex.join(["vllm", "serve", setup.model, "--speculative-config", config, *more])


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _graph_sizes(ranges: list[list[int]]) -> tuple[int, ...]:
    """Tokens of uniform steps: batches in vLLM's own spacing and each range's ends, times length + 1."""
    sizes: set[int] = set()
    for low, high, length in ranges:
        spaced = {n for n in (1, 2, 4, *range(8, 256, 8), *range(256, high + 1, 16)) if low <= n <= high}
        sizes |= {n * (length + 1) for n in spaced | {low, high}}
    return tuple(sorted(sizes))


_TREES: Final = UniformTrees(min_depth=1)
_ONE_CHAIN: Final = Format(name="chain", limits=Chains(), write=_write_chain, read=_read_chain, methods=_METHODS)
_SCHEDULE: Final = Format(
    name="schedule",
    limits=Chains(per_batch=True, may_be_off=True),
    write=_write_schedule,
    read=_read_schedule,
    methods=_METHODS,
)
_TOKEN_TREE: Final = Format(name="token-tree", limits=_TREES, write=_write_tree, read=_read_tree, methods=_METHODS)

VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    checked="0.32.0",
    supports=(
        Support(formats=(_ONE_CHAIN, _SCHEDULE), since=Release(0, 24, 0)),
        Support(formats=(_ONE_CHAIN,), since=Release(0, 21, 0), before=Release(0, 24, 0)),
        Support(formats=(_TOKEN_TREE, _ONE_CHAIN), since=Release(0, 10, 1), before=Release(0, 21, 0)),
    ),
    bugs=(
        Bug(
            reference="vllm-project/vllm#49548",
            text="throughput falls far below both sides while the batch size crosses a border of the schedule (V1 "
            "runner with piecewise graphs)",
            hits=lambda schedule: schedule.only is None,
            since=Release(0, 24, 0),
        ),
        Bug(
            reference="vllm-project/vllm#48494",
            text="graph capture fails for MTP drafters with a schedule in some builds",
            hits=lambda schedule: schedule.only is None,
            since=Release(0, 24, 0),
        ),
        Bug(
            reference="vllm-project/vllm#42121",
            text="tree attention was never fully supported and is removed in 0.21.0",
            hits=lambda schedule: any(chain_length(s.draft) is None for s in schedule.steps),
            before=Release(0, 21, 0),
        ),
        Bug(
            reference="vllm-project/vllm#54801",
            text="the schedule knows the batch size only: with long contexts the best length is another",
            hits=lambda schedule: schedule.only is None and any(s.draft != OFF for s in schedule.steps),
            since=Release(0, 24, 0),
        ),
    ),
)

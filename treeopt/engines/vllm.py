"""vLLM: a chain length per range of batch sizes from 0.24 on, one static tree of uniform branching up to 0.20.2.

Rules of the schedule: vllm 0.32.0, `v1/spec_decode/dynamic/utils.py`. Ranges are inclusive, the first one starts at
1, gaps and the tail carry the length before them forward, lengths are clamped to `num_speculative_tokens`. vLLM
converts what it reads to whole numbers without a word (2.7 to 2), and checks only when the engine starts.
Rules of the tree: vllm 0.20.2, `config/speculative.py` and `v1/spec_decode/llm_base_proposer.py`: a string, the
root left out; the drafter divides level sizes, so only uniform branching drafts what the tree says.
Which release takes which drafter on which runner: `tests/conformance/vllm_releases.csv`, where each release's own
configuration code said so.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from treeopt.acceptance.rules import BLOCK, DRAWN_RULES
from treeopt.cost.hardware import DEFAULT_CAPTURE_LIMITS
from treeopt.draft_family import OFF, Chains, chain_length
from treeopt.engines.format import (
    DRAFT_TOKENS,
    DRAFTER,
    Bug,
    Drafters,
    DrafterWord,
    Engine,
    Format,
    Setup,
    Written,
)
from treeopt.engines.release import Release, is_within
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.vllm_config import (
    DRAFTERS,
    PER_BATCH,
    TREE,
    TREES,
    UNASKED,
    WORDS,
    read_chain,
    read_schedule,
    read_tree,
)
from treeopt.errors import InputError
from treeopt.solve.buckets import batches_in_words

_TREES_END: Final = Release(0, 21, 0)
_SCHEDULES: Final = Release(0, 24, 0)
# From 0.33 on runner V1 drops a schedule of suffix drafts with no more than a warning, and V2 does not run them.
_SCHEDULED: Final = WORDS | {"suffix": DrafterWord(text="suffix", has_model=False, before=Release(0, 33, 0))}
# Runner V2 keeps full CUDA graphs with a schedule. From 0.29 on vLLM takes it by itself wherever it can.
_V2_SINCE: Final = dict.fromkeys(("eagle", "eagle3", "mtp", "dspark"), Release(0, 25, 0))
_V2_BY_DEFAULT: Final = Release(0, 29, 0)
_NOTES: Final = {
    "mtp": "num_speculative_tokens above the MTP model's n_predict must be a multiple of it",
    "suffix": "suffix decoding chooses its own lengths: what is exported is the longest",
    "dflash": "a pass is as wide as num_speculative_tokens at every batch size; a head of block b is trained for "
    "b - 1; the drafter's attention backend must run without a causal mask",
    "dspark": 'add "enable_adaptive_verification": true to verify in every step as many drafts as pay; it needs '
    "captured graphs for every batch, and no LoRA, pipeline parallelism or logprobs",
}
_DRAWN: Final = dict.fromkeys(DRAWN_RULES, Release(0, 25, 0))
_LISTED: Final = ("ngram", "suffix", "medusa")  # drafters without a law to draw from
_PARALLEL: Final = (
    "a pass is as wide as num_speculative_tokens at every batch size; model runner V2 drafted P-EAGLE token by token "
    "until May 2026 (vllm-project/vllm#43010)"
)
_V2: Final = "VLLM_USE_V2_MODEL_RUNNER=1 "
_ONLY_V2: Final = "DFlash2 loads on model runner V2 only; on V1 it fails or drafts worse without a word (vLLM PR 52816)"
_PROOF: Final = (
    f"vllm:spec_decode_num_draft_tokens_total / vllm:spec_decode_num_drafts_total on /metrics, the {DRAFT_TOKENS}, is"
)
_LOG: Final = "; the log has 'SpecDecoding metrics: Mean acceptance length'"


def _write_chain(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    text = _config(setup, word, num_speculative_tokens=schedule.longest)
    return _written(
        text,
        setup,
        word,
        variables=_V2 if setup.rule == BLOCK else "",
        proof=f"{_PROOF} {schedule.longest}{_LOG}",
        notes=_notes(setup, word),
    )


def _write_schedule(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    end = setup.end_of(schedule)
    ranges = [[r.batch_min, r.batch_max or end, chain_length(r.draft) or 0] for r in schedule.ranges()]
    ranges[-1][1] = end
    lengths = ", ".join(f"{k} at {batches_in_words(low, high)}" for low, high, k in ranges)
    return _written(
        _config(setup, word, num_speculative_tokens=schedule.longest, **{PER_BATCH: ranges}),
        setup,
        word,
        variables=_V2 if setup.rule == BLOCK or _asks_for_v2(setup, word) else "",
        proof=f"{_PROOF} {lengths}{_LOG}",
        capture_sizes=() if setup.device == "cpu" else _graph_sizes(ranges),
        capture_unit="tokens",
        notes=(
            "with data_parallel_size > 1 vLLM drops the schedule with no more than a warning in its log, and drafts "
            f"{schedule.longest} tokens at every batch size",
            *(_graph_notes(setup, ranges) if setup.device == "cuda" else ()),
            f"above batch {end} the last length is carried on",
            *_notes(setup, word),
        ),
    )


def _write_tree(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    tree = schedule.only_tree
    return _written(
        _config(setup, word, num_speculative_tokens=len(tree) - 1, **{TREE: str(list(tree.paths))}),
        setup,
        word,
        "--attention-backend",
        "TREE_ATTN",
        proof=f"{_PROOF} {len(tree) - 1}{_LOG}",
        notes=(
            "legacy: these releases draft the tree but verify it as if it were a chain, and vLLM removed it in 0.21; "
            "measure it against a chain of the same depth before you use it",
            "releases without --attention-backend take the environment variable VLLM_ATTENTION_BACKEND",
        ),
    )


_LIMIT: Final = DEFAULT_CAPTURE_LIMITS["vllm"]
_GRAPH_NOTES: Final = (
    "model runner V1 replaces full CUDA graphs by piecewise ones when there is a schedule; V2 keeps them",
    "vLLM 0.32 captures these sizes by itself; for a release that does not, add --compilation-config "
    "'{\"cudagraph_capture_sizes\": [...]}' (vllm-project/vllm#30330)",
)


def _graph_notes(setup: Setup, ranges: list[list[int]]) -> tuple[str, ...]:
    widest = max(high * (length + 1) for _, high, length in ranges)
    if widest <= (setup.capture_limit or _LIMIT):
        return _GRAPH_NOTES
    raised = "" if setup.capture_limit else f" (--capture-limit {widest} of search prices it so)"
    return (
        *_GRAPH_NOTES,
        f"steps of more than {setup.capture_limit or _LIMIT} tokens have no graph, the widest here has {widest}: "
        f"--max-cudagraph-capture-size {widest} captures it{raised}",
    )


def _asks_for_v2(setup: Setup, word: DrafterWord) -> bool:
    """Whether runner V2 runs the drafter with a schedule, and has to be asked for."""
    since = None if word.parallel else _V2_SINCE.get(DRAFTERS.kind_of(word.text) or "")
    release = setup.release
    return setup.device == "cuda" and bool(since and release and is_within(release, since, _V2_BY_DEFAULT))


def _config(setup: Setup, word: DrafterWord, **settings: object) -> str:
    """The value of --speculative-config, on one line."""
    if setup.device == "cpu" and word == WORDS["dspark"]:
        raise InputError("vLLM runs DSpark on model runner V2 alone, which needs a GPU", hint="leave --device cpu out")
    config: dict[str, object] = {"method": word.text}
    if word.has_model or setup.draft_model != DRAFTER:
        config["model"] = setup.draft_model
    if word.parallel:
        config["parallel_drafting"] = True
    if word == WORDS["ngram"]:
        config |= {"prompt_lookup_min": setup.lookup.shortest, "prompt_lookup_max": setup.lookup.longest}
    if setup.survival is not None:
        if setup.device == "cpu":  # it starts, and dies at the first draft
            raise InputError("vLLM on a CPU cannot pretend acceptance", hint="leave --synthetic or --device cpu out")
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(setup.survival)}
    elif setup.rule in _DRAWN and word not in [WORDS[kind] for kind in _LISTED]:
        if setup.rule == BLOCK and setup.device == "cpu":
            raise InputError("vLLM verifies blocks on model runner V2 alone", hint="leave --device cpu out")
        config["draft_sample_method"] = "probabilistic"
        config |= {"rejection_sample_method": "block"} if setup.rule == BLOCK else {}
    return json.dumps(config | settings, separators=(",", ":"))


def _written(text: str, setup: Setup, word: DrafterWord, *flags: str, variables: str = "", **more: Any) -> Written:
    serve = shlex.join(["vllm", "serve", setup.model, "--speculative-config", text, *flags, *_graph_flags(setup)])
    return Written(content=text, file_name="vllm_speculative_config.json", launch=f"{variables}{serve}", **more)


def _graph_flags(setup: Setup) -> list[str]:
    """The graphs that the plan was priced with, where they are not vLLM's own choice."""
    if setup.device == "cpu":
        return []
    sizes = ["--cudagraph-capture-sizes", *map(str, setup.captured)] if setup.captured else []
    limit = [] if setup.capture_limit is None else ["--max-cudagraph-capture-size", str(setup.capture_limit)]
    return [*sizes, *limit]


def _notes(setup: Setup, word: DrafterWord) -> tuple[str, ...]:
    found = [note for kind, note in _NOTES.items() if word.text == WORDS[kind].text]
    found += [_PARALLEL] if word.parallel else []
    return (*found, _ONLY_V2) if word == WORDS["dflash2"] else tuple(found)


def _graph_sizes(ranges: list[list[int]]) -> tuple[int, ...]:
    """Tokens of uniform steps: batches in vLLM's own spacing and each range's ends, times length + 1."""
    sizes: set[int] = set()
    for low, high, length in ranges:
        spaced = {n for n in (1, 2, 4, *range(8, 256, 8), *range(256, high + 1, 16)) if low <= n <= high}
        sizes |= {n * (length + 1) for n in spaced | {low, high}}
    return tuple(sorted(sizes))


def _changes(schedule: DraftSchedule) -> bool:
    return schedule.only is None


VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    length_setting="num_speculative_tokens",
    checked="0.33.0",
    checked_by="own code",
    lookup_rule="vllm",
    checked_since=Release(0, 10, 1),
    unasked=UNASKED,
    formats=(
        Format(
            name="chain",
            limits=Chains(),
            write=_write_chain,
            read=read_chain,
            drafters=DRAFTERS,
            since=Release(0, 10, 1),
            pretends_since=Release(0, 20, 0),
            switches=_DRAWN,
        ),
        Format(
            name="token-tree",
            limits=TREES,
            write=_write_tree,
            read=read_tree,
            drafters=DRAFTERS,
            since=Release(0, 10, 1),
            before=_TREES_END,
        ),
        Format(
            name="schedule",
            limits=Chains(per_batch=True, may_be_off=True),
            write=_write_schedule,
            read=read_schedule,
            drafters=Drafters(engine="vLLM's schedule", words=_SCHEDULED, default="eagle3"),
            since=_SCHEDULES,
            pretends_since=Release(0, 20, 0),
            switches=_DRAWN,
        ),
    ),
    bugs=(
        Bug(
            reference="vllm-project/vllm#49548",
            text="throughput falls far below both sides while the batch size crosses a border of the schedule (V1 "
            "runner with piecewise graphs)",
            hits=_changes,
            since=_SCHEDULES,
        ),
        Bug(
            reference="vllm-project/vllm#48494",
            text="graph capture fails for MTP drafters with a schedule in some builds",
            hits=_changes,
            since=_SCHEDULES,
        ),
        Bug(
            reference="vllm-project/vllm#42121",
            text="tree attention was never fully supported and is removed in 0.21.0",
            hits=lambda schedule: any(chain_length(s.draft) is None for s in schedule.steps),
            before=_TREES_END,
        ),
        Bug(
            reference="vllm-project/vllm#54801",
            text="the schedule knows the batch size only: with long contexts the best length is another",
            hits=lambda schedule: _changes(schedule) and any(s.draft != OFF for s in schedule.steps),
            since=_SCHEDULES,
        ),
    ),
)

"""llama.cpp: `llama-server` drafts one chain, by a model or from n-grams of the text.

Flags: llama.cpp's `common/arg.cpp` as llama-cpp-python 0.3.36 ships it. `--draft-max` and its like are removed;
`--spec-type` must be said, except that a drafter's file may name its own. n-grams: `ngram-simple` looks up runs of
exactly N tokens, the latest match, and copies M tokens, but nothing where fewer than N follow (`common/ngram-map.cpp`);
the other n-gram kinds choose lengths by their own statistics.
"""

from __future__ import annotations

import shlex
from typing import Final

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import Chains
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.release import Release
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(
    engine="llama.cpp",
    words={
        "model": DrafterWord(text="draft-simple"),
        "eagle3": DrafterWord(text="draft-eagle3"),
        "mtp": DrafterWord(text="draft-mtp", has_model=False),
        "dflash": DrafterWord(text="draft-dflash"),
        "dspark": DrafterWord(text="draft-dspark"),
        "ngram": DrafterWord(text="ngram-simple", has_model=False),
    },
    default="model",
    closed=True,
)
_MAX, _MIN, _P_MIN = "spec-draft-n-max", "spec-draft-n-min", "spec-draft-p-min"
_TYPE, _RUN, _COPIED = "spec-type", "spec-ngram-simple-size-n", "spec-ngram-simple-size-m"
_REMOVED: Final = ("draft-max", "draft-n", "draft")
_LOG: Final = "the server log's 'draft acceptance = ... ( accepted / generated)' after each request: generated / drafts"


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    length = schedule.longest
    flags = [f"--{_TYPE}", word.text]
    if word.text == "ngram-simple":
        run = min(setup.lookup.longest, length)  # a longer run than draft is never drafted from
        flags += [f"--{_RUN}", str(run), f"--{_COPIED}", str(length)]
        notes = (
            f"llama.cpp looks up runs of exactly {run} tokens, the latest match, and drafts {run} tokens or more; none "
            f"in the first {run + length + 1} tokens of text",
        )
    else:
        flags += [f"--{_MAX}", str(length), f"--{_MIN}", "0", f"--{_P_MIN}", "0"]
        notes = (f"--{_P_MIN} 0 keeps every draft; with its default llama.cpp stops drafting where it is unsure",)
    if setup.survival is not None:
        flags += ["--spec-synth-rates", ",".join(f"{f:.6g}" for f in setup.survival)]
    model = ["-md", setup.draft_model] if word.has_model else []
    return Written(
        content=shlex.join(flags),
        file_name="llamacpp_flags.txt",
        launch=shlex.join(["llama-server", "-m", setup.model, *model, *flags]),
        proof=f"{_LOG} is {length}",
        notes=notes,
    )


def _read(source: EngineFile) -> Found | None:
    gone = next((name for name in _REMOVED if name in source.flags), None)
    if gone is not None:
        raise InputError(f"{source.name}: llama.cpp has removed --{gone}", hint=f"write --{_MAX} N")
    word = source.flags.get(_TYPE)
    if word is not None and word.startswith("ngram-"):
        return _read_ngram(source, word)
    length = source.flag_number(_MAX)
    if not length:
        return None
    return Found(DraftSchedule.constant(DraftTree.chain(length)), (), _DRAFTERS.kind_of(word))


def _read_ngram(source: EngineFile, word: str) -> Found:
    if word != "ngram-simple":
        raise InputError(f"{source.name}: {word} chooses its own lengths", hint="compare with chain:K for each of them")
    run, length = source.flag_number(_RUN) or 12, source.flag_number(_COPIED) or 48  # llama.cpp's defaults
    lookup = PromptLookup(rule="llamacpp", shortest=run, longest=run)
    return Found(DraftSchedule.constant(DraftTree.chain(length)), (), lookup.name)


LLAMACPP: Final = Engine(
    name="llamacpp",
    title="llama.cpp",
    length_setting="--spec-draft-n-max",
    checked="commit of 2026-11",
    checked_by="documentation only",
    lookup_rule="llamacpp",
    formats=(
        Format(
            name="flags",
            limits=Chains(),
            write=_write,
            read=_read,
            drafters=_DRAFTERS,
            pretends_since=Release(0, 0, 0),
        ),
    ),
)

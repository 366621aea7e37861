"""What a collection measures: the pair of models, how far it looks, and under which rule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.prompt_lookup import KNOWN_RULES, PromptLookup, parse_lookup
from treeopt.acceptance.rules import BLOCK, GREEDY, RECURSIVE_REJECTION, TARGET_SAMPLE
from treeopt.collect.heads.files import HeadKind, kind_of
from treeopt.errors import InputError, UnknownNameError

MAX_DEPTH: Final = 64
RECORDED_RULES: Final = (GREEDY, TARGET_SAMPLE, RECURSIVE_REJECTION, BLOCK)
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")

DraftKind = Literal["ngram", "early-exit"] | HeadKind
_KINDS: Final[tuple[DraftKind, ...]] = ("ngram", "early-exit", "mtp", "medusa", "eagle", "eagle3", "peagle", "dflash")
_NUMBERED: Final = {"ngram": "N", "early-exit": "K"}
_EXAMPLES: Final = {"ngram": "3", "early-exit": "12", "medusa": "./medusa-vicuna-7b-v1.3"}
_OR_A_MODEL: Final = "; or a folder of a drafter, or a model: its directory, .gguf file or hub id OWNER/NAME"


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """Which drafter: `argument` is N or RULE:LOW-HIGH for `ngram`, K for `early-exit`, else where its weights are.

    Of `mtp` alone it may be empty: the module is in the target's own checkpoint.
    """

    kind: DraftKind
    argument: str

    @property
    def number(self) -> int:
        """K of `early-exit:K`."""
        return int(self.argument)

    @property
    def has_files(self) -> bool:
        """Whether `argument` is where weights are."""
        return self.kind not in ("ngram", "early-exit") and bool(self.argument)

    @property
    def drafts_trees(self) -> bool:
        """Whether the reference decoder runs it: its drafters do not see the target's hidden states."""
        return self.kind in ("ngram", "early-exit", "model")

    @property
    def name(self) -> str:
        """As the trace's conditions name it."""
        if self.kind == "model":
            return model_name(self.argument)
        if not self.argument:
            return self.kind
        return f"{self.kind}:{model_name(self.argument) if self.has_files else self.argument}"


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """Everything that decides what a document's rows are, so that any process can make them.

    Args:
        target: directory, .gguf file or hub id of the target.
        draft: `ngram[:N]`, `ngram:vllm:LOW-HIGH`, `early-exit:K`, `mtp[:DIR]`, a drafter's folder (its kind is in its
            config.json, or stands before it as in `medusa:DIR`), or a model as for `target`.
        depth: D, how many tokens ahead the drafter guesses.
        ranks: how many of its guesses are told apart; a token beyond them is recorded as -1.
        max_new_tokens: the longest continuation of a prompt.
        temperature: 0 for greedy decoding.
        rule: how a step decides which sibling is accepted; None for the temperature's usual one.

    Raises:
        InputError: a number out of range, an unknown name, or a rule that does not go with the temperature.
    """

    target: str
    draft: str
    depth: int = 6
    ranks: int = 32
    max_new_tokens: int = 128
    temperature: float = 0.0
    rule: str | None = None
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        _check_range("--depth", self.depth, 1, MAX_DEPTH)
        _check_range("--ranks", self.ranks, 1, MAX_RANKS)
        _check_range("--max-new-tokens", self.max_new_tokens, 2, 1 << 20)
        _check_range("--temperature", self.temperature, 0, 100)
        _check_range("--seed", self.seed, 0, 2**63 - 1)
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        if self.rule is not None and self.rule not in RECORDED_RULES:
            raise UnknownNameError("rule", self.rule, RECORDED_RULES)
        if self.rule is not None and (self.rule == GREEDY) != (self.temperature == 0):
            usual = "greedy is the rule" if self.temperature == 0 else "greedy needs --temperature 0"
            raise InputError(
                f"rule {self.rule} at temperature {self.temperature:g}: {usual}",
                hint="leave --rule out, or set --temperature to match",
            )
        parse_draft(self.draft)

    @property
    def acceptance_rule(self) -> str:
        """The rule, with the temperature's usual one filled in: greedy, or target-sample."""
        return self.rule or (GREEDY if self.temperature == 0 else TARGET_SAMPLE)

    @property
    def drafter(self) -> DrafterSpec:
        """The parsed `draft`."""
        return parse_draft(self.draft)

    def conditions(self, *, dataset: str) -> Conditions:
        """What a trace collected like this says about itself; names only, so that no path of this machine is in it."""
        return Conditions(
            target=model_name(self.target),
            drafter=self.drafter.name,
            temperature=self.temperature,
            rule=self.acceptance_rule,
            dataset=dataset,
            sampling="all-positions",
        )


def parse_draft(text: str) -> DrafterSpec:
    """The drafter that `text` names.

    Raises:
        UnknownNameError: neither a kind of drafter nor a place of a model.
        InputError: a kind without its number or folder.
    """
    name, _, argument = text.partition(":")
    kind = next((k for k in _KINDS if k == name), None)
    if kind is None:
        if "/" in text or text.endswith(".gguf") or Path(text).exists():
            return DrafterSpec(kind=_kind_at(text), argument=text)
        raise UnknownNameError("drafter", name, _KINDS, or_else=_OR_A_MODEL)
    if kind == "ngram":
        return DrafterSpec(kind=kind, argument=_known_lookup(text).name.removeprefix("ngram:"))
    if kind == "mtp" or (argument and kind not in _NUMBERED):
        return DrafterSpec(kind=kind, argument=argument)
    if argument.isdecimal() and 1 <= int(argument) <= 1000:
        return DrafterSpec(kind=kind, argument=str(int(argument)))
    letter = _NUMBERED.get(kind, "DIR")
    raise InputError(
        f"drafter '{text}' says too little",
        hint=f"write {kind}:{letter}, e.g. {kind}:{_EXAMPLES.get(kind, './my-head')}",
    )


def _known_lookup(text: str) -> PromptLookup:
    lookup = parse_lookup(text)
    assert lookup is not None
    if lookup.rule not in ("treeopt", *KNOWN_RULES):
        raise InputError(
            f"drafter '{text}': how {lookup.rule} looks n-grams up is known from documentation only",
            hint=f"collect with ngram:N, or with the rule of {' or '.join(KNOWN_RULES)}",
        )
    if lookup.rule == "treeopt" and lookup.shortest > 1:
        raise InputError(f"drafter '{text}': treeopt's own rule looks up all runs", hint="write ngram:N")
    return lookup


def _kind_at(text: str) -> DraftKind:
    """What a folder holds: a head of the target, by its config.json, or a model of its own."""
    folder = Path(text)
    return kind_of(folder) if (folder / "config.json").is_file() else "model"


def model_name(spec: str) -> str:
    """A model's name: a hub id as it is, else the last part of the path."""
    path = Path(spec)
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.exists() else spec


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} {value:g} is out of range", hint=f"give a number from {low:g} to {high:g}")

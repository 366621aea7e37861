"""What a collection measures: the pair of models, how far it looks, and under which rule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.rules import GREEDY, RECURSIVE_REJECTION, TARGET_SAMPLE
from treeopt.errors import InputError, UnknownNameError

MAX_DEPTH: Final = 64
RECORDED_RULES: Final = (GREEDY, TARGET_SAMPLE, RECURSIVE_REJECTION)
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")

DraftKind = Literal["ngram", "early-exit", "medusa", "model", "eagle", "eagle3", "mtp", "dflash", "peagle"]
_KINDS: Final[tuple[DraftKind, ...]] = ("ngram", "early-exit", "medusa")
_OR_A_MODEL: Final = "; or a model: its directory, .gguf file or hub id OWNER/NAME"


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """Which drafter: `argument` is N for `ngram`, K for `early-exit`, else where its weights are."""

    kind: DraftKind
    argument: str

    @property
    def number(self) -> int:
        """N of `ngram:N`, K of `early-exit:K`."""
        return int(self.argument)

    @property
    def has_files(self) -> bool:
        """Whether `argument` is where weights are."""
        return self.kind not in ("ngram", "early-exit")

    @property
    def drafts_trees(self) -> bool:
        """Whether the reference decoder runs it: its drafters do not see the target's hidden states."""
        return self.kind in ("ngram", "early-exit", "model")

    @property
    def name(self) -> str:
        """As the trace's conditions name it."""
        if self.kind == "model":
            return model_name(self.argument)
        return f"{self.kind}:{model_name(self.argument) if self.kind == 'medusa' else self.argument}"


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """Everything that decides what a document's rows are, so that any process can make them.

    Args:
        target: directory, .gguf file or hub id of the target.
        draft: `ngram[:N]`, `early-exit:K`, `medusa:DIR`, or a model as for `target`.
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
    kind, colon, argument = text.partition(":")
    known = next((k for k in _KINDS if k == kind), None)
    if known is None:
        if "/" in text or text.endswith(".gguf") or Path(text).exists():
            return DrafterSpec(kind="model", argument=text)
        raise UnknownNameError("drafter", kind, _KINDS, or_else=_OR_A_MODEL)
    if known == "ngram" and not colon:
        return DrafterSpec(kind="ngram", argument="3")
    if known == "medusa" and argument:
        return DrafterSpec(kind="medusa", argument=argument)
    if known != "medusa" and argument.isdecimal() and 1 <= int(argument) <= 1000:
        return DrafterSpec(kind=known, argument=str(int(argument)))
    written = "medusa:DIR" if known == "medusa" else f"{known}:{'N' if known == 'ngram' else 'K'}"
    raise InputError(f"drafter '{text}' says too little", hint=f"write {written}, e.g. {_EXAMPLES[known]}")


def model_name(spec: str) -> str:
    """A model's name: a hub id as it is, else the last part of the path."""
    path = Path(spec)
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.exists() else spec


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} {value:g} is out of range", hint=f"give a number from {low:g} to {high:g}")


_EXAMPLES: Final[dict[DraftKind, str]] = {
    "ngram": "ngram:3",
    "early-exit": "early-exit:12",
    "medusa": "medusa:./medusa-vicuna-7b-v1.3",
}

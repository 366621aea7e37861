"""The kinds of drafters, by what each runs to guess a tree.

Heads are published in 16 bit whatever the target is quantised to; an MTP layer is a part of the target's checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from treeopt.cost.drafting import Drafting, Free, Heads, Passes
from treeopt.cost.formats import Dtype, WeightFormats
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.model import ModelShape
from treeopt.errors import InputError, UnknownNameError

# The reduced vocabulary of the published heads (SpecForge, the EAGLE authors').
DRAFT_VOCAB: Final = 32_000

_MODEL_PREFIX: Final = "model:"
_HEAD_PREFIX: Final = "eagle3:"


@dataclass(frozen=True, kw_only=True)
class Eagle:
    """One decoder layer on the target's hidden states and token embeddings, then the target's LM head; D passes.

    The layer has the target's attention and a dense feed-forward block as wide as the target's `intermediate`, for a
    target with experts too, as SpecForge's head for Qwen3-30B-A3B has. The 2h -> h fusion is copied to every GPU, as in
    vLLM. Source: EAGLE, arXiv 2401.15077.
    """

    kind: ClassVar[str] = "eagle"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        layer = replace(target.network, layers=1, experts=None, window=None, linear=None)
        return Passes(network=_in_16_bit(target, layer), fusion=_fusion(layer.hidden))


@dataclass(frozen=True, kw_only=True)
class Eagle3:
    """One decoder layer whose attention reads hidden state and embedding, and an LM head over fewer tokens; D passes.

    Hidden states of three layers of the target are fused, 3h -> h, for the accepted tokens only; later passes take the
    layer's own output. The fusion is copied to every GPU. `head` is the head's own shape; without it the layer is as
    wide as the target's dense one. Source: EAGLE-3, arXiv 2503.01840; the two reads of the attention and the reduced
    vocabulary are those of the published heads' config.json.
    """

    kind: ClassVar[str] = "eagle3"
    head: ModelShape | None = None

    @property
    def note(self) -> str:
        """Where the size of the vocabulary is a guess."""
        if self.head and self.head.draft_vocab:
            return ""
        return f"the EAGLE-3 head is taken to choose among {DRAFT_VOCAB:,} tokens; give eagle3:CONFIG_JSON of your head"

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the head's own heads do not divide by.
        """
        vocab = (self.head and self.head.draft_vocab) or DRAFT_VOCAB
        shape = self.head.shard(target.tp) if self.head else target.network
        layer = replace(shape, layers=1, experts=None, window=None, linear=None, vocab=-(-vocab // target.tp))
        return Passes(
            network=replace(_in_16_bit(target, layer), attention_inputs=2 * layer.hidden),
            entry=(Gemm(layer.hidden, 3 * target.network.hidden),),
        )


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """One layer of the target's own kind, experts included, after a 2h -> h fusion, and its LM head; D passes.

    Source: DeepSeek-V3, arXiv 2412.19437, section 2.2.
    """

    kind: ClassVar[str] = "mtp"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        experts = target.network.experts and replace(target.network.experts, dense_layers=0)
        layer = replace(target.network, layers=1, experts=experts, window=None, linear=None)
        return Passes(network=replace(target, network=layer), fusion=_fusion(layer.hidden))


@dataclass(frozen=True, kw_only=True)
class Medusa:
    """One head per depth, each a residual h x h block and an own LM head, all in one pass over B tokens.

    Source: Medusa, arXiv 2401.10774.
    """

    kind: ClassVar[str] = "medusa"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        return Heads(target=target)


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """A separate smaller model in its own checkpoint's format, D passes of it on the target's GPUs, with its tp."""

    kind: ClassVar[str] = "model"
    note: ClassVar[str] = ""
    model: ModelShape

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the draft model's heads do not divide by.
        """
        formats = self.model.formats()
        if target.formats.wide is Dtype.FP32:
            formats = WeightFormats(Dtype.FP32, Dtype.FP32)
        return Passes(network=replace(target, network=self.model.shard(target.tp), formats=formats))


@dataclass(frozen=True, kw_only=True)
class Ngram:
    """Guesses looked up in the text so far: nothing runs on the GPU."""

    kind: ClassVar[str] = "ngram"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`: none."""
        return Free()


Drafter = Eagle | Eagle3 | Mtp | Medusa | DraftModel | Ngram


def parse_drafter(text: str, *, load_model: Callable[[str], ModelShape]) -> Drafter:
    """The drafter that `eagle`, `eagle3`, `eagle3:CONFIG`, `medusa`, `mtp`, `ngram` or `model:NAME` means.

    Args:
        text: what the user wrote.
        load_model: turns the NAME of `model:NAME`, or the config.json of an EAGLE-3 head, into a model.

    Raises:
        UnknownNameError: any other text; the hint lists the kinds.
        InputError: `model:` or `eagle3:` without a name, or whatever `load_model` raises.
    """
    if text.startswith(_MODEL_PREFIX):
        name = text.removeprefix(_MODEL_PREFIX)
        if not name:
            raise InputError(
                "the drafter 'model:' names no model", hint="write model:NAME, for example model:qwen3-0.6b"
            )
        return DraftModel(model=load_model(name))
    if text.startswith(_HEAD_PREFIX):
        name = text.removeprefix(_HEAD_PREFIX)
        if not name:
            raise InputError("the drafter 'eagle3:' names no file", hint="write eagle3:CONFIG_JSON, or eagle3 alone")
        return Eagle3(head=load_model(name))
    drafters: tuple[Drafter, ...] = (Eagle(), Eagle3(), Medusa(), Mtp(), Ngram())
    for drafter in drafters:
        if drafter.kind == text:
            return drafter
    raise UnknownNameError("drafter", text, [*(d.kind for d in drafters), "eagle3:CONFIG_JSON", "model:NAME"])


def _in_16_bit(target: ForwardPass, layer: ModelShape) -> ForwardPass:
    wide = target.formats.wide
    return replace(target, network=layer, formats=WeightFormats(wide, wide))


def _fusion(hidden: int) -> tuple[Gemm, ...]:
    return (Gemm(hidden, 2 * hidden),)


# Of each kind of drafter that ranks are collected with (the first word of a trace's `drafter`), the one above whose
# passes it takes; a drafter without such a word is a model of its own.
PRICED_AS: Final[dict[str, str]] = {
    "ngram": "ngram",
    "early-exit": "model",
    "model": "model",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
}

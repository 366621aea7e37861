"""Drafters that guess a whole block in one pass: DFlash and its descendants, P-EAGLE, PARD.

Their own sizes come from a config.json (`treeopt.cost.drafter_file`); without one the published heads' usual ones are
taken beside the target's, and the note says so. `masks` is how many tokens the engine has a pass guess, set when it
starts; without it the block that the head was trained for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

from treeopt.cost.block_pass import BlockPass, Entry, Guessing
from treeopt.cost.formats import Dtype, WeightFormats
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.model import ModelShape
from treeopt.errors import InputError

# The reduced vocabulary of the published EAGLE-3 and P-EAGLE heads (SpecForge, the EAGLE authors').
DRAFT_VOCAB: Final = 32_000
# z-lab's DFlash heads: 5 layers, states of 5 of the target's layers, blocks of 16; AWS's P-EAGLE: 4 layers, K = 7;
# AMD's PARD: draft_k 12; DFlash2 heads: blocks of 8; DSpark: gamma 7 (SGLang's default).
_LAYERS: Final = 5
_DRAFTS: Final = {"dflash": 15, "jetspec": 15, "dflash2": 7, "dspark": 7, "peagle": 7, "pard": 12}
_PEAGLE_LAYERS: Final = 4
_EAGLE3_STATES: Final = 3


class Convolution(NamedTuple):
    """DFlash2's grouped convolutions: `taps` per channel group of `group`, two of them in each layer."""

    taps: int
    group: int

    def projection(self, hidden: int) -> Gemm:
        """The weights of the taps, made of every token: 2 * 2 * (5120 / 16) = 1280 outputs of 5120 channels."""
        return Gemm(2 * self.taps * (hidden // self.group), hidden)


class Selector(NamedTuple):
    """DFlash2's choice among `top_k` guesses per position by two codebooks of `rank` channels."""

    rank: int
    top_k: int


_CONVOLUTION: Final = Convolution(taps=2, group=16)
_SELECTOR: Final = Selector(rank=256, top_k=16)
_MARKOV_RANK: Final = 256


@dataclass(frozen=True, kw_only=True)
class BlockHead:
    """What a config.json says of a drafter that guesses a block.

    Attributes:
        model: the sizes of its layers; `draft_vocab` is that of an LM head of its own over fewer tokens.
        drafts: tokens that a block guesses, as trained.
        states: values of the target's states per token that are fused; None is one state of the target per layer.
        from_anchor: the root's row guesses too, so a pass has as many rows as guesses, not one more.
        markov_rank: DSpark's; 0 without.
        in_checkpoint: the layers are the target checkpoint's own, in its format (DeepSeek-V4); else 16 bit.
        convolution: DFlash2's.
        selector: DFlash2's.
    """

    model: ModelShape
    drafts: int
    states: int | None = None
    from_anchor: bool = False
    markov_rank: int = 0
    in_checkpoint: bool = False
    convolution: Convolution | None = None
    selector: Selector | None = None


@dataclass(frozen=True, kw_only=True)
class BlockHeads:
    """DFlash, JetSpec, DFlash2 and DSpark: one pass of L dense layers over the root and a mask per guess.

    Every step fuses the states of the target at all tokens that it verified, m h_t -> h by a matrix that every GPU
    has whole, and makes keys and values of all layers of them in one GEMM: neither q, o nor feed-forward blocks run
    for context, and a step that drafts nothing pays it too. The LM head is the target's, or the head's own over
    `draft_vocab` tokens, over the guesses alone. JetSpec runs what DFlash runs, with a causal mask. DFlash2 adds two
    convolutions per layer and a selector; DSpark a Markov head whose r -> V matrix is read once per guess, one after
    the other; its confidence head (one row) is left out.

    Sources: DFlash, arXiv 2602.06036, and vLLM 0.33, `qwen3_dflash.py`, `qwen3_dflash2.py`; JetSpec, 2606.18394;
    DSpark, 2607.05147.
    """

    kind: str = "dflash"
    head: BlockHead | None = None
    masks: int | None = None

    @property
    def note(self) -> str:
        """Where the sizes are a guess, or the price is rough."""
        if self.head is None:
            return (
                f"the {self.kind} drafter is taken to have {_LAYERS} layers as wide as the target's and to guess "
                f"{_DRAFTS[self.kind]} tokens; give --drafter FOLDER of yours"
            )
        return self.head.model.note

    @property
    def drafts(self) -> int:
        """K of a pass, and the deepest draft."""
        return self.masks or (self.head.drafts if self.head else _DRAFTS[self.kind])

    def starting_with(self, masks: int) -> BlockHeads:
        """The same where the engine starts with so many tokens to guess per pass."""
        return replace(self, masks=masks)

    def drafting(self, target: ForwardPass) -> BlockPass:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the head's own attention heads do not share out over.
        """
        shape, layer = self._head(target), self._layers(target)
        h, rows = layer.hidden, self.drafts + (not shape.from_anchor)
        states = layer.layers * target.network.hidden if shape.states is None else shape.states
        kv = layer.layers * layer.attention.kv_values
        # What the published speculators do: verified tokens padded to all that may be accepted.
        entry = Entry(self.drafts + 1, (Gemm(h, states),), (Gemm(kv, h),), (2 * h, 2 * kv))
        beside = () if shape.convolution is None else 2 * layer.layers * (shape.convolution.projection(h),)
        return BlockPass(
            network=replace(target, network=layer) if shape.in_checkpoint else in_16_bit(target, layer),
            rows=rows,
            guesses=self.drafts,
            entry=entry,
            beside=beside,
            guessing=_guessing(shape, layer),
            own_vocab_bytes=_own_vocab_bytes(shape.model.draft_vocab, layer, target),
        )

    def _head(self, target: ForwardPass) -> BlockHead:
        if self.head is not None:
            return self.head
        two = self.kind == "dflash2"
        return BlockHead(
            model=replace(target.network, draft_vocab=None),
            drafts=_DRAFTS[self.kind],
            from_anchor=self.kind == "dspark",
            markov_rank=_MARKOV_RANK if self.kind == "dspark" else 0,
            convolution=_CONVOLUTION if two else None,
            selector=_SELECTOR if two else None,
        )

    def _layers(self, target: ForwardPass) -> ModelShape:
        if self.head is None:
            return dense(target.network, _LAYERS)
        shape = self.head.model.shard(target.tp)
        return shape if shape.draft_vocab is None else replace(shape, vocab=-(-shape.draft_vocab // target.tp))


@dataclass(frozen=True, kw_only=True)
class ParallelEagle:
    """P-EAGLE: EAGLE-3 with several layers that guesses K tokens in one causal pass of 2K tokens per request.

    The pass takes in the K + 1 tokens that may have been accepted and K - 1 masks; three states of the target are fused
    for the former alone; the first layer's q, k and v read the embedding besides. Own LM head over fewer tokens.
    Sources: arXiv 2602.01469; vLLM 0.33, `config/speculative.py` `max_num_new_slots_for_drafting`.
    """

    kind: ClassVar[str] = "peagle"
    head: BlockHead | None = None
    masks: int | None = None

    @property
    def note(self) -> str:
        """Where the sizes are a guess."""
        if self.head is not None:
            return self.head.model.note
        return (
            f"the P-EAGLE head is taken to have {_PEAGLE_LAYERS} layers as wide as the target's and to choose among "
            f"{DRAFT_VOCAB:,} tokens; give --drafter FOLDER of yours"
        )

    @property
    def drafts(self) -> int:
        """K of a pass, and the deepest draft."""
        return self.masks or (self.head.drafts if self.head else _DRAFTS[self.kind])

    def starting_with(self, masks: int) -> ParallelEagle:
        """The same where the engine starts with so many tokens to guess per pass."""
        return replace(self, masks=masks)

    def drafting(self, target: ForwardPass) -> BlockPass:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the head's own attention heads do not share out over.
        """
        shape = self.head.model if self.head else dense(target.network, _PEAGLE_LAYERS)
        vocab = (self.head and self.head.model.draft_vocab) or DRAFT_VOCAB
        layer = shape.shard(target.tp) if self.head else shape
        layer = replace(layer, vocab=-(-vocab // target.tp))
        h, K = layer.hidden, self.drafts
        qkv = layer.attention.projections(h)[0]
        return BlockPass(
            network=in_16_bit(target, layer),
            rows=2 * K,
            guesses=K,
            entry=Entry(K + 1, (Gemm(h, _EAGLE3_STATES * target.network.hidden),)),
            beside=(Gemm(qkv.outputs, h),),
            cached_by_pass=True,
            own_vocab_bytes=_own_vocab_bytes(vocab, layer, target),
        )


@dataclass(frozen=True, kw_only=True)
class Pard:
    """PARD: a small language model trained to guess K tokens in one pass of 2K + 1 tokens per request.

    Sources: arXiv 2504.18583; vLLM 0.33, `config/speculative.py` `max_num_new_slots_for_drafting`.
    """

    kind: ClassVar[str] = "pard"
    note: ClassVar[str] = ""
    model: ModelShape
    masks: int | None = None

    @property
    def drafts(self) -> int:
        """K of a pass, and the deepest draft."""
        return self.masks or _DRAFTS[self.kind]

    def starting_with(self, masks: int) -> Pard:
        """The same where the engine starts with so many tokens to guess per pass."""
        return replace(self, masks=masks)

    def drafting(self, target: ForwardPass) -> BlockPass:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the draft model's heads do not divide by.
        """
        network = as_model(target, self.model)
        embeddings = network.network.embedding_parameters * network.formats.wide.bytes_per_value
        return BlockPass(
            network=network,
            rows=2 * self.drafts + 1,
            guesses=self.drafts,
            entry=Entry(0),
            cached_by_pass=True,
            own_vocab_bytes=embeddings,
        )


def dense(shape: ModelShape, layers: int) -> ModelShape:
    """So many dense layers as wide as a target's, which attend to everything."""
    return replace(shape, layers=layers, experts=None, window=None, linear=None)


def in_16_bit(target: ForwardPass, layer: ModelShape) -> ForwardPass:
    """A published head beside a target of whatever format."""
    wide = target.formats.wide
    return replace(target, network=layer, formats=WeightFormats(wide, wide))


def as_model(target: ForwardPass, model: ModelShape) -> ForwardPass:
    """A draft model in its own checkpoint's format on the target's GPUs.

    Raises:
        InputError: a tp that its heads do not divide by.
    """
    formats = model.formats()
    if target.formats.wide is Dtype.FP32:
        formats = WeightFormats(Dtype.FP32, Dtype.FP32)
    return replace(target, network=model.shard(target.tp), formats=formats)


def check_masks(drafts: int, block: int | None) -> None:
    """Refuse a block without a guess.

    Raises:
        InputError: a block of one row that guesses nothing.
    """
    if drafts < 1:
        raise InputError(f"a block of {block} guesses nothing", hint="a block has its root and one guess at least")


def _guessing(shape: BlockHead, layer: ModelShape) -> Guessing:
    if shape.markov_rank:
        return Guessing(per_guess=(Gemm(layer.vocab, shape.markov_rank),))
    if shape.selector is None:
        return Guessing()
    rank, top_k = shape.selector
    # Two codebook rows per candidate, and the scores of all pairs with the position before.
    return Guessing((Gemm(rank, layer.hidden),), streamed=2 * top_k * rank + top_k * top_k)


def _own_vocab_bytes(draft_vocab: int | None, layer: ModelShape, target: ForwardPass) -> float:
    return 0.0 if draft_vocab is None else layer.lm_head.weights * target.formats.wide.bytes_per_value

"""The drafter that `--draft` names, for collecting and for decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from treeopt.acceptance.prompt_lookup import KNOWN_RULES, parse_lookup
from treeopt.collect.encoder import Encoder, check_same_vocabulary
from treeopt.collect.heads.block import BlockDrafter
from treeopt.collect.heads.chain import ChainDrafter, ChainHead
from treeopt.collect.heads.eagle import Eagle3Head, EagleHead, PEagleHead
from treeopt.collect.heads.medusa import MedusaDrafter
from treeopt.collect.heads.mtp import MtpHead
from treeopt.collect.settings import DrafterSpec
from treeopt.decode.copying import CopyDrafter
from treeopt.decode.drafters import LookupDrafter, ModelDrafter
from treeopt.decode.drafting import Drafter, TextDrafter
from treeopt.decode.hf import HuggingFaceModel, check_exit
from treeopt.errors import InputError


def check_pair(draft: DrafterSpec, target: Encoder) -> None:
    """Refuse what the small files of drafter and target already rule out, before weights are loaded.

    Raises:
        InputError: it is not there, has another vocabulary than the target, or exits where the target has no layer.
    """
    if draft.kind == "model":
        check_same_vocabulary(target, Encoder.load(draft.argument))
    if draft.kind == "early-exit" and target.layers is not None:
        check_exit(draft.number, target.layers)


def check_drafts_trees(draft: DrafterSpec) -> None:
    """Refuse a drafter that reads the target's hidden states, which the reference decoder does not hand out.

    Raises:
        InputError: it does.
    """
    if not draft.drafts_trees:
        heads = "Medusa heads" if draft.kind == "medusa" else f"{draft.kind} heads"
        raise InputError(
            f"the reference decoder does not run {heads}: drafters do not see the target's hidden states",
            hint="bench with early-exit:K, ngram:N or a draft model",
        )


def load_tree_drafter(
    draft: DrafterSpec, target: HuggingFaceModel, *, temperature: float, device: str, dtype: str
) -> Callable[[], Drafter]:
    """What makes a drafter of trees: each has its own memory of what it read, the weights are shared.

    Raises:
        InputError: it cannot be loaded, does not go with the target, or does not draft trees.
    """
    V = target.vocabulary_size
    if (lookup := parse_lookup(draft.name)) is not None:
        if lookup.rule in KNOWN_RULES:
            return lambda: CopyDrafter(lookup, vocabulary_size=V)
        return lambda: LookupDrafter(longest=lookup.longest, vocabulary_size=V)
    if draft.kind == "early-exit":
        model = target.early_exit(draft.number)
    else:
        check_drafts_trees(draft)
        model = HuggingFaceModel.load(draft.argument, device=device, dtype=dtype)
    return lambda: ModelDrafter(model, vocabulary_size=V, temperature=temperature)


def load_drafter(
    draft: DrafterSpec, target: HuggingFaceModel, *, temperature: float, depth: int, device: str, dtype: str
) -> TextDrafter:
    """A drafter that guesses along texts.

    Raises:
        InputError: it cannot be loaded, or does not go with the target.
    """
    if draft.drafts_trees:
        return load_tree_drafter(draft, target, temperature=temperature, device=device, dtype=dtype)()
    if draft.kind == "medusa":
        return MedusaDrafter.load(draft.argument, target, temperature=temperature, depth=depth)
    if draft.kind == "dflash":
        return BlockDrafter(Path(draft.argument), target, temperature=temperature, depth=depth)
    chain: ChainHead
    if draft.kind == "eagle":
        chain = EagleHead(Path(draft.argument), target)
    elif draft.kind == "eagle3":
        chain = Eagle3Head(Path(draft.argument), target)
    elif draft.kind == "peagle":
        chain = PEagleHead(Path(draft.argument), target, depth=depth)
    else:
        chain = MtpHead(Path(draft.argument or target.name), target)
    return ChainDrafter(chain, target, temperature=temperature)

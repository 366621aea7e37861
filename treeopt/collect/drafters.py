"""The drafter that `--draft` names, for collecting and for decoding."""

from __future__ import annotations

from collections.abc import Callable

from treeopt.collect.encoder import Encoder, check_same_vocabulary
from treeopt.collect.heads.medusa import MedusaDrafter
from treeopt.collect.settings import DrafterSpec
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


def load_tree_drafter(
    draft: DrafterSpec, target: HuggingFaceModel, *, temperature: float, device: str, dtype: str
) -> Callable[[], Drafter]:
    """What makes a drafter of trees: each has its own memory of what it read, the weights are shared.

    Raises:
        InputError: it cannot be loaded, does not go with the target, or reads the target's hidden states, which the
            reference decoder does not hand out.
    """
    V = target.vocabulary_size
    if draft.kind == "ngram":
        return lambda: LookupDrafter(longest=draft.number, vocabulary_size=V)
    if draft.kind == "early-exit":
        model = target.early_exit(draft.number)
    elif draft.kind == "model":
        model = HuggingFaceModel.load(draft.argument, device=device, dtype=dtype)
    else:
        raise InputError(
            f"the reference decoder does not run {draft.kind} heads: its drafters do not see the target's hidden states",
            hint="bench with early-exit:K, ngram:N or a draft model",
        )
    return lambda: ModelDrafter(model, vocabulary_size=V, temperature=temperature)


def load_drafter(
    draft: DrafterSpec, target: HuggingFaceModel, *, temperature: float, depth: int, device: str, dtype: str
) -> TextDrafter:
    """A drafter that guesses along texts.

    Raises:
        InputError: it cannot be loaded, or does not go with the target.
    """
    if draft.kind == "medusa":
        return MedusaDrafter.load(draft.argument, target, temperature=temperature, depth=depth)
    return load_tree_drafter(draft, target, temperature=temperature, device=device, dtype=dtype)()

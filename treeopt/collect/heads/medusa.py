"""Medusa heads: every depth is guessed at once, from the target's hidden state before the root.

Source: arXiv:2401.10774 and the checkpoints of its authors: `medusa_lm_head.safetensors` or `.pt` with, for head h of L
residual layers, `h.l.linear.weight`, `h.l.linear.bias` (x <- x + SiLU(W x + b)) and `h.L.weight` (the output layer); a
prefix `medusa_head.` is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from treeopt.arrays import IntArray
from treeopt.decode.checkpoint import read_tensors
from treeopt.decode.guesses import LogitGuesses
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError, InputError
from treeopt.extras import require

_FILES: Final = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_FORMAT: Final = (
    "heads hold h.l.linear.weight, h.l.linear.bias and h.L.weight, as github.com/FasterDecoding/Medusa saves"
)


class MedusaHead(NamedTuple):
    """One head: its residual layers as (weight, bias), and its output weight `[V, hidden]`."""

    residual: tuple[tuple[Any, Any], ...]
    output: Any


class MedusaDrafter:
    """Heads on the target's last hidden state: head d - 1 guesses the d-th token after the root.

    In serving the root has not been through the target when the draft is made: the heads read the hidden state from
    which the target chose the root, the one at the token before it.
    """

    def __init__(self, heads: tuple[MedusaHead, ...], target: HuggingFaceModel, *, temperature: float) -> None:
        self._heads = heads
        self._target = target
        self._temperature = temperature

    @classmethod
    def load(cls, folder: str, target: HuggingFaceModel, *, temperature: float, depth: int) -> MedusaDrafter:
        """Load a checkpoint's heads for this target.

        Raises:
            InputError: no such file, or fewer heads than depths.
            FileFormatError: other weights than Medusa's, or of another size than the target's.
        """
        path = next((Path(folder) / name for name in _FILES if (Path(folder) / name).is_file()), None)
        if path is None:
            raise InputError(f"{folder}: no {' or '.join(_FILES)} there", hint="give the folder of a Medusa checkpoint")
        tensors = read_tensors(path, what="Medusa heads", hint=_FORMAT)
        weights = {key.removeprefix("medusa_head."): value for key, value in tensors.items()}
        heads = tuple(_head(weights, h, target, path) for h in range(_count(weights, path)))
        if depth > len(heads):
            raise InputError(f"{path}: {len(heads)} heads, but depth {depth}", hint=f"give --depth {len(heads)}")
        return cls(heads, target, temperature=temperature)

    def along(self, tokens: IntArray, *, first: int, depth: int) -> Iterator[LogitGuesses]:
        """See `TextDrafter`: one element per depth."""
        torch = require("torch", extra="hf")
        last = len(tokens) - first  # how many roots have a token after them
        hidden = self._target.last_hidden(tokens[:-1])[first - 2 :]
        for d, head in enumerate(self._heads[:depth]):
            with torch.no_grad():
                x = hidden[: max(last - d, 0)]
                for weight, bias in head.residual:
                    x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))
                logits = x @ head.output.T
            yield LogitGuesses(logits, vocabulary_size=self._target.vocabulary_size, temperature=self._temperature)


def _count(weights: dict[str, Any], path: Path) -> int:
    heads = {key.partition(".")[0] for key in weights}
    if not heads or heads != {str(h) for h in range(len(heads))}:
        raise FileFormatError(f"{path}: heads are named {', '.join(sorted(heads)) or 'nothing'}", hint=_FORMAT)
    return len(heads)


def _head(weights: dict[str, Any], h: int, target: HuggingFaceModel, path: Path) -> MedusaHead:
    own = {key.partition(".")[2]: value for key, value in weights.items() if key.partition(".")[0] == str(h)}
    H, V, layers = int(target.config.hidden_size), target.vocabulary_size, (len(own) - 1) // 2
    expected: dict[str, tuple[int, ...]] = {f"{layers}.weight": (V, H)}
    for layer in range(layers):
        expected |= {f"{layer}.linear.weight": (H, H), f"{layer}.linear.bias": (H,)}
    found = {key: tuple(value.shape) for key, value in own.items()}
    if found != expected:
        wrong = min(found.items() ^ expected.items())[0]
        shapes = f"{found.get(wrong, 'missing')}, expected {expected.get(wrong, 'nothing')}"
        raise FileFormatError(f"{path}: {h}.{wrong} is {shapes}", hint=_FORMAT)
    ready = {key: value.to(device=target.device, dtype=target.dtype) for key, value in own.items()}
    residual = tuple((ready[f"{i}.linear.weight"], ready[f"{i}.linear.bias"]) for i in range(layers))
    return MedusaHead(residual=residual, output=ready[f"{layers}.weight"])

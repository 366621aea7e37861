"""What a search is made from, as the user names it; the files behind the names are read in `treeopt.planner.inputs`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from treeopt.files.shipped import DEFAULT_RANKS

if TYPE_CHECKING:
    from treeopt.cost.step_cost import StepCost

DEFAULT_HARDWARE: Final = "h100-sxm-vllm-0.24"
DEFAULT_MODEL: Final = "llama-3.1-8b"
DEFAULT_DRAFTER: Final = "eagle"
SEARCHED_WITHIN: Final = "searched within that"  # of the note that says what an engine loads


@dataclass(frozen=True, kw_only=True)
class Names:
    """The inputs as the user gives them: shipped names or files.

    `capture_tokens` and `capture_limit` replace the sizes, in tokens per step, that the hardware profile says graphs
    are captured for; `expert_skew` and `expert_correlation` replace the model's (`Experts`), `dtype` and `kv_dtype`
    those of its checkpoint. `ranks` of None are those that somebody published of the pair that is asked for, or the
    demonstration where nothing is asked for. `cost` is a table of step times that counts where it reaches, carried on
    by the model of the hardware, or a cost of the caller's own. `masks` is how many tokens the engine is started to
    guess per pass of a drafter of blocks; None is what it was trained for. `temperature` and `rule` are those that will
    be served, where the evidence may be of others. `prompt_tokens` is how long prompts are that are served beside, in
    chunks of `chunk_tokens` at most (`prefill.DEFAULT_CHUNK`); without it decoding is undisturbed.
    """

    ranks: str | None = None
    hardware: str = DEFAULT_HARDWARE
    model: str = DEFAULT_MODEL
    drafter: str = DEFAULT_DRAFTER
    masks: int | None = None
    dtype: str | None = None
    tp: int = 1
    kv_dtype: str | None = None
    capture_tokens: tuple[int, ...] | None = None
    capture_limit: int | None = None
    expert_skew: float | None = None
    expert_correlation: float | None = None
    cost: str | StepCost | None = None
    temperature: float | None = None
    rule: str | None = None
    prompt_tokens: int | None = None
    chunk_tokens: int | None = None

    def with_ranks(self, model: str) -> Names:
        """The same with ranks by name: those given, else what is published nearest to `model` and the drafter.

        A search that asks for no pair keeps the demonstration, which has widths.
        """
        if self.ranks is not None:
            return self
        pair = None
        if (self.model, self.drafter) != (DEFAULT_MODEL, DEFAULT_DRAFTER):
            from treeopt.acceptance.published import nearest_pair  # reads profiles, which most searches name

            pair = nearest_pair(model, self.drafter.partition(":")[0])
        return replace(self, ranks=DEFAULT_RANKS if pair is None else pair.name)

    @property
    def prices_steps(self) -> bool:
        """Whether a model or a GPU was named: those by default are a demonstration, and price nobody's table."""
        return (self.model, self.hardware) != (DEFAULT_MODEL, DEFAULT_HARDWARE)

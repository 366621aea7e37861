"""EXPERIMENTAL: a plan's static trees inside SGLang's EAGLE and EAGLE3, through SGLang's own plugin hooks.

SGLang 0.5.23 has two extension points. A registered algorithm (`SpeculativeAlgorithm.register`) may not be called
EAGLE, and dozens of places in the engine compare that name (KV pool sizes, captured hidden states, LoRA), so a
registered copy of EAGLE loses them. The plugin hooks (entry point group `sglang.srt.plugins`, `HookRegistry`) wrap two
functions and leave EAGLE as it is, so this plugin uses them: `select_top_k_tokens`, which picks the candidates that
the drafter expands, and `organize_draft_results`, which picks those that are verified. Both get the plan's choice in
place of the drafter's confidence; masks, verification and KV moving are SGLang's, for they take any tree.

    export TREEOPT_SGLANG_PLAN=plan.yaml
    python -m sglang.launch_server ... --speculative-algorithm EAGLE3 $(the flags of `launch_arguments`)

SGLang has one triple (steps, topk, draft tokens) for all batch sizes, so every bucket's tree is filled up to the
largest one's size and verifies as many tokens, and buckets that should not speculate verify their neighbour's tree.
The tree of a batch is chosen where SGLang captures its CUDA graph of that batch size.

Proven on CPU: the encoding, the drafting loop's arithmetic, tree building and greedy verification against SGLang's own
code. Not proven without a GPU: CUDA graph capture and replay, overlap scheduling, tensor parallelism, and speed.
Adaptive speculation and multi-layer EAGLE are refused; chains (topk 1) do not run through these functions and need no
plugin. That the hooks are in place is in SGLang's log: `Applied 1 hook(s) to ...organize_draft_results`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from treeopt.draft_family import SGLANG, DynamicTree, pool_size
from treeopt.engines.sglang import SGLANG as ENGINE
from treeopt.engines.sglang_abi import FlatTree, encode, filled_up
from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.solve.bucket import Bucket

PLAN_VARIABLE: Final = "TREEOPT_SGLANG_PLAN"
NOT_RECORDED: Final = (
    "treeopt records nothing in SGLang: its drafters run inside CUDA graphs, and nothing proves a recorder there "
    "without a GPU; `treeopt ranks collect` records the same drafter's ranks offline"
)
_SELECT: Final = "sglang.srt.speculative.spec_utils.select_top_k_tokens"
_ORGANIZE: Final = "sglang.srt.speculative.eagle_utils.organize_draft_results"

_log = logging.getLogger("treeopt.record")


def launch_triple(plan: Plan) -> DynamicTree:
    """The one triple that holds every tree of the plan.

    Raises:
        InputError: the plan has no tree, or chains only, which need no plugin.
    """
    trees = [bucket.tree for bucket in _with_trees(plan)]
    if all(tree.is_chain for tree in trees):
        raise InputError(
            "the plan has no tree that is not a chain", hint="SGLang loads chain lengths itself: treeopt export"
        )
    topk = max(max(int(tree.ranks.max()) + 1, int(tree.expanded_widths.max())) for tree in trees)
    triple = DynamicTree(max(tree.depth for tree in trees), topk, max(len(tree) for tree in trees))
    SGLANG.check(triple)
    return triple


def _with_trees(plan: Plan) -> list[Bucket]:
    """SGLang knows batch sizes, not contexts, where it chooses a graph: the plan's longest context is taken."""
    return [bucket for bucket in plan.at_context(plan.context).buckets if bucket.speculate]


def launch_arguments(plan: Plan) -> str:
    """The flags that SGLang must be launched with.

    Raises:
        InputError: see `launch_triple`.
    """
    steps, topk, nodes = launch_triple(plan)
    return (
        f"--speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {nodes} "
        "--page-size 1"
    )


@dataclass(frozen=True, kw_only=True)
class PluggedTrees:
    """The plan's trees in SGLang's encoding, one for the batch sizes up to each bound."""

    triple: DynamicTree
    batch_max: tuple[int, ...]
    flats: tuple[FlatTree, ...]

    @classmethod
    def of(cls, plan: Plan) -> PluggedTrees:
        """Every bucket's tree, filled up to one size.

        Raises:
            InputError: see `launch_triple`.
        """
        triple = launch_triple(plan)
        with_trees = _with_trees(plan)
        steps, topk, nodes = triple
        filled = [filled_up(b.tree, nodes, topk=topk, steps=steps) for b in with_trees]
        return cls(
            triple=triple,
            batch_max=tuple(bucket.batch.max for bucket in with_trees),
            flats=tuple(encode(tree, topk=topk, steps=steps) for tree in filled),
        )

    def index_for(self, batch: int) -> int:
        """Which tree a batch size gets; the last one beyond the plan."""
        return next((i for i, last in enumerate(self.batch_max) if batch <= last), len(self.batch_max) - 1)

    def select(
        self,
        original: Callable[..., Any],
        i: int,
        topk_p: Any,
        topk_index: Any,
        hidden_states: Any,
        scores: Any,
        topk: int,
    ) -> Any:
        """In place of SGLang's `select_top_k_tokens`: the plan's candidates are expanded, whatever their scores."""
        self._check(topk=topk)
        if i == 0:
            return original(i, topk_p, topk_index, hidden_states, scores, topk)
        torch = require("torch", extra="gpu")
        batch = scores.shape[0]
        beams = self._on(topk_p.device)[self.index_for(batch)].beams[i - 1]
        products = scores.unsqueeze(2) * topk_p.view(batch, topk, topk)
        tokens = topk_index.view(batch, topk * topk)
        chosen = beams.expand(batch, topk)
        if hidden_states is not None and hidden_states.shape[0] > 0:
            first = torch.arange(batch, device=beams.device).unsqueeze(1) * topk
            hidden_states = hidden_states[(first + beams // topk).flatten()]
        kept = torch.gather(products.flatten(1), 1, chosen)
        level = (products, tokens, chosen + (topk + (i - 1) * topk * topk))
        return torch.gather(tokens, 1, chosen).flatten(), hidden_states, kept, level

    def organize(
        self,
        original: Callable[..., Any],
        score_list: Sequence[Any],
        token_list: Sequence[Any],
        parents_list: Sequence[Any],
        num_draft_token: int,
    ) -> Any:
        """In place of SGLang's `organize_draft_results`: the plan's nodes are verified, whatever their scores."""
        self._check(steps=len(score_list), nodes=num_draft_token)
        torch = require("torch", extra="gpu")
        tokens = torch.cat(list(token_list), dim=1)
        batch, listed = tokens.shape
        if listed != pool_size(self.triple.num_steps, self.triple.topk):
            raise InputError(
                f"SGLang lists {listed} candidates, not k + (steps - 1) k^2",
                hint="static trees need the EAGLE drafting loop, not the multi-layer one",
            )
        tables = self._on(tokens.device)[self.index_for(batch)]
        selected = tables.selected.expand(batch, -1).contiguous()
        return tables.parent_list.expand(batch, -1).contiguous(), selected, torch.gather(tokens, 1, selected)

    def _check(self, **given: int) -> None:
        wanted = dict(zip(("steps", "topk", "nodes"), self.triple, strict=True))
        for name, value in given.items():
            if value != wanted[name]:
                raise InputError(
                    f"SGLang runs with {name} {value}, the plan needs {wanted[name]}",
                    hint=f"launch with steps, topk, draft tokens {tuple(self.triple)}, without adaptive speculation",
                )

    def _on(self, device: Any) -> list[_Tables]:
        """All trees' tables on a device, made at once: SGLang's warm-up asks before any graph is captured."""
        if device not in self._tables:
            torch = require("torch", extra="gpu")
            self._tables[device] = [
                _Tables(*(torch.from_numpy(a).to(device) for a in (flat.beams, flat.parent_list, flat.selected)))
                for flat in self.flats
            ]
        return self._tables[device]

    @cached_property
    def _tables(self) -> dict[Any, list[_Tables]]:
        return {}


@dataclass(frozen=True)
class _Tables:
    beams: Any
    parent_list: Any
    selected: Any


def _hooks() -> Any:
    try:
        return importlib.import_module("sglang.srt.plugins.hook_registry")
    except ImportError as error:
        raise InputError(
            f"SGLang's plugin hooks cannot be imported: {error}", hint=f"pip install sglang=={ENGINE.checked}"
        ) from error


def register() -> None:
    """The entry point: wraps both functions if `TREEOPT_SGLANG_PLAN` names a plan, and does nothing otherwise.

    TREEOPT_RECORD, which vLLM's recorder listens to, is answered with why nothing is recorded.

    Raises:
        InputError: the plan cannot be read, or has no tree; SGLang logs that and serves without it.
    """
    if os.environ.get("TREEOPT_RECORD"):
        _log.warning(NOT_RECORDED)
    path = os.environ.get(PLAN_VARIABLE)
    if not path:
        return
    trees = PluggedTrees.of(load_plan(path))
    hooks = _hooks()
    hooks.HookRegistry.register(_SELECT, trees.select, hooks.HookType.AROUND)
    hooks.HookRegistry.register(_ORGANIZE, trees.organize, hooks.HookType.AROUND)

"""Static trees through SGLang's own code on the CPU: drafting loop, hooks, tree building and greedy verification."""

from __future__ import annotations

import contextlib
import itertools
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.sglang_code import define, load, own_modules, spec_utils, stand_in
from conformance.wheels import needs_conformance
from plans import bucket_of, plan_of
from shared import SHARED, needs_shared

from treeopt.engines.sglang_abi import encode, filled_up
from treeopt.engines.sglang_plugin import PLAN_VARIABLE, PluggedTrees, launch_triple, register
from treeopt.runtime.tables import tables_of
from treeopt.tree import DraftTree

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = [needs_conformance, pytest.mark.usefixtures("own_modules")]
__all__ = ["own_modules"]

VOCABULARY = 37


def random_tree(seed: int) -> DraftTree:
    """A tree that SGLang's encoding holds: with k guesses, at most k nodes of a level have children."""
    rng = np.random.default_rng(seed)
    topk, steps = int(rng.integers(2, 7)), int(rng.integers(1, 6))
    paths = {(int(rng.integers(topk)),)}
    for _ in range(int(rng.integers(1, 30))):
        parents = [(), *sorted(path for path in paths if len(path) < steps)]
        parent = parents[rng.integers(len(parents))]
        expanded = {path[:-1] for path in paths if len(path) == len(parent) + 1} | {parent}
        if len(expanded) <= topk:
            paths.add((*parent, int(rng.integers(topk))))
    return DraftTree(tuple(paths))


def published(name: str) -> DraftTree:
    listed = json.loads((SHARED / "data" / "trees" / name).read_text())["paths"]
    return DraftTree(tuple(tuple(path) for path in listed))


CASES = [
    pytest.param(("medusa_mc_sim_7b_63.json", 10), id="medusa-63", marks=needs_shared),
    pytest.param(("eagle_mc_sim_7b_63.json", 4), id="eagle-25", marks=needs_shared),
    *[pytest.param(seed, id=f"random-{seed}") for seed in range(20)],
]


def tree_of(case: Any) -> tuple[DraftTree, int]:
    if isinstance(case, tuple):
        return published(case[0]), case[1]
    tree = random_tree(case)
    return tree, max(int(tree.ranks.max()) + 1, int(tree.expanded_widths.max()))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    no = {f"is_{name}": (lambda: False) for name in ("cpu", "cuda", "hip", "musa", "npu", "xpu")}
    for package in ("sglang", "sglang.srt"):
        stand_in(package)
    stand_in("sglang.srt.utils", **no)
    stand_in("sglang.srt.platforms", current_platform=None)
    stand_in("sglang.srt.platforms.interface", reject_out_of_tree_path=None)
    return load("sglang/kernels/ops/speculative/spec_tree.py", "sglang_spec_tree")


@pytest.mark.parametrize("case", CASES)
def test_building_and_verifying(kernels: Any, case: Any) -> None:
    tree, topk = tree_of(case)
    flat, N, lengths = encode(tree, topk=topk), len(tree), [5, 9]
    batch = len(lengths)
    mask = torch.full((N * sum(lengths) + N * N * batch,), True)
    links = torch.full((3, batch, N), -1, dtype=torch.long)
    positions = torch.empty(batch * N, dtype=torch.long)
    kernels.sgl_build_tree_kernel_triton(
        torch.from_numpy(flat.parent_list).expand(batch, -1).contiguous(),
        torch.from_numpy(flat.selected).expand(batch, -1).contiguous(),
        torch.tensor(lengths),
        mask,
        positions,
        *links,
        topk=topk,
        depth=flat.steps,
        draft_token_num=N,
    )
    tables, start = tables_of(tree), 0
    for request, length in enumerate(lengths):
        size = N * (length + N)
        assert (mask[start : start + size].reshape(N, length + N).numpy() == tree.step_mask(length)).all()
        start += size
        assert (positions.reshape(batch, N)[request].numpy() == tree.positions(length)).all()
        assert (links[1, request].numpy() == tables.next_child).all()
        assert (links[2, request].numpy() == tables.next_sibling).all()
    rng = np.random.default_rng(7)
    for _ in range(4):
        _verify(kernels, tree, links, rng)


def _verify(kernels: Any, tree: DraftTree, links: Any, rng: np.random.Generator) -> None:
    """Random target tokens; siblings never hold the same token, as top-k guesses do not."""
    batch, N = links.shape[1:]
    tokens = np.stack([_tokens(tree, rng) for _ in range(batch)])
    target = rng.integers(VOCABULARY, size=(batch, N))
    for request, node in itertools.product(range(batch), range(N)):
        if tree.children[node] and rng.random() < 0.7:
            target[request, node] = tokens[request, rng.choice(tree.children[node])]
    accept_index = torch.full((batch, tree.depth + 1), -1, dtype=torch.long)
    counts, predicts = torch.zeros(batch, dtype=torch.long), torch.zeros(batch * N, dtype=torch.long)
    kernels.verify_tree_greedy_triton(
        predicts, accept_index, counts, torch.from_numpy(tokens), *links, torch.from_numpy(target)
    )
    for request in range(batch):
        walk = [0]
        while True:
            found = [c for c in tree.children[walk[-1]] if tokens[request, c] == target[request, walk[-1]]]
            if not found:
                break
            walk.append(found[0])
        assert counts[request] == len(walk) - 1
        assert (accept_index[request, : len(walk)] - request * N).tolist() == walk
        assert predicts.reshape(batch, N)[request, walk].tolist() == target[request, walk].tolist()


def _tokens(tree: DraftTree, rng: np.random.Generator) -> np.ndarray:
    tokens = np.zeros(len(tree), dtype=np.int64)
    for kids in tree.children:
        tokens[list(kids)] = rng.permutation(VOCABULARY)[: len(kids)]
    return tokens


class Drafter:
    """A drafter that is a function of the whole path: its hidden state is the path's number in base V."""

    def __init__(self) -> None:
        architecture = types.SimpleNamespace(architectures=["Any"])
        self.model_config = types.SimpleNamespace(hf_config=architecture, model_is_mrope=False)
        self.canary_manager = None
        self.passes = 0

    def logits(self, numbers: Any) -> Any:
        rows = [np.random.default_rng(int(n)).normal(size=VOCABULARY) for n in numbers.flatten()]
        return torch.from_numpy(np.stack(rows))

    def forward(self, batch: Any) -> Any:
        self.passes += 1
        number = batch.spec_info.hidden_states * VOCABULARY + batch.input_ids[:, None]
        output = types.SimpleNamespace(next_token_logits=self.logits(number), hidden_states=number)
        return types.SimpleNamespace(logits_output=output)


def engine() -> types.ModuleType:
    """SGLang's drafting loop with the names that it imports, as a module of its own like in SGLang."""
    utils = spec_utils()
    worker = stand_in("sglang.srt.speculative.eagle_worker_v2", **vars(utils))
    share = types.SimpleNamespace(mtp_iteration=lambda *_, **__: contextlib.nullcontext())
    worker.__dict__.update(
        contextlib=contextlib,
        _is_cuda=False,
        _is_hip=False,
        IndexTopKShareState=share,
        get_spec=lambda: types.SimpleNamespace(speculative_use_rejection_sampling=False),
        forward_context=lambda *_, **__: contextlib.nullcontext(),
        ForwardContext=lambda **_: None,
        renorm_draft_probs=lambda logits, *_: torch.softmax(logits, dim=-1),
    )
    worker.per_step_draft_out_cache_loc = sys_module("eagle_utils").per_step_draft_out_cache_loc  # type: ignore[attr-defined]
    define(worker, "sglang/srt/speculative/eagle_worker_v2.py", ["draft_forward"])
    return worker


def sys_module(name: str) -> Any:
    import sys

    return sys.modules[f"sglang.srt.speculative.{name}"]


def run_draft(worker: types.ModuleType, batch: int, steps: int, topk: int, nodes: int) -> Any:
    drafter = Drafter()
    roots = torch.arange(1, batch + 1)[:, None]
    topk_p, topk_index = torch.topk(torch.softmax(drafter.logits(roots), dim=-1), topk, dim=-1)
    spec = types.SimpleNamespace(topk_p=topk_p, topk_index=topk_index, hidden_states=roots)
    mode = types.SimpleNamespace(is_idle=lambda: False)
    forward_batch = types.SimpleNamespace(
        spec_info=spec,
        forward_mode=mode,
        out_cache_loc=torch.arange(batch * topk * steps),
        batch_size=batch,
        positions=torch.zeros(batch * topk, dtype=torch.long),
        sampling_info=types.SimpleNamespace(is_all_greedy=True),
        input_ids=None,
    )
    worker_self = types.SimpleNamespace(
        hot_token_id=None,
        topk=topk,
        speculative_num_steps=steps,
        speculative_num_draft_tokens=nodes,
        index_share_for_mtp_iteration=False,
        seed_dsa_topk_from_draft_extend=False,
        draft_runner=drafter,
        draft_attn_backend=types.SimpleNamespace(attn_backends=[None] * steps),
    )
    return worker.draft_forward(worker_self, forward_batch), drafter  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(6))
def test_the_engines_loop_drafts_the_plan(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the hooks applied by SGLang's own registry, its loop drafts exactly the plan's guesses."""
    small, large = random_tree(100 + seed), random_tree(200 + seed)
    full = filled_up(large, len(large) + 6, topk=8, steps=large.depth)
    plan = plan_of(bucket_of(full, 1, 2), bucket_of(small, 3, 8))
    plan.save(tmp_path / "plan.yaml")
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.yaml"))
    for package in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.speculative"):
        stand_in(package)
    worker = engine()
    registry = load("sglang/srt/plugins/hook_registry.py", "sglang.srt.plugins.hook_registry").HookRegistry
    steps, topk, nodes = launch_triple(plan)
    before, _ = run_draft(worker, 2, steps, topk, nodes)
    register()
    registry.apply_hooks()
    try:
        trees = PluggedTrees.of(plan)
        for batch in (1, 2, 3, 8):
            (parents, selected, tokens, probs), drafter = run_draft(worker, batch, steps, topk, nodes)
            flat = trees.flats[trees.index_for(batch)]
            assert probs is None
            assert drafter.passes == steps - 1
            assert parents.tolist() == [flat.parent_list.tolist()] * batch
            assert selected.tolist() == [flat.selected.tolist()] * batch
            for request in range(batch):
                assert tokens[request].tolist() == _guessed(drafter, request + 1, flat.tree)
        plain = before[1].tolist()
        assert plain != [trees.flats[0].selected.tolist()] * 2 or steps == 1  # unhooked, confidence decides
    finally:
        registry.reset()


def _guessed(drafter: Drafter, root: int, tree: DraftTree) -> list[int]:
    number, tokens = {(): root}, []
    for path in tree.paths:
        logits = drafter.logits(torch.tensor([number[path[:-1]]]))[0]
        token = int(torch.argsort(-logits, stable=True)[path[-1]])
        number[path] = number[path[:-1]] * VOCABULARY + token
        tokens.append(token)
    return tokens

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from plans import bucket_of, plan_of

from treeopt.draft_family import DynamicTree
from treeopt.engines.sglang_plugin import PLAN_VARIABLE, PluggedTrees, launch_arguments, launch_triple, register
from treeopt.errors import InputError
from treeopt.tree import DraftTree

SMALL = DraftTree(((0,), (1,), (0, 0), (1, 0)))
LARGE = DraftTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)))
PLAN = plan_of(bucket_of(LARGE, 1, 4), bucket_of(SMALL, 5, 16), bucket_of(DraftTree(()), 17, 64))


def test_one_triple_holds_all_trees() -> None:
    assert launch_triple(PLAN) == DynamicTree(3, 3, 9)
    assert launch_arguments(PLAN).startswith(
        "--speculative-num-steps 3 --speculative-eagle-topk 3 --speculative-num-draft-tokens 9"
    )


def test_smaller_trees_are_filled_up() -> None:
    trees = PluggedTrees.of(PLAN)
    assert trees.flats[0].tree == LARGE
    assert set(SMALL.paths) < set(trees.flats[1].tree.paths)
    assert [len(flat.tree) for flat in trees.flats] == [9, 9]
    # Off from 17 on is not to be had: SGLang verifies N tokens at every batch size.
    assert [trees.index_for(batch) for batch in (1, 4, 5, 16, 17, 500)] == [0, 0, 1, 1, 1, 1]


def test_the_longest_context_counts() -> None:
    plan = plan_of(bucket_of(LARGE, 1, 8, contexts=(0, 99)), bucket_of(SMALL, 1, 8, contexts=(100, 999)))
    assert launch_triple(plan) == DynamicTree(2, 2, 5)


@pytest.mark.parametrize("tree", [DraftTree(()), DraftTree.chain(3)])
def test_nothing_to_feed(tree: DraftTree) -> None:
    with pytest.raises(InputError, match="not a chain"):
        PluggedTrees.of(plan_of(bucket_of(tree, 1, 4)))


def test_a_server_launched_otherwise_is_refused() -> None:
    trees = PluggedTrees.of(PLAN)
    with pytest.raises(InputError, match="topk 4, the plan needs 3"):
        trees.select(print, 1, None, None, None, None, 4)
    with pytest.raises(InputError, match="nodes 8, the plan needs 9"):
        trees.organize(print, [0] * 3, [], [], 8)


class Hooks:
    """What SGLang's registry is asked for."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, Any, str]] = []

    def register(self, target: str, hook: Any, hook_type: str) -> None:
        self.registered.append((target, hook, hook_type))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    module, found = types.ModuleType("sglang.srt.plugins.hook_registry"), Hooks()
    module.HookRegistry, module.HookType = found, types.SimpleNamespace(AROUND="around")  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", module)
    return found


def test_without_the_variable_nothing_is_hooked(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    register()
    assert hooks.registered == []


def test_two_functions_are_hooked(hooks: Hooks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.yaml")
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.yaml"))
    register()
    names = [target.rpartition(".")[2] for target, _, kind in hooks.registered if kind == "around"]
    assert names == ["select_top_k_tokens", "organize_draft_results"]


def test_without_sglang_the_hint_names_its_own_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.yaml")
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.yaml"))
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(InputError, match="hooks cannot be imported") as caught:
        register()
    assert caught.value.hint == "pip install sglang==0.5.23"


def test_the_plan_is_fed_whatever_the_scores() -> None:
    torch = pytest.importorskip("torch")
    trees, k, batch = PluggedTrees.of(PLAN), 3, 2
    generator = torch.Generator().manual_seed(0)

    def first(i: int, p: Any, index: Any, hidden: Any, scores: Any, topk: int) -> Any:
        beams = torch.arange(-1, topk).expand(batch, -1)
        return index.flatten(), hidden.repeat_interleave(topk, dim=0), p, (p.unsqueeze(1), index, beams)

    # A token is its path in base 10, ranks counted from 1; the hidden state is the token that it came from.
    tokens, hidden, scores = torch.arange(1, k + 1).expand(batch, k), torch.zeros(batch, 1), None
    lists: tuple[list[Any], ...] = ([], [], [])
    for step in range(3):
        p = torch.rand(batch if step == 0 else batch * k, k, generator=generator)
        ids, hidden, scores, info = trees.select(first, step, p, tokens, hidden, scores, k)
        for kept, part in zip(lists, info, strict=True):
            kept.append(part)
        if step:
            assert hidden[:, 0].tolist() == (ids // 10).tolist()
        hidden = ids[:, None].float()
        tokens = ids[:, None] * 10 + torch.arange(1, k + 1)
    parents, selected, drafted = trees.organize(first, *lists, 9)
    expected = [int("".join(str(rank + 1) for rank in path)) for path in LARGE.paths]
    assert drafted.tolist() == [expected] * batch
    assert torch.equal(parents, torch.cat(lists[2][:-1], dim=1))
    assert selected.tolist() == [trees.flats[0].selected.tolist()] * batch


def test_another_drafting_loop_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="lists 3 candidates"):
        PluggedTrees.of(PLAN).organize(print, [0] * 3, [torch.zeros(2, 1)] * 3, [], 9)


def test_recording_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    monkeypatch.setenv("TREEOPT_RECORD", "ranks")
    register()
    assert "records nothing in SGLang" in caplog.text

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import DATA, needs_shared

from treeopt.draft_family import DynamicTree
from treeopt.errors import FileFormatError, InputError
from treeopt.tree import DraftTree
from treeopt.verify.diagnose import Unchecked, checkable, diagnose, remarks, unchecked
from treeopt.verify.dump import StepDump
from treeopt.verify.dump_reading import load_dump

# Nodes: 0 root, 1 (0), 2 (1), 3 (0,0), 4 (1,0), 5 (1,1), 6 (1,1,0); the accepted path is 0, 2, 5, 6.
TREE = DraftTree(((0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0)))
L, N = 4, 7
PARENTS = [-1, 0, 0, 1, 2, 2, 5]
DEPTHS = [0, 1, 1, 2, 2, 2, 3]
ANCESTORS = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 2, 4}, {0, 2, 5}, {0, 2, 5, 6}]
TOKENS = [50, 51, 52, 53, 54, 55, 56]
TARGET = [52, 51, 55, 60, 61, 56, 62]
MASK = np.array([[True] * L + [j in seen for j in range(N)] for seen in ANCESTORS])
KV = np.arange((L + N) * 3, dtype=np.float64).reshape(L + N, 3)
PATH = [0, 2, 5, 6]


def right() -> StepDump:
    p = np.random.default_rng(0).dirichlet(np.ones(70), N)
    nodes, best = np.arange(N), p.argmax(axis=1)
    p[nodes, TARGET], p[nodes, best] = p[nodes, best], p[nodes, TARGET]
    judged = np.array([0.0, *(p[PARENTS[n], TOKENS[n]] for n in range(1, N))])
    return StepDump(
        prefix_len=L,
        parents=np.array(PARENTS),
        ranks=np.array([-1, 0, 1, 0, 0, 1, 0]),
        tokens=np.array(TOKENS),
        mask=MASK.copy(),
        positions=L + np.array(DEPTHS),
        target_tokens=np.array(TARGET),
        probabilities=p,
        node_probability=judged,
        accepted=np.array(PATH),
        next_token=62,
        emitted=np.array([52, 55, 56, 62]),
        kv_before=KV,
        kv_after=np.concatenate([KV[:L], KV[[L + n for n in PATH]], KV[L + 4 :]]),
        kept_slots=np.array([0, 1, 2, 3, 4, 6, 9, 10]),
    )


def visible(node: int, other: int, value: bool = True) -> np.ndarray:
    mask = MASK.copy()
    mask[node, L + other] = value
    return mask


def p_own() -> np.ndarray:
    p = right().probabilities
    assert p is not None
    return p[np.arange(N), TOKENS]


def test_a_right_step_shows_nothing() -> None:
    assert diagnose(right(), TREE) == ()
    assert diagnose(StepDump(prefix_len=L), TREE) == ()
    assert diagnose(replace(right(), mask=MASK[:, L:]), TREE) == ()


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"mask": visible(2, 1)}, "sibling visible", "node 2 attends to node 1"),
        ({"mask": visible(4, 3)}, "other branch visible", "node 4 attends to node 3"),
        ({"mask": visible(2, 5)}, "descendant visible", "node 2 attends to node 5"),
        ({"mask": visible(6, 2, False)}, "ancestor hidden", "node 6 does not attend to node 2"),
        ({"mask": visible(3, 3, False)}, "itself hidden", "node 3 does not attend to node 3"),
        ({"mask": np.where(np.arange(L + N) == 1, False, MASK)}, "missing prefix", "node 0 .* committed token 1 of 4"),
        ({"mask": np.tri(N, L + N, L, dtype=bool)}, "sibling visible", "node 2 attends to node 1; the mask is causal"),
        ({"mask": ~MASK}, "inverted mask", "true must mean visible"),
        ({"mask": ~MASK[:, L:]}, "inverted mask", "true must mean visible$"),
        ({"mask": ~visible(6, 2, False)}, "inverted mask", "1 of 77 entries are not inverted"),
        ({"mask": np.where(np.arange(L + N) < L, True, ~MASK)}, "inverted mask", "28 of 77 entries are not inverted"),
        ({"mask": MASK[:, L:].T}, "descendant visible", "node 0 attends to node 1"),
        ({"mask": np.concatenate([MASK[:, L:], MASK[:, :L]], axis=1)}, "missing prefix", "node 0 .* token 1"),
        ({"positions": L + np.arange(N)}, "sequential positions", "node 2 at depth 1 has position 6, not 5"),
        ({"positions": L + 1 + np.arange(N)}, "sequential positions", "count nodes, not depth, from 5 instead of 4"),
        ({"positions": np.arange(N)}, "sequential positions", "count nodes, not depth, from 0 instead of 4"),
        ({"positions": np.array(DEPTHS)}, "shifted positions", "off by -4"),
        ({"positions": L + np.array([0, 1, 1, 2, 2, 3, 3])}, "wrong position", "node 5"),
        ({"node_probability": p_own()}, "unshifted gathering", "the node's own row"),
        ({"node_probability": np.full(N, 0.5)}, "wrong probability", "node 1 was judged by 0.5"),
        ({"accepted": np.array([0, 1])}, "unshifted gathering", "their own row's token"),
        ({"accepted": np.array([0, 2])}, "another path accepted", r"\[0, 2, 5, 6\]"),
        ({"accepted": np.array([0, 1, 5])}, "not a path", "node 5 was accepted after node 1"),
        ({"next_token": 56, "emitted": np.array([52, 55, 56, 56])}, "unshifted gathering", "node 6's row says 62"),
        ({"next_token": 9, "emitted": np.array([52, 55, 56, 9])}, "wrong next token", "9 follows"),
        ({"emitted": np.array([50, 52, 55, 56, 62])}, "bonus counted twice", "it emitted"),
        ({"emitted": np.array([52, 55, 56, 62, 62])}, "bonus counted twice", "it emitted"),
        ({"emitted": np.array([52, 56])}, "wrong output", "it emitted"),
        ({"emitted": np.array([], dtype=int)}, "wrong output", r"it emitted \[\]"),
        ({"emitted": np.array([52, 55]), "tokens_left": 3}, "wrong output", r"gives \[52, 55, 56\] with 3 tokens left"),
        ({"tokens_left": 3}, "wrong output", r"gives \[52, 55, 56\] with 3 tokens left"),
        ({"target_tokens": np.array([52, 51, 55, 60, 9, 56, 62])}, "wrong target token", "node 4's is 9 with .* is 61"),
        ({"probabilities": np.full((N, 70), np.nan)}, "not a number", "'probabilities' of node 0 hold nan"),
        ({"node_probability": np.full(N, np.nan)}, "not a number", "'node_probability' of node 1 is nan"),
        ({"probabilities": np.full((N, 70), -0.25)}, "impossible probability", "of node 0 hold -0.25"),
        ({"node_probability": np.full(N, 1.5)}, "impossible probability", "of node 1 is 1.5"),
        ({"kv_before": np.where(np.arange(L + N)[:, None] == 6, np.nan, KV)}, "not a number", "slot 6 holds nan"),
        ({"kv_after": np.full((8, KV.shape[1]), np.inf)}, "not a number", "'kv_after' of slot 0 holds inf"),
        ({"end_tokens": np.array([55])}, "tokens past the end", r"gives \[52, 55\]"),
        ({"kv_after": KV}, "stale KV", "slot 5 does not hold node 2 .* node 1 is still there"),
        ({"kv_after": KV[[0, 1, 2, 3, 4, 6, 8, 10]]}, "wrong KV", "slot 6 .* it holds node 4"),
        ({"kv_after": KV[:6]}, "short cache", "6 slots"),
        ({"kv_after": KV[[1, 0, 2, 3, 4, 6, 9, 10]]}, "prefix overwritten", "slot 0"),
        ({"next_token": None, "emitted": np.array([52, 55, 56, 62, 62])}, "bonus counted twice", "it emitted"),
        ({"kept_slots": np.arange(7)}, "short cache", "7 slots, 8 tokens"),
        ({"kept_slots": np.array([0, 1, 3, 2, 4, 6, 9, 10])}, "prefix overwritten", "slot 2 of the 4"),
        ({"parents": None, "ranks": np.array([-1, 0, 2, 0, 0, 1, 0])}, "another tree", r"the path \[2\]"),
        ({"kept_slots": np.arange(8)}, "stale KV", "it keeps slots 4 to 7"),
        ({"kept_slots": np.array([0, 1, 2, 3, 4, 6, 8, 10])}, "wrong KV", "it keeps slots"),
        (
            {"parents": np.array([-1, 0, 0, 1, 2, 2, 4])},
            "another tree",
            r"\[1, 0, 0\]",
        ),
    ],
)
def test_every_mistake_has_a_name(changes: dict[str, Any], name: str, words: str) -> None:
    first = diagnose(replace(right(), **changes), TREE)[0]
    assert first.name == name
    assert re.search(words, first.detail), first.detail


def test_a_step_that_stops_at_the_end_token_is_right() -> None:
    kept = {"kv_after": None, "kept_slots": None, "next_token": None, "emitted": None}
    assert diagnose(replace(right(), end_tokens=np.array([55]), accepted=np.array([0, 2, 5]), **kept), TREE) == ()


def test_without_the_next_token_any_one_may_follow() -> None:
    unknown = replace(right(), next_token=None, target_tokens=None)
    assert diagnose(replace(unknown, emitted=np.array([52, 55, 56, 9])), TREE) == ()
    assert diagnose(replace(unknown, emitted=np.array([52, 55, 56, 9, 9])), TREE)[0].name == "bonus counted twice"
    assert diagnose(replace(unknown, end_tokens=np.array([55]), emitted=np.array([52, 55])), TREE) == ()


def test_a_limit_of_tokens_may_explain_a_short_output() -> None:
    cut = replace(right(), emitted=np.array([52, 55]))
    assert diagnose(cut, TREE) == ()
    (remark,) = remarks(cut)
    assert "only the first 2 of the step's 4 tokens were emitted" in remark
    assert "tokens_left" in remark
    for whole in (right(), replace(cut, tokens_left=2)):
        assert diagnose(whole, TREE) == ()
        assert remarks(whole) == ()


def test_a_limit_of_tokens_may_end_the_path_and_cut_the_tree() -> None:
    """Two tokens left: one draft and the token after it."""
    cut = StepDump(
        prefix_len=L,
        parents=np.array([-1, 0, 0]),
        tokens=np.array([50, 51, 52]),
        target_tokens=np.array([52, 51, 55]),
        accepted=np.array([0, 2]),
        emitted=np.array([52, 55]),
        tokens_left=2,
    )
    assert diagnose(cut, TREE) == ()
    assert diagnose(replace(cut, tokens_left=None), TREE)[0].name == "another tree"
    kept = {"kv_after": None, "kept_slots": None, "next_token": None, "emitted": np.array([52, 55])}
    stopped = replace(right(), accepted=np.array([0, 2]), tokens_left=2, **kept)
    assert diagnose(stopped, TREE) == ()
    assert diagnose(replace(stopped, tokens_left=3), TREE)[0].name == "another path accepted"


def test_of_siblings_with_the_same_token_either_is_right() -> None:
    """Both children of the root hold what the target wants: below node 1 nothing is right, below node 2 two more."""
    tokens = np.array([50, 52, 52, 53, 54, 55, 56])
    same = replace(right(), tokens=tokens, target_tokens=np.array([52, 51, 55, 60, 61, 56, 62]), node_probability=None)
    assert diagnose(same, TREE) == ()
    kept = {"kv_after": None, "kept_slots": None}
    first = replace(same, accepted=np.array([0, 1]), next_token=51, emitted=np.array([52, 51]), **kept)
    assert diagnose(first, TREE) == ()
    early = replace(first, accepted=np.array([0, 2]), next_token=55, emitted=np.array([52, 55]))
    assert diagnose(early, TREE)[0].name == "another path accepted"


def test_accepting_nothing_is_unshifted_gathering_only_where_probabilities_show_it() -> None:
    """No node holds its own row's token, so that walk accepts nothing either."""
    p = right().probabilities
    assert p is not None
    p[1, [51, 63]] = p[1, [63, 51]]
    stopped = StepDump(
        prefix_len=L,
        parents=np.array(PARENTS),
        tokens=np.array(TOKENS),
        target_tokens=np.array([52, 63, 55, 60, 61, 56, 62]),
        accepted=np.array([0]),
    )
    assert [d.name for d in diagnose(stopped, TREE)] == ["another path accepted"]
    shown = replace(stopped, probabilities=p, node_probability=p[np.arange(N), TOKENS])
    assert [d.name for d in diagnose(shown, TREE)] == ["unshifted gathering"]


def test_target_tokens_that_tie_within_rounding() -> None:
    p = right().probabilities
    assert p is not None
    tied = p.copy()
    tied[4, 9] = tied[4, 61] * 1.004
    target = np.array(TARGET)
    assert diagnose(replace(right(), probabilities=tied, node_probability=None), TREE) == ()
    target[4] = 9
    assert diagnose(replace(right(), probabilities=tied, node_probability=None, target_tokens=target), TREE) == ()


def test_a_causal_mask_over_nodes_before_their_parents() -> None:
    """A chain listed as root, grandchild, child: the grandchild misses its parent, which sees it."""
    dump = StepDump(prefix_len=0, parents=np.array([-1, 2, 0]), mask=np.tri(3, dtype=bool))
    first, second = diagnose(dump, DraftTree.chain(2))
    assert first == ("descendant visible", "node 2 attends to node 1; the mask is causal over the flattened nodes")
    assert second.name == "ancestor hidden"
    assert "the mask is causal" in second.detail


def test_a_tree_of_another_size() -> None:
    fewer = StepDump(prefix_len=L, parents=np.array(PARENTS[:6]), positions=L + np.arange(6))
    tree, positions = diagnose(fewer, TREE)
    assert tree == ("another tree", "it verifies 6 nodes without the path [1, 1, 0] of the plan's tree")
    assert positions.name == "sequential positions"
    more = StepDump(prefix_len=L, parents=np.array([*PARENTS, 6]))
    assert diagnose(more, TREE)[0].detail == "it verifies the path [1, 1, 0, 0], which the plan's tree does not have"


def test_a_tree_of_another_size_that_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    held = {"positions": [4, 5, 5], "mask": MASK[:3, : L + 3].tolist()}
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": L, **held}))
    (only,) = diagnose(load_dump(path, TREE), TREE)
    assert only.name == "another tree"
    assert "it verifies 3 nodes, the plan's tree has 7" in only.detail


DYNAMIC = DynamicTree(3, 2, 7)


@pytest.mark.parametrize(
    ("parents", "ranks", "words"),
    [
        (PARENTS, None, ""),
        ([-1, 0, 1, 1, 2, 2, 3], None, ""),
        ([-1, 0, 0, 1, 2, 2], None, "6 nodes, not 7"),
        ([-1, 0, 0, 1, 2, 2, 5, 5], None, "8 nodes, not 7"),
        ([-1, 0, 1, 2, 3, 0, 5], None, "a path of 4 tokens, drafted in 3 steps"),
        ([-1, 0, 0, 0, 1, 1, 2], None, "3 children below one node, and a guess of rank 2, where topk is 2"),
        (PARENTS, [-1, 0, 1, 0, 0, 2, 0], "a guess of rank 2, where topk is 2"),
    ],
)
def test_a_dynamic_tree_is_held_to_its_limits(parents: list[int], ranks: list[int] | None, words: str) -> None:
    dump = StepDump(prefix_len=L, parents=np.array(parents), ranks=None if ranks is None else np.array(ranks))
    found = diagnose(dump, DraftTree.chain(6), DYNAMIC)
    assert [d.name for d in found] == (["another tree"] if words else [])
    assert all(words in d.detail for d in found)


def test_a_dynamic_tree_grows_from_few_nodes_per_level() -> None:
    """Three of four nodes at depth 2 have a child, where only two were expanded."""
    dump = StepDump(prefix_len=L, parents=np.array([-1, 0, 0, 1, 1, 2, 2, 3, 4, 5]))
    (only,) = diagnose(dump, TREE, DynamicTree(num_steps=3, topk=2, num_draft_tokens=10))
    assert only.detail == "it verifies 3 nodes with children at depth 2, where topk is 2"


def test_a_step_of_a_dynamic_tree(tmp_path: Path) -> None:
    """Everything else is checked against the dump's own tree, not the one of average confidence."""
    assert diagnose(right(), DraftTree.chain(6), DYNAMIC) == ()
    wrong = replace(right(), positions=L + np.arange(N))
    assert [d.name for d in diagnose(wrong, DraftTree.chain(6), DYNAMIC)] == ["sequential positions"]
    assert "limits of 3 steps, topk 2 and 7 nodes" in remarks(right(), DYNAMIC)[0]
    replace(right(), parents=None).save(tmp_path / "dump.npz")
    with pytest.raises(FileFormatError, match="'parents' is missing") as caught:
        load_dump(tmp_path / "dump.npz", DraftTree.chain(6), DYNAMIC)
    assert "the tree of this step" in caught.value.hint


def test_what_can_be_checked() -> None:
    held: dict[str, Any] = {"tokens": np.array(TOKENS), "target_tokens": np.array(TARGET), "kv_after": KV}
    assert not checkable(StepDump(prefix_len=L, **held))
    assert checkable(StepDump(prefix_len=L, **held, accepted=np.array([0])))
    assert checkable(StepDump(prefix_len=L, **held, probabilities=right().probabilities))


def test_a_node_without_a_guess_is_not_judged() -> None:
    given = right()
    assert given.tokens is not None
    assert given.node_probability is not None
    absent = replace(given, tokens=given.tokens.copy(), node_probability=given.node_probability.copy())
    absent.tokens[1] = -1
    absent.node_probability[1] = 0.25
    assert diagnose(absent, TREE) == ()


def test_slots_that_hold_no_numbers_are_equal_to_themselves() -> None:
    empty = np.where(np.arange(3) == 1, np.nan, KV)
    kept = np.concatenate([empty[:L], empty[[L + n for n in PATH]]])
    found = diagnose(replace(right(), kv_before=empty, kv_after=kept), TREE)
    assert [difference.name for difference in found] == ["not a number"]  # and nothing was moved wrongly
    found = diagnose(replace(right(), kv_before=empty, kv_after=empty), TREE)
    assert [difference.name for difference in found] == ["not a number", "stale KV"]


def test_what_cannot_be_checked_is_said() -> None:
    assert unchecked(right()) == ()
    lonely = StepDump(prefix_len=L, node_probability=np.zeros(N), kv_after=KV, accepted=np.array(PATH))
    assert unchecked(lonely) == (
        Unchecked("accepted", ("tokens", "target_tokens")),
        Unchecked("node_probability", ("tokens", "probabilities")),
        Unchecked("kv_after", ("kv_before",)),
    )


def test_a_long_prefix_costs_nothing() -> None:
    dump = StepDump(prefix_len=10**9, accepted=np.array([0]), kept_slots=np.array([0]))
    assert diagnose(dump, TREE)[0].name == "short cache"


def test_the_earliest_mistake_comes_first() -> None:
    wrong = replace(right(), mask=visible(2, 1), positions=L + np.arange(N), kv_after=KV)
    assert [d.name for d in diagnose(wrong, TREE)] == ["sibling visible", "sequential positions", "stale KV"]


def test_nodes_in_another_order() -> None:
    """Depth first, as some engines list them: 0, 1, 3, 2, 4, 5, 6."""
    order = [0, 1, 3, 2, 4, 5, 6]
    place = {node: i for i, node in enumerate(order)}
    dump = StepDump(
        prefix_len=L,
        parents=np.array([-1 if n == 0 else place[PARENTS[n]] for n in order]),
        mask=MASK[:, L:][np.ix_(order, order)],
        positions=L + np.array(DEPTHS)[order],
        tokens=np.array(TOKENS)[order],
        target_tokens=np.array(TARGET)[order],
        accepted=np.array([place[n] for n in PATH]),
        next_token=62,
    )
    assert diagnose(dump, TREE) == ()
    assert diagnose(replace(dump, positions=L + np.arange(N)), TREE)[0].name == "sequential positions"


@pytest.mark.parametrize("kind", ["npz", "json"])
def test_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"dump.{kind}"
    dump = right()
    dump.save(path)
    assert (kind == "json") == path.read_bytes().startswith(b"{")
    found = load_dump(path, TREE)
    assert found.contents == dump.contents
    for name in dump.contents:
        assert np.array_equal(getattr(found, name), getattr(dump, name)), name


def test_masks_come_as_numbers_too(tmp_path: Path) -> None:
    additive = np.where(MASK, 0.0, -np.inf)
    for mask in (MASK.astype(int), additive, np.where(MASK, 0.0, -3.4e38), MASK.astype(float), MASK[None, None]):
        np.savez(tmp_path / "d.npz", format=StepDump.FORMAT, prefix_len=L, mask=mask)
        found = load_dump(tmp_path / "d.npz", TREE).mask
        assert found is not None
        assert (found == MASK).all()


def test_a_batch_of_one_and_whole_numbers_as_floats(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    held = {"positions": [[float(L + d) for d in DEPTHS]], "tokens": [[TOKENS]], "next_token": [62]}
    path.write_text(
        json.dumps({"format": StepDump.FORMAT, "prefix_len": [4.0], "accepted": [0, 2, 5, 6, -1, -1], **held})
    )
    found = load_dump(path, TREE)
    assert found.prefix_len == 4
    assert found.next_token == 62
    assert found.positions is not None
    assert found.positions.tolist() == [L + d for d in DEPTHS]
    assert found.tokens is not None
    assert found.tokens.tolist() == TOKENS
    assert found.accepted is not None
    assert found.accepted.tolist() == PATH
    assert diagnose(found, TREE) == ()
    np.savez(tmp_path / "dump.npz", format=[StepDump.FORMAT], prefix_len=[4])
    assert load_dump(tmp_path / "dump.npz", TREE).prefix_len == 4


def test_an_empty_cache_is_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    held = {"accepted": PATH, "kv_before": KV.tolist(), "kv_after": []}
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": L, **held}))
    assert [d.name for d in diagnose(load_dump(path, TREE), TREE)] == ["short cache"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": [[1, 0]]}, "'mask' has shape"),
        ({"mask": (MASK * 0.5).tolist()}, "'mask' holds other numbers"),
        ({"positions": [1.5] * 7}, "'positions' holds 1.5"),
        ({"positions": [[1], [1, 2]]}, "'positions' has rows of unequal length"),
        ({"positions": ["a"] * 7}, "holds something that is no number"),
        ({"tokens": [1, 2]}, r"'tokens' has shape \[2\]"),
        ({"accepted": [1, 2]}, "'accepted' is"),
        ({"accepted": [0, 9]}, "'accepted' holds 9"),
        ({"parents": [-1] + [0] * 5000}, "'parents' has 5001 nodes"),
        ({"parents": []}, "'parents' has no nodes"),
        ({"parents": [-1, 0], "tokens": [1] * 7}, r"'tokens' has shape \[7\]"),
        ({"parents": [-1, 0, 0, 1, 2, 2, 6], "ranks": [-1, 0, 1, 0, 0, 1, 0]}, "'parents': node 6 is in a cycle"),
        ({"accepted": [0, -1, 1]}, "'accepted' holds -1"),
        ({"accepted": [-1, -1]}, r"'accepted' is \[-1, -1\]"),
        ({"positions": [float("nan")] * 7}, "'positions' holds nan"),
        ({"positions": [2**63] * 7}, "'positions' holds 9223372036854775808"),
        ({"tokens_left": 0}, "'tokens_left' is 0"),
        ({"prefix_len": 2.5}, "'prefix_len' holds 2.5"),
        ({"prefix_len": "4"}, "'prefix_len' is '4'"),
        ({"prefix_len": 2**70}, f"'prefix_len' is {2**70}"),
        ({"prefix_len": 10**10}, "'prefix_len' is 10000000000"),
        ({"target_tokens": [9] * 7, "probabilities": [[0.5, 0.5]] * 7}, "'target_tokens' holds 9"),
        ({"probabilities": [[]] * 7}, r"'probabilities' has shape \[7, 0\]"),
        ({"parents": [-1, 0, 0, 1, 2, 2, 6]}, "cycle"),
        ({"parents": [1, -1, 0, 1, 2, 2, 5]}, "node 0 has parent 1"),
        ({"prefix_len": -1}, "'prefix_len' is -1"),
        ({"prefix_len": None}, "'prefix_len'"),
        ({"msak": [1]}, "unknown key 'msak'"),
        ({"format": "treeopt.plan/1"}, "this is 'treeopt.plan/1'"),
        ({"kv_before": [[True, False]] * 11}, "'kv_before' holds bool"),
        ({"ranks": [-1, 5, 5, 0, 0, 1, 0]}, "'ranks': path"),
        ({"tokens": [9] * 7, "probabilities": [[0.5, 0.5]] * 7}, "'tokens' holds 9"),
        ({"mask": MASK[None, None, :5].tolist()}, "'mask' has shape"),
    ],
)
def test_what_is_no_dump(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"format": StepDump.FORMAT, "prefix_len": L, **changes}))
    with pytest.raises(FileFormatError, match=message):
        load_dump(path, TREE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_dump(tmp_path / "none.npz", TREE)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(FileFormatError, match="not an NPZ file"):
        load_dump(tmp_path / "cut.npz", TREE)
    np.savez(tmp_path / "other.npz", rank=np.zeros(3))
    with pytest.raises(FileFormatError, match="not a dump"):
        load_dump(tmp_path / "other.npz", TREE)
    np.savez(tmp_path / "objects.npz", format=StepDump.FORMAT, prefix_len=np.array({}, dtype=object))
    with pytest.raises(FileFormatError, match="'prefix_len' cannot be read: it holds Python objects") as caught:
        load_dump(tmp_path / "objects.npz", TREE)
    assert "pickle" not in f"{caught.value}{caught.value.hint}"


def test_what_lies_behind_the_committed_slots_may_be_anything() -> None:
    after = np.concatenate([right().kv_after, np.full((3, KV.shape[1]), np.nan)])
    assert diagnose(replace(right(), kv_after=after), TREE) == ()


@needs_shared
@pytest.mark.parametrize(("name", "difference"), [("d_kvnan", "not a number"), ("d_neg", "impossible probability")])
def test_numbers_that_cannot_be_are_differences(name: str, difference: str) -> None:
    path = DATA / "faults" / "break" / f"{name}.json"
    values = json.loads(path.read_text())
    tree = DraftTree.from_parents(values["parents"], values["ranks"])
    assert [found.name for found in diagnose(load_dump(path, tree), tree)] == [difference]

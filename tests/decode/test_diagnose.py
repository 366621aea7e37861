from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.decode.diagnose import Unchecked, diagnose, unchecked
from treeopt.decode.dump import FORMAT, StepDump, load_dump
from treeopt.errors import FileFormatError, InputError
from treeopt.tree import DraftTree

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
        ({"mask": ~MASK[:, L:]}, "inverted mask", "true must mean visible"),
        ({"positions": L + np.arange(N)}, "sequential positions", "node 2 at depth 1 has position 6, not 5"),
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
        ({"emitted": np.array([52, 55])}, "wrong output", "it emitted"),
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
    assert diagnose(replace(right(), kv_before=empty, kv_after=kept), TREE) == ()
    assert diagnose(replace(right(), kv_before=empty, kv_after=empty), TREE)[0].name == "stale KV"


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
        np.savez(tmp_path / "d.npz", format=FORMAT, prefix_len=L, mask=mask)
        found = load_dump(tmp_path / "d.npz", TREE).mask
        assert found is not None
        assert (found == MASK).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": [[1, 0]]}, "'mask' has shape"),
        ({"mask": (MASK * 0.5).tolist()}, "'mask' holds other numbers"),
        ({"positions": [1.5] * 7}, "'positions' holds float64"),
        ({"positions": [[1], [1, 2]]}, "'positions' has rows of unequal length"),
        ({"positions": ["a"] * 7}, "holds something that is no number"),
        ({"tokens": [1, 2]}, r"'tokens' has shape \[2\]"),
        ({"accepted": [1, 2]}, "'accepted' is"),
        ({"accepted": [0, 9]}, "'accepted' holds 9"),
        ({"parents": [-1, 0]}, "'parents' has 2 nodes"),
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
    path.write_text(json.dumps({"format": FORMAT, "prefix_len": L, **changes}))
    with pytest.raises(FileFormatError, match=message):
        load_dump(path, TREE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_dump(tmp_path / "none.npz", TREE)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_dump(tmp_path / "cut.npz", TREE)
    np.savez(tmp_path / "other.npz", rank=np.zeros(3))
    with pytest.raises(FileFormatError, match="not a dump"):
        load_dump(tmp_path / "other.npz", TREE)
    np.savez(tmp_path / "pickled.npz", format=FORMAT, prefix_len=np.array({}, dtype=object))
    with pytest.raises(FileFormatError):
        load_dump(tmp_path / "pickled.npz", TREE)

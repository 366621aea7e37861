from __future__ import annotations

import pytest

from treeopt.draft_family import ANY_TREE, OFF, SGLANG, TENSORRT_LLM, Chains, Draft, DynamicTree, DynamicTrees
from treeopt.draft_words import DRAFT_TOKENS, DRAFTED, NODES, DraftWords, K, words_for
from treeopt.engines.registry import ENGINES
from treeopt.errors import UnknownNameError
from treeopt.glossary import WORDS, short, words_about
from treeopt.tree import DraftTree

TREE = DraftTree(((0,), (1,), (0, 0)))
TRIPLE = DynamicTree(2, 4, 8)


def test_the_root_is_not_counted_in_k() -> None:
    assert (K.count(9), K.size(9)) == (8, "K = 8")
    assert (NODES.size(9), DRAFT_TOKENS.size(9)) == ("9 nodes", "9 draft tokens")


def test_the_count_follows_what_the_engine_is_set_to() -> None:
    dynamic = DynamicTrees(rule=SGLANG)
    assert words_for(Chains()) is K
    assert words_for(ANY_TREE, [DraftTree.chain(2)]) is NODES
    assert words_for(dynamic, [DraftTree.chain(2), DraftTree.chain(5)]) is K
    assert words_for(dynamic, [DraftTree.chain(2), TRIPLE]) is DRAFT_TOKENS
    assert words_for(dynamic) is DRAFT_TOKENS
    assert words_for(DynamicTrees(rule=TENSORRT_LLM), [TRIPLE]) is DRAFTED


@pytest.mark.parametrize(
    ("words", "draft", "said", "cell"),
    [
        (NODES, TREE, "a tree of 4 nodes, depth 2", "4 nodes"),
        (NODES, DraftTree.chain(3), "a chain of 3", "4 nodes"),
        (NODES, TRIPLE, "a dynamic tree: steps 2, topk 4, draft tokens 8", "2, 4, 8"),
        (K, DraftTree.chain(3), "K = 3", "3"),
        (K, TREE, "K = 3, depth 2", "3"),
        (DRAFT_TOKENS, TRIPLE, "a dynamic tree: steps 2, topk 4, draft tokens 8", "2, 4, 8"),
        (DRAFT_TOKENS, DraftTree.chain(3), "K = 3", "3, 1, 4"),
        (DRAFTED, TRIPLE, "a dynamic tree: steps 2, topk 4, draft tokens 7", "2, 4, 7"),
        (K, OFF, "nothing", "0"),
    ],
)
def test_a_draft_is_told_in_the_engines_numbers(words: DraftWords, draft: Draft, said: str, cell: str) -> None:
    assert (words.draft(draft), words.cell(draft)) == (said, cell)


@pytest.mark.parametrize(("words", "said"), [(NODES, "a tree of 9 nodes"), (K, "K = 8"), (DRAFTED, "8 draft tokens")])
def test_another_draft_is_told_by_its_size(words: DraftWords, said: str) -> None:
    assert (words.rival(9), words.rival(1)) == (said, "plain decoding")


def test_every_engine_that_serves_names_its_setting() -> None:
    lists = {"paths", "medusa", "eagle1", "hydra", "sequoia"}
    assert {engine.name for engine in ENGINES if not engine.length_setting} == lists
    for engine in ENGINES:
        dynamic = any(isinstance(form.limits, DynamicTrees) for form in engine.formats)
        assert dynamic == bool(engine.tree_settings), engine.name


def test_words_are_found_by_name_then_by_what_they_say() -> None:
    assert [word.name for word in words_about("K")] == ["K, num_speculative_tokens"]
    assert len(words_about("")) == len(WORDS)
    assert {"rank profile", "hardware profile"} <= {word.name for word in words_about("takes")}
    with pytest.raises(UnknownNameError, match="nothingness"):
        words_about("nothingness")


def test_the_line_under_a_table_names_the_engines_setting() -> None:
    assert short("K", "num_speculative_tokens in vLLM").endswith("(num_speculative_tokens in vLLM)")
    assert "accepted token not counted (x in y)" in short("draft tokens", "x in y", counts_root=False)
    assert all(short(name) for name in ("nodes", "E", "draft tokens"))

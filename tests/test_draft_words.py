from __future__ import annotations

import pytest

from treeopt.draft_family import ANY_TREE, OFF, Chains, DynamicTree
from treeopt.draft_words import DRAFT_TOKENS, NODES, K, words_for, words_of
from treeopt.engines.registry import ENGINES
from treeopt.errors import UnknownNameError
from treeopt.glossary import WORDS, short, words_about
from treeopt.tree import DraftTree


def test_the_root_is_not_counted_in_k() -> None:
    assert (K.count(9), K.size(9)) == (8, "K = 8")
    assert (NODES.size(9), DRAFT_TOKENS.size(9)) == ("9 nodes", "9 draft tokens")


def test_the_count_follows_what_the_engine_is_set_to() -> None:
    assert words_for(Chains()) is K
    assert words_for(ANY_TREE) is NODES
    assert words_of([DraftTree.chain(2), DraftTree.chain(5)]) is K
    assert words_of([DraftTree.chain(2), DynamicTree(2, 4, 8)]) is DRAFT_TOKENS
    assert words_of([DraftTree(((0,), (1,)))]) is NODES
    assert words_of([]) is NODES
    assert words_of([OFF]) is K


def test_every_engine_that_serves_names_its_setting() -> None:
    lists = {"paths", "medusa", "eagle1", "hydra", "sequoia"}
    assert {engine.name for engine in ENGINES if not engine.length_setting} == lists
    for engine in ENGINES:
        dynamic = any(words_for(form.limits) is DRAFT_TOKENS for form in engine.formats)
        assert dynamic == bool(engine.tree_settings), engine.name


def test_words_are_found_by_name_then_by_what_they_say() -> None:
    assert [word.name for word in words_about("K")] == ["K, num_speculative_tokens"]
    assert len(words_about("")) == len(WORDS)
    assert {"rank profile", "hardware profile"} <= {word.name for word in words_about("takes")}
    with pytest.raises(UnknownNameError, match="nothingness"):
        words_about("nothingness")


def test_the_line_under_a_table_names_the_engines_setting() -> None:
    assert short("K", "num_speculative_tokens in vLLM").endswith("(num_speculative_tokens in vLLM)")
    assert all(short(name) for name in ("nodes", "E", "draft tokens"))

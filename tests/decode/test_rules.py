from __future__ import annotations

import itertools

import numpy as np
import pytest
from decode.enumeration import Law, output_law, step_law, table, target_law
from decode.sampling import p_value, sample

from treeopt.acceptance import rules as names
from treeopt.decode import rejection, rules
from treeopt.decode.batch import TreeBatch
from treeopt.decode.draws import RandomDraws
from treeopt.decode.rules import RULES, Rule, rule_named
from treeopt.decode.verdicts import AcceptedPaths, StepToVerify, end_at
from treeopt.errors import UnknownNameError
from treeopt.tree import DraftTree

SAMPLING = [rule for rule in RULES if rule.samples and rule.exact]
APPROXIMATE = [rule for rule in RULES if not rule.exact]
BUSHY = DraftTree(((0,), (1,), (0, 0), (0, 1)))
FORK = DraftTree(((0,), (1,), (0, 0), (1, 0)))
WIDE = DraftTree(((0,), (1,), (2,)))
LONG = DraftTree(((0,), (0, 0), (0, 0, 0)))


def largest_error(law: Law, wanted: Law) -> float:
    return max(abs(law.get(text, 0.0) - wanted.get(text, 0.0)) for text in {*law, *wanted})


def named(rule: Rule) -> str:
    return rule.name


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
@pytest.mark.parametrize(
    ("V", "tree", "zeros"),
    [(3, BUSHY, False), (3, FORK, True), (3, LONG, False), (4, WIDE, False), (4, FORK, True), (5, WIDE, True)],
)
def test_every_branch_of_an_exact_rule_adds_up_to_the_target(rule: Rule, V: int, tree: DraftTree, zeros: bool) -> None:
    for seed in range(3):
        p, q = table(seed, V, zeros=zeros), table(100 + seed, V, zeros=zeros)
        law = output_law(rule, tree, p, q, V, length=3 if V == 3 else 2)
        wanted = target_law(p, V, length=3 if V == 3 else 2)
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert largest_error(law, wanted) < 1e-12


@pytest.mark.parametrize("rule", [rule for rule in SAMPLING if rule.siblings is not rules.Siblings.BEST], ids=named)
def test_a_drafter_like_the_target_is_always_right(rule: Rule) -> None:
    p = table(3, 4)
    tree = DraftTree(((0,),))
    assert min(len(text) for text in step_law(rule, tree, (), p, p, 4)) == 2


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_sampled_outputs_follow_the_target(rule: Rule) -> None:
    p, q = table(11, 4), table(12, 4)
    outputs = sample(rule, FORK, p, q, 4, length=4, draws=200_000, seed=5)
    assert p_value(outputs, target_law(p, 4, 4)) > 1e-3


@pytest.mark.parametrize("rule", APPROXIMATE, ids=named)
def test_the_approximate_rule_does_not_follow_the_target(rule: Rule) -> None:
    p, q = table(11, 4), table(12, 4)
    wanted = target_law(p, 4, 4)
    assert p_value(sample(rule, FORK, p, q, 4, length=4, draws=200_000, seed=5), wanted) < 1e-9
    assert largest_error(output_law(rule, FORK, p, q, 4, length=2), target_law(p, 4, 2)) > 0.02
    assert "approximate" in rule.label


def test_the_chi_square_test_sees_a_law_that_is_off_by_three_percent() -> None:
    p, q = table(11, 4), table(12, 4)
    wanted = target_law(p, 4, 2)
    outputs = sample(rule_named("target-sample"), FORK, p, q, 4, length=2, draws=200_000, seed=5)
    bent = {text: chance * (1.03 if text[0] < 2 else 1.0) for text, chance in wanted.items()}
    total = sum(bent.values())
    assert p_value(outputs, wanted) > 1e-3
    assert p_value(outputs, {text: chance / total for text, chance in bent.items()}) < 1e-3


@pytest.mark.parametrize("name", ["recursive-rejection", "recursive-rejection-with-replacement"])
def test_mutant_siblings_not_renormalised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = table(1, 4), table(101, 4)
    monkeypatch.setattr(rejection, "normalised", lambda weights: weights)
    rule = rule_named(name)
    assert largest_error(output_law(rule, WIDE, p, q, 4, length=2), target_law(p, 4, 2)) > 1e-3
    outputs = sample(rule, WIDE, p, q, 4, length=2, draws=200_000, seed=1)
    assert p_value(outputs, target_law(p, 4, 2)) < 1e-9


def from_itself(trees: TreeBatch, values: np.ndarray) -> np.ndarray:
    """Every parent's row replaced by the one of its first child."""
    first = np.where(trees.children[:, :, 0] >= 0, trees.children[:, :, 0], np.arange(trees.nodes))
    return values[np.arange(len(trees))[:, None], first]


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_mutant_probability_gathered_from_the_node_itself(rule: Rule) -> None:
    def judge(evidence: StepToVerify, draws: RandomDraws) -> AcceptedPaths:
        shifted = StepToVerify(
            trees=evidence.trees,
            tokens=evidence.tokens,
            p=None if evidence.p is None else from_itself(evidence.trees, evidence.p),
            q=evidence.q,
        )
        return rule.judge(shifted, draws)

    mutant = Rule(name=rule.name, siblings=rule.siblings, judge=judge)
    p, q = table(1, 3), table(101, 3)
    assert largest_error(output_law(mutant, BUSHY, p, q, 3, length=2), target_law(p, 3, 2)) > 1e-2


def test_mutant_bonus_counted_twice() -> None:
    def judge(evidence: StepToVerify, draws: RandomDraws) -> AcceptedPaths:
        path, token = rule_named("target-sample").judge(evidence, draws)
        doubled = np.concatenate([path[:, :1], path], axis=1)  # the root, emitted as the last bonus, comes again
        return AcceptedPaths(doubled, token)

    mutant = Rule(name="target-sample", siblings=rules.Siblings.BEST, judge=judge)
    p, q = table(1, 3), table(101, 3)
    assert largest_error(output_law(mutant, BUSHY, p, q, 3, length=2), target_law(p, 3, 2)) > 1e-2


def verdict_of(name: str, tree: DraftTree, tokens: list[int], **arrays: np.ndarray) -> AcceptedPaths:
    evidence = StepToVerify(trees=TreeBatch.of([tree]), tokens=np.array([tokens]), **arrays)
    return rule_named(name).judge(evidence, RandomDraws(np.random.default_rng(0)))


def test_greedy_by_hand() -> None:
    # nodes: root, 0, 1, 00, 01, with tokens 9 | 5 6 | 7 8; after the root comes 5, after it 8, after that 3.
    verdict = verdict_of("greedy", BUSHY, [9, 5, 6, 7, 8], best=np.array([[5, 8, 1, 2, 3]]))
    assert verdict.path.tolist() == [[0, 1, 4]]
    assert verdict.token.tolist() == [3]
    assert verdict.accepted.tolist() == [2]
    assert verdict.node.tolist() == [4]


def test_greedy_stops_where_no_child_is_right() -> None:
    verdict = verdict_of("greedy", BUSHY, [9, 5, 6, 7, 8], best=np.array([[6, 8, 1, 2, 3]]))
    assert verdict.path.tolist() == [[0, 2, -1]]
    assert verdict.token.tolist() == [1]


def test_a_guess_that_is_not_there_is_never_accepted() -> None:
    verdict = verdict_of("greedy", BUSHY, [9, -1, 6, -1, -1], best=np.array([[5, 8, 1, 2, 3]]))
    assert verdict.path.tolist() == [[0, -1, -1]]
    assert verdict.token.tolist() == [5]


def test_requests_with_different_trees() -> None:
    trees = TreeBatch.of([BUSHY, DraftTree(()), DraftTree.chain(3)])
    tokens = np.array([[9, 5, 6, 7, 8], [9, -1, -1, -1, -1], [9, 5, 8, 3, -1]])
    best = np.array([[5, 8, 1, 2, 3], [4, 0, 0, 0, 0], [5, 8, 3, 1, 0]])
    verdict = rule_named("greedy").judge(
        StepToVerify(trees=trees, tokens=tokens, best=best), RandomDraws(np.random.default_rng(0))
    )
    assert verdict.path.tolist() == [[0, 1, 4, -1], [0, -1, -1, -1], [0, 1, 2, 3]]
    assert verdict.token.tolist() == [3, 4, 1]


def test_typical_by_hand() -> None:
    # Row (0.5, 0.5, 0): entropy log 2, threshold min(0.09, 0.3 / 2) = 0.09: tokens 0 and 1 pass, 2 does not.
    # Row (1, 0, 0): threshold 0.09: only token 0 passes.
    half, sure = [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]
    p = np.array([[half, sure, sure, sure, sure]])
    # The right child is node 2 (token 1); nodes 3, 4 are children of node 1.
    both = verdict_of("typical", BUSHY, [2, 2, 1, 0, 0], p=p)
    assert both.path.tolist() == [[0, 2, -1]]
    assert both.token.tolist() == [0]
    deeper = verdict_of("typical", BUSHY, [2, 1, 0, 2, 0], p=p)
    assert deeper.path.tolist() == [[0, 1, 4]]


def test_an_end_token_on_the_path_ends_it() -> None:
    tree = DraftTree.chain(3)
    tokens = np.array([[2, 5, 2, 7], [2, 5, 6, 7], [2, 5, 6, 7]])
    verdict = AcceptedPaths(np.array([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, -1, -1]]), np.array([8, 2, 2]))
    ended = end_at(verdict, tokens, frozenset({2}))
    assert ended.path.tolist() == [[0, 1, 2, -1], [0, 1, 2, 3], [0, 1, -1, -1]]  # the root's own 2 does not count
    assert ended.token.tolist() == [-1, 2, 2]
    assert tree.depth == 3


def test_names() -> None:
    assert tuple(rule.name for rule in RULES) == names.RULES
    assert [rule.name for rule in APPROXIMATE] == ["typical"]
    with pytest.raises(UnknownNameError, match="unknown rule 'greedi'"):
        rule_named("greedi")


def survival(rule: Rule, tree: DraftTree, seed: int, V: int) -> list[float]:
    """Probability that a step accepts at least 1, 2, ... tokens, by every branch."""
    law = step_law(rule, tree, (), table(seed, V), table(100 + seed, V), V)
    return [sum(chance for text, chance in law.items() if len(text) > d) for d in range(1, tree.depth + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_block_verification_accepts_what_the_paper_says_and_no_less_than_token_by_token(seed: int) -> None:
    chain = survival(rule_named("block"), LONG, seed, 3)
    assert chain == pytest.approx(of_the_paper(seed), abs=1e-12)
    by_token = survival(rule_named("recursive-rejection"), LONG, seed, 3)
    assert sum(chain) >= sum(by_token) - 1e-12
    assert sum(chain) > sum(by_token) + 1e-4 or seed != 0  # and more, where a draft can make up for another


def of_the_paper(seed: int) -> list[float]:
    p, q = table(seed, 3), table(100 + seed, 3)
    found = []
    for depth in (1, 2, 3):
        total = 0.0
        for chain in itertools.product(range(3), repeat=depth):
            weight, share = 1.0, 1.0
            for d, token in enumerate(chain):
                weight *= q(chain[:d])[token]
                share = min(share * p(chain[:d])[token] / q(chain[:d])[token], 1.0)
            total += weight * share
        found.append(total)
    return found


def test_block_verification_of_a_tree_is_that_of_its_first_children() -> None:
    p, q = table(5, 3), table(105, 3)
    bushy, chain = (step_law(rule_named("block"), tree, (), p, q, 3) for tree in (BUSHY, DraftTree(((0,), (0, 0)))))
    assert largest_error(bushy, chain) < 1e-12

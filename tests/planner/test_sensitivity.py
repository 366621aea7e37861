from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from costs import FakeCost
from plans import traffic_of

from treeopt.arrays import FloatArray
from treeopt.cost.step import ModelStep
from treeopt.cost.step_cost import IntLike
from treeopt.cost.terms import StepTerms, Term, TermError
from treeopt.planner.inputs import load_inputs
from treeopt.planner.names import Names
from treeopt.planner.sensitivity import cost_sensitivity
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import CostSensitivity
from treeopt.solve.price import price
from treeopt.solve.problem import Limits, Objective, Point, Problem
from treeopt.solve.search import search
from treeopt.tree import DraftTree

TRAFFIC = traffic_of([0.7, 0.15, 0.05], [0.6, 0.15, 0.05], [0.5, 0.2, 0.05], [0.4, 0.2, 0.1])
MODEL = TRAFFIC.all_positions


@dataclass(frozen=True)
class Terms:
    """Two terms that grow with the tokens, one with the depth, one that does not grow."""

    errors: tuple[TermError, ...] = ()
    factors: dict[Term, float] = field(default_factory=dict)
    ridge_tokens: float = 295.0

    def _parts(self, batch: IntLike, nodes: IntLike, depth: IntLike, context: IntLike) -> dict[Term, FloatArray]:
        B, N, D, L = (np.asarray(x, dtype=np.float64) for x in (batch, nodes, depth, context))
        parts = {
            Term.LAYERS: 4e-3 + 2e-5 * B * N,
            Term.ATTENTION: 1e-9 * B * L + 0.0 * N,
            Term.SAMPLING: 6e-6 * B * N,
            Term.DRAFTER: 7e-4 * D,
        }
        return {term: self.factors.get(term, 1.0) * seconds for term, seconds in parts.items()}

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: np.ndarray, context: IntLike
    ) -> FloatArray:
        return np.asarray(sum(self._parts(batch, nodes, depth, context).values()))

    def terms(self, *, batch: int, nodes: int, depth: int, widths: list[int], context: int) -> StepTerms:
        parts = self._parts(batch, nodes, depth, context)
        return StepTerms(**{f"{term}_s": float(parts.get(term, np.zeros(()))) for term in Term})

    def error_p90(self) -> tuple[TermError, ...]:
        return self.errors

    def scaled(self, term: Term, factor: float) -> Terms:
        return replace(self, factors={**self.factors, term: self.factors.get(term, 1.0) * factor})


ERRORS = (
    TermError(Term.LAYERS, 0.1),
    TermError(Term.ATTENTION, None),
    TermError(Term.SAMPLING, 0.6),
    TermError(Term.DRAFTER, 0.5),
)


def judged(batch: int, cost: Terms, **kwargs: object) -> tuple[Problem, Bucket, CostSensitivity]:
    question = Problem(batches=(batch,), limits=Limits(max_nodes=32), **kwargs)  # type: ignore[arg-type]
    (choice,) = search(question, TRAFFIC, cost)
    sensitivity = cost_sensitivity(choice, question, TRAFFIC, cost)
    assert sensitivity is not None
    return question, choice, sensitivity


def fastest(choice: Bucket) -> float:
    """The best option: the choice may be a smaller tree within a tie."""
    return max(choice.tokens_per_s.value, choice.runner_up.tokens_per_s.value if choice.runner_up else 0.0)


def speed(tree: DraftTree, cost: Terms, batch: int) -> float:
    return price(tree, TRAFFIC, cost, Point(batch, 2048)).tokens_per_s.value


@pytest.mark.parametrize("batch", [1, 8, 32, 100, 300])
def test_the_regret_is_that_of_a_search_from_scratch(batch: int) -> None:
    cost = Terms(ERRORS)
    question, choice, sensitivity = judged(batch, cost)
    now = 1.0 - choice.tokens_per_s.value / fastest(choice)
    regrets = {}
    for term, p90 in ERRORS:
        if p90 is None:
            continue
        for factor in (1 + p90, 1 / (1 + p90)):
            truth = cost.scaled(term, factor)
            (best,) = search(question, TRAFFIC, truth)
            regrets[term, factor] = max(1.0 - speed(choice.tree, truth, batch) / fastest(best) - now, 0.0)
    for found in sensitivity.terms:
        own = [r for (term, _), r in regrets.items() if term.value == found.name]
        assert found.regret == (pytest.approx(max(own), abs=1e-12) if own else None)
    (term, factor), regret = max(regrets.items(), key=lambda item: item[1])
    if regret > 1e-9:
        assert sensitivity.worst is not None
        assert (sensitivity.worst.term, sensitivity.worst.factor) == (term.value, factor)
        assert sensitivity.worst.regret == pytest.approx(regret)


def test_some_error_costs_something() -> None:
    _, _, sensitivity = judged(32, Terms(ERRORS))
    assert sensitivity.worst is not None
    assert sensitivity.worst.regret > 0.01


@pytest.mark.parametrize("batch", [1, 8, 32, 100, 300])
def test_at_the_flip_factor_the_rival_is_as_fast(batch: int) -> None:
    cost = Terms()
    _, choice, sensitivity = judged(batch, cost)
    chain = DraftTree.chain(choice.best_chain.depth)
    rivals = {"flip_runner_up": choice.runner_up and choice.runner_up.draft, "flip_best_chain": chain}
    rivals["flip_plain"] = DraftTree(())
    flips = 0
    for term in sensitivity.terms:
        for key, rival in rivals.items():
            factor = getattr(term, key)
            if factor is None or rival is None:
                continue
            flips += 1
            there = cost.scaled(Term(term.name), factor)
            assert speed(rival, there, batch) == pytest.approx(speed(choice.tree, there, batch), rel=1e-9)
            beyond = cost.scaled(Term(term.name), factor * (1.001 if factor > 1 else 0.999))
            assert speed(rival, beyond, batch) > speed(choice.tree, beyond, batch)
    assert flips


def test_no_factor_where_none_flips() -> None:
    # Attention is the same for all: the slower step of the larger tree hides it, never the reverse.
    _, choice, sensitivity = judged(8, Terms())
    (attention,) = [t for t in sensitivity.terms if t.name == "attention"]
    assert choice.speculate
    assert attention.flip_plain is None
    assert attention.regret is None
    assert attention.step_s == attention.plain_s


def test_the_terms_that_matter_are_named() -> None:
    _, choice, sensitivity = judged(1, Terms())
    assert sensitivity.largest_term == "layers"
    assert sensitivity.growing_term == "drafter"
    assert {t.name for t in sensitivity.terms} == {"layers", "attention", "sampling", "drafter"}
    assert sum(t.step_s for t in sensitivity.terms) == pytest.approx(choice.step_time_s)
    assert sensitivity.worst is None  # no error was measured


def test_length_does_not_depend_on_the_cost() -> None:
    _, _, sensitivity = judged(8, Terms(ERRORS), objective=Objective.LENGTH)
    assert all(t.regret is None and t.flip_plain is None for t in sensitivity.terms)


def test_a_cost_without_terms_has_no_sensitivity() -> None:
    cost = FakeCost(step_s=1e-3, token_s=1e-4)
    question = Problem(batches=(4,))
    (choice,) = search(question, TRAFFIC, cost)
    assert cost_sensitivity(choice, question, TRAFFIC, cost) is None


class Erring(ModelStep):
    """The shipped step as if its terms had been measured to 20 %."""

    def error_p90(self) -> tuple[TermError, ...]:
        return tuple(TermError(term, 0.2) for term in Term)


@pytest.mark.parametrize(("model", "batch"), [("llama-3.1-8b", 32), ("qwen3-30b-a3b", 2)])
def test_the_regret_of_the_shipped_step_is_that_of_a_search_from_scratch(model: str, batch: int) -> None:
    inputs = load_inputs(Names(model=model, ranks="example"))
    own = {name: getattr(inputs.cost, name) for name in inputs.cost.__dataclass_fields__}
    cost, traffic = Erring(**own), inputs.evidence
    question = Problem(batches=(batch,))
    (choice,) = search(question, traffic, cost)
    sensitivity = cost_sensitivity(choice, question, inputs.evidence, cost)
    assert sensitivity is not None
    now = 1.0 - choice.tokens_per_s.value / fastest(choice)
    for term in sensitivity.terms:
        regrets = []
        for factor in (1.2, 1 / 1.2):
            truth = cost.scaled(Term(term.name), factor)
            (best,) = search(question, traffic, truth)
            ours = price(choice.tree, traffic, truth, Point(batch, 2048)).tokens_per_s.value
            regrets.append(max(1.0 - ours / fastest(best) - now, 0.0))
        assert term.regret == pytest.approx(max(regrets), abs=1e-9)

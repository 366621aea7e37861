"""From a question and its inputs to a plan."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from treeopt.cost import break_even_batch
from treeopt.inputs import Inputs
from treeopt.plan import Alternative, Bucket, Estimate, Plan
from treeopt.search import Choice, Objective, Priced, Question, search


def make_plan(question: Question, inputs: Inputs, *, command: str) -> Plan:
    """Search, and put the answer with its evidence into a plan; `command` is recorded in it."""
    choices = search(question, inputs.ranks.model(), inputs.cost)
    return Plan(
        version=package_version(),
        command=command,
        ranks=inputs.ranks_source,
        hardware=inputs.hardware_source,
        model=inputs.model_source,
        drafter=inputs.names.drafter,
        context=question.context,
        objective=question.objective.value,
        buckets=tuple(_bucket(choice, question, inputs.cost.ridge_tokens) for choice in choices),
    )


def package_version() -> str:
    """The installed version, or a development mark when run from a checkout that is not installed."""
    try:
        return version("treeopt")
    except PackageNotFoundError:
        return "0+checkout"


def alternative(option: Priced, best: Priced) -> Alternative:
    """An option beside the one that was chosen."""
    return Alternative(
        nodes=option.nodes,
        depth=option.depth,
        expected_tokens=option.expected_tokens,
        tokens_per_s=option.tokens_per_s,
        loss=1.0 - option.tokens_per_s / best.tokens_per_s,
    )


def _bucket(choice: Choice, question: Question, ridge_tokens: float) -> Bucket:
    runner_up = choice.runner_up
    return Bucket(
        batch_min=choice.batch_min,
        batch_max=choice.batch_max,
        tree=choice.tree,
        path_probabilities=choice.path_probabilities,
        expected_tokens=Estimate(value=choice.best.expected_tokens),
        step_time_s=choice.best.step_time_s,
        tokens_per_s=choice.best.tokens_per_s,
        speedup=Estimate(value=choice.speedup),
        break_even_tokens=choice.break_even_tokens,
        break_even_batch=break_even_batch(ridge_tokens, choice.best.nodes),
        best_chain=alternative(choice.chain, choice.best),
        plain_tokens_per_s=choice.plain.tokens_per_s,
        runner_up=None if runner_up is None else alternative(runner_up.option, choice.best),
        sharing_loss=choice.sharing_loss,
        optimality=_optimality(choice),
        reason=_reason(choice, question, ridge_tokens),
    )


def _optimality(choice: Choice) -> str:
    if choice.gap == 0.0:
        return "exact"
    return f"gap {choice.gap:.2%}: bounded by the largest E of every size at the price of its narrowest shape"


def _reason(choice: Choice, question: Question, ridge_tokens: float) -> str:
    """Why this tree, in one sentence or two, with the next step where there is one."""
    best, plain = choice.best, choice.plain
    if not choice.speculate:
        return _why_not(choice)
    side = "under" if choice.tokens_per_step <= ridge_tokens else "over"
    parts = [
        f"{choice.tokens_per_step} tokens per step, {side} the ridge of {ridge_tokens:.0f} ({best.nodes} nodes stay "
        f"under it up to batch {break_even_batch(ridge_tokens, best.nodes)}): the step takes "
        f"{choice.break_even_tokens:.2f}x a plain one and yields {best.expected_tokens:.2f} tokens"
    ]
    if best.tokens_per_s < plain.tokens_per_s:
        parts.append("plain decoding is faster here: use --objective throughput to let it win")
    if best.nodes == question.limits.max_nodes:
        parts.append(f"the cap --max-nodes {question.limits.max_nodes} binds: a larger tree may gain more")
    chain_loss = 1.0 - choice.chain.tokens_per_s / best.tokens_per_s
    if question.objective is Objective.THROUGHPUT and choice.chain.nodes == best.nodes:
        parts.append("the best tree is a chain")
    elif 0.0 <= chain_loss < 0.03:
        parts.append(f"a chain of {choice.chain.depth} loses only {chain_loss:.1%}")
    return "; ".join(parts)


def _why_not(choice: Choice) -> str:
    other = choice.runner_up.option if choice.runner_up else choice.chain
    if other.nodes == 1:
        return "the limits leave no tree to verify"
    needed = other.step_time_s / choice.plain.step_time_s
    if other.expected_tokens > needed:
        gain = other.tokens_per_s / choice.plain.tokens_per_s - 1.0
        return f"do not speculate: the best tree ({other.nodes} nodes) gains only {gain:.2%}, less than the tie margin"
    return (
        f"do not speculate: the best tree ({other.nodes} nodes) must yield {needed:.2f} tokens per step to pay "
        f"and yields {other.expected_tokens:.2f}"
    )

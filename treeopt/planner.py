"""From a question and its inputs to a plan."""

from __future__ import annotations

from collections.abc import Sequence

from treeopt.cost import break_even_batch
from treeopt.inputs import Inputs
from treeopt.plan import Alternative, Bucket, Estimate, Plan
from treeopt.ranks.intervals import Interval
from treeopt.search import TIE, Choice, Objective, Priced, Question
from treeopt.settle import Evidence, Settled, held_out_tokens, settled_search
from treeopt.version import VERSION


def make_plan(
    question: Question, inputs: Inputs, *, command: str, seed: int = 0, held_out: float | None = None
) -> Plan:
    """Search, and put the answer with its evidence into a plan.

    `command` is recorded in it; `seed` is that of the bootstrap behind the intervals. With `held_out` that share of
    the documents does not take part in the search, and every bucket tells its E on them.

    Raises:
        InputError: the evidence has no documents to hold out.
    """
    evidence, judge = inputs.evidence, None
    if held_out is not None:
        evidence, judge = evidence.split(held_out, seed)
    settled = settled_search(question, evidence, inputs.cost, seed=seed)
    depth = evidence.all_positions.depth
    return Plan(
        version=VERSION,
        command=command,
        rule=inputs.rule,
        notes=(*inputs.notes(question.batches[-1], question.context), *_wide_ranges(settled, question)),
        ranks=inputs.ranks_source,
        hardware=inputs.hardware_source,
        model=inputs.model_source,
        drafter=inputs.names.drafter,
        context=question.context,
        objective=question.objective.value,
        buckets=tuple(_bucket(s, question, inputs.cost.ridge_tokens, depth, judge, seed) for s in settled),
    )


def _wide_ranges(settled: Sequence[Settled], question: Question) -> list[str]:
    limit = question.sharing.max_loss
    wide = [s.choice for s in settled if s.choice.batch_min < s.choice.batch_max and s.choice.sharing_loss > limit]
    if not wide:
        return []
    ranges = ", ".join(f"{c.batch_min}-{c.batch_max}" for c in wide)
    most = max(c.sharing_loss for c in wide)
    return [f"in {ranges} one tree serves both ends and loses up to {most:.1%}: list more batch sizes"]


def alternative(option: Priced, best: Priced) -> Alternative:
    """An option beside the one that was chosen."""
    return Alternative(
        nodes=option.nodes,
        depth=option.depth,
        expected_tokens=option.expected_tokens,
        tokens_per_s=option.tokens_per_s,
        loss=1.0 - option.tokens_per_s / best.tokens_per_s,
    )


def _bucket(
    settled: Settled, question: Question, ridge_tokens: float, depth: int, judge: Evidence | None, seed: int
) -> Bucket:
    choice, tokens = settled.choice, settled.tokens
    runner_up = choice.runner_up
    return Bucket(
        batch_min=choice.batch_min,
        batch_max=choice.batch_max,
        tree=choice.tree,
        path_probabilities=choice.path_probabilities,
        expected_tokens=_estimate(choice.best.expected_tokens, tokens, 1.0),
        held_out_tokens=None if judge is None else _estimate(*held_out_tokens(choice.tree, judge, seed=seed), 1.0),
        step_time_s=choice.best.step_time_s,
        tokens_per_s=choice.best.tokens_per_s,
        speedup_at_min=choice.speedup_at_min,
        speedup=_estimate(choice.speedup, tokens, choice.break_even_tokens),
        break_even_tokens=choice.break_even_tokens,
        ridge_batch=break_even_batch(ridge_tokens, choice.best.nodes),
        best_chain=alternative(choice.chain, choice.best),
        plain_tokens_per_s=choice.plain.tokens_per_s,
        runner_up=None if runner_up is None else alternative(runner_up.option, choice.best),
        sharing_loss=choice.sharing_loss,
        resolvable=settled.resolvable,
        categories=settled.categories,
        optimality=_optimality(choice),
        reason=_reason(choice, question, ridge_tokens, depth),
    )


def _estimate(value: float, tokens: Interval | None, scale: float) -> Estimate:
    """A number that is E over `scale`: the price of a step has no interval yet."""
    if tokens is None:
        return Estimate(value=value)
    return Estimate(value=value, low=min(tokens.low / scale, value), high=max(tokens.high / scale, value))


def _optimality(choice: Choice) -> str:
    if choice.batch_min < choice.batch_max and choice.sharing_loss > TIE:
        most = choice.sharing_loss + choice.gap
        return f"gap {most:.2%}: at neither end of the range is another tree faster by more"
    if choice.gap == 0.0:
        return "exact"
    return f"gap {choice.gap:.2%}: no tree is faster by more, bounded by the best E of each size at its narrowest"


def _reason(choice: Choice, question: Question, ridge_tokens: float, depth: int) -> str:
    """Why this tree, in one sentence or two, with the next step where there is one."""
    best, plain, shared = choice.best, choice.plain, choice.batch_min < choice.batch_max
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
    if choice.speedup_at_min < 1.0 <= choice.speedup:
        parts.append(
            f"at batch {choice.batch_min} it is slower than plain decoding ({choice.speedup_at_min:.2f}x): list more "
            "batch sizes"
        )
    largest = max(best.nodes, choice.runner_up.option.nodes if choice.runner_up else 1)
    if largest == question.limits.max_nodes:
        parts.append(f"the cap --max-nodes {question.limits.max_nodes} binds: a larger tree may gain more")
    parts += _passed_over(choice)
    if shared and choice.sharing_loss > question.sharing.max_loss:
        parts.append(
            f"an end of this range loses {choice.sharing_loss:.1%} against its own best: list more batch sizes"
        )
    if choice.best.depth == depth and question.limits.max_depth != depth:
        parts.append(f"the evidence ends at depth {depth}: a deeper tree may gain more")
    chain_loss = 1.0 - choice.chain.tokens_per_s / best.tokens_per_s
    if question.objective is Objective.THROUGHPUT and choice.chain.nodes == best.nodes:
        parts.append("the best tree is a chain")
    elif 0.0 <= chain_loss < 0.03:
        parts.append(f"a chain of {choice.chain.depth} loses only {chain_loss:.1%}")
    return "; ".join(parts)


def _passed_over(choice: Choice) -> list[str]:
    """The larger tree that the tie rules passed over, if there is one."""
    if choice.runner_up is None or choice.runner_up.loss >= 0.0:
        return []
    gain, nodes = -choice.runner_up.loss, choice.runner_up.option.nodes
    if gain > TIE and choice.batch_min < choice.batch_max:
        return [
            f"{nodes} nodes would gain {gain:.1%} at batch {choice.batch_max}, and lose at batch {choice.batch_min}"
        ]
    return [f"{nodes} nodes would gain {gain:.1%}, " + ("a tie" if gain <= TIE else "which this evidence cannot tell")]


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

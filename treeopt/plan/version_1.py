"""Plans of version 1, as treeopt 0.1 wrote them: their records, and what they are today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

from treeopt.answer import Estimate, Note, Span
from treeopt.arrays import FloatArray
from treeopt.draft_family import DynamicTree
from treeopt.errors import FileFormatError, InputError, SearchError, TreeoptError
from treeopt.files.documents import Field
from treeopt.files.typed import Between, Count, NotNegative, Positive, Whole, check_derived, read
from treeopt.plan.plan import CreatedWith, Plan, Verification
from treeopt.plan.sources import (
    CostSource,
    DrafterSource,
    EngineSource,
    HardwareSource,
    ModelSource,
    RanksSource,
    Source,
    Sources,
)
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import Category, CostSensitivity, EngineLoss, Optimality, Option, WorstLoss
from treeopt.solve.problem import Limits, Objective
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit, TimePerToken
from treeopt.tree import DraftTree

FORMAT_1: Final = "treeopt.plan/1"


class _Number(NamedTuple):
    value: float
    low: float | None
    high: float | None


class _Triple(NamedTuple):
    steps: Count
    topk: Count
    nodes: Annotated[int, Between(2)]


class _Time(NamedTuple):
    mean: Positive
    p99: Positive
    documents_p99: NotNegative | None = None


class _Alternative(NamedTuple):
    nodes: Count
    depth: Whole
    expected_tokens: NotNegative
    tokens_per_s: Positive
    loss: float


class _Category(NamedTuple):
    name: str
    weight: Annotated[float, Between(0, 1)]
    expected_tokens: NotNegative
    loss: Annotated[float, Between(0, 1)]


class _Loss(NamedTuple):
    share: _Number
    unrestricted: _Alternative
    worst: WorstLoss


class _Plain(NamedTuple):
    tokens_per_s: Positive


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    batch: Annotated[Span, Between(1)]
    context: Annotated[Span, Between(0)] | None = None
    speculate: bool
    nodes: Count
    depth: Whole
    paths: DraftTree
    parents: tuple[int, ...]
    dynamic: _Triple | None = None
    path_probabilities: Annotated[FloatArray, Between(0, 1)]
    expected_tokens: _Number
    held_out_tokens: _Number | None
    step_time_s: Positive
    time_per_token_s: _Time | None = None
    meets_limit: bool | None = None
    tokens_per_s: Positive
    speedup: _Number
    speedup_at_min: NotNegative
    break_even_tokens: NotNegative
    ridge_batch: Whole
    tokens_per_step: Count
    best_chain: _Alternative
    plain: _Plain
    runner_up: _Alternative | None
    sharing_loss: float
    resolvable: NotNegative | None
    categories: tuple[_Category, ...]
    cost_sensitivity: CostSensitivity | None = None
    engine_loss: _Loss | None = None
    optimality: str
    reason: str


class _Verification(NamedTuple):
    rule: str
    exact: bool


class _Drafter(NamedTuple):
    kind: str


@dataclass(frozen=True, kw_only=True)
class _Limits:
    max_nodes: int | None = None
    max_depth: int | None = None
    max_children: int | None = None
    max_ranks: int | None = None
    budget_tokens: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class _Plan:
    format: Literal["treeopt.plan/1"]
    created_with: CreatedWith
    verification: _Verification
    ranks: Mapping[str, Any]
    hardware: Mapping[str, Any]
    cost: Mapping[str, Any] | None = None
    model: Mapping[str, Any]
    drafter: _Drafter
    engine: EngineSource | None = None
    context: Whole
    objective: Objective
    limits: _Limits = _Limits()
    latency: TimeLimit | None = None
    notes: tuple[str, ...]
    buckets: tuple[_Bucket, ...]


def plan_of_version_1(root: Field) -> Plan:
    """The plan of a version 1 file.

    Raises:
        FileFormatError: it is none (with the line).
    """
    old = read(_Plan, root)
    fields = root.get("buckets").items()
    return Plan(
        created_with=old.created_with,
        verification=Verification(rule=old.verification.rule),
        objective=old.objective,
        context=old.context,
        buckets=tuple(_checked(b, field, old.context) for b, field in zip(old.buckets, fields, strict=True)),
        notes=tuple(Note.note(text) for text in old.notes),
        sources=_sources(old, root),
        limits=_limits(old.limits, root),
        budget_tokens=old.limits.budget_tokens,
        time_limit=old.latency or NO_LIMIT,
    )


def _limits(old: _Limits, root: Field) -> Limits:
    caps = {key: cap for key, cap in vars(old).items() if key != "budget_tokens" and cap is not None}
    try:
        return Limits(**caps)
    except SearchError as error:
        raise root.get("limits").error(str(error), hint=error.hint) from None


def _sources(old: _Plan, root: Field) -> Sources:
    kinds: dict[str, type[Source]] = {
        "ranks": RanksSource,
        "hardware": HardwareSource,
        "model": ModelSource,
        "cost": CostSource,
    }
    found: dict[str, Any] = {key: read(kind, root.get(key)) for key, kind in kinds.items() if getattr(old, key)}
    kind, _, file = old.drafter.kind.partition(":")
    return Sources(drafter=DrafterSource(kind=kind, file=file or None), engine=old.engine, **found)


def _checked(old: _Bucket, field: Field, context: int) -> Bucket:
    try:
        return _bucket(old, field, context)
    except FileFormatError:
        raise
    except TreeoptError as error:
        raise field.error(str(error), hint=error.hint) from None


def _bucket(old: _Bucket, field: Field, context: int) -> Bucket:
    for key, right in (("nodes", len(old.paths)), ("depth", old.paths.depth), ("speculate", len(old.paths) > 1)):
        check_derived(field.get(key), right)
    check_derived(field.get("parents"), old.paths.parents)
    check_derived(field.get("tokens_per_step"), old.batch.max * len(old.paths))
    return Bucket(
        batch=old.batch,
        context=old.context or Span(context, context),
        tree=old.paths,
        dynamic=None if old.dynamic is None else DynamicTree(*old.dynamic),
        acceptance_length=_measured(old.expected_tokens),
        tokens_per_s=Estimate.priced(old.tokens_per_s),
        speedup=Estimate.priced(old.speedup.value),
        break_even_length=old.break_even_tokens,
        step_time_s=old.step_time_s,
        best_chain=_chain(old.best_chain, old.batch.max),
        plain=_chain(_Alternative(1, 0, 1.0, old.plain.tokens_per_s, 0.0), old.batch.max),
        reason=old.reason,
        optimality=_optimality(old.optimality),
        path_probabilities=old.path_probabilities,
        held_out_length=None if old.held_out_tokens is None else _measured(old.held_out_tokens),
        time_per_token=None if old.time_per_token_s is None else TimePerToken(*old.time_per_token_s),
        meets_limit=old.meets_limit,
        speedup_at_min=old.speedup_at_min,
        ridge_batch=old.ridge_batch,
        runner_up=_known(old.runner_up, old.batch.max),
        sharing_loss=old.sharing_loss,
        smallest_visible_gain=old.resolvable,
        categories=tuple(_category(own) for own in old.categories),
        engine_loss=None if old.engine_loss is None else _engine_loss(old.engine_loss, old.batch.max),
        sensitivity=old.cost_sensitivity,
    )


def _category(old: _Category) -> Category:
    return Category(name=old.name, weight=old.weight, acceptance_length=old.expected_tokens, loss=old.loss)


def _measured(old: _Number) -> Estimate:
    return Estimate(value=old.value, low=old.low, high=old.high)


def _chain(old: _Alternative, batch: int) -> Option:
    return Option(
        draft=DraftTree.chain(old.depth),
        acceptance_length=Estimate(value=old.expected_tokens),
        step_time_s=batch * old.expected_tokens / old.tokens_per_s,
        tokens_per_s=Estimate.priced(old.tokens_per_s),
    )


def _known(old: _Alternative | None, batch: int) -> Option | None:
    """The draft where its size tells its shape: version 1 kept the paths of the chosen tree only."""
    return None if old is None or old.nodes != old.depth + 1 else _chain(old, batch)


def _engine_loss(old: _Loss, batch: int) -> EngineLoss:
    return EngineLoss(share=_measured(old.share), unrestricted=_known(old.unrestricted, batch), worst=old.worst)


def _optimality(words: str) -> Optimality:
    """`exact`, or `gap 1.23%: ...`."""
    if words.startswith("exact"):
        return Optimality(exact=True, gap=0.0)
    share = words.removeprefix("gap ").partition("%")[0]
    try:
        return Optimality(exact=False, gap=float(share) / 100.0)
    except ValueError:
        raise InputError(f"optimality '{words}' is neither exact nor a gap", hint="write `gap 1.2%: why`") from None

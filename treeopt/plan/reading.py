"""Plan and tree files, read and checked: every error names the file and the line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

from treeopt.acceptance.rules import read_rule
from treeopt.errors import InputError, SearchError
from treeopt.files.documents import Document, Field, read_document
from treeopt.plan.bucket import Bucket
from treeopt.plan.plan import FORMAT, Contexts, FormatLoss, Plan, PlanEngine, Source
from treeopt.plan.reading_buckets import number_or_none, parse_bucket, paths_at
from treeopt.solve.problem import Limits
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit
from treeopt.tree import DraftTree

TREE_FORMAT: Final = "treeopt.tree/1"
_PLAN_KEYS: Final = (
    *("format", "created_with", "verification", "ranks", "hardware", "model", "drafter", "context", "objective"),
    *("limits", "latency", "notes", "buckets", "cost", "engine"),
)


def load_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no plan of this version, or contradicts itself (with the line).
    """
    return parse_plan(read_document(Path(path), what="plan"))


def is_plan(document: Document) -> bool:
    """Whether a file means to be a plan, where a bare tree would do too."""
    return isinstance(document.value, dict) and "buckets" in document.value


def parse_plan(document: Document) -> Plan:
    """Read a plan from a parsed file."""
    root = document.root
    check_format(root, FORMAT, what="plan")
    root.only(*_PLAN_KEYS)
    created, rule = root.get("created_with"), read_rule(root.get("verification").get("rule"))
    context = root.get("context").integer(low=0)
    buckets = tuple(parse_bucket(b, context) for b in root.get("buckets").items())
    if not buckets:
        raise root.get("buckets").error("the plan has no bucket", hint="search again")
    _check_order(list(root.get("buckets").items()), buckets)
    return Plan(
        version=created.get("treeopt").text(),
        command=created.get("command").text(),
        rule=rule,
        notes=tuple(note.text() for note in root.get("notes").items()),
        ranks=_parse_source(root.get("ranks")),
        hardware=_parse_source(root.get("hardware")),
        model=_parse_source(root.get("model")),
        drafter=root.get("drafter").get("kind").text(),
        context=context,
        objective=root.get("objective").text(),
        limits=_parse_limits(root.get("limits", {})),
        budget_tokens=number_or_none(root.get("limits", {}).get("budget_tokens", None)),
        latency=_parse_latency(root.get("latency", None)),
        cost=None if (cost := root.get("cost", None)).value is None else _parse_source(cost),
        engine=None if (engine := root.get("engine", None)).value is None else _parse_engine(engine),
        buckets=buckets,
    )


def parse_tree(document: Document) -> DraftTree:
    """Read a bare tree: `format: treeopt.tree/1` with `paths`, or a plain list of paths as Medusa and EAGLE hold it.

    Raises:
        FileFormatError: it is neither, or not a tree (with the line).
    """
    root = document.root
    if isinstance(root.value, list):
        return paths_at(root)
    check_format(root, TREE_FORMAT, what="tree")
    return paths_at(root.get("paths"))


def check_format(root: Field, expected: str, *, what: str) -> None:
    """Refuse a file of another format or schema version.

    Raises:
        FileFormatError: with what was found.
    """
    if not isinstance(root.value, dict) or "format" not in root.value:
        raise root.error(f"this is not a {what}", hint=f"a {what} starts with `format: {expected}`")
    field = root.get("format")
    found = field.text()
    if found == expected:
        return
    same_kind = found.split("/")[0] == expected.split("/")[0]
    hint = f"this treeopt reads {expected}; " + ("make it again" if same_kind else f"give a {what}")
    raise field.error(f"this is '{found}', expected '{expected}'", hint=hint)


def _parse_source(field: Field) -> Source:
    mapping = field.mapping()
    name = field.get("name").text()
    facts = tuple((k, v) for k, v in mapping.items() if k not in ("name", "file", "sha256"))
    return Source(name=name, reference=field.get("file", name).text(), sha256=field.get("sha256").text(), facts=facts)


def _parse_engine(field: Field) -> PlanEngine:
    field.only("name", "version", "format", "allow_off", "formats")
    return PlanEngine(
        name=field.get("name").text(),
        version=field.get("version").text(),
        format=field.get("format").text(),
        allow_off=field.get("allow_off").boolean(),
        formats=tuple(_parse_format_loss(item) for item in field.get("formats").items()),
    )


def _parse_format_loss(field: Field) -> FormatLoss:
    field.only("format", "drafts", "mean_loss", "worst_loss")
    return FormatLoss(
        format=field.get("format").text(),
        drafts=field.get("drafts").text(),
        mean_loss=field.get("mean_loss").number(),
        worst_loss=field.get("worst_loss").number(),
    )


def _check_order(fields: Sequence[Field], buckets: Sequence[Bucket]) -> None:
    """Buckets go by context, then by batch, without gaps, and all contexts have the same batch sizes."""
    for i, (before, after) in enumerate(pairwise(buckets), start=1):
        same = (after.context_min, after.context_max) == (before.context_min, before.context_max)
        if same and after.batch_min != before.batch_max + 1:
            raise (
                fields[i]
                .get("batch")
                .error(f"the bucket before ends at {before.batch_max}", hint="buckets follow each other without gaps")
            )
        if not same and after.context_min != before.context_max + 1:
            raise (
                fields[i]
                .get("context")
                .error(
                    f"the contexts before end at {before.context_max}", hint="contexts follow each other without gaps"
                )
            )
    ends = [0]
    for _, group in groupby(buckets, key=lambda b: Contexts(b.context_min, b.context_max)):
        own = list(group)
        ends.append(ends[-1] + len(own))
        if (own[0].batch_min, own[-1].batch_max) != (buckets[0].batch_min, buckets[ends[1] - 1].batch_max):
            raise (
                fields[ends[-1] - 1]
                .get("batch")
                .error(
                    f"these contexts have batch {own[0].batch_min} to {own[-1].batch_max}",
                    hint="give all contexts the same batch sizes",
                )
            )


def _parse_limits(field: Field) -> Limits:
    field.only("max_nodes", "max_depth", "max_children", "max_ranks", "budget_tokens")
    caps = {key: field.get(key).integer() for key, cap in field.mapping().items() if key != "budget_tokens" and cap}
    try:
        return Limits(**caps)
    except SearchError as error:
        raise field.error(str(error), hint=error.hint) from None


def _parse_latency(field: Field) -> TimeLimit:
    if field.value is None:
        return NO_LIMIT
    field.only("output_tokens", "max_mean_s", "max_p99_s")
    try:
        return TimeLimit(
            max_mean_s=number_or_none(field.get("max_mean_s", None)),
            max_p99_s=number_or_none(field.get("max_p99_s", None)),
            output_tokens=field.get("output_tokens").integer(),
        )
    except InputError as error:
        raise field.error(str(error), hint=error.hint) from None

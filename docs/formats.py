"""Write docs/formats.md: every document's keys, from the types that read and write them.

PYTHONPATH=. python docs/formats.py            # prints the page
PYTHONPATH=. python docs/formats.py --write    # replaces docs/formats.md
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union

import numpy as np

from treeopt.acceptance.importers.reading import Imported
from treeopt.acceptance.profile import RankFile
from treeopt.acceptance.published import PublishedProfiles
from treeopt.bench.result import BenchResult
from treeopt.check.live import Watch
from treeopt.check.report import CheckReport
from treeopt.collect.job import Collected
from treeopt.cost.fit.engine_profile import FittedSteps
from treeopt.cost.fit.profile import FittedProfile
from treeopt.cost.hardware import Hardware
from treeopt.doctor import Health
from treeopt.engines.exporting import Export
from treeopt.engines.schedule import TreeFile, TreesFile
from treeopt.files.typed import Between, Group, fields_of, layout_of
from treeopt.measure.rows import ServerSteps
from treeopt.plan.plan import Plan
from treeopt.planner.budget import Budgets
from treeopt.planner.compare import Comparisons
from treeopt.planner.explain import Explanation
from treeopt.planner.replay import Replays
from treeopt.planner.report import PlanReport
from treeopt.planner.show import ShownTree
from treeopt.profile.profile import DryRun, Profiled
from treeopt.tree import DraftTree
from treeopt.verify.dump import StepDump
from treeopt.verify.report import Diagnosis, VerificationReport

ANY: Final = Between()
PAGE: Final = Path(__file__).with_name("formats.md")
HEAD: Final = """# Formats

Made from the types by `python docs/formats.py --write`; a test compares. Every document is YAML or JSON; its first key
is `format`. Numbers have six digits. A key in *italics* follows from the others: a file whose value differs is
refused, one that leaves it out is read. A key marked `?` may be left out.
"""


class Documented(NamedTuple):
    """A document's type, and where a user meets it."""

    kind: Any
    where: str


DOCUMENTS: Final = (
    Documented(Plan, "what `treeopt search` writes (`--out`) and prints (`--json`); `treeopt.plan/1` is still read"),
    Documented(Explanation, "`treeopt explain --json`"),
    Documented(Comparisons, "`treeopt compare --json`"),
    Documented(PlanReport, "`treeopt report --json`"),
    Documented(Replays, "`treeopt replay --json`"),
    Documented(Budgets, "`treeopt budget --json`"),
    Documented(CheckReport, "`treeopt check --json`"),
    Documented(Health, "`treeopt doctor --json`"),
    Documented(Watch, "`treeopt ranks watch --json`"),
    Documented(Export, "`treeopt export --json`"),
    Documented(TreesFile, "`treeopt import`"),
    Documented(TreeFile, "`treeopt import`"),
    Documented(ShownTree, "`treeopt show --json` of one tree"),
    Documented(RankFile, "a rank profile: `treeopt ranks import --out`, `ranks show --json`"),
    Documented(Imported, "`treeopt ranks import --json`"),
    Documented(PublishedProfiles, "`treeopt ranks list --json`"),
    Documented(Collected, "`treeopt ranks collect --json`"),
    Documented(ServerSteps, "`treeopt measure --json`"),
    Documented(FittedProfile, "`treeopt profile fit --rows --json`"),
    Documented(FittedSteps, "`treeopt profile fit --steps --json`"),
    Documented(Hardware, "a hardware profile: `treeopt profile --out`, `profile fit --out`"),
    Documented(Profiled, "`treeopt profile --json`"),
    Documented(DryRun, "`treeopt profile --dry-run --json`"),
    Documented(BenchResult, "what `treeopt bench` writes and prints (`--json`)"),
    Documented(VerificationReport, "`treeopt verify --json`"),
    Documented(Diagnosis, "`treeopt verify --dump --json`"),
    Documented(StepDump, "the step of another engine, for `treeopt verify --dump`: NPZ, JSON or YAML"),
)


def page() -> str:
    """The whole page."""
    parts, known = [HEAD], set[type]()
    for kind, where in DOCUMENTS:
        parts.append(f"## `{kind.FORMAT}`: {where}\n")
        parts += _records(kind, known)
    return "\n".join(parts)


def _records(kind: type, known: set[type]) -> Iterator[str]:
    """A record, then those that it is made of, each once in the page."""
    if kind in known:
        return
    known.add(kind)
    yield from (f"### {kind.__name__}\n", f"{_prose(kind)}\n", "| key | value |", "|---|---|")
    fields = fields_of(kind)
    inner: list[Any] = []
    for key, name in _keys(kind):
        if key in fields:
            inner.append(fields[key].kind)
            yield f"| `{name}`{'?' if fields[key].optional else ''} | {_words(fields[key].kind)} |"
        else:
            derived = getattr(kind, key)
            own = typing.get_type_hints(derived.fget, include_extras=True)["return"]
            inner.append(own)
            yield f"| *`{name}`* | {_words(own)}: {' '.join(inspect.cleandoc(derived.__doc__).split())} |"
    yield ""
    for own in inner:
        for record in _made_of(own):
            yield from _records(record, known)


def _prose(kind: type) -> str:
    """What the type says of itself, without what it raises; of its arguments those that are keys, as a list."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\n\nRaises:")[0]
    text, _, arguments = re.sub(r"\n\nAttributes:\n", "\n\nArgs:\n", text).partition("\n\nArgs:\n")
    known = {key for key, _ in _keys(kind)}
    told = [" ".join(item.split()) for item in re.split(r"\n(?=    \w)", arguments)]
    listed = [f"- `{name}`: {words}" for name, _, words in (item.partition(": ") for item in told) if name in known]
    return "\n".join([text, "", *listed]) if listed else text


def _keys(kind: type) -> Iterator[tuple[str, str]]:
    """Every key, and as it is written: with its group before it."""
    for key in layout_of(kind):
        if isinstance(key, Group):
            yield from ((inner, f"{key.name}.{inner}") for inner in key.keys)
        else:
            yield key, key


def _filed(kind: Any) -> Any:
    """The type that a value is written as: its own, or that of its `document`."""
    writes_itself = hasattr(kind, "document") and not hasattr(kind, "WRITTEN")
    return typing.get_type_hints(kind.document)["return"] if writes_itself else kind


def _is_record(kind: Any) -> bool:
    if not isinstance(kind, type) or kind is DraftTree:
        return False
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def _made_of(kind: Any) -> Iterator[type]:
    kind = _filed(kind)
    if _is_record(kind):
        yield kind
    if isinstance(kind, type):
        return
    for arg in typing.get_args(kind):
        yield from _made_of(arg)


def _words(kind: Any, within: Between = ANY) -> str:
    kind = _filed(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _words(args[0], next((extra for extra in args[1:] if isinstance(extra, Between)), within))
    if origin in (Union, types.UnionType):
        return " or ".join(_words(a, within) for a in args if a is not type(None)) + (
            " or null" if type(None) in args else ""
        )
    if origin is Literal:
        return ", ".join(f"`{a}`" for a in args)
    if origin in (tuple, list):
        return f"list of {_words(args[0], within)}"
    if origin is np.ndarray:
        return f"list of {_number('numbers', within)}"
    if origin in (dict, Mapping):
        return f"mapping of names to {_words(args[1])}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if _is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return _number(_SIMPLE[kind], within) if kind in (int, float) else _SIMPLE[kind]


_SIMPLE: Final[dict[Any, str]] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    DraftTree: "list of rank paths",
    Any: "any value",
}


def _number(what: str, within: Between) -> str:
    low = "above 0" if 0.0 < within.low < 1e-200 else f"from {within.low:g}" if np.isfinite(within.low) else ""
    high = f"to {within.high:g}" if np.isfinite(within.high) else ""
    return " ".join(filter(None, (what, low, high)))


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
    else:
        print(page())

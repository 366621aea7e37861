"""From what an engine is set to today, in its file or in a few words, to drafts by batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from treeopt.draft_family import (
    OFF,
    OPENVINO,
    SGLANG,
    TENSORRT_LLM,
    Draft,
    DynamicTree,
    DynamicTreeRule,
    StaticTrees,
    UniformTrees,
)
from treeopt.engines.format import Engine, Format, Found
from treeopt.engines.registry import ENGINES, EngineAt
from treeopt.engines.schedule import FORMAT, DraftSchedule, parse_schedule
from treeopt.engines.source import EngineFile, read_source
from treeopt.errors import FileFormatError, InputError, TreeoptError
from treeopt.files.documents import os_error
from treeopt.plan.plan import Plan
from treeopt.plan.reading import TREE_FORMAT, is_plan, parse_plan, parse_tree
from treeopt.solve.buckets import batches_in_words
from treeopt.tree import DraftTree

MAX_LENGTH: Final = 1000
_SPECS: Final = (
    "none, chain:K, vllm:K, sglang:STEPS,TOPK,TOKENS, trtllm:LENGTH,TOPK,TOKENS, openvino:DEPTH,BRANCHING,TOKENS"
)


# Whose setting is one number, a chain's length.
_CHAINS: Final = ("chain", *(engine.name for engine in ENGINES if engine.length_setting))


class _TripleSpec(NamedTuple):
    rule: DynamicTreeRule
    root_counted: bool


# As each engine counts its draft tokens.
_TRIPLES: Final = {
    "sglang": _TripleSpec(SGLANG, root_counted=True),
    "trtllm": _TripleSpec(TENSORRT_LLM, root_counted=False),
    "openvino": _TripleSpec(OPENVINO, root_counted=False),
}


class ImportedDrafts(NamedTuple):
    """Drafts read from an engine's file: by which engine and format, and what the engine does without saying so.

    `drafter` is the kind that the file names, None where it names none.
    """

    engine: Engine
    format: str
    schedule: DraftSchedule
    notes: tuple[str, ...]
    drafter: str | None


def import_file(path: Path, target: EngineAt | None = None) -> ImportedDrafts:
    """Read a file as the engine reads it; without an engine, as the first whose shape it has.

    Raises:
        InputError: it cannot be read, or no format has this shape.
        FileFormatError: the engine would refuse it or draft something else than it says (with the line).
    """
    source = read_source(path)
    for engine, form in _formats(target):
        try:
            found = form.read(source)
        except FileFormatError:
            raise
        except TreeoptError as error:
            raise FileFormatError(f"{source.name}: {error}", hint=error.hint) from None
        if found is not None:
            _check(found, engine, form, source)
            return ImportedDrafts(engine, form.name, *found)
    if target is None:
        raise FileFormatError(
            f"{source.name}: nothing in it is known as an engine's setting of drafts",
            hint="give a path list, the engine's configuration or its command line, or name the engine",
        )
    loads = "; ".join(form.limits.words for form in target.formats)
    raise FileFormatError(
        f"{source.name}: not what {target.engine.title} {target.version} loads", hint=f"it loads {loads}"
    )


def parse_spec(text: str) -> DraftSchedule | None:
    """Read `none`, `chain:K`, an engine's own K as `vllm:K`, or its triple as `sglang:3,4,16`; None for other text.

    Raises:
        InputError: numbers that are none, or that the engine cannot run.
    """
    if text == "none":
        return DraftSchedule.constant(OFF)
    kind, colon, numbers = text.partition(":")
    if not colon or (kind not in _CHAINS and kind not in _TRIPLES):
        return None
    if kind in _CHAINS and not (kind in _TRIPLES and "," in numbers):
        return DraftSchedule.constant(DraftTree.chain(_chain_length(text, numbers)))
    return DraftSchedule.constant(_triple(text, numbers, _TRIPLES[kind]))


def load_drafts(text: str) -> Plan | DraftSchedule:
    """What the user names: a few words, or a plan, a tree, a path list, or any engine's file.

    Raises:
        InputError: none of these.
    """
    spec = parse_spec(text)
    if spec is not None:
        return spec
    if not text:
        raise InputError("a rival or deployed draft without a name", hint=f"give a file, or {_SPECS}")
    path = Path(text)
    if not path.exists() and (path.suffix or path.name != text):
        raise os_error(FileNotFoundError(), path, what="plan or the engine's file", verb="read")
    if not path.exists():
        raise InputError(f"'{text}' is neither a file nor known words", hint=f"give a file, or {_SPECS}")
    if path.suffix in (".pt", ".pth"):
        return import_file(path).schedule
    return _load_file(path)


def load_schedule(text: str) -> DraftSchedule:
    """As `load_drafts`, for what is no plan.

    Raises:
        InputError: none of these, or a plan.
    """
    found = load_drafts(text)
    if isinstance(found, Plan):
        raise InputError(f"'{text}' is a plan", hint=f"give an engine's file, or {_SPECS}")
    return found


def _load_file(path: Path) -> Plan | DraftSchedule:
    source = read_source(path)
    if source.document is None or source.flags:
        return import_file(path).schedule
    document = source.document
    if is_plan(document):
        return parse_plan(document)
    kind = document.value.get("format") if isinstance(document.value, dict) else None
    if kind == FORMAT:
        return parse_schedule(document)
    if kind == TREE_FORMAT:
        return DraftSchedule.constant(parse_tree(document))
    if isinstance(kind, str) and kind.startswith("treeopt."):
        parse_tree(document)  # says what it is and what was expected
    return import_file(path).schedule


def _formats(target: EngineAt | None) -> list[tuple[Engine, Format]]:
    if target is not None:
        return [(target.engine, form) for form in target.formats]
    return [(engine, form) for engine in ENGINES for form in engine.formats]


def _check(found: Found, engine: Engine, form: Format, source: EngineFile) -> None:
    """Refuse a static tree that the engine would take and then draft otherwise."""
    if not isinstance(form.limits, StaticTrees | UniformTrees):
        return
    for r in found.schedule.ranges():
        if r.draft != OFF and (reason := form.limits.refusal(r.draft)) is not None:
            where = "" if found.schedule.only is not None else f" at {batches_in_words(r.batch_min, r.batch_max)}"
            raise FileFormatError(
                f"{source.name}: {engine.title} does not draft this tree{where}: {reason}",
                hint=f"it loads {form.limits.words}",
            )


def _chain_length(text: str, digits: str) -> int:
    if not digits.isdecimal() or int(digits) > MAX_LENGTH:
        raise InputError(f"'{text}' is not a chain", hint="write chain:K with K draft tokens, for example chain:4")
    return int(digits)


def _triple(text: str, numbers: str, spec: _TripleSpec) -> Draft:
    parts = numbers.split(",")
    if len(parts) != 3 or not all(p.strip().isdecimal() and len(p) < 9 for p in parts):
        raise InputError(f"'{text}' is not a dynamic tree", hint=f"write {_SPECS}")
    steps, topk, tokens = (int(p) for p in parts)
    triple = DynamicTree(steps, topk, tokens if spec.root_counted else tokens + 1)
    try:
        spec.rule.check(triple)
    except InputError as error:
        own = "" if spec.root_counted else "; the number after the last comma leaves the root out: one less"
        raise InputError(f"'{text}': {error}", hint=f"{error.hint}{own}") from None
    return DraftTree.chain(steps) if topk == 1 else triple

"""Typed values from fields and back: a type's annotations are the schema of its file.

A record is a dataclass or a NamedTuple. Its keys are its fields, or what its `WRITTEN` lists in the order of the file:
fields (all of them, in a record that is read) and properties that follow from them. A property is written for the
reader; read back it must agree with what the fields give, so that no file contradicts itself. `FORMAT` is the value of
a document's first key, `format`; a record that is `SPARSE` leaves out what has its default, one that is `EXACT` has
floats to the last digit.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union

import numpy as np

from treeopt.errors import TreeError, TreeoptError
from treeopt.files.documents import Field, dump_yaml
from treeopt.tree import DraftTree

T = TypeVar("T")
# Files hold six digits: what follows from several rounded numbers is off by a few units of the sixth.
ROUNDING: Final = 2e-5
ALL_DIGITS: Final = 17  # a float's


class Between(NamedTuple):
    """The numbers that an annotated field, or all of an annotated record, may hold, both ends included."""

    low: float = -math.inf
    high: float = math.inf


_ANY: Final = Between()


class Key(NamedTuple):
    """The key of an annotated field in its file, where that is not the field's name."""

    name: str


class Group(NamedTuple):
    """Keys of a record that stand together under one key of their own in its file."""

    name: str
    keys: tuple[str, ...]


Positive = Annotated[float, Between(1e-300)]
NotNegative = Annotated[float, Between(0.0)]
Share = Annotated[float, Between(0.0, 1.0)]
Count = Annotated[int, Between(1)]
Whole = Annotated[int, Between(0)]


def read(kind: type[T], field: Field, *, within: Between = _ANY) -> T:
    """The value of a field as `kind`: a record, tuple, mapping, Enum, Literal, array, tree or scalar, or None of it.

    Raises:
        FileFormatError: a key too many or too few, a value of another type or out of range, or one that contradicts
            the others, with its line.
    """
    value: T = _read(kind, field, within)
    return value


def write(value: Any, *, digits: int = 6) -> Any:
    """The value of a file: records as mappings, floats to so many digits, arrays and trees as lists."""
    if isinstance(value, bool | int | str | None):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, DraftTree):
        return [list(path) for path in value.paths]
    if isinstance(value, np.ndarray | np.generic):
        return write(value.tolist(), digits=digits)
    if isinstance(value, Mapping):
        return {str(key): write(v, digits=digits) for key, v in value.items()}
    if hasattr(value, "document") and not hasattr(type(value), "WRITTEN"):  # it has another type for its file
        return write(value.document(), digits=digits)
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        kind: Any = type(value)
        head = {"format": kind.FORMAT} if hasattr(kind, "FORMAT") else {}
        return head | _written(value, layout_of(kind), ALL_DIGITS if getattr(kind, "EXACT", False) else digits)
    return [write(v, digits=digits) for v in value]


def _written(value: Any, layout: Iterable[str | Group], digits: int) -> dict[str, Any]:
    kind: Any = type(value)
    sparse = getattr(kind, "SPARSE", False)
    found = dict[str, Any]()
    for key in layout:
        if isinstance(key, Group):
            found[key.name] = _written(value, key.keys, digits)
            continue
        attribute = key if hasattr(value, key) else fields_of(kind)[key].attribute
        given = getattr(value, attribute)
        if not (sparse and fields_of(kind)[key].optional and given == getattr(kind, attribute)):
            found[key] = write(given, digits=digits)
    return found


def yaml_text(value: Any) -> str:
    """A record's file."""
    return dump_yaml(write(value))


def json_text(value: Any) -> str:
    """The same document as JSON, the innermost mappings and the lists of numbers on one line each."""
    return _json(write(value), "")


def _json(value: Any, indent: str) -> str:
    deeper = indent + "  "
    if isinstance(value, dict) and any(isinstance(v, dict | list) for v in value.values()):
        items = [f"{deeper}{json.dumps(key)}: {_json(v, deeper)}" for key, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(deeper + _json(v, deeper) for v in value) + f"\n{indent}]"
    return json.dumps(value)


def check_format(root: Field, *expected: str, what: str) -> str:
    """The format that a file says it has, one of those expected.

    Raises:
        FileFormatError: it has another one, or none.
    """
    if not isinstance(root.value, dict) or "format" not in root.value:
        raise root.error(f"this is not a {what}", hint=f"a {what} starts with `format: {expected[0]}`")
    field = root.get("format")
    found = field.text()
    if found not in expected:
        same_kind = found.split("/")[0] == expected[0].split("/")[0]
        hint = f"this treeopt reads {', '.join(expected)}; " + ("make it again" if same_kind else f"give a {what}")
        raise field.error(f"this is '{found}', expected '{expected[0]}'", hint=hint)
    return found


class RecordField(NamedTuple):
    """One field of a record: its attribute, its annotated type, and whether its file may leave it out."""

    attribute: str
    kind: Any
    optional: bool


@cache
def fields_of(kind: Any) -> dict[str, RecordField]:
    """The fields of a record by their keys in a file."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if hasattr(kind, "_fields"):
        optional = {name: name in kind._field_defaults for name in kind._fields}  # a NamedTuple
    else:
        missing = dataclasses.MISSING
        optional = {f.name: (f.default, f.default_factory) != (missing, missing) for f in dataclasses.fields(kind)}
    return {_key(name, hints[name]): RecordField(name, hints[name], left) for name, left in optional.items()}


def _key(attribute: str, kind: Any) -> str:
    extras = getattr(kind, "__metadata__", ())
    return next((extra.name for extra in extras if isinstance(extra, Key)), attribute)


def layout_of(kind: type) -> tuple[str | Group, ...]:
    """The keys of a record's file and their groups, in their order."""
    written: tuple[str | Group, ...] | None = getattr(kind, "WRITTEN", None)
    return tuple(fields_of(kind)) if written is None else written


def _read(kind: Any, field: Field, within: Between = _ANY) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = [extra for extra in args[1:] if isinstance(extra, Between)]
        return _read(args[0], field, *(bounds or [within]))
    if origin in (Union, types.UnionType):
        if field.value is None and type(None) in args:
            return None
        inner = [a for a in args if a is not type(None)]
        # Of two kinds one is a tree, which stands as a list.
        kind = inner[0] if len(inner) == 1 else next(a for a in inner if _is_tree(a) == isinstance(field.value, list))
        return _read(kind, field, within)
    if kind in (int, float):
        return (field.integer if kind is int else field.number)(low=within.low, high=within.high)
    if kind in _SIMPLE:
        return _SIMPLE[kind](field)
    if origin is Literal:
        return _one_of(field, {str(a): a for a in args})
    if origin is tuple:
        return _tuple(args, field)
    if origin is np.ndarray:
        return np.array([item.number(low=within.low, high=within.high) for item in field.items()], dtype=np.float64)
    if origin in (dict, Mapping):
        return {key: _read(args[1], field.get(key)) for key in field.mapping()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _one_of(field, {m.value: m for m in kind})
    return _record(kind, field, within)


def _is_tree(kind: Any) -> bool:
    return kind is DraftTree


def tree_at(field: Field) -> DraftTree:
    """The static tree whose rank paths stand in a field.

    Raises:
        FileFormatError: not a list of lists of ranks, or no tree (with the line).
    """
    paths = [tuple(rank.integer() for rank in path.items()) for path in field.items()]
    try:
        return DraftTree(tuple(paths))
    except TreeError as error:
        raise field.error(str(error), hint=error.hint) from None


_SIMPLE: Final[dict[Any, Callable[[Field], Any]]] = {
    str: Field.text,
    bool: Field.boolean,
    DraftTree: tree_at,
    Any: lambda field: field.value,
}


def _one_of(field: Field, known: Mapping[str, Any]) -> Any:
    text = field.text()
    if text not in known:
        raise field.error(f"unknown '{text}'", hint=f"known: {', '.join(known)}")
    return known[text]


def _tuple(args: tuple[Any, ...], field: Field) -> tuple[Any, ...]:
    items = list(field.items())
    if args[-1] is not Ellipsis and len(items) != len(args):
        raise field.error(f"{len(items)} values", hint=f"give {len(args)}")
    kinds = [args[0]] * len(items) if args[-1] is Ellipsis else args
    return tuple(_read(kind, item) for kind, item in zip(kinds, items, strict=True))


def _record(kind: type, field: Field, within: Between) -> Any:
    fields, layout = fields_of(kind), layout_of(kind)
    groups = [key for key in layout if isinstance(key, Group)]
    holder = {key: field for key in layout if isinstance(key, str)}
    holder |= {key: field.get(group.name) for group in groups for key in group.keys}
    if lost := fields.keys() - holder.keys():
        raise TypeError(f"{kind.__name__}.WRITTEN lacks {', '.join(sorted(lost))}: read, and not written again")
    head = ["format"] if hasattr(kind, "FORMAT") else []
    field.only(*head, *(key for key, own in holder.items() if own is field), *(group.name for group in groups))
    for group in groups:
        holder[group.keys[0]].only(*group.keys)
    given = {
        own.attribute: _read(own.kind, holder[key].get(key), within)
        for key, own in fields.items()
        if key in holder[key].mapping() or not own.optional
    }
    try:
        value = kind(**given)
    except TreeoptError as error:
        raise field.error(str(error), hint=error.hint) from None
    for key, own_field in holder.items():
        if key not in fields and key in own_field.mapping():
            check_derived(own_field.get(key), getattr(value, key))
    return value


def check_derived(field: Field, right: Any) -> None:
    """Refuse a value that does not follow from the others of its file.

    Raises:
        FileFormatError: with what does follow.
    """
    if not _same(field.value, write(right)):
        raise field.error(
            f"this contradicts the rest, which gives {_words(write(right))}", hint="change what belongs together"
        )


def _same(given: Any, right: Any) -> bool:
    if isinstance(right, list):
        return isinstance(given, list) and len(given) == len(right) and all(map(_same, given, right))
    if isinstance(right, dict):
        same_keys = isinstance(given, dict) and given.keys() == right.keys()
        return same_keys and all(_same(given[key], right[key]) for key in right)
    if isinstance(right, float) and isinstance(given, int | float) and not isinstance(given, bool):
        return math.isclose(given, right, rel_tol=ROUNDING, abs_tol=1e-12)
    return type(given) is type(right) and bool(given == right)


def _words(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

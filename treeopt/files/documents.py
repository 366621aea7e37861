"""YAML and JSON files: read with the line of every value."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from treeopt.errors import FileFormatError, InputError
from treeopt.files.numbers import plain_number
from treeopt.files.opening import OpenedFile, called

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_REQUIRED: Final = object()
_KEY_CHARS: Final = 60  # of a key in messages
_MAX_BYTES: Final = 256 << 20  # no profile or plan comes near it; a device never ends

Keys = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One parsed file: its value, and enough to say where in the file a value stands."""

    name: str
    text: str
    value: Any

    @property
    def sha256(self) -> str:
        """Hash of the file's bytes, as plans record it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def error(self, message: str, *keys: str | int, hint: str) -> FileFormatError:
        """An error that names this file and the line of the value under `keys`."""
        line = _line_of(self.text, keys)
        return FileFormatError(f"{self.name}:{line}: {message}", hint=hint)

    @property
    def root(self) -> Field:
        """The whole value, as the field that checks start from."""
        return Field(document=self, keys=(), value=self.value)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value inside a document, read with its type checked and its line known."""

    document: Document
    keys: Keys
    value: Any

    def error(self, message: str, *, hint: str) -> FileFormatError:
        """An error at this field's line."""
        path = "".join(f"[{k}]" if isinstance(k, int) else f".{k[:_KEY_CHARS]}" for k in self.keys).lstrip(".")
        return self.document.error(f"{path}: {message}" if path else message, *self.keys, hint=hint)

    def mapping(self) -> dict[str, Any]:
        """This value as a mapping with string keys."""
        if not isinstance(self.value, dict) or not all(isinstance(k, str) for k in self.value):
            raise self._type_error("a mapping of names to values")
        return self.value

    def get(self, key: str, default: Any = _REQUIRED) -> Field:
        """The field under `key`; a missing one without a default is an error."""
        mapping = self.mapping()
        if key not in mapping and default is _REQUIRED:
            raise self.error(f"'{key}' is missing", hint=f"add `{key}:`; there are: {', '.join(mapping) or 'no keys'}")
        return Field(document=self.document, keys=(*self.keys, key), value=mapping.get(key, default))

    def only(self, *known: str) -> None:
        """Refuse keys that nothing reads: a misspelt option must not be ignored."""
        for key in self.mapping():
            if key not in known:
                field = Field(document=self.document, keys=(*self.keys, key), value=None)
                raise field.error("unknown key", hint=f"known keys here: {', '.join(known)}")

    def items(self) -> Iterator[Field]:
        """The fields of a list."""
        if not isinstance(self.value, list):
            raise self._type_error("a list")
        for i, value in enumerate(self.value):
            yield Field(document=self.document, keys=(*self.keys, i), value=value)

    def text(self) -> str:
        """This value as text."""
        if not isinstance(self.value, str):
            raise self._type_error("text")
        if any("\ud800" <= c <= "\udfff" for c in self.value):
            raise self.error("half a character (a lone surrogate)", hint="write the whole character")
        return self.value

    def boolean(self) -> bool:
        """This value as true or false."""
        if not isinstance(self.value, bool):
            raise self._type_error("true or false")
        return self.value

    def number(self, *, low: float = -math.inf, high: float = math.inf) -> float:
        """This value as a finite number in [low, high]; YAML 1.1 reads 3e9 as text, so text is tried too."""
        value = self.value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = plain_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type_error("a number")
        if isinstance(value, int) and abs(value) > 2**62:
            raise self.error("a number of more than 18 digits", hint="give a measured, finite value")
        if not math.isfinite(value):
            raise self.error(f"{value} is not a finite number", hint="give a measured, finite value")
        if not low <= value <= high:
            bound = f">= {low:g}" if value < low else f"<= {high:g}"
            raise self.error(f"{value:g} is out of range", hint=f"it must be {bound}")
        return float(value)

    def integer(self, *, low: float = -math.inf, high: float = math.inf) -> int:
        """This value as a whole number in [low, high]."""
        value = self.number(low=low, high=high)
        if abs(value) > 2**62:
            raise self.error("a number of more than 18 digits", hint="give a measured, finite value")
        if value != int(value):
            raise self.error(f"{value:g} is not a whole number", hint="give a whole number")
        return int(value)

    def _type_error(self, expected: str) -> FileFormatError:
        kind = "nothing" if self.value is None else type(self.value).__name__
        return self.error(f"expected {expected}, found {kind}", hint=f"write {expected} here")


def read_document(path: Path, *, what: str) -> Document:
    """Read a YAML or JSON file; `what` names its purpose in messages.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is not YAML (with the line), or empty.
    """
    text = read_text(path, what=what)
    return parse_document(text, name=called(path), what=what)


def parse_document(text: str, *, name: str, what: str) -> Document:
    """Parse YAML or JSON text that came from `name`."""
    try:
        value = _parse(text, name)
    except RecursionError:
        raise FileFormatError(f"{name}: nested too deeply", hint=f"give a {what}") from None
    if value is None:
        raise FileFormatError(f"{name}: the file is empty", hint=f"give a {what}")
    return Document(name=name, text=text, value=value)


def read_text(path: Path, *, what: str) -> str:
    """Read a text file, turning every way that can fail into an InputError."""
    try:
        return text_of(OpenedFile(path), what=what)
    except OSError as error:
        raise os_error(error, path, what=what, verb="read") from error


def text_of(opened: OpenedFile, *, what: str) -> str:
    """The text of an open file; `what` names its purpose in messages.

    Raises:
        FileFormatError: it is too large for a text file, or not UTF-8.
    """
    raw = opened.stream().read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise FileFormatError(f"{opened.name}: larger than {_MAX_BYTES >> 20} MiB", hint=f"give a {what}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise FileFormatError(f"{opened.name}: not a text file", hint=f"give a {what}, as UTF-8 text") from None


def os_error(error: OSError, path: Path, *, what: str, verb: str) -> InputError:
    """The InputError for a file that cannot be read or written."""
    if isinstance(error, FileNotFoundError):
        missing = path if verb == "read" else path.parent
        return InputError(f"{missing}: no such file or directory", hint=f"check the path of the {what}")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path}: is a directory", hint=f"give the path of a {what}, not of a folder")
    reason = (error.strerror or str(error)).lower()
    return InputError(f"{path}: cannot {verb} it: {reason}", hint=f"give a {what} that you may {verb}")


def dump_yaml(value: Any) -> str:
    """YAML text in block style, with the innermost mappings and the lists of numbers on one line each."""
    dumper: Callable[..., str] = yaml.dump
    return dumper(_with_styles(value), Dumper=_styled_dumper(), sort_keys=False, width=110, allow_unicode=True)


class _Flow(list):  # type: ignore[type-arg]
    """A list to be written on one line."""


class _FlowMap(dict):  # type: ignore[type-arg]
    """A mapping to be written on one line."""


def _with_styles(value: Any) -> Any:
    if isinstance(value, dict):
        if value and all(_is_scalar(v) for v in value.values()):
            return _FlowMap(value)
        return {key: _with_styles(v) for key, v in value.items()}
    if isinstance(value, list):
        if all(not isinstance(v, dict) for v in value):
            return _Flow(value)
        return [_with_styles(v) for v in value]
    return value


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _styled_dumper() -> Any:
    class Dumper(_DUMPER):  # type: ignore[misc, valid-type]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(_Flow, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True))
    Dumper.add_representer(_FlowMap, lambda d, v: d.represent_mapping("tag:yaml.org,2002:map", v, flow_style=True))
    return Dumper


def _parse(text: str, name: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        # JSON is the faster reader by far, and machines write JSON; what only looks like it is YAML's to judge.
        with contextlib.suppress(ValueError):
            return json.loads(text, object_pairs_hook=_without_duplicates)
    return _load_yaml(text, name)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")  # YAML's reader says which and where
    return value


class _Loader(_LOADER):  # type: ignore[misc, valid-type]
    """Refuses a key that is given twice: the last one would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _load_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _yaml_error(error, name) from error
    except ValueError as error:  # a date or number that Python refuses
        raise FileFormatError(f"{name}: {error}", hint="quote the value, or correct it") from error


def _yaml_error(error: yaml.YAMLError, name: str) -> FileFormatError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    where = f"{name}:{mark.line + 1}" if mark is not None else name
    return FileFormatError(
        f"{where}: not valid YAML: {problem}", hint="correct that line; indentation and brackets count"
    )


def _line_of(text: str, keys: Keys) -> int:
    """1-based line of the value under `keys`, or of the deepest part of the way that exists."""
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:  # JSON may hold what YAML does not
        return 1
    if node is None:
        return 1
    line: int = node.start_mark.line
    for key in keys:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            found = (node.value[key], node.value[key])
        if found is None:
            break
        line, node = found[0].start_mark.line, found[1]
    return line + 1

"""Evidence files, read in bounded memory, with the line of everything that is said about them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import yaml

from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import Document, Field, os_error, parse_document, text_of
from treeopt.files.opening import OpenedFile, called

MAX_LINE_BYTES: Final = 16 << 20
MAX_DOCUMENT_BYTES: Final = 64 << 20
MAX_COUNT: Final = 2.0**53  # counts beyond this are not whole numbers in a float

# Finding the line of a JSON value parses the text a second time with a slow parser; not worth it beyond this size.
_MAX_LOCATED_CHARS: Final = 1 << 20
NUMBER: Final = r"(?P<number>\d{1,15}(?:\.\d{1,18})?)(?![\d.]*\d)"  # whole: no digits may follow


class Place(Protocol):
    """Somewhere in a file that an error can point at."""

    def error(self, message: str, *, hint: str) -> FileFormatError:
        """An error that names the file and, where it is known, the line."""


class Printed(NamedTuple):
    """A number as a text shows it, and half of its last digit: what was rounded away lies within."""

    value: float
    rounding: float

    @classmethod
    def of(cls, digits: str) -> Printed:
        """The number that the digits show: "0.29" is 0.29 within 0.005, "930" is exactly 930."""
        _, point, decimals = digits.partition(".")
        return cls(float(digits), 0.5 * 10.0 ** -len(decimals) if point else 0.0)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a text file, without its end; the last one may be cut off."""

    name: str
    number: int
    text: str
    complete: bool

    def error(self, message: str, *, hint: str) -> FileFormatError:
        """An error at this line."""
        return FileFormatError(f"{self.name}:{self.number}: {message}", hint=hint)

    def printed_after(self, label: str) -> Printed | None:
        """The plain decimal number that follows the label's first occurrence; None without both."""
        found = re.search(re.escape(label) + r"\s*" + NUMBER, self.text) if label in self.text else None
        return None if found is None else Printed.of(found["number"])

    def number_after(self, label: str) -> float | None:
        """The value of the number that follows the label; None without both."""
        printed = self.printed_after(label)
        return None if printed is None else printed.value

    def numbers_after(self, label: str) -> list[Printed]:
        """The comma-separated decimal numbers that follow the label."""
        found = re.search(re.escape(label) + r"\s*\(?((?:\d{1,15}(?:\.\d{1,18})?(?:,\s*)?)+)", self.text)
        return [] if found is None else [Printed.of(x) for x in re.findall(r"\d+(?:\.\d+)?", found[1])]


@dataclass(frozen=True)
class SourceFile:
    """A file that may hold evidence, or standard input (`-`); however often it is looked at, it is opened once.

    Args:
        what: its purpose, in messages.
    """

    path: Path
    what: str = field(default="evidence file", compare=False)

    @cached_property
    def opened(self) -> OpenedFile:
        """Its bytes.

        Raises:
            InputError: it cannot be opened.
        """
        try:
            return OpenedFile(self.path)
        except OSError as error:
            raise os_error(error, self.path, what=self.what, verb="read") from error

    @property
    def name(self) -> str:
        """What messages call it."""
        return called(self.path)

    def error(self, message: str, *, hint: str) -> FileFormatError:
        """An error about the whole file."""
        return FileFormatError(f"{self.name}: {message}", hint=hint)

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the file, one piece at a time."""
        with self._reading():
            yield from self.opened.chunks()

    def lines(self) -> Iterator[Line]:
        """The lines of the file; bytes that are no UTF-8 are replaced, since logs hold terminal noise.

        Raises:
            FileFormatError: a line that is too long for a text file.
        """
        with self._reading():
            stream, number = self.opened.stream(), 0
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise self._too_large(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
                text = raw.decode(errors="replace").rstrip("\r\n")
                text = text.removeprefix("\ufeff") if number == 1 else text
                yield Line(name=self.name, number=number, text=text, complete=raw.endswith(b"\n"))

    def text(self) -> str:
        """The whole file, if it is not too large to be held in memory."""
        with self._reading():
            raw = self.opened.stream().read(MAX_DOCUMENT_BYTES + 1)
        if len(raw) > MAX_DOCUMENT_BYTES:
            raise self._too_large(f"larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
        return raw.decode("utf-8-sig", errors="replace")

    def document(self) -> Document:
        """The YAML or JSON value of the file.

        Raises:
            InputError: it cannot be read, or is no YAML (with the line).
        """
        with self._reading():
            return parse_document(text_of(self.opened, what=self.what), name=self.name, what=self.what)

    def records(self) -> Iterator[Document]:
        """The JSON values of the file: one per line, or one in all.

        Raises:
            FileFormatError: text that is not JSON, or ends too early, with its line.
        """
        lines = (line for line in self.lines() if line.text.strip())
        first = next(lines, None)
        if first is None:
            raise self.error("the file is empty", hint="give the file that the engine wrote")
        try:
            _loads(first.text)
        except json.JSONDecodeError:
            yield self._document()
            return
        yield _record(first)
        yield from map(_record, lines)

    def _document(self) -> Document:
        text = self.text()
        try:
            return LocatedDocument(name=self.name, text=text, value=_loads(text))
        except json.JSONDecodeError as error:
            raise FileFormatError(
                f"{self.name}:{error.lineno}: not valid JSON: {error.msg}",
                hint="give the whole file, one JSON value or one per line",
            ) from None

    def _too_large(self, message: str) -> FileFormatError:
        return self.error(message, hint="give the engine's own output, one JSON value or log message per line")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise os_error(error, self.path, what=self.what, verb="read") from error


class LocatedDocument(Document):
    """A document whose errors leave out the line where YAML, which finds it, cannot read the text that JSON could."""

    def error(self, message: str, *keys: str | int, hint: str) -> FileFormatError:
        """An error that names the line of the value under `keys` if it can be found."""
        if len(self.text) <= _MAX_LOCATED_CHARS:
            with contextlib.suppress(yaml.YAMLError, RecursionError):
                return super().error(message, *keys, hint=hint)
        return FileFormatError(f"{self.name}: {message}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class _Record(Document):
    """One line of a JSONL file."""

    line: int

    def error(self, message: str, *keys: str | int, hint: str) -> FileFormatError:
        return FileFormatError(f"{self.name}:{self.line}: {message}", hint=hint)


def find_mappings(document: Document, *keys: str) -> Iterator[Field]:
    """The mappings that hold one of the keys, however deep, in the order of the file: engines nest them differently."""
    pending = [document.root] if isinstance(document.value, dict | list) else []
    while pending:
        field = pending.pop()
        if isinstance(field.value, dict) and not field.value.keys().isdisjoint(keys):
            yield field
        pending.extend(reversed(_nested(field)))


def _nested(field: Field) -> list[Field]:
    pairs = field.value.items() if isinstance(field.value, dict) else enumerate(field.value)
    return [
        Field(document=field.document, keys=(*field.keys, key), value=value)
        for key, value in pairs
        if isinstance(value, dict | list)
    ]


def has(field: Field, *keys: str) -> bool:
    """Whether any of the keys is there and not null."""
    return any(field.mapping().get(key) is not None for key in keys)


def count(field: Field) -> int:
    """A count: whole, and not negative."""
    return field.integer(low=0, high=MAX_COUNT)


def bars(field: Field) -> list[int]:
    """A histogram over 0, 1, ...: a list, or a mapping from the number to its count."""
    if not isinstance(field.value, dict):
        return [count(bar) for bar in field.items()]
    histogram = [0] * (1 + max((_index(field, key) for key in field.mapping()), default=-1))
    for key in field.mapping():
        histogram[_index(field, key)] += count(field.get(key))
    return histogram


def _index(field: Field, key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 5):
        raise field.error(f"'{key}' is no number of tokens", hint="a histogram is keyed by whole numbers from 0")
    return int(key)


def require(found: bool, file: SourceFile, wanted: str) -> None:
    """Refuse a file that holds nothing of what its kind is read for.

    Raises:
        InputError: nothing was found.
    """
    if not found:
        raise InputError(f"{file.name}: no {wanted} found", hint="check the file, or drop --kind to have it detected")


def _record(line: Line) -> Document:
    try:
        return _Record(name=line.name, text=line.text, value=_loads(line.text), line=line.number)
    except json.JSONDecodeError as error:
        what = "not valid JSON" if line.complete else "the file ends in the middle of a JSON value"
        raise line.error(f"{what}: {error.msg}", hint="give the whole file, one JSON value per line") from None


def _loads(text: str) -> Any:
    """JSON, with numbers that are too long to be counts as floats, which checks refuse."""
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None

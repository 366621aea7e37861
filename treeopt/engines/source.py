"""A file that says what an engine drafts, whatever its shape: JSON, YAML, a command line, or torch's own."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from treeopt.errors import FileFormatError
from treeopt.files.documents import Document, Field, parse_document, read_text
from treeopt.files.opening import called

_KEY: Final = re.compile(r"\s*(#[^\n]*\n\s*)*([\w\"'.-]+\s*:(\s|$)|[{\[-]\s|[{\[])")  # YAML or JSON starts so
_FLAG: Final = re.compile(r"(^|\s)--?[a-z][a-z0-9-]*", re.MULTILINE)
_INLINE: Final = ("speculative-config", "sc")  # flags whose value is a JSON document


@dataclass(frozen=True, kw_only=True)
class EngineFile:
    """One file: its parsed document (None for a command line without one) and the flags of a command line."""

    name: str
    path: Path | None = None
    document: Document | None = None
    flags: dict[str, str] = field(default_factory=dict)

    def section(self, *names: str) -> Field | None:
        """The mapping to read settings from: under one of the names, or the whole file; None for no mapping."""
        if self.document is None or not isinstance(self.document.value, dict):
            return None
        root = self.document.root
        for name in names:
            if isinstance(self.document.value.get(name), dict):
                return Field(document=self.document, keys=(name,), value=self.document.value[name])
        return root

    def list(self) -> Field | None:
        """The whole file where it is a list."""
        is_list = self.document is not None and isinstance(self.document.value, list)
        return self.document.root if self.document is not None and is_list else None

    def flag_number(self, *names: str) -> int | None:
        """The whole number that one of the flags is given, None where none stands in the command line.

        Raises:
            FileFormatError: it is no whole number.
        """
        found = next((self.flags[name] for name in names if name in self.flags), None)
        if found is None:
            return None
        if not found.isdecimal() or len(found) > 9:
            raise FileFormatError(f"{self.name}: --{names[0]} is '{found}'", hint="give a whole number")
        return int(found)


def read_source(path: Path) -> EngineFile:
    """Read a file.

    Raises:
        InputError: it cannot be read.
        FileFormatError: it is neither JSON, YAML nor a command line.
    """
    if path.suffix in (".pt", ".pth"):
        return EngineFile(name=called(path), path=path)
    return parse_source(read_text(path, what="configuration"), name=called(path))


def parse_source(text: str, *, name: str) -> EngineFile:
    """Read the text of a file."""
    if _KEY.match(text) or not _FLAG.search(text):
        return EngineFile(name=name, document=parse_document(text, name=name, what="configuration"))
    flags = _flags(text, name)
    inline = next((flags[key] for key in _INLINE if key in flags), None)
    document = None if inline is None else parse_document(inline, name=name, what="configuration")
    return EngineFile(name=name, document=document, flags=flags)


def pairs(found: Field) -> dict[Any, Any]:
    """A mapping whose keys need not be text.

    Raises:
        FileFormatError: no mapping.
    """
    if not isinstance(found.value, dict):
        raise found.error("expected a mapping", hint="write key: value pairs")
    return found.value


def _flags(text: str, name: str) -> dict[str, str]:
    """`--flag value` and `--flag=value`; a flag without a value has ''."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FileFormatError(f"{name}: {error}", hint="give a command line as a shell reads it") from None
    flags: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if not word.startswith("-"):
            continue
        key, equals, value = word.lstrip("-").partition("=")
        flags[key] = value if equals else "" if after.startswith("--") else after
    return flags

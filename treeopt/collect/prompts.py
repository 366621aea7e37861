"""Prompts: a JSONL file, one document per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treeopt.errors import FileFormatError
from treeopt.files.documents import read_text
from treeopt.files.opening import called

Messages = tuple[dict[str, Any], ...]

_FORMAT: Final = 'one JSON object per line with "prompt" (text), "messages" (a chat) or "token_ids"'
_CONTENTS: Final = ("prompt", "messages", "token_ids")
_MAX_DOC_ID: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: text as it is, a chat for the model's template, or token ids; `where` names file and line."""

    doc_id: int
    where: str
    content: str | Messages | tuple[int, ...]

    def error(self, message: str, *, hint: str = _FORMAT) -> FileFormatError:
        """An error at this line."""
        return FileFormatError(f"{self.where}: {message}", hint=hint)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file; a document's number is its `doc_id`, or how many documents stand before it.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: a line that is no prompt, a number given twice (with file and line), or no prompt at all.
    """
    prompts = list(_parse(read_text(path, what="prompts file"), name=called(path)))
    if not prompts:
        raise FileFormatError(f"{called(path)}: no prompts", hint=f"write {_FORMAT}")
    first: dict[int, Prompt] = {}
    for prompt in prompts:
        other = first.setdefault(prompt.doc_id, prompt)
        if other is not prompt:
            raise prompt.error(f"document {prompt.doc_id} is at {other.where} too", hint="number every document once")
    return prompts


def _parse(text: str, name: str) -> Iterator[Prompt]:
    number = 0
    for line, raw in enumerate(text.split("\n"), start=1):
        if raw.strip():
            yield _prompt(raw, number, where=f"{name}:{line}")
            number += 1


def _prompt(raw: str, number: int, where: str) -> Prompt:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is not JSON that can be read"
        raise FileFormatError(f"{where}: not valid JSON: {reason}", hint=f"write {_FORMAT}") from None
    found = [key for key in _CONTENTS if isinstance(value, dict) and key in value]
    if len(found) != 1:
        listed = " and ".join(found) or "none of them"
        raise FileFormatError(f"{where}: expected one of {', '.join(_CONTENTS)}, found {listed}", hint=_FORMAT)
    doc_id = value.get("doc_id", number)
    if isinstance(doc_id, bool) or not isinstance(doc_id, int) or not 0 <= doc_id <= _MAX_DOC_ID:
        raise FileFormatError(f"{where}: doc_id is {doc_id!r}", hint="give a whole number from 0 on, or leave it out")
    content = _content(found[0], value[found[0]])
    if content is None:
        raise FileFormatError(f"{where}: {found[0]} is empty or of the wrong kind", hint=f"write {_FORMAT}")
    return Prompt(doc_id=doc_id, where=where, content=content)


def _content(key: str, value: Any) -> str | Messages | tuple[int, ...] | None:
    if key == "prompt":
        return value if isinstance(value, str) and value else None
    if not isinstance(value, list) or not value:
        return None
    if key == "messages":
        return tuple(value) if all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value) else None
    return tuple(value) if all(type(t) is int and t >= 0 for t in value) else None

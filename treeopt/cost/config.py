"""Sizes in a Hugging Face config.json, where one may be absent, null, or under another architecture's name."""

from __future__ import annotations

from treeopt.files.documents import Field


def size(config: Field, *keys: str) -> int:
    """The size under the first of `keys` that is there.

    Raises:
        FileFormatError: all absent (the first is named), or a value that is not a whole number >= 1.
    """
    found = size_or_none(config, *keys)
    return config.get(keys[0]).integer(low=1) if found is None else found


def size_or_none(config: Field, *keys: str, low: int = 1) -> int | None:
    """The size under the first of `keys` that is there and not null, else None."""
    fields = (config.get(key, None) for key in keys)
    return next((field.integer(low=low) for field in fields if field.value is not None), None)

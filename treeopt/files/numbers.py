"""Numbers in text, as people and programs write them."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)\s*", re.IGNORECASE)


def plain_number(text: str) -> float:
    """The number that a text shows: Python itself reads "1_000" and other scripts' digits too, which no file means.

    >>> plain_number("3e9")
    3000000000.0

    Raises:
        ValueError: it shows none.
    """
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"'{text}' is not a number")
    return float(text)

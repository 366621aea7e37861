"""Engine names with a version, `vllm==0.20.2`, and the order of releases."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from treeopt.errors import InputError

_NUMBERS: Final = re.compile(r"v?(\d+(?:\.\d+)*)")


class WantedEngine(NamedTuple):
    """An engine as the user named it; without a version the newest known release is meant."""

    name: str
    version: str | None


class Release(NamedTuple):
    """Major, minor, patch; a pre-release counts as its release, since formats change between those."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        """As `0.24.0`."""
        return ".".join(map(str, self))


def parse_wanted(text: str) -> WantedEngine:
    """Read `NAME` or `NAME==VERSION`.

    Raises:
        InputError: another comparison, or a version that does not start with numbers.
    """
    name, equals, version = text.partition("==")
    if not equals and any(sign in text for sign in "<>=~!"):
        raise InputError(f"'{text}' names no release", hint="write NAME or NAME==VERSION, for example vllm==0.24.0")
    if equals:
        parse_release(version)
    return WantedEngine(name.strip().lower(), version.strip() if equals else None)


def parse_release(version: str) -> Release:
    """The numbers a version starts with; missing ones are 0.

    Raises:
        InputError: there are none.
    """
    match = _NUMBERS.match(version.strip())
    if match is None:
        raise InputError(f"'{version}' is not a version", hint="write numbers, for example 0.24.0")
    numbers = [int(n) for n in match[1].split(".")[:3]]
    return Release(*numbers, *[0] * (3 - len(numbers)))


def is_within(release: Release, since: Release | None, before: Release | None) -> bool:
    """Whether a release lies in a half-open range; None is without end."""
    return (since is None or since <= release) and (before is None or release < before)


def range_in_words(since: Release | None, before: Release | None) -> str:
    """A half-open range of releases as messages name it."""
    parts = ([] if since is None else [f"from {since}"]) + ([] if before is None else [f"before {before}"])
    return " ".join(parts) or "in all releases"

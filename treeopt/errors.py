"""What can be wrong with an input, as one family of exceptions.

TreeoptError            caught once, at the command line: `error:` + `hint:`, exit 1
├── InputError          a file, name or number the user gave
│   ├── UnknownNameError    no such profile, model, engine, ... (lists the valid names)
│   └── FileFormatError     a file that says something else than its format allows (file and line)
├── TreeError           a set of nodes that is not a tree
└── SearchError         limits that leave nothing to choose from
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

_LISTED = 40  # names that a hint lists one by one


class TreeoptError(Exception):
    """The base of every error a user can cause; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class InputError(TreeoptError):
    """A file, name or number that the user gave is wrong."""


class TooFewRowsError(InputError):
    """Measured rows are too few to fit and judge a kernel's times."""


class UnknownNameError(InputError):
    """A name that nothing is known by; the hint offers the nearest and lists the rest, where a person can read them."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, or_else: str = "") -> None:
        import difflib  # only who wrote a wrong name waits for it

        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), names, n=5, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        listed = names if len(names) <= _LISTED else [*(near or names)[:5], f"... ({len(names)} in all)"]
        super().__init__(f"unknown {kind} '{name}'", hint=f"{guess}known: {', '.join(listed)}{or_else}")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=_Named)


def named(kind: str, name: str, known: Iterable[_NamedT]) -> _NamedT:
    """The one of that name.

    Raises:
        UnknownNameError: there is none; `kind` says of what.
    """
    of_name = {one.name: one for one in known}
    if name not in of_name:
        raise UnknownNameError(kind, name, of_name)
    return of_name[name]


class FileFormatError(InputError):
    """A file whose contents are not what its format allows."""


class TreeError(TreeoptError):
    """A set of nodes that is not a tree."""


class SearchError(TreeoptError):
    """Limits that contradict each other, so that there is nothing to choose from."""

"""Evidence that contradicts itself, with the place of the contradiction in the profile's keys."""

from __future__ import annotations

from treeopt.errors import InputError


class EvidenceError(InputError):
    """Numbers that no drafter can have produced; readers turn `keys` into a line of the file."""

    def __init__(self, message: str, *, keys: tuple[str | int, ...], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.keys = keys

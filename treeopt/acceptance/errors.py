"""Evidence that contradicts itself, or that is missing because nothing was drafted."""

from __future__ import annotations

from treeopt.errors import FileFormatError, InputError


class EvidenceError(InputError):
    """Numbers that no drafter can have produced; readers turn `keys` into a line of the file."""

    def __init__(self, message: str, *, keys: tuple[str | int, ...], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.keys = keys


class NoDraftsError(FileFormatError):
    """Metrics that count steps, but no draft in any of them: speculation was off."""


class SpeculationOffError(NoDraftsError):
    """Metrics of an engine that counts no drafts at all, since it was started without speculation."""

"""Acceptance rules by name, and whether the output under each follows the target's law.

What a rule does is in `treeopt.decode.rules`; profiles and plans only name one.
"""

from __future__ import annotations

from typing import Final

from treeopt.files.documents import Field

GREEDY: Final = "greedy"
TARGET_SAMPLE: Final = "target-sample"
RECURSIVE_REJECTION: Final = "recursive-rejection"
INDEPENDENT_REJECTION: Final = "recursive-rejection-with-replacement"
BLOCK: Final = "block"
TYPICAL: Final = "typical"

EXACT_RULES: Final = (GREEDY, TARGET_SAMPLE, RECURSIVE_REJECTION, INDEPENDENT_REJECTION, BLOCK)
APPROXIMATE_RULES: Final = (TYPICAL,)
# Under these the drafter's guesses are drawn from its law; else they are its best ones.
DRAWN_RULES: Final = (RECURSIVE_REJECTION, INDEPENDENT_REJECTION, BLOCK)
RULES: Final = (*EXACT_RULES, *APPROXIMATE_RULES)
KNOWN_RULES: Final = f"known: {', '.join(RULES)}"


def read_rule(field: Field) -> str:
    """The rule that a file names.

    Raises:
        FileFormatError: there is none of that name, with its line.
    """
    if field.text() not in RULES:
        raise field.error(f"unknown rule '{field.text()}'", hint=KNOWN_RULES)
    return field.text()

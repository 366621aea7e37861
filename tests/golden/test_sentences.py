"""Every sentence of search, explain, compare and check is in one file that a person can read."""

from __future__ import annotations

from golden.sentences import PAGE, WITHOUT, Template, page, pieces_of


def test_the_page_has_every_sentence() -> None:
    made = page()
    assert PAGE.read_text() == made, "read what changed: `PYTHONPATH=. python tests/golden/sentences.py` writes it anew"
    assert len(made.split()) < 3000  # ten minutes
    assert WITHOUT not in made, "what nothing prints is deleted; what a command prints gets one in commands.txt"


def test_a_sentence_is_found_with_what_was_filled_in() -> None:
    template = Template("reasons.py", ("so that fewer ranges change, batch ", " loses "))
    assert template.example("a; so that fewer ranges change, batch 16 loses 1.0% to its own best one; b") == (
        "so that fewer ranges change, batch 16 loses 1.0% to its own best one;"
    )
    assert template.example("so that fewer ranges stay") is None


def test_only_what_the_width_broke_is_read_as_one() -> None:
    first = (
        "a line that the width of the terminal broke, since the next word would not have fitted on it, being quite so"
    )
    assert list(pieces_of(f"{first}\nlong as it is.\nanother\n\n  row  1\n  row  2\n")) == [
        f"{first} long as it is.",
        *("another", "row 1", "row 2"),
    ]

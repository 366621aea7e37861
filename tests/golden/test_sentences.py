"""Every sentence of search, explain, compare and check is in one file that a person can read."""

from __future__ import annotations

from golden.sentences import PAGE, Template, page


def test_the_page_has_every_sentence() -> None:
    made = page()
    assert PAGE.read_text() == made, "read what changed: `PYTHONPATH=. python tests/golden/sentences.py` writes it anew"
    assert len(made.split()) < 3000  # ten minutes


def test_a_sentence_is_found_with_what_was_filled_in() -> None:
    template = Template("reasons.py", ("so that fewer ranges change, batch ", " loses "))
    assert template.example("a; so that fewer ranges change, batch 16 loses 1.0% to") == (
        "so that fewer ranges change, batch 16 loses"
    )
    assert template.example("so that fewer ranges stay") is None

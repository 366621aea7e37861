"""Prompts for a bench that is given none: a dozen kinds of texts. They are no substitute for one's own traffic."""

from __future__ import annotations

from typing import Final

PROMPTS: Final = (
    "The harbour was quiet that morning, and the keeper of the lighthouse",
    "Here is a list of the planets of the solar system, one per line:\n1.",
    "def mean(values):\n    ",
    "Q: Why is the sky blue?\nA:",
    "Dear customer,\nthank you for your order. We are sorry to tell you that",
    "To make bread you need flour, water, salt and yeast. First,",
    '{"name": "Alice", "age": 31, "city": "Oslo"}\n{"name": "Bob",',
    "SELECT name, price FROM products WHERE",
    "Summary of the meeting: the team agreed on three points. First,",
    "English: Good morning. French: Bonjour. English: Good night. French:",
    "The train left the station at nine. At ten, the conductor",
    "A triangle has sides of length 3, 4 and 5. Its area is",
    "<ul>\n  <li>apples</li>\n  <li>pears</li>\n",
    "In 1969 two astronauts landed on the moon. They",
    "Roses are red,\nviolets are blue,\n",
    "How to change a tyre, step by step:\n1. Park the car on level ground.\n2.",
)

"""Values of options: numbers as people write them, no empty names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treeopt.errors import FileFormatError
from treeopt.files.documents import parse_document
from treeopt.files.numbers import plain_number
from treeopt.files.shipped import locate

Run = Callable[..., Any]


@pytest.mark.parametrize(
    "option",
    ["--batch=1_000", "--batch=", "--max-nodes=1_6", "--max-nodes= 8", "--max-nodes=٨", "--budget=nan", "--budget=1e"]
    + [f"--{name}=" for name in ("ranks", "mix", "hardware", "model", "drafter", "cost", "engine", "out", "dtype")],
)
def test_what_is_no_number_and_no_name_is_wrong_usage(option: str, run: Run, tmp_path: Path) -> None:
    ran = run("search", "--batch", "2", option)
    assert ran.code == 2, ran
    assert ran.out == ""
    assert option.split("=")[0] in ran.err


@pytest.mark.parametrize("command", ["ranks show", "show", "import"])
def test_an_empty_argument_is_not_this_folder(command: str, run: Run) -> None:
    assert run(*command.split(), "").code == 2


def test_an_empty_name_is_no_profile() -> None:
    for kind in ("ranks", "hardware", "models"):
        with pytest.raises(Exception, match=r"unknown .* ''"):
            locate(kind, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "number"),
    [("3e9", 3e9), (" 1.5 ", 1.5), (".5", 0.5), ("-2.", -2.0), ("1_000", None), ("١", None), ("", None)],
)
def test_numbers_in_text(text: str, number: float | None) -> None:
    if number is None:
        with pytest.raises(ValueError, match="is not a number"):
            plain_number(text)
    else:
        assert plain_number(text) == number


def test_a_number_of_a_file_by_pythons_rules_is_none() -> None:
    field = parse_document("a: '1_000'\n", name="x.yaml", what="file").root.get("a")
    with pytest.raises(FileFormatError, match="expected a number"):
        field.number()

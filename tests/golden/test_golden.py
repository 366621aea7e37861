"""What the commands print and write is what was recorded; `record.py` records anew."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from golden.running import OUTPUTS, Case, cases, run, same


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_command_gives_what_was_recorded(case: Case, tmp_path: Path) -> None:
    if case.needs_torch and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    found, recorded = run(case, tmp_path), case.recorded.read_text()
    if not same(found, recorded):
        assert found == recorded  # shows where


def test_every_record_has_its_command() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert {path.stem for path in OUTPUTS.iterdir()} == set(names)


def test_records_differ_where_a_number_or_a_word_does() -> None:
    assert same("E 3.4800000001 of 35 nodes", "E 3.48 of 35 nodes")
    assert not same("E 3.49 of 35 nodes", "E 3.48 of 35 nodes")
    assert not same("E 3.48 of 36 nodes", "E 3.48 of 35 nodes")
    assert not same("E 3.48 of 35 trees", "E 3.48 of 35 nodes")

from __future__ import annotations

import pytest

from treeopt.engines.source import parse_source
from treeopt.errors import FileFormatError, InputError


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("--a 3 --b=4 -c", {"a": "3", "b": "4", "c": ""}),
        ("python -m x --flag --other 5\n", {"m": "x", "flag": "", "other": "5"}),
        ("run \\\n  --steps 3 \\\n  --topk 4  # four\n", {"steps": "3", "topk": "4"}),
        ("X=1 serve M --draft-max 8", {"draft-max": "8"}),
    ],
)
def test_command_lines(text: str, flags: dict[str, str]) -> None:
    source = parse_source(text, name="run.sh")
    assert source.flags == flags
    assert source.section() is None
    assert source.list() is None


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "--b 3"}',
        "a: --b 3\nc: 4",
        "# as started with --b 3\na: 1",
        "a:\n  b: c --d 4",
        "[[0], [1]]",
        "- [0]\n- [1]",
    ],
)
def test_documents_are_no_command_lines(text: str) -> None:
    source = parse_source(text, name="f")
    assert source.flags == {}
    assert source.document is not None


def test_a_configuration_inside_a_command_line() -> None:
    source = parse_source("""vllm serve M --speculative-config '{"num_speculative_tokens": 3}' --seed 0""", name="run")
    section = source.section()
    assert section is not None
    assert section.get("num_speculative_tokens").integer() == 3
    assert source.flags["seed"] == "0"


def test_sections() -> None:
    source = parse_source("outer: {a: 1}\nb: 2", name="f")
    outer, whole = source.section("outer"), source.section("other")
    assert outer is not None
    assert whole is not None
    assert (outer.value, whole.value) == ({"a": 1}, {"outer": {"a": 1}, "b": 2})
    assert "f:1" in str(outer.get("a").error("x", hint=""))


def test_what_cannot_be_read() -> None:
    with pytest.raises(FileFormatError, match="No closing quotation"):
        parse_source("run --a 'x", name="run.sh")
    with pytest.raises(InputError, match="--steps is 'three'"):
        parse_source("run --steps three", name="run.sh").flag_number("steps")
    assert parse_source("run --steps 3", name="run.sh").flag_number("other", "steps") == 3

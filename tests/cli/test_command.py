"""Functions as commands: what of their signature a user sees and gives."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from treeopt.cli import app
from treeopt.cli.command import INTERRUPTED, Argument, CliOption, Command, Commands, command, run

SEEN: list[Any] = []


def every_kind(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Files.")],
    out: Annotated[Path, CliOption("--out", "-o", help="Where.")],
    size: Annotated[int, CliOption(min=1, max=8, help="How many.")] = 4,
    share: Annotated[float | None, CliOption(min=0.0, help="How much.")] = None,
    names: Annotated[list[str] | None, CliOption("--with", help="Whose.", names=lambda: ["alpha", "beta"])] = None,
    how: Annotated[Literal["fast", "slow"], CliOption(help="Which way.")] = "fast",
    day: Annotated[datetime | None, CliOption(help="When.")] = None,
    quiet: Annotated[bool, CliOption("--quiet", help="Say nothing.")] = False,
) -> None:
    """Do all of it."""
    SEEN[:] = [files, out, size, share, names, how, day, quiet]


def seen(*words: str) -> list[Any]:
    result = CliRunner().invoke(command(every_kind), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return list(SEEN)


def test_defaults_are_those_of_the_function() -> None:
    assert seen("a", "-o", "b") == [[Path("a")], Path("b"), 4, None, None, "fast", None, False]


def test_every_kind_of_value_is_read() -> None:
    words = ("a", "b", "--out=c", "--size", "8", "--share", "0.5", "--with", "x", "--with", "y", "--how", "slow")
    found = seen(*words, "--day", "2026-01-02", "--quiet")
    assert found == [[Path("a"), Path("b")], Path("c"), 8, 0.5, ["x", "y"], "slow", datetime(2026, 1, 2), True]


@pytest.mark.parametrize(
    "words", [(), ("a",), ("a", "-o", "b", "--size", "9"), ("a", "-o", "b", "--how", "no"), ("a", "-o", "b", "--no")]
)
def test_wrong_usage_ends_with_2(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(command(every_kind), list(words))
    assert result.exit_code == 2
    assert "Usage: every-kind" in result.output or "Usage: every_kind" in result.output


def test_the_help_lists_arguments_once_and_defaults() -> None:
    text = CliRunner().invoke(command(every_kind), ["-h"]).output
    assert text.count("Files.") == 1
    assert "[default: 4; 1<=x<=8]" in text
    assert "--with TEXT" in text


def test_an_interrupted_command_ends_as_shells_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        """Stop."""
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        run(command(interrupted))
    assert ended.value.code == INTERRUPTED


def test_names_and_files_are_completed() -> None:
    (option,) = (p for p in command(every_kind).params if p.name == "names")
    context = click.Context(command(every_kind))
    assert [item.value for item in option.shell_complete(context, "al")] == ["alpha"]
    assert [item.type for item in option.shell_complete(context, "./a")] == ["file"]


def all_commands(group: Commands, context: click.Context) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        loaded = group.get_command(context, name)
        assert loaded is not None
        found += all_commands(loaded, context) if isinstance(loaded, Commands) else [(name, loaded)]
    return found


def test_every_listed_command_loads() -> None:
    found = all_commands(app, click.Context(app))
    assert {"search", "collect", "fit"} <= {name for name, _ in found}
    assert all(isinstance(loaded, Command) and loaded.help for _, loaded in found)


def test_help_imports_no_command() -> None:
    program = (
        "import sys; sys.argv = ['treeopt', '--help']\n"
        "from treeopt.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*(m for m in sys.modules if m in ('numpy', 'yaml', 'rich') or m.startswith('treeopt.cli.')))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "treeopt.cli.values treeopt.cli.command"

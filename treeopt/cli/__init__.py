"""The command line: parse, one call, render. The only code that prints."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from treeopt.cli.command import Commands, LazyCommand, run
from treeopt.errors import TreeoptError
from treeopt.files.opening import remembering_inputs
from treeopt.version import VERSION

# Objects between two collections: a start makes many that stay, and looking through them again and again takes a
# tenth of a short command.
_GARBAGE: Final = 100_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"treeopt {VERSION}")
        context.exit()


def _completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Print what a shell reads to complete commands, options and shipped names."""
    if shell is None:
        return
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(app, {}, "treeopt", "_TREEOPT_COMPLETE").source())
    context.exit()


def _root(**_: Any) -> None:
    pass


app = Commands(
    "treeopt",
    {
        "search": LazyCommand("treeopt.cli.search:search", "The best draft for each batch size, or that none pays."),
        "show": LazyCommand(
            "treeopt.cli.show:show", "A tree drawn: its nodes with f(v), positions, what each attends to."
        ),
        "compare": LazyCommand("treeopt.cli.compare:compare", "Better, tie or worse than what runs today."),
        "explain": LazyCommand(
            "treeopt.cli.explain:explain", "Each node's gain and price, and what would flip the answer."
        ),
        "replay": LazyCommand("treeopt.cli.replay:replay", "Tokens per step that a decoder gets on a trace."),
        "budget": LazyCommand(
            "treeopt.cli.budget:budget", "The node budget of trees that are built by confidence, by batch size."
        ),
        "report": LazyCommand("treeopt.cli.report:report", "A plan as one page to look at and to show."),
        "export": LazyCommand(
            "treeopt.cli.export:export", "A plan as an engine reads it, what is lost, how to start it."
        ),
        "import": LazyCommand("treeopt.cli.import_:import_", "An engine's file back to trees."),
        "verify": LazyCommand("treeopt.cli.verify:verify", "Every tree checked path by path against plain decoding."),
        "check": LazyCommand("treeopt.cli.check:check", "Whether a running plan still accepts what it promised."),
        "bench": LazyCommand("treeopt.cli.bench:bench", "Plain, the best chain and the plan decoded on this device."),
        "measure": LazyCommand("treeopt.cli.measure:measure", "Your own server: step times by (batch, K), acceptance."),
        "doctor": LazyCommand("treeopt.cli.doctor:doctor", "What is installed here, and what each lack costs."),
        "glossary": LazyCommand("treeopt.cli.glossary:glossary", "What the words and symbols of answers mean."),
        "ranks": LazyCommand("treeopt.cli.ranks:group", "Rank profiles: collect, import, show, merge."),
        "profile": LazyCommand(
            "treeopt.cli.profile:group", "Hardware profiles: time this device, or fit measured times."
        ),
    },
    params=[
        click.Option(
            ["--version"], is_flag=True, callback=_version, is_eager=True, expose_value=False, help="Print the version."
        ),
        click.Option(
            ["--completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            callback=_completion,
            is_eager=True,
            expose_value=False,
            help='Print what completes commands and names: eval "$(treeopt --completion bash)".',
        ),
        click.Option(["--debug"], is_flag=True, help="Show where an error comes from."),
    ],
    callback=_root,
    help="Which draft tree should each batch size verify, and does speculation pay there at all?",
)


def main() -> None:
    """Run a command; what the user got wrong ends as `error:` and `hint:` on stderr and exit code 1."""
    gc.set_threshold(_GARBAGE)
    _open_streams()
    try:
        with remembering_inputs():
            run(app)
    except Exception as error:
        if "--debug" in sys.argv[1:2]:
            raise
        message, hint = _in_words(error)
        if "--" in hint:
            from treeopt.cli.hints import with_owners  # may import all commands

            hint = with_owners(hint, sys.argv[1:], app)
        _fail(message, hint)


def _open_streams() -> None:
    """Make both streams take whatever is printed: a terminal may lack a character, and the shell may close one."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 for as long as the process runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _in_words(error: Exception) -> tuple[str, str]:
    """What is wrong, and a hint."""
    if isinstance(error, TreeoptError):
        return str(error), error.hint
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, MemoryError):
        return "not enough memory", "give a smaller input, or lower the caps on nodes, depth and batch sizes"
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return (
        f"treeopt itself failed: {type(error).__name__} at {where}: {' '.join(str(error).split()) or 'no message'}",
        "this is a fault of treeopt: report it with the command, its files and what `treeopt --debug ...` prints",
    )


def _of_system(error: OSError) -> tuple[str, str]:
    """What to say of an error that nothing foresaw: a stream that cannot be written to has no file name."""
    if error.filename is None and error.errno in _FULL:
        return f"the output cannot be written: {error.strerror}", "check the disk, or where the output goes"
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror or error}", "check the file or the connection that this command needed"


def _fail(message: str, hint: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    click.echo(f"hint: {hint}", err=True)
    sys.exit(1)

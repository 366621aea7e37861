"""The command line: parse, one call, render. The only code that prints."""

from __future__ import annotations

import errno
import io
import sys
from typing import Final, NoReturn

import typer

from treeopt.cli import (
    bench,
    check,
    compare,
    explain,
    export,
    importing,
    measure,
    profile,
    ranks,
    replay,
    search,
    show,
    verify,
)
from treeopt.errors import TreeoptError
from treeopt.version import VERSION

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)

app = typer.Typer(
    name="treeopt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which draft tree should each batch size verify, and does speculation pay there at all?",
)
app.command("search")(search.search)
app.command("show")(show.show)
app.command("compare")(compare.compare)
app.command("explain")(explain.explain)
app.command("replay")(replay.replay)
app.command("export")(export.export)
app.command("import")(importing.import_)
app.command("verify")(verify.verify)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("measure")(measure.measure)
app.add_typer(ranks.app, name="ranks")
app.add_typer(profile.app, name="profile")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treeopt {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run a command; what the user got wrong ends as `error:` and `hint:` on stderr and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end the command
    try:
        app()
    except TreeoptError as error:
        _fail(str(error), error.hint)
    except OSError as error:
        _fail(*_of_system(error))


def _of_system(error: OSError) -> tuple[str, str]:
    """What to say of an error that nothing foresaw: a stream that cannot be written to has no file name."""
    if error.filename is None and error.errno in _FULL:
        return f"the output cannot be written: {error.strerror}", "check the disk, or where the output goes"
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror or error}", "check the file or the connection that this command needed"


def _fail(message: str, hint: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    typer.echo(f"hint: {hint}", err=True)
    sys.exit(1)

"""The command line: parse, one call, render. The only code that prints."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

import typer

from treeopt.cli import (
    bench,
    check,
    compare,
    explain,
    export,
    import_,
    measure,
    profile,
    ranks,
    replay,
    report,
    search,
    show,
    verify,
)
from treeopt.errors import TreeoptError
from treeopt.files.opening import remembering_inputs
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
app.command("report")(report.report)
app.command("export")(export.export)
app.command("import")(import_.import_)
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
    debug: bool = typer.Option(False, "--debug", help="Show where an error comes from."),
) -> None:
    pass


def main() -> None:
    """Run a command; what the user got wrong ends as `error:` and `hint:` on stderr and exit code 1."""
    _open_streams()
    try:
        with remembering_inputs():
            app()
    except Exception as error:
        if "--debug" in sys.argv[1:2]:
            raise
        _fail(*_in_words(error))


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
    typer.echo(f"error: {message}", err=True)
    typer.echo(f"hint: {hint}", err=True)
    sys.exit(1)

"""The command line: parse, one call, render. The only code that prints."""

from __future__ import annotations

import sys

import typer

from treeopt.cli import compare, export, search, show
from treeopt.errors import TreeoptError

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
app.command("export")(export.export)


def _version(wanted: bool) -> None:
    if wanted:
        from treeopt.planner import package_version

        typer.echo(f"treeopt {package_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run a command; what the user got wrong ends as `error:` and `hint:` on stderr and exit code 1."""
    try:
        app()
    except TreeoptError as error:
        typer.echo(f"error: {error}", err=True)
        typer.echo(f"hint: {error.hint}", err=True)
        sys.exit(1)

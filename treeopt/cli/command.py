"""A command is a function: its parameters' types and `CliOption` or `Argument` say what `click` reads for them.

Commands are listed by name with their module and one line of help, and only the one that was asked for is imported:
`--help` imports none of them.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem

from treeopt.cli.values import File, Number, Text, Whole

# Parameters that name what a command writes.
_OUTPUTS: Final = ("out", "steps_out", "ranks_out", "write_dump", "report", "plot")
INTERRUPTED: Final = 130  # exit code, as shells count it
SETTINGS: Final = {"help_option_names": ["-h", "--help"]}

Names = Callable[[], Sequence[str]]


@dataclass(frozen=True, init=False)
class CliOption:
    """What is said of a parameter that is given by its name.

    Args:
        flags: how it is written; by default the parameter's own name. A bool is a switch.
        help: one sentence.
        metavar: what stands for its value in the help; by default one for its type.
        min: the smallest number allowed.
        max: the largest number allowed.
        names: the names that a shell completes; it always completes files too.
    """

    flags: tuple[str, ...]
    help: str
    metavar: str | None
    min: float | None
    max: float | None
    names: Names | None

    def __init__(
        self,
        *flags: str,
        help: str,
        metavar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        names: Names | None = None,
    ) -> None:
        given = {"flags": flags, "help": help, "metavar": metavar, "min": min, "max": max, "names": names}
        for name, value in given.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What is said of a parameter that is given by its place."""

    help: str
    metavar: str | None = None
    names: Names | None = None


class _Argument(click.Argument):
    """An argument that has a line of help."""

    def __init__(self, *args: Any, help: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.told = help


class Command(click.Command):
    """A command whose help lists its arguments before its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists: older releases of click list no arguments."""
        rows = [(p.human_readable_name, p.told) for p in self.params if isinstance(p, _Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


@dataclass(frozen=True)
class LazyCommand:
    """A command that was not imported yet: `module:function`, or `module:group`, and its line in the list."""

    where: str
    help: str

    def load(self, name: str) -> click.Command:
        """Import it."""
        module, _, attribute = self.where.partition(":")
        found = getattr(import_module(module), attribute)
        return found if isinstance(found, click.Command) else command(found, name)


class Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def __init__(self, name: str, listed: Mapping[str, LazyCommand], **settings: Any) -> None:
        settings.setdefault("no_args_is_help", True)
        super().__init__(name, context_settings=SETTINGS, **settings)
        self.listed = listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the list."""
        return list(self.listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        return None if cmd_name not in self.listed else self.listed[cmd_name].load(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, listed.help) for name, listed in self.listed.items()])


def command(function: Callable[..., None], name: str | None = None, *, epilog: str | None = None) -> Command:
    """The command that a function is; the first parameter gets the context where it is of type `click.Context`."""
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function).parameters
    parameters: list[click.Parameter] = [
        _parameter(p, hints[p.name]) for p in signature.values() if hints[p.name] is not click.Context
    ]
    many = {p.name for p in parameters if p.multiple or p.nargs == -1}

    def call(*context: click.Context, **values: Any) -> None:
        for key in many & values.keys():
            values[key] = list(values[key]) or signature[key].default
        _refuse_named_inputs(values)
        function(*context, **values)

    wants_context = click.Context in hints.values()
    return Command(
        name or function.__name__.strip("_"),
        params=parameters,
        callback=click.pass_context(call) if wants_context else call,
        help=inspect.getdoc(function),
        epilog=epilog,
        context_settings=SETTINGS,
    )


def _refuse_named_inputs(values: Mapping[str, Any]) -> None:
    """Refuse an output that another parameter names, before anything is done: what is not read yet is an input too."""
    from treeopt.files.writing import refuse_overwriting

    outputs = [values[name] for name in _OUTPUTS if values.get(name) is not None]
    if not outputs:
        return
    given = [value for name, value in values.items() if name not in _OUTPUTS]
    words = [str(w) for value in given for w in (value if isinstance(value, list) else [value]) if w is not None]
    named = [part for word in words for part in (word, *re.split("[=,:]", word)) if part]
    for out in outputs:
        refuse_overwriting(Path(out), *named)


def run(start: click.Command) -> NoReturn:
    """Run a command line; wrong usage ends with 2, an interruption with 130."""
    try:
        # Under `python -m` click would name the module.
        code = start.main(prog_name=start.name if isinstance(start, click.Group) else None, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def run_function(function: Callable[..., None]) -> NoReturn:
    """Run one function as a program of its own."""
    run(command(function))


def _parameter(parameter: inspect.Parameter, hint: Any) -> click.Option | _Argument:
    of_type, told = get_args(hint)
    of_type, several = _plain(of_type)
    settings: dict[str, Any] = {"type": _type(of_type, told), "metavar": told.metavar or _METAVARS.get(of_type)}
    if parameter.default is inspect.Parameter.empty:
        settings["required"] = True
    else:
        settings["default"] = None if several else parameter.default
        settings["required"] = False
    if told.names is not None:
        settings["shell_complete"] = _completion(told.names)
    if isinstance(told, Argument):
        if not settings["required"] and settings["metavar"][0] != "[":
            settings["metavar"] = f"[{settings['metavar']}]"
        return _Argument([parameter.name], help=told.help, nargs=-1 if several else 1, **settings)
    if of_type is bool:
        settings |= {"is_flag": True, "type": None, "metavar": None}
    flags = told.flags or ("--" + parameter.name.strip("_").replace("_", "-"),)
    shown = of_type is not bool and not (
        parameter.default is inspect.Parameter.empty or parameter.default in (None, "")
    )
    return click.Option(
        [*flags, parameter.name],
        help=told.help,
        multiple=several,
        show_default=shown and parameter.default != "",
        **settings,
    )


def _plain(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several: `list[Path] | None` is `(Path, True)`."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        hint = next(part for part in get_args(hint) if part is not type(None))
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


_METAVARS: Final = {str: "TEXT", int: "N", float: "X", Path: "FILE"}


def _type(of_type: Any, told: CliOption | Argument) -> Any:
    low, high = (None, None) if isinstance(told, Argument) else (told.min, told.max)
    if get_origin(of_type) is Literal:
        return click.Choice(get_args(of_type))
    if of_type is datetime:
        return click.DateTime(["%Y-%m-%d"])
    if of_type in (int, float):
        ranged: Any = Whole if of_type is int else Number
        return ranged(low, high)
    return {Path: File(), str: Text()}.get(of_type, of_type)


def _completion(names: Names) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete

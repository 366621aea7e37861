"""Hints name options; one that the running command lacks is said to be of which command.

An error comes from a part that several commands use, and its hint names an option of the command that it was written
for: `check` must not say `--with` as if it had it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import click

_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# The options that follow a command are that one's: `treeopt compare PLAN --with chain:4`.
_NAMED: Final = re.compile(r"treeopt [a-z]+(?: [a-z]+)?[^,;:()`]*")
_LISTED: Final = 3  # commands


def with_owners(hint: str, arguments: Sequence[str], app: click.Group) -> str:
    """The hint, with the command that has each option that the running one lacks.

    "search with --engine" from `treeopt export` becomes "search with --engine (an option of treeopt search)". Options
    of other programs, such as an engine's, stay as they are.

    Args:
        hint: what an error says.
        arguments: the command line, without the program's name.
        app: all commands.
    """
    running = _running(arguments, app)
    foreign = [option for option in _unowned(hint) if option not in _options(running)]
    owners: dict[str, list[str]] = {}
    for option in dict.fromkeys(foreign):
        if found := [path for path, command in commands_of(app) if option in _options(command)]:
            owners.setdefault(", ".join(found[:_LISTED]), []).append(option)
    if not owners:
        return hint
    several = len([option for options in owners.values() for option in options]) > 1
    said = [f"{' and '.join(o) + ': ' if several else ''}an option of treeopt {of}" for of, o in owners.items()]
    return f"{hint} ({'; '.join(said)})"


def commands_of(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its path: `profile fit`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{prefix}{name} ")


def _unowned(hint: str) -> list[str]:
    """The options of a hint that no command is named for."""
    return _OPTION.findall(_NAMED.sub("", hint))


def _running(arguments: Sequence[str], app: click.Group) -> click.Command:
    command: click.Command = app
    for word in arguments:
        below = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        command = below or command
    return command


def _options(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}

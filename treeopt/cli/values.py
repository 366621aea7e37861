"""How the values of options are read: numbers as people write them, and no empty name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

# Python reads 1_000, other scripts' digits and `nan` too, which no one means.
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Whole(click.IntRange):
    """A whole number."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that the text shows."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number that may have a fraction."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that the text shows."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return super().convert(value, param, ctx)


class Text(click.types.StringParamType):
    """Text, which is not empty where it is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text."""
        if value == "" and param is not None and ctx is not None:
            source = ctx.get_parameter_source(param.name or "")
            if source in (ParameterSource.COMMANDLINE, None):
                self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


class File(click.Path):
    """The path of a file, which is not empty: that would be the folder that the command is called in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)

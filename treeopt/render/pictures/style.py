"""How all pictures look, and how one becomes a file or a part of a page.

Colours are drawn as they are in light; in a page each of them becomes a variable, so that the reader's own choice of
light or dark decides. Text stays text, in the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.files.writing import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Ink(NamedTuple):
    """A colour on white and on black; no two are alike on white."""

    light: str
    dark: str


INKS: Final[dict[str, Ink]] = {
    "page": Ink("#ffffff", "#14171b"),
    "ink": Ink("#1c2026", "#e6e9ed"),
    "muted": Ink("#59616c", "#a5aeb9"),
    "line": Ink("#dce1e7", "#323941"),
    "plan": Ink("#0a5cad", "#72b5ff"),
    "chain": Ink("#9c4600", "#f0a660"),
    "plain": Ink("#616a76", "#b3bbc5"),
    "rival-1": Ink("#7b2d9b", "#d8a4ee"),
    "rival-2": Ink("#00695f", "#58cfbf"),
    "rival-3": Ink("#a81e45", "#ff96ae"),
    "term-1": Ink("#3d6fb4", "#5f93db"),
    "term-2": Ink("#88ccee", "#a4dcf7"),
    "term-3": Ink("#44aa99", "#56c2b0"),
    "term-4": Ink("#b3b34d", "#c6c663"),
    "term-5": Ink("#ddcc77", "#eadb90"),
    "term-6": Ink("#cc6677", "#df7f8f"),
    "term-7": Ink("#a3487f", "#c968a3"),
    "term-8": Ink("#8d6bb8", "#ab8ad6"),
    "term-9": Ink("#2f8f4e", "#4fb26f"),
    "term-10": Ink("#b9bec6", "#79818c"),
}
RIVALS: Final = ("rival-1", "rival-2", "rival-3")
TERMS: Final = tuple(f"term-{i}" for i in range(1, 11))
WIDTH: Final = 420
"""Pixels: as wide as a phone, so that text keeps its size there."""
_LARGER: Final = 1.18  # than drawn, at most, where there is room

_RC: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
}
_SUFFIXES: Final = ("svg", "png", "pdf")


class Picture(NamedTuple):
    """A drawn figure, with its name, what it shows, and the same in words for who cannot see it."""

    name: str
    title: str
    description: str
    figure: Figure


def ink(name: str) -> str:
    """The colour that a figure is drawn with."""
    return INKS[name].light


def _look(salt: str = "treeopt") -> AbstractContextManager[None]:
    """Matplotlib's settings while something is drawn; `salt` goes into the names inside an SVG."""
    look: AbstractContextManager[None] = require("matplotlib", extra="report").rc_context({**_RC, "svg.hashsalt": salt})
    return look


def new_figure(height: int, *, width: int = WIDTH) -> Figure:
    """An empty figure of so many pixels.

    Raises:
        InputError: matplotlib is not installed.
    """
    require("matplotlib.figure", extra="report")
    from matplotlib.figure import Figure

    with _look():
        return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")


def new_axes(figure: Figure, *, x: str, y: str, box: tuple[float, float, float, float] | None = None) -> Axes:
    """Axes with the names of both, thin lines, and nothing more; `box` is left, bottom, width, height in pixels."""
    width, height = figure.get_size_inches() * 72
    left, bottom, wide, high = box or (60, 42, width - 70, height - 84)
    with _look():
        axes = figure.add_axes((left / width, bottom / height, wide / width, high / height), facecolor="none")
    axes.set_xlabel(x, color=ink("muted"))
    axes.set_ylabel(y, color=ink("muted"))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink("line"))
    axes.tick_params(which="both", length=0, colors=ink("muted"))
    axes.grid(axis="y", color=ink("line"), linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def at_batches(axes: Axes, batches: Sequence[int]) -> None:
    """An axis of batch sizes, doubled from one step to the next, named at those that there are."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_xscale("log", base=2)
    shown = list(batches)
    while len(shown) > 10:
        shown = shown[::2] if shown[-1] == shown[::2][-1] else [*shown[:-1:2], shown[-1]]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([str(b) for b in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)


def at_rates(axes: Axes, *, x: bool = False) -> None:
    """A logarithmic axis of tokens/s with round numbers, three to a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    (axes.set_xscale if x else axes.set_yscale)("log")
    axis = axes.xaxis if x else axes.yaxis
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())


def legend(figure: Figure, axes: Axes, *, columns: int = 3) -> None:
    """The names of what is drawn, above it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        labelcolor=ink("ink"),
        fontsize=10,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.1,
    )


def short(value: float) -> str:
    """A number of three digits at most: 2,500 is 2.5k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def svg_of(picture: Picture) -> str:
    """The picture as a part of a page: its colours are the page's, its title and description are read aloud."""
    text = _svg(picture)
    for name, own in INKS.items():
        text = text.replace(own.light, f"var(--{name})")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", text)
    body = text[text.index(">", text.index("<svg")) + 1 :]
    width, height = picture.figure.get_size_inches() * 72
    at = f"picture-{picture.name}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {_LARGER * width:.0f}px" '
        f'aria-labelledby="{at}-title {at}-desc">'
        f'<title id="{at}-title">{escape(picture.title)}</title>'
        f'<desc id="{at}-desc">{escape(picture.description)}</desc>'
    )
    return head + body


def _svg(picture: Picture) -> str:
    out = io.StringIO()
    # Nothing of the machine or the day; names that no other picture of the page has.
    with _look(f"treeopt {picture.name}"):
        picture.figure.savefig(
            out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = re.sub(r"<!--.*?-->\n?", "", out.getvalue(), flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda m: m[0] if m[1] in used else "", text)
    return re.sub(r">\s+<", ">\n<", text).strip()


def ready_to_draw(path: Path | None) -> None:
    """Refuse, before the work is done, what drawing would refuse after it; None is a picture that nobody asked for.

    Raises:
        InputError: matplotlib is not installed, the ending is none of svg, png and pdf, or the file cannot be written.
    """
    if path is None:
        return
    require("matplotlib.figure", extra="report")
    if path.suffix[1:].lower() not in _SUFFIXES:
        raise InputError(f"{path} is no name of a picture", hint=f"end it with .{', .'.join(_SUFFIXES)}")
    check_writable(path, what="picture")


def save_picture(path: Path, picture: Picture) -> None:
    """Write a picture as a file of its own, in the format that the name ends with (see `ready_to_draw`)."""
    out = io.BytesIO()
    suffix = path.suffix[1:].lower()
    made = {"Date": None} if suffix == "svg" else {"CreationDate": None} if suffix == "pdf" else {}
    with _look("treeopt"):
        picture.figure.savefig(out, format=suffix, dpi=200, facecolor=ink("page"), metadata=made)
    write_atomically(path, out.getvalue(), what="picture")

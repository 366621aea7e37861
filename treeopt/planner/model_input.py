"""The model that a search prices, with the routing that was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from treeopt.cost import Hardware, ModelShape, load_model
from treeopt.cost.formats import Dtype
from treeopt.cost.kernels.experts import MAX_SKEW
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.stand_ins import STAND_INS, WIDE_FORMATS
from treeopt.cost.model_config import name_of
from treeopt.cost.model_file import model_from
from treeopt.errors import InputError
from treeopt.files.documents import Document
from treeopt.files.shipped import locate
from treeopt.planner.names import DEFAULT_MODEL, Names


def priced_model(file: Document, names: Names) -> tuple[ModelShape, str | None]:
    """The model, and why it has no price: then it stands by its name alone beside the step times of a table.

    Raises:
        InputError: it has no price, and no table is given.
    """
    try:
        return _routed(model_from(file), names), None
    except InputError as error:
        if not isinstance(names.cost, str):
            raise
        shape = load_model(locate("models", DEFAULT_MODEL).path)
        return replace(shape, name=name_of(Path(file.name)), source=file.name), str(error)


def _routed(model: ModelShape, names: Names) -> ModelShape:
    """The model with the routing that was asked for."""
    skew, correlation = names.expert_skew, names.expert_correlation
    if skew is None and correlation is None:
        return model
    if model.experts is None:
        raise InputError(
            f"{model.name} has no experts to be skewed",
            hint="leave --expert-skew and --expert-correlation out",
        )
    if skew is not None and not 0.0 <= skew <= MAX_SKEW:
        raise InputError(f"an expert skew of {skew:g} is out of range", hint=f"give 0 (balanced) to {MAX_SKEW:g}")
    if correlation is not None and not 0.0 <= correlation <= 1.0:
        raise InputError(f"an expert correlation of {correlation:g} is out of range", hint="give 0 (none) to 1")
    experts = replace(
        model.experts,
        skew=model.experts.skew if skew is None else skew,
        correlation=model.experts.correlation if correlation is None else correlation,
    )
    return replace(model, experts=experts)


def default_dtype(hardware: Hardware, model: ModelShape) -> str:
    """The model's format; where the profile is of another 16-bit or wider one alone, as a processor's is, that one."""
    fits = hardware.fits
    if fits is None or model.dtype not in WIDE_FORMATS:
        return model.dtype
    own = Dtype(model.dtype)
    found = fits.get(Family.GEMM, *STAND_INS.get(own, (own,))) or fits.get(Family.GEMM, *WIDE_FORMATS)
    return model.dtype if found is None or found.dtype in STAND_INS else str(found.dtype)

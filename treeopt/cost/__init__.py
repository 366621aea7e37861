"""What a serving step costs: model shapes, hardware, drafters, kernel times, and the step that they add up to."""

from treeopt.cost.attention import GroupedAttention, LatentAttention
from treeopt.cost.base import StepCost
from treeopt.cost.datasheet import DatasheetTimes
from treeopt.cost.drafter import Drafter, DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, parse_drafter
from treeopt.cost.dtype import Dtype
from treeopt.cost.engine import EngineSteps
from treeopt.cost.experts import Experts
from treeopt.cost.hardware import Hardware, break_even_batch, load_hardware
from treeopt.cost.model import ModelShape, load_model
from treeopt.cost.step import ModelStep
from treeopt.cost.terms import ExpertVisits, StepTerms, Term, TermError, TermFactor
from treeopt.cost.timing import OperatorTimes
from treeopt.cost.window import Window

__all__ = [
    "DatasheetTimes",
    "DraftModel",
    "Drafter",
    "Dtype",
    "Eagle",
    "Eagle3",
    "EngineSteps",
    "ExpertVisits",
    "Experts",
    "GroupedAttention",
    "Hardware",
    "LatentAttention",
    "Medusa",
    "ModelShape",
    "ModelStep",
    "Mtp",
    "Ngram",
    "OperatorTimes",
    "StepCost",
    "StepTerms",
    "Term",
    "TermError",
    "TermFactor",
    "Window",
    "break_even_batch",
    "load_hardware",
    "load_model",
    "parse_drafter",
]

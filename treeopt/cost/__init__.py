"""What a serving step costs: model shapes, hardware, drafters, kernel times, and the step that they add up to."""

from treeopt.cost.block_drafters import BlockHead, BlockHeads, ParallelEagle, Pard
from treeopt.cost.drafter import Drafter, DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Suffix
from treeopt.cost.drafter_file import named_drafter, parse_drafter
from treeopt.cost.engine import EngineSteps
from treeopt.cost.formats import Dtype
from treeopt.cost.hardware import Hardware, break_even_batch, load_hardware
from treeopt.cost.kernels.attention import GroupedAttention, LatentAttention
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape, SlidingWindow
from treeopt.cost.model_file import load_model
from treeopt.cost.step import ModelStep
from treeopt.cost.step_cost import StepCost
from treeopt.cost.terms import ExpertVisits, StepTerms, Term, TermError, TermFactor

__all__ = [
    "BlockHead",
    "BlockHeads",
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
    "KernelTimes",
    "LatentAttention",
    "Medusa",
    "ModelShape",
    "ModelStep",
    "Mtp",
    "Ngram",
    "ParallelEagle",
    "Pard",
    "SlidingWindow",
    "StepCost",
    "StepTerms",
    "Suffix",
    "Term",
    "TermError",
    "TermFactor",
    "break_even_batch",
    "load_hardware",
    "load_model",
    "named_drafter",
    "parse_drafter",
]

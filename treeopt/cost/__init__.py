"""What a serving step costs: model shapes, hardware, drafters, and the roofline that prices them."""

from treeopt.cost.attention import GroupedAttention, LatentAttention
from treeopt.cost.base import StepCost
from treeopt.cost.drafter import Drafter, DraftModel, Eagle, Medusa, Mtp, Ngram, parse_drafter
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts
from treeopt.cost.hardware import Hardware, break_even_batch, load_hardware
from treeopt.cost.model import ModelShape, load_model
from treeopt.cost.step import RooflineStep, StepTerms

__all__ = [
    "DraftModel",
    "Drafter",
    "Dtype",
    "Eagle",
    "Experts",
    "GroupedAttention",
    "Hardware",
    "LatentAttention",
    "Medusa",
    "ModelShape",
    "Mtp",
    "Ngram",
    "RooflineStep",
    "StepCost",
    "StepTerms",
    "break_even_batch",
    "load_hardware",
    "load_model",
    "parse_drafter",
]

"""Importers: metrics, logs, benchmark results and accuracy tables of inference engines, as rank profiles."""

from treeopt.acceptance.importers.evidence import read_evidence
from treeopt.acceptance.importers.kinds import KINDS, ImportKind
from treeopt.acceptance.importers.reading import Imported, ImportedSource, KnownSum, Tally, Unplanned

__all__ = ["KINDS", "ImportKind", "Imported", "ImportedSource", "KnownSum", "Tally", "Unplanned", "read_evidence"]

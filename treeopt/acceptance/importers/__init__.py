"""Importers: metrics, logs, benchmark results and accuracy tables of inference engines, as rank profiles."""

from treeopt.acceptance.importers.evidence import read_evidence
from treeopt.acceptance.importers.kinds import KINDS, Kind
from treeopt.acceptance.importers.reading import Imported, KnownSum, Source, Tally, Unplanned

__all__ = ["KINDS", "Imported", "Kind", "KnownSum", "Source", "Tally", "Unplanned", "read_evidence"]

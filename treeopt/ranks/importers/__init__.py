"""Importers: metrics, logs, benchmark results and accuracy tables of inference engines, as rank profiles."""

from treeopt.ranks.importers.evidence import read_evidence
from treeopt.ranks.importers.kinds import KINDS, Kind
from treeopt.ranks.importers.reading import Imported, KnownSum, Source, Tally, Unplanned

__all__ = ["KINDS", "Imported", "Kind", "KnownSum", "Source", "Tally", "Unplanned", "read_evidence"]

"""Ranks recorded inside a serving engine: how far from right its drafter was where a draft was first wrong."""

"""Measured data shipped with treeopt: hardware, models and rank profiles."""

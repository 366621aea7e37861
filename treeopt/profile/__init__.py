"""Timing the kernels of a step on the device at hand."""

"""Step times that an engine served: read, checked, and fitted as constants on top of the kernels."""

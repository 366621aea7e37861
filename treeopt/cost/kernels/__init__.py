"""The kernels of a step: what each moves and computes, and how long that takes on one GPU."""

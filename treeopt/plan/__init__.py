"""The plan: one draft per range of batch sizes with its evidence, and its file."""

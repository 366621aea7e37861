"""The parts of `examples/profile_gpu.py`."""

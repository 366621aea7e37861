"""Tree-attention and KV-compaction kernels; importing this package needs torch, launching them needs Triton."""

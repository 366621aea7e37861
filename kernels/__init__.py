"""Tree-attention and KV-compaction kernels. None has landed yet; nothing in treeopt imports this package."""

"""What was measured about acceptance: depth-by-rank tables, path counts, traces, and f(v) from them."""

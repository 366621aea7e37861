"""The reference decoder: tree-speculative decoding, written to be read and checked against, not to be fast."""

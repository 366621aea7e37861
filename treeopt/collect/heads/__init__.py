"""Drafters that read the target's hidden states, each in its own forward, along a text that the target wrote."""

"""Fits through measured kernel times: rows read and checked, forms, what near shapes add, the held-out error."""

"""The search: candidates, their prices, the bound on every other draft, and the choice per range of batch sizes."""

"""Pictures of plans, comparisons and fits: drawn once, for a page or for a file of their own (extra `report`)."""

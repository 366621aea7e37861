"""From inputs to a plan, and every question about one: why, what else, what would change it."""

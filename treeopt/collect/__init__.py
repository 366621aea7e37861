"""Collecting rank traces: a target and a drafter run over prompts, and what the drafter guessed is written down."""

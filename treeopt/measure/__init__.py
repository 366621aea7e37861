"""Measuring the user's own server: step times by batch size and draft length, and what its drafter gets accepted."""

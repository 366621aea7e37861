"""The loop closed on this device: a plan's predictions beside what the reference decoder measures."""
